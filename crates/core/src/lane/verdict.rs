//! What a failure does to a write: it waits, it is told, or it ran.

use std::time::Duration;

use crate::error::{CallError, Class, Execution, is_away};

/// No server makes a write wait longer than this before it is tried again.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(60 * 60);

/// What becomes of a write that has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its server was away: it waits, and for so long at least where the server said so.
    Wait(Option<Duration>),
    /// It was answered or refused, and would be again.
    Refused,
    /// It ran, but what came of it is of no use.
    Ran,
}

/// Says what a failure does to a write that its caller waits for.
///
/// Only what looks like an outage queues it: anything that is an answer is told as it is.
#[must_use]
pub fn live(error: &CallError) -> Verdict {
    match error {
        CallError::HttpStatus { status, .. } if is_away(*status) => Verdict::Wait(None),
        CallError::HttpStatus { .. } | CallError::NotStored { .. } => Verdict::Refused,
        CallError::Throttled { after, .. } => Verdict::Wait(bounded(*after)),
        CallError::ServerBusy { .. } | CallError::QueuedTooLong { .. } => Verdict::Wait(None),
        CallError::Resting { rest, .. } => Verdict::Wait(Some(*rest)),
        CallError::StartFailed { next, .. } | CallError::ProgramNotFound { next, .. } => {
            Verdict::Wait(Some(*next))
        }
        other => match other.class() {
            Class::Unavailable
            | Class::ConnectFailed
            | Class::SendFailed
            | Class::ConnectionLost
            | Class::Timeout => Verdict::Wait(None),
            Class::Denied
            | Class::NotFound
            | Class::Invalid
            | Class::AuthRequired
            | Class::ScopeRequired
            | Class::Throttled
            | Class::ProtocolError
            | Class::Truncated
            | Class::Cancelled => match other.execution() {
                Execution::Completed => Verdict::Ran,
                Execution::NotStarted | Execution::Unknown => Verdict::Refused,
            },
        },
    }
}

/// Says what a failure does to a write that was queued: what may pass is waited for, be it a
/// credential that is renewed or a server that is configured again.
#[must_use]
pub fn replayed(error: &CallError) -> Verdict {
    match error {
        CallError::HttpStatus {
            status: 408 | 429 | 500..,
            ..
        }
        | CallError::AuthRequired { .. }
        | CallError::ScopeRequired { .. }
        | CallError::UnknownServer { .. }
        | CallError::TooManyCalls { .. } => Verdict::Wait(None),
        CallError::TooFast { after, .. } => Verdict::Wait(Some(*after)),
        other => live(other),
    }
}

/// Whether a failure says nothing of the server: a limit of this gateway stopped the write.
#[must_use]
pub const fn is_own_limit(error: &CallError) -> bool {
    matches!(
        error,
        CallError::ServerBusy { .. }
            | CallError::QueuedTooLong { .. }
            | CallError::TooManyCalls { .. }
            | CallError::TooFast { .. }
    )
}

/// Whether a failure may be the fault of the write: its server got it, and did not answer it.
/// What the server says of itself (502 to 504, throttling) is not.
#[must_use]
pub fn may_be_poison(error: &CallError) -> bool {
    match error {
        CallError::HttpStatus { status, .. } => !is_away(*status),
        CallError::Throttled { .. } => false,
        other => other.execution() != Execution::NotStarted,
    }
}

const fn bounded(after: Option<Duration>) -> Option<Duration> {
    match after {
        Some(after) if after.as_millis() > RETRY_AFTER_MAX.as_millis() => Some(RETRY_AFTER_MAX),
        after => after,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::call::TimeLimit;

    const WAIT: Verdict = Verdict::Wait(None);

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
    fn check(error: &CallError, live_is: Verdict, replayed_is: Verdict) {
        assert_eq!(live(error), live_is, "live: {error}");
        assert_eq!(replayed(error), replayed_is, "replayed: {error}");
    }

    #[test]
    fn of_statuses_only_those_of_a_gateway_without_its_server_queue_a_live_write() {
        for code in [502, 503, 504] {
            check(&status(code), WAIT, WAIT);
        }
        for code in [408, 429, 500, 501, 505] {
            check(&status(code), Verdict::Refused, WAIT);
        }
        for code in [400, 404, 409, 410, 422] {
            check(&status(code), Verdict::Refused, Verdict::Refused);
        }
    }

    #[test]
    fn poison_needs_server_that_got_write() {
        let (server, reason) = (server(), Arc::<str>::from("gone"));
        let late = CallError::Timeout {
            server: Arc::clone(&server),
            after_ms: 1,
            execution: Execution::Unknown,
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
            assert_eq!(is_own_limit(&error), own, "{error}");
        }
    }

    #[test]
    fn an_outage_makes_a_write_wait() {
        let (server, reason) = (server(), Arc::<str>::from("gone"));
        let rest = Duration::from_secs(9);
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
            execution: Execution::Unknown,
            limit: TimeLimit::Server,
        };
        let stopped = CallError::Stopped {
            server: Arc::clone(&server),
        };
        for error in [&lost, &unsent, &late, &stopped, &CallError::ShuttingDown] {
            check(error, WAIT, WAIT);
        }
        let resting = CallError::Resting {
            server: Arc::clone(&server),
            rest,
        };
        check(
            &resting,
            Verdict::Wait(Some(rest)),
            Verdict::Wait(Some(rest)),
        );
        let throttled = |after| CallError::Throttled {
            server: Arc::clone(&server),
            status: 429,
            after,
            execution: Execution::NotStarted,
        };
        let said = Verdict::Wait(Some(rest));
        check(&throttled(Some(rest)), said, said);
        let long = Verdict::Wait(Some(RETRY_AFTER_MAX));
        check(&throttled(Some(RETRY_AFTER_MAX * 9)), long, long);
    }

    #[test]
    fn a_refused_credential_is_no_outage_but_a_queued_write_waits_for_another() {
        let error = CallError::AuthRequired {
            server: server(),
            challenge: None,
        };
        check(&error, Verdict::Refused, WAIT);
        let error = CallError::ScopeRequired {
            server: server(),
            challenge: None,
        };
        check(&error, Verdict::Refused, WAIT);
    }

    #[test]
    fn what_policy_and_catalog_say_is_final() {
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
            check(&error, Verdict::Refused, Verdict::Refused);
        }
        let odd = CallError::BadOutput {
            server: server(),
            tool: "t".into(),
            reason: "odd".into(),
        };
        check(&odd, Verdict::Ran, Verdict::Ran);
    }
}
