//! What an error means to machines: its class, whether the tool ran, whether to repeat it.

use crate::call::TimeLimit;

use super::{CallError, Class, Execution, Origin, Retry};

impl CallError {
    /// Returns the class, by which machines decide.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::UnknownServer { .. }
            | Self::UnknownTool { .. }
            | Self::UnknownPrompt { .. }
            | Self::UnknownResource { .. }
            | Self::UnknownTask { .. } => Class::NotFound,
            Self::AmbiguousTask { .. }
            | Self::KeyConflict { .. }
            | Self::InputRefused { .. }
            | Self::HeaderMismatch { .. }
            | Self::AmbiguousNames { .. } => Class::Invalid,
            Self::InputLost => Class::ConnectionLost,
            Self::Denied { .. } | Self::BudgetSpent { .. } | Self::PinChanged { .. } => {
                Class::Denied
            }
            Self::TooManyCalls { .. }
            | Self::TooFast { .. }
            | Self::ServerBusy { .. }
            | Self::QueuedTooLong { .. }
            | Self::TooManySubscriptions { .. }
            | Self::ShareExceeded { .. }
            | Self::OutboxFull { .. }
            | Self::Throttled { .. } => Class::Throttled,
            Self::Stopped { .. }
            | Self::Ejected { .. }
            | Self::Resting { .. }
            | Self::StartTimeout { .. }
            | Self::NotStored { .. }
            | Self::ShuttingDown => Class::Unavailable,
            Self::StartFailed { .. } | Self::ProgramNotFound { .. } => Class::ConnectFailed,
            Self::SendFailed { .. } => Class::SendFailed,
            Self::ConnectionLost { .. } => Class::ConnectionLost,
            Self::AuthRequired { .. } => Class::AuthRequired,
            Self::ScopeRequired { .. } => Class::ScopeRequired,
            // A gateway says so when it lost the server, and a server when it lost its way.
            Self::HttpStatus {
                status: 408 | 500..,
                ..
            } => Class::ConnectionLost,
            Self::Timeout { .. } => Class::Timeout,
            Self::AnswerTooLarge { .. } => Class::Truncated,
            Self::BadAnswer { .. }
            | Self::BadOutput { .. }
            | Self::InputUnanswered { .. }
            | Self::Refused { .. }
            | Self::NoMessage { .. }
            | Self::HttpStatus { .. } => Class::ProtocolError,
            Self::Cancelled { .. } | Self::SessionEnded { .. } => Class::Cancelled,
            Self::Elsewhere { failure, .. } => failure.class,
        }
    }

    /// Whether it speaks against the server's health. What we throttle ourselves does not; what
    /// the server throttles does.
    #[must_use]
    pub fn counts_against_server(&self) -> bool {
        match self {
            Self::Throttled { .. } => true,
            // A deadline shorter than the server's limit shows nothing about the server.
            Self::Timeout { limit, .. } => *limit == TimeLimit::Server,
            // Whoever has the server judges it; and that we went down is no fault of it.
            Self::Elsewhere { .. } | Self::InputLost => false,
            other => other.class().counts_against_server(),
        }
    }

    /// Returns what is known about whether the tool ran.
    #[must_use]
    pub fn execution(&self) -> Execution {
        match self {
            Self::Timeout { execution, .. }
            | Self::Throttled { execution, .. }
            | Self::InputRefused { execution, .. }
            | Self::ShareExceeded { execution, .. }
            | Self::SessionEnded { execution }
            | Self::Cancelled { execution } => *execution,
            Self::Elsewhere { failure, .. } => failure.execution,
            // What comes in place of an answer may come after the request went through.
            Self::ConnectionLost { .. }
            | Self::HttpStatus { .. }
            | Self::NoMessage { .. }
            | Self::InputUnanswered { .. }
            | Self::InputLost => Execution::Unknown,
            Self::AnswerTooLarge { .. }
            | Self::BadAnswer { .. }
            | Self::BadOutput { .. }
            | Self::Refused { .. } => Execution::Completed,
            Self::UnknownServer { .. }
            | Self::UnknownTool { .. }
            | Self::UnknownPrompt { .. }
            | Self::UnknownResource { .. }
            | Self::UnknownTask { .. }
            | Self::HeaderMismatch { .. }
            | Self::AmbiguousNames { .. }
            | Self::AmbiguousTask { .. }
            | Self::TooManySubscriptions { .. }
            | Self::Denied { .. }
            | Self::BudgetSpent { .. }
            | Self::TooFast { .. }
            | Self::PinChanged { .. }
            | Self::KeyConflict { .. }
            | Self::NotStored { .. }
            | Self::OutboxFull { .. }
            | Self::TooManyCalls { .. }
            | Self::ServerBusy { .. }
            | Self::QueuedTooLong { .. }
            | Self::Stopped { .. }
            | Self::Ejected { .. }
            | Self::Resting { .. }
            | Self::StartFailed { .. }
            | Self::ProgramNotFound { .. }
            | Self::StartTimeout { .. }
            | Self::SendFailed { .. }
            | Self::AuthRequired { .. }
            | Self::ScopeRequired { .. }
            | Self::ShuttingDown => Execution::NotStarted,
        }
    }

    /// Returns whether trying again makes sense.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Resting { rest, .. } => Retry::After(*rest),
            Self::Elsewhere { failure, .. } => failure.retry,
            Self::TooFast { after, .. }
            | Self::BudgetSpent {
                after: Some(after), ..
            } => Retry::After(*after),
            Self::StartFailed { next, .. } | Self::ProgramNotFound { next, .. } => {
                Retry::After(*next)
            }
            Self::TooManyCalls { .. }
            | Self::ServerBusy { .. }
            | Self::QueuedTooLong { .. }
            | Self::OutboxFull { .. }
            | Self::StartTimeout { .. }
            | Self::SendFailed { .. }
            | Self::ShuttingDown => Retry::Safe,
            Self::Throttled {
                execution: Execution::NotStarted,
                after: Some(after),
                ..
            } => Retry::After(*after),
            Self::Timeout { execution, .. }
            | Self::Throttled { execution, .. }
            | Self::ShareExceeded { execution, .. } => match execution {
                Execution::NotStarted => Retry::Safe,
                Execution::Unknown | Execution::Completed => Retry::Never,
            },
            Self::UnknownServer { .. }
            | Self::UnknownTool { .. }
            | Self::UnknownPrompt { .. }
            | Self::UnknownResource { .. }
            | Self::UnknownTask { .. }
            | Self::HeaderMismatch { .. }
            | Self::AmbiguousNames { .. }
            | Self::AmbiguousTask { .. }
            | Self::TooManySubscriptions { .. }
            | Self::Denied { .. }
            | Self::BudgetSpent { .. }
            | Self::PinChanged { .. }
            | Self::KeyConflict { .. }
            | Self::NotStored { .. }
            | Self::Stopped { .. }
            | Self::Ejected { .. }
            | Self::ConnectionLost { .. }
            | Self::AuthRequired { .. }
            | Self::ScopeRequired { .. }
            | Self::HttpStatus { .. }
            | Self::NoMessage { .. }
            | Self::AnswerTooLarge { .. }
            | Self::BadAnswer { .. }
            | Self::BadOutput { .. }
            | Self::InputUnanswered { .. }
            | Self::Refused { .. }
            | Self::InputRefused { .. }
            | Self::InputLost
            | Self::SessionEnded { .. }
            | Self::Cancelled { .. } => Retry::Never,
        }
    }

    /// Returns where the failure arose.
    #[must_use]
    pub fn origin(&self) -> Origin {
        match self {
            Self::Denied { .. }
            | Self::BudgetSpent { .. }
            | Self::TooFast { .. }
            | Self::PinChanged { .. } => Origin::Policy,
            Self::Elsewhere { failure, .. } => failure.origin,
            Self::StartFailed { .. }
            | Self::ProgramNotFound { .. }
            | Self::StartTimeout { .. }
            | Self::AuthRequired { .. }
            | Self::ScopeRequired { .. }
            | Self::Throttled { .. }
            | Self::HttpStatus { .. }
            | Self::NoMessage { .. }
            | Self::AnswerTooLarge { .. }
            | Self::BadAnswer { .. }
            | Self::BadOutput { .. }
            | Self::InputUnanswered { .. }
            | Self::Refused { .. } => Origin::Upstream,
            Self::SendFailed { .. } | Self::ConnectionLost { .. } | Self::Timeout { .. } => {
                Origin::Transport
            }
            Self::UnknownServer { .. }
            | Self::UnknownTool { .. }
            | Self::UnknownPrompt { .. }
            | Self::UnknownResource { .. }
            | Self::UnknownTask { .. }
            | Self::HeaderMismatch { .. }
            | Self::AmbiguousNames { .. }
            | Self::AmbiguousTask { .. }
            | Self::TooManySubscriptions { .. }
            | Self::TooManyCalls { .. }
            | Self::KeyConflict { .. }
            | Self::NotStored { .. }
            | Self::OutboxFull { .. }
            | Self::ServerBusy { .. }
            | Self::QueuedTooLong { .. }
            | Self::Stopped { .. }
            | Self::Ejected { .. }
            | Self::Resting { .. }
            | Self::Cancelled { .. }
            | Self::ShareExceeded { .. }
            | Self::SessionEnded { .. }
            | Self::InputRefused { .. }
            | Self::InputLost
            | Self::ShuttingDown => Origin::Gateway,
        }
    }
}
