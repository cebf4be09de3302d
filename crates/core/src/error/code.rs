//! The code word of an error, and the whole of it as a peer is told.

use super::{CallError, Failure};

impl CallError {
    /// Returns the code word, as in `docs/errors`.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::UnknownServer { .. } => "server_not_found",
            Self::UnknownTool { .. } => "tool_not_found",
            Self::UnknownPrompt { .. } => "prompt_not_found",
            Self::UnknownResource { .. } => "resource_not_found",
            Self::UnknownTask { .. } => "task_not_found",
            Self::AmbiguousTask { .. } => "task_ambiguous",
            Self::TooManySubscriptions { .. } => "too_many_subscriptions",
            Self::ShareExceeded { .. } => "share_exceeded",
            Self::SessionEnded { .. } => "session_ended",
            Self::Refused { .. } => "server_refused",
            Self::HeaderMismatch { .. } => "header_mismatch",
            Self::AmbiguousNames { .. } => "ambiguous_names",
            Self::Denied { .. } => "policy_denied",
            Self::BudgetSpent { .. } => "budget_exceeded",
            Self::TooFast { .. } => "rate_exceeded",
            Self::PinChanged { .. } => "pin_changed",
            Self::KeyConflict { .. } => "idempotency_conflict",
            Self::NotStored { .. } => "not_stored",
            Self::OutboxFull { .. } => "outbox_full",
            Self::BadOutput { .. } => "bad_output",
            Self::TooManyCalls { .. } => "too_many_calls",
            Self::ServerBusy { .. } | Self::QueuedTooLong { .. } => "server_busy",
            Self::Stopped { .. } | Self::ShuttingDown => "server_stopped",
            Self::Ejected { .. } => "server_ejected",
            Self::Resting { .. } => "server_resting",
            Self::StartFailed { .. } => "start_failed",
            Self::ProgramNotFound { .. } => "program_not_found",
            Self::StartTimeout { .. } => "start_timeout",
            Self::SendFailed { .. } => "send_failed",
            Self::ConnectionLost { .. } => "connection_lost",
            Self::Timeout { .. } => "timeout",
            Self::AuthRequired { .. } => "auth_required",
            Self::ScopeRequired { .. } => "scope_required",
            Self::Throttled { .. } => "throttled",
            Self::HttpStatus { .. } => "http_status",
            Self::NoMessage { .. } => "no_message",
            Self::AnswerTooLarge { .. } => "answer_too_large",
            Self::BadAnswer { .. } => "bad_answer",
            Self::InputUnanswered { .. } => "input_unanswered",
            Self::Cancelled { .. } => "cancelled",
            Self::InputRefused { .. } => "input_refused",
            Self::InputLost => "input_lost",
            Self::Elsewhere { .. } => "elsewhere",
        }
    }

    /// Returns it as a peer is told. What another peer said is passed on as it is.
    #[must_use]
    pub fn to_failure(&self) -> Failure {
        match self {
            Self::Elsewhere { failure, .. } => Failure::clone(failure),
            error => Failure {
                class: error.class(),
                execution: error.execution(),
                retry: error.retry(),
                origin: error.origin(),
                code: error.code().into(),
                reason: error.to_string().into(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Class, Execution, Origin, Retry};
    use super::*;

    #[test]
    fn a_failure_says_all_that_the_error_says_and_another_s_is_passed_on() {
        let error = CallError::UnknownServer { server: "s".into() };
        let own = error.to_failure();
        assert_eq!(&*own.code, "server_not_found");
        assert_eq!(own.class, Class::NotFound);
        assert_eq!(own.execution, Execution::NotStarted);
        assert_eq!(*own.reason, error.to_string());
        let theirs = Failure {
            class: Class::Timeout,
            execution: Execution::Unknown,
            retry: Retry::Never,
            origin: Origin::Broker,
            code: "expired".into(),
            reason: "too late".into(),
        };
        let error = CallError::Elsewhere {
            server: "s".into(),
            failure: Arc::new(theirs.clone()),
        };
        assert_eq!(error.to_failure(), theirs);
    }
}
