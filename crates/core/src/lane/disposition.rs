//! Disposition of a write after a failure: wait, refuse, or executed.

use std::time::Duration;

use crate::error::{CallError, ExecutionStatus, FailureClass, is_gateway_status};

/// Upper bound of a server's `Retry-After`.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(60 * 60);

/// Disposition of a write without a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteDisposition {
    /// Server unreachable: retry later, after the server's `Retry-After` if given.
    Wait(Option<Duration>),
    /// Refused or rejected; a retry would fail the same way.
    Refused,
    /// Executed, but the result is unusable.
    Executed,
}

/// Returns the disposition of a write with a waiting caller.
///
/// Only failures that look like an outage queue the write; a response is passed on as received.
#[must_use]
pub fn on_live_error(error: &CallError) -> WriteDisposition {
    match error {
        CallError::HttpStatus { status, .. } if is_gateway_status(*status) => {
            WriteDisposition::Wait(None)
        }
        CallError::HttpStatus { .. } | CallError::NotStored { .. } => WriteDisposition::Refused,
        CallError::Throttled { after, .. } => WriteDisposition::Wait(cap_retry_after(*after)),
        CallError::ServerBusy { .. } | CallError::QueuedTooLong { .. } => {
            WriteDisposition::Wait(None)
        }
        CallError::CircuitOpen { cooldown, .. } => WriteDisposition::Wait(Some(*cooldown)),
        CallError::StartFailed { retry_after, .. }
        | CallError::ProgramNotFound { retry_after, .. } => {
            WriteDisposition::Wait(Some(*retry_after))
        }
        other => match other.failure_class() {
            FailureClass::Unavailable
            | FailureClass::ConnectFailed
            | FailureClass::SendFailed
            | FailureClass::ConnectionLost
            | FailureClass::Timeout => WriteDisposition::Wait(None),
            FailureClass::Denied
            | FailureClass::NotFound
            | FailureClass::Invalid
            | FailureClass::AuthRequired
            | FailureClass::ScopeRequired
            | FailureClass::Throttled
            | FailureClass::ProtocolError
            | FailureClass::Truncated
            | FailureClass::Cancelled => match other.execution_status() {
                ExecutionStatus::Completed => WriteDisposition::Executed,
                ExecutionStatus::NotStarted | ExecutionStatus::Unknown => WriteDisposition::Refused,
            },
        },
    }
}

/// Returns the disposition of a queued write. Failures that may resolve are retried, such as an
/// expired credential or a server missing from the configuration.
#[must_use]
pub fn on_replay_error(error: &CallError) -> WriteDisposition {
    match error {
        CallError::HttpStatus {
            status: 408 | 429 | 500..,
            ..
        }
        | CallError::AuthRequired { .. }
        | CallError::ScopeRequired { .. }
        | CallError::UnknownServer { .. }
        | CallError::TooManyCalls { .. } => WriteDisposition::Wait(None),
        CallError::RateExceeded { after, .. } => WriteDisposition::Wait(Some(*after)),
        other => on_live_error(other),
    }
}

/// Whether a limit of this gateway stopped the write, so that the failure says nothing about the
/// server.
#[must_use]
pub const fn is_gateway_limit(error: &CallError) -> bool {
    matches!(
        error,
        CallError::ServerBusy { .. }
            | CallError::QueuedTooLong { .. }
            | CallError::TooManyCalls { .. }
            | CallError::RateExceeded { .. }
    )
}

/// Whether the write may have caused the failure: the server received the write and did not
/// respond. Statements of the server about itself (502 to 504, throttling) do not count.
#[must_use]
pub fn may_be_poison(error: &CallError) -> bool {
    match error {
        CallError::HttpStatus { status, .. } => !is_gateway_status(*status),
        CallError::Throttled { .. } => false,
        other => other.execution_status() != ExecutionStatus::NotStarted,
    }
}

