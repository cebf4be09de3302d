//! Code words of errors, and conversion to failure reports for peers.

use super::{CallError, FailureReport};

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
            Self::BudgetExceeded { .. } => "budget_exceeded",
            Self::RateExceeded { .. } => "rate_exceeded",
            Self::PinChanged { .. } => "pin_changed",
            Self::KeyConflict { .. } => "idempotency_conflict",
            Self::NotStored { .. } => "not_stored",
            Self::OutboxFull { .. } => "outbox_full",
            Self::BadOutput { .. } => "bad_output",
            Self::TooManyCalls { .. } => "too_many_calls",
            Self::ServerBusy { .. } | Self::QueuedTooLong { .. } => "server_busy",
            Self::Stopped { .. } | Self::ShuttingDown => "server_stopped",
            Self::Ejected { .. } => "server_ejected",
            Self::CircuitOpen { .. } => "circuit_open",
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
            Self::NotAMessage { .. } => "no_message",
            Self::ResponseTooLarge { .. } => "answer_too_large",
            Self::BadResponse { .. } => "bad_answer",
            Self::InputUnanswered { .. } => "input_unanswered",
            Self::Cancelled { .. } => "cancelled",
            Self::InputRefused { .. } => "input_refused",
            Self::InputLost => "input_lost",
            Self::RemoteFailure { .. } => "remote_error",
        }
    }

    /// Returns the report for a peer. A report of a remote failure is forwarded unchanged.
    #[must_use]
    pub fn to_failure_report(&self) -> FailureReport {
        match self {
            Self::RemoteFailure { failure, .. } => FailureReport::clone(failure),
            error => FailureReport {
                class: error.failure_class(),
                execution: error.execution_status(),
                retry: error.retry_advice(),
                origin: error.failure_origin(),
                code: error.code().into(),
                reason: error.to_string().into(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{ExecutionStatus, FailureClass, FailureOrigin, RetryAdvice};
    use super::*;

    #[test]
    fn report_copies_error_and_forwards_remote_failure() {
        let error = CallError::UnknownServer { server: "s".into() };
        let own = error.to_failure_report();
        assert_eq!(&*own.code, "server_not_found");
        assert_eq!(own.class, FailureClass::NotFound);
        assert_eq!(own.execution, ExecutionStatus::NotStarted);
        assert_eq!(*own.reason, error.to_string());
        let theirs = FailureReport {
            class: FailureClass::Timeout,
            execution: ExecutionStatus::Unknown,
            retry: RetryAdvice::Never,
            origin: FailureOrigin::Broker,
            code: "expired".into(),
            reason: "too late".into(),
        };
        let error = CallError::RemoteFailure {
            server: "s".into(),
            failure: Arc::new(theirs.clone()),
        };
        assert_eq!(error.to_failure_report(), theirs);
    }
}
