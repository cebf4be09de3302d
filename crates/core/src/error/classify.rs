//! Classifies errors for machines: class, execution status, retry advice, origin.

use crate::time::TimeLimit;

use super::{CallError, ExecutionStatus, FailureClass, FailureOrigin, RetryAdvice};

impl CallError {
    /// Returns the failure class, the basis of automatic decisions.
    #[must_use]
    pub fn failure_class(&self) -> FailureClass {
        match self {
            Self::UnknownServer { .. }
            | Self::UnknownTool { .. }
            | Self::UnknownPrompt { .. }
            | Self::UnknownResource { .. }
            | Self::UnknownTask { .. } => FailureClass::NotFound,
            Self::AmbiguousTask { .. }
            | Self::KeyConflict { .. }
            | Self::InputRefused { .. }
            | Self::HeaderMismatch { .. }
            | Self::AmbiguousNames { .. } => FailureClass::Invalid,
            Self::InputLost => FailureClass::ConnectionLost,
            Self::Denied { .. } | Self::BudgetExceeded { .. } | Self::PinChanged { .. } => {
                FailureClass::Denied
            }
            Self::TooManyCalls { .. }
            | Self::RateExceeded { .. }
            | Self::ServerBusy { .. }
            | Self::QueuedTooLong { .. }
            | Self::TooManySubscriptions { .. }
            | Self::ShareExceeded { .. }
            | Self::OutboxFull { .. }
            | Self::Throttled { .. } => FailureClass::Throttled,
            Self::Stopped { .. }
            | Self::Ejected { .. }
            | Self::CircuitOpen { .. }
            | Self::StartTimeout { .. }
            | Self::NotStored { .. }
            | Self::ShuttingDown => FailureClass::Unavailable,
            Self::StartFailed { .. } | Self::ProgramNotFound { .. } => FailureClass::ConnectFailed,
            Self::SendFailed { .. } => FailureClass::SendFailed,
            Self::ConnectionLost { .. } => FailureClass::ConnectionLost,
            Self::AuthRequired { .. } => FailureClass::AuthRequired,
            Self::ScopeRequired { .. } => FailureClass::ScopeRequired,
            // Proxies use these statuses for a lost server, servers for internal failures.
            Self::HttpStatus {
                status: 408 | 500..,
                ..
            } => FailureClass::ConnectionLost,
            Self::Timeout { .. } => FailureClass::Timeout,
            Self::ResponseTooLarge { .. } => FailureClass::Truncated,
            Self::BadResponse { .. }
            | Self::BadOutput { .. }
            | Self::InputUnanswered { .. }
            | Self::Refused { .. }
            | Self::NotAMessage { .. }
            | Self::HttpStatus { .. } => FailureClass::ProtocolError,
            Self::Cancelled { .. } | Self::SessionEnded { .. } => FailureClass::Cancelled,
            Self::RemoteFailure { failure, .. } => failure.class,
        }
    }

    /// Whether the error counts against the server's health. Throttling by the gateway does not;
    /// throttling by the server does.
    #[must_use]
    pub fn counts_against_server(&self) -> bool {
        match self {
            Self::Throttled { .. } => true,
            // A client deadline shorter than the server's timeout proves nothing about the server.
            Self::Timeout { limit, .. } => *limit == TimeLimit::Server,
            // The peer tracks the health of a remote server; a gateway restart is no server fault.
            Self::RemoteFailure { .. } | Self::InputLost => false,
            other => other.failure_class().counts_against_server(),
        }
    }

    /// Returns whether the tool ran, as far as known.
    #[must_use]
    pub fn execution_status(&self) -> ExecutionStatus {
        match self {
            Self::Timeout { execution, .. }
            | Self::Throttled { execution, .. }
            | Self::InputRefused { execution, .. }
            | Self::ShareExceeded { execution, .. }
            | Self::SessionEnded { execution }
            | Self::Cancelled { execution } => *execution,
            Self::RemoteFailure { failure, .. } => failure.execution,
            // The request may have been processed before such a response.
            Self::ConnectionLost { .. }
            | Self::HttpStatus { .. }
            | Self::NotAMessage { .. }
            | Self::InputUnanswered { .. }
            | Self::InputLost => ExecutionStatus::Unknown,
            Self::ResponseTooLarge { .. }
            | Self::BadResponse { .. }
            | Self::BadOutput { .. }
            | Self::Refused { .. } => ExecutionStatus::Completed,
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
            | Self::BudgetExceeded { .. }
            | Self::RateExceeded { .. }
            | Self::PinChanged { .. }
            | Self::KeyConflict { .. }
            | Self::NotStored { .. }
            | Self::OutboxFull { .. }
            | Self::TooManyCalls { .. }
            | Self::ServerBusy { .. }
            | Self::QueuedTooLong { .. }
            | Self::Stopped { .. }
            | Self::Ejected { .. }
            | Self::CircuitOpen { .. }
            | Self::StartFailed { .. }
            | Self::ProgramNotFound { .. }
            | Self::StartTimeout { .. }
            | Self::SendFailed { .. }
            | Self::AuthRequired { .. }
            | Self::ScopeRequired { .. }
            | Self::ShuttingDown => ExecutionStatus::NotStarted,
        }
    }