const fn cap_retry_after(after: Option<Duration>) -> Option<Duration> {
    match after {
        Some(after) if after.as_millis() > RETRY_AFTER_MAX.as_millis() => Some(RETRY_AFTER_MAX),
        after => after,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::time::TimeLimit;

    const WAIT: WriteDisposition = WriteDisposition::Wait(None);

    fn server() -> Arc<str> {
        "s".into()
    }

    fn status(status: u16) -> CallError {
        CallError::HttpStatus {
            server: server(),
            status,
            reason: "said so".into(),
        }
    }

    #[track_caller]
    fn assert_dispositions(
        error: &CallError,
        live_is: WriteDisposition,
        replayed_is: WriteDisposition,
    ) {
        assert_eq!(on_live_error(error), live_is, "live: {error}");
        assert_eq!(on_replay_error(error), replayed_is, "replayed: {error}");
    }

    #[test]
    fn only_gateway_statuses_queue_live_write() {
        for code in [502, 503, 504] {
            assert_dispositions(&status(code), WAIT, WAIT);
        }
        for code in [408, 429, 500, 501, 505] {
            assert_dispositions(&status(code), WriteDisposition::Refused, WAIT);
        }
        for code in [400, 404, 409, 410, 422] {
            assert_dispositions(
                &status(code),
                WriteDisposition::Refused,
                WriteDisposition::Refused,
            );
        }
    }

    #[test]
    fn poison_requires_delivery_to_server() {
        let (server, reason) = (server(), Arc::<str>::from("gone"));
        let late = CallError::Timeout {
            server: Arc::clone(&server),
            after_ms: 1,
            execution: ExecutionStatus::Unknown,
            limit: TimeLimit::Server,
        };
        let lost = CallError::ConnectionLost {
            server: Arc::clone(&server),
            reason: Arc::clone(&reason),
            generation: None,
        };
        let unsent = CallError::SendFailed {
            server: Arc::clone(&server),
            reason,
        };
        let busy = CallError::ServerBusy { server, limit: 1 };
        for (error, poison, own) in [
            (status(500), true, false),
            (status(503), false, false),
            (late, true, false),
            (lost, true, false),
            (unsent, false, false),
            (busy, false, true),
        ] {
            assert_eq!(may_be_poison(&error), poison, "{error}");
            assert_eq!(is_gateway_limit(&error), own, "{error}");
        }
    }

    #[test]
    fn outage_makes_write_wait() {
        let (server, reason) = (server(), Arc::<str>::from("gone"));
        let cooldown = Duration::from_secs(9);
        let lost = CallError::ConnectionLost {
            server: Arc::clone(&server),
            reason: Arc::clone(&reason),
            generation: None,
        };
        let unsent = CallError::SendFailed {
            server: Arc::clone(&server),
            reason: Arc::clone(&reason),
        };
        let late = CallError::Timeout {
            server: Arc::clone(&server),
            after_ms: 1,
            execution: ExecutionStatus::Unknown,
            limit: TimeLimit::Server,
        };
        let stopped = CallError::Stopped {
            server: Arc::clone(&server),
        };
        for error in [&lost, &unsent, &late, &stopped, &CallError::ShuttingDown] {
            assert_dispositions(error, WAIT, WAIT);
        }
        let resting = CallError::CircuitOpen {
            server: Arc::clone(&server),
            cooldown,
        };
        assert_dispositions(
            &resting,
            WriteDisposition::Wait(Some(cooldown)),
            WriteDisposition::Wait(Some(cooldown)),
        );
        let throttled = |after| CallError::Throttled {
            server: Arc::clone(&server),
            status: 429,
            after,
            execution: ExecutionStatus::NotStarted,
        };
        let said = WriteDisposition::Wait(Some(cooldown));
        assert_dispositions(&throttled(Some(cooldown)), said, said);
        let long = WriteDisposition::Wait(Some(RETRY_AFTER_MAX));
        assert_dispositions(&throttled(Some(RETRY_AFTER_MAX * 9)), long, long);
    }

    #[test]
    fn refused_credential_delays_only_queued_write() {
        let error = CallError::AuthRequired {
            server: server(),
            challenge: None,
        };
        assert_dispositions(&error, WriteDisposition::Refused, WAIT);
        let error = CallError::ScopeRequired {
            server: server(),
            challenge: None,
        };
        assert_dispositions(&error, WriteDisposition::Refused, WAIT);
    }

    #[test]
    fn policy_and_catalog_errors_are_final() {
        let denied = CallError::Denied {
            principal: "p".into(),
            server: server(),
            name: "t".into(),
            reason: "no".into(),
        };
        let gone = CallError::UnknownTool { tool: "t".into() };
        let changed = CallError::PinChanged {
            server: server(),
            tool: "t".into(),
        };
        for error in [denied, gone, changed] {
            assert_dispositions(&error, WriteDisposition::Refused, WriteDisposition::Refused);
        }
        let odd = CallError::BadOutput {
            server: server(),
            tool: "t".into(),
            reason: "odd".into(),
        };
        assert_dispositions(&odd, WriteDisposition::Executed, WriteDisposition::Executed);
    }
}
