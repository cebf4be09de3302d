//! What becomes of a fault that an executor tells: the same errors as those of a request from here.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::egress::Denied;
use bowline_core::error::{Class, Execution, Failure, Origin, Retry};
use bowline_wire::executor::{Fault, FaultCode};

use crate::http::client::HttpError;

/// The code of a request to where the executor may not go.
pub const EGRESS_DENIED: &str = "egress_denied";

/// The code of a request that the executor does not know how to carry out.
pub const EXECUTOR_REFUSED: &str = "executor_refused";

/// The code of a request for which there is no place.
pub const EXECUTOR_BUSY: &str = "executor_busy";

/// The code of a request for an executor that is not connected.
pub const EXECUTOR_AWAY: &str = "executor_away";

/// When to try again where nothing is known better.
const AGAIN: Duration = Duration::from_secs(1);

/// Returns why there is no answer, or no more of it.
#[must_use]
pub fn told(fault: &Fault) -> HttpError {
    let reason = Arc::clone(&fault.reason);
    let never_left = fault.execution == Execution::NotStarted;
    let elsewhere = |class, retry, code| elsewhere(class, fault.execution, retry, code, &reason);
    match fault.code {
        FaultCode::Denied => elsewhere(Class::Denied, Retry::Never, EGRESS_DENIED),
        FaultCode::UnknownServer | FaultCode::UnknownSecret => {
            elsewhere(Class::Unavailable, Retry::Never, EXECUTOR_REFUSED)
        }
        FaultCode::Busy => elsewhere(Class::Throttled, Retry::After(AGAIN), EXECUTOR_BUSY),
        FaultCode::Closing => elsewhere(Class::Unavailable, Retry::After(AGAIN), EXECUTOR_AWAY),
        // These tell that nothing left; who says so and that it may have run is not believed.
        FaultCode::Unreachable if never_left => HttpError::Unreachable(reason),
        FaultCode::ConnectTimeout if never_left => HttpError::ConnectTimeout,
        FaultCode::Invalid if never_left => HttpError::Invalid("the executor cannot send it"),
        FaultCode::FirstByteTimeout => HttpError::FirstByteTimeout,
        FaultCode::Head => HttpError::Head(reason),
        FaultCode::Overflow => HttpError::Overflow(reason),
        FaultCode::Unreachable
        | FaultCode::ConnectTimeout
        | FaultCode::Invalid
        | FaultCode::Lost
        | FaultCode::Order => HttpError::Lost(reason),
    }
}

/// Returns what is said where an executor is not connected.
#[must_use]
pub fn away(reason: &str) -> HttpError {
    let retry = Retry::After(AGAIN);
    let never = Execution::NotStarted;
    elsewhere(Class::Unavailable, never, retry, EXECUTOR_AWAY, reason)
}

/// Returns what is said of a request to where nothing may go.
pub(crate) fn denied(denied: &Denied) -> Arc<Failure> {
    let reason = denied.to_string();
    let never = Execution::NotStarted;
    failure(Class::Denied, never, Retry::Never, EGRESS_DENIED, &reason)
}

/// Returns what is said of a request whose response came faster than it was read. The server is not
/// at fault, and the request may have been carried out.
pub(crate) fn overflow(reason: &str) -> Arc<Failure> {
    let unknown = Execution::Unknown;
    failure(
        Class::Throttled,
        unknown,
        Retry::Never,
        EXECUTOR_BUSY,
        reason,
    )
}

/// Returns what is said where an executor has no place for one more.
pub(super) fn busy(reason: &str) -> HttpError {
    let retry = Retry::After(AGAIN);
    let never = Execution::NotStarted;
    elsewhere(Class::Throttled, never, retry, EXECUTOR_BUSY, reason)
}

fn elsewhere(
    class: Class,
    execution: Execution,
    retry: Retry,
    code: &str,
    reason: &str,
) -> HttpError {
    HttpError::Elsewhere(failure(class, execution, retry, code, reason))
}

fn failure(
    class: Class,
    execution: Execution,
    retry: Retry,
    code: &str,
    reason: &str,
) -> Arc<Failure> {
    Arc::new(Failure {
        class,
        execution,
        retry,
        origin: Origin::Executor,
        code: code.into(),
        reason: reason.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::road::trouble;
    use crate::link::LinkError;

    fn fault(code: FaultCode, execution: Execution) -> HttpError {
        told(&Fault {
            code,
            execution,
            reason: "because".into(),
        })
    }

    #[test]
    fn a_fault_keeps_what_is_known_of_whether_the_request_was_carried_out() {
        use FaultCode as Code;
        for code in [
            Code::Denied,
            Code::Unreachable,
            Code::ConnectTimeout,
            Code::Invalid,
            Code::UnknownServer,
            Code::UnknownSecret,
            Code::Busy,
            Code::Closing,
        ] {
            for execution in [Execution::NotStarted, Execution::Unknown] {
                assert_eq!(fault(code, execution).execution(), execution, "{code:?}");
            }
        }
        for code in [Code::Lost, Code::Overflow, Code::Order, Code::Head] {
            let told = fault(code, Execution::NotStarted);
            assert_eq!(told.execution(), Execution::Unknown, "{code:?}");
        }
    }

    #[test]
    fn a_refusal_of_the_executor_is_told_by_its_code() {
        let never = Execution::NotStarted;
        for (code, word) in [
            (FaultCode::Denied, EGRESS_DENIED),
            (FaultCode::UnknownSecret, EXECUTOR_REFUSED),
            (FaultCode::Busy, EXECUTOR_BUSY),
            (FaultCode::Closing, EXECUTOR_AWAY),
        ] {
            let HttpError::Elsewhere(failure) = fault(code, never) else {
                panic!("{code:?}");
            };
            assert_eq!(&*failure.code, word);
        }
    }

    #[test]
    fn overflow_is_typed_and_keeps_its_reason() {
        let told = fault(FaultCode::Overflow, Execution::Unknown);
        assert_eq!(told, HttpError::Overflow("because".into()));
        let LinkError::Elsewhere(failure) = trouble(told) else {
            panic!("an overflow speaks against nobody");
        };
        assert_eq!(&*failure.code, EXECUTOR_BUSY);
        assert_eq!(failure.execution, Execution::Unknown);
        assert!(failure.reason.contains("because"), "{}", failure.reason);
        let lost = trouble(HttpError::Lost("reset by peer".into()));
        assert_eq!(lost, LinkError::Cut("reset by peer".into()));
    }
}