    /// Returns the retry advice.
    #[must_use]
    pub fn retry_advice(&self) -> RetryAdvice {
        match self {
            Self::CircuitOpen { cooldown, .. } => RetryAdvice::After(*cooldown),
            Self::RemoteFailure { failure, .. } => failure.retry,
            Self::RateExceeded { after, .. }
            | Self::BudgetExceeded {
                after: Some(after), ..
            } => RetryAdvice::After(*after),
            Self::StartFailed { retry_after, .. } | Self::ProgramNotFound { retry_after, .. } => {
                RetryAdvice::After(*retry_after)
            }
            Self::TooManyCalls { .. }
            | Self::ServerBusy { .. }
            | Self::QueuedTooLong { .. }
            | Self::OutboxFull { .. }
            | Self::StartTimeout { .. }
            | Self::SendFailed { .. }
            | Self::ShuttingDown => RetryAdvice::Safe,
            Self::Throttled {
                execution: ExecutionStatus::NotStarted,
                after: Some(after),
                ..
            } => RetryAdvice::After(*after),
            Self::Timeout { execution, .. }
            | Self::Throttled { execution, .. }
            | Self::ShareExceeded { execution, .. } => match execution {
                ExecutionStatus::NotStarted => RetryAdvice::Safe,
                ExecutionStatus::Unknown | ExecutionStatus::Completed => RetryAdvice::Never,
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
            | Self::BudgetExceeded { .. }
            | Self::PinChanged { .. }
            | Self::KeyConflict { .. }
            | Self::NotStored { .. }
            | Self::Stopped { .. }
            | Self::Ejected { .. }
            | Self::ConnectionLost { .. }
            | Self::AuthRequired { .. }
            | Self::ScopeRequired { .. }
            | Self::HttpStatus { .. }
            | Self::NotAMessage { .. }
            | Self::ResponseTooLarge { .. }
            | Self::BadResponse { .. }
            | Self::BadOutput { .. }
            | Self::InputUnanswered { .. }
            | Self::Refused { .. }
            | Self::InputRefused { .. }
            | Self::InputLost
            | Self::SessionEnded { .. }
            | Self::Cancelled { .. } => RetryAdvice::Never,
        }
    }

    /// Returns the origin of the failure.
    #[must_use]
    pub fn failure_origin(&self) -> FailureOrigin {
        match self {
            Self::Denied { .. }
            | Self::BudgetExceeded { .. }
            | Self::RateExceeded { .. }
            | Self::PinChanged { .. } => FailureOrigin::Policy,
            Self::RemoteFailure { failure, .. } => failure.origin,
            Self::StartFailed { .. }
            | Self::ProgramNotFound { .. }
            | Self::StartTimeout { .. }
            | Self::AuthRequired { .. }
            | Self::ScopeRequired { .. }
            | Self::Throttled { .. }
            | Self::HttpStatus { .. }
            | Self::NotAMessage { .. }
            | Self::ResponseTooLarge { .. }
            | Self::BadResponse { .. }
            | Self::BadOutput { .. }
            | Self::InputUnanswered { .. }
            | Self::Refused { .. } => FailureOrigin::Upstream,
            Self::SendFailed { .. } | Self::ConnectionLost { .. } | Self::Timeout { .. } => {
                FailureOrigin::Transport
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
            | Self::CircuitOpen { .. }
            | Self::Cancelled { .. }
            | Self::ShareExceeded { .. }
            | Self::SessionEnded { .. }
            | Self::InputRefused { .. }
            | Self::InputLost
            | Self::ShuttingDown => FailureOrigin::Gateway,
        }
    }
}
