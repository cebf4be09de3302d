//! Maps faults of an executor to the errors of a local HTTP request.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::{ExecutionStatus, FailureClass, RetryAdvice};
use bowline_link::http::http_client::HttpError;
use bowline_link::http::remote_failure::{EGRESS_DENIED, EXECUTOR_BUSY, executor_failure};

use crate::frames::{StreamFault, StreamFaultCode};

/// Error code: the executor cannot perform the request.
pub const EXECUTOR_REFUSED: &str = "executor_refused";

/// Error code: the executor is not connected.
pub const EXECUTOR_AWAY: &str = "executor_away";

/// Default retry delay.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Maps a stream fault.
#[must_use]
pub fn to_http_error(fault: &StreamFault) -> HttpError {
    let reason = Arc::clone(&fault.reason);
    let never_left = fault.execution == ExecutionStatus::NotStarted;
    let remote = |class, retry, code| remote_error(class, fault.execution, retry, code, &reason);
    match fault.code {
        StreamFaultCode::Denied => remote(FailureClass::Denied, RetryAdvice::Never, EGRESS_DENIED),
        StreamFaultCode::UnknownServer | StreamFaultCode::UnknownSecret => remote(
            FailureClass::Unavailable,
            RetryAdvice::Never,
            EXECUTOR_REFUSED,
        ),
        StreamFaultCode::Busy => remote(
            FailureClass::Throttled,
            RetryAdvice::After(RETRY_AFTER),
            EXECUTOR_BUSY,
        ),
        StreamFaultCode::Closing => remote(
            FailureClass::Unavailable,
            RetryAdvice::After(RETRY_AFTER),
            EXECUTOR_AWAY,
        ),
        // Accepted only if the executor also reports that nothing was sent.
        StreamFaultCode::Unreachable if never_left => HttpError::Unreachable(reason),
        StreamFaultCode::ConnectTimeout if never_left => HttpError::ConnectTimeout,
        StreamFaultCode::Invalid if never_left => HttpError::Invalid("the executor cannot send it"),
        StreamFaultCode::FirstByteTimeout => HttpError::FirstByteTimeout,
        StreamFaultCode::Head => HttpError::BadHead(reason),
        StreamFaultCode::Overflow => HttpError::Overflow(reason),
        StreamFaultCode::Unreachable
        | StreamFaultCode::ConnectTimeout
        | StreamFaultCode::Invalid
        | StreamFaultCode::Lost
        | StreamFaultCode::Order => HttpError::Lost(reason),
    }
}

/// Returns the error for a disconnected executor.
#[must_use]
pub fn away_error(reason: &str) -> HttpError {
    let retry = RetryAdvice::After(RETRY_AFTER);
    let never = ExecutionStatus::NotStarted;
    remote_error(
        FailureClass::Unavailable,
        never,
        retry,
        EXECUTOR_AWAY,
        reason,
    )
}

/// Returns the error for an executor without a free stream.
pub(super) fn busy_error(reason: &str) -> HttpError {
    let retry = RetryAdvice::After(RETRY_AFTER);
    let never = ExecutionStatus::NotStarted;
    remote_error(FailureClass::Throttled, never, retry, EXECUTOR_BUSY, reason)
}

fn remote_error(
    class: FailureClass,
    execution: ExecutionStatus,
    retry: RetryAdvice,
    code: &str,
    reason: &str,
) -> HttpError {
    HttpError::RemoteFailure(executor_failure(class, execution, retry, code, reason))
}

#[cfg(test)]
mod tests {
    use bowline_link::LinkError;
    use bowline_link::http::to_link_error;

    use super::*;

    fn mapped_fault(code: StreamFaultCode, execution: ExecutionStatus) -> HttpError {
        to_http_error(&StreamFault {
            code,
            execution,
            reason: "because".into(),
        })
    }

    #[test]
    fn fault_keeps_its_execution_status() {
        use StreamFaultCode as Code;
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
            for execution in [ExecutionStatus::NotStarted, ExecutionStatus::Unknown] {
                assert_eq!(
                    mapped_fault(code, execution).execution(),
                    execution,
                    "{code:?}"
                );
            }
        }
        for code in [Code::Lost, Code::Overflow, Code::Order, Code::Head] {
            let told = mapped_fault(code, ExecutionStatus::NotStarted);
            assert_eq!(told.execution(), ExecutionStatus::Unknown, "{code:?}");
        }
    }

    #[test]
    fn executor_refusals_map_to_error_codes() {
        let never = ExecutionStatus::NotStarted;
        for (code, word) in [
            (StreamFaultCode::Denied, EGRESS_DENIED),
            (StreamFaultCode::UnknownSecret, EXECUTOR_REFUSED),
            (StreamFaultCode::Busy, EXECUTOR_BUSY),
            (StreamFaultCode::Closing, EXECUTOR_AWAY),
        ] {
            let HttpError::RemoteFailure(failure) = mapped_fault(code, never) else {
                panic!("{code:?}");
            };
            assert_eq!(&*failure.code, word);
        }
    }

    #[test]
    fn overflow_is_typed_and_keeps_its_reason() {
        let told = mapped_fault(StreamFaultCode::Overflow, ExecutionStatus::Unknown);
        assert_eq!(told, HttpError::Overflow("because".into()));
        let LinkError::RemoteFailure(failure) = to_link_error(told) else {
            panic!("an overflow speaks against nobody");
        };
        assert_eq!(&*failure.code, EXECUTOR_BUSY);
        assert_eq!(failure.execution, ExecutionStatus::Unknown);
        assert!(failure.reason.contains("because"), "{}", failure.reason);
        let lost = to_link_error(HttpError::Lost("reset by peer".into()));
        assert_eq!(lost, LinkError::ConnectionLost("reset by peer".into()));
    }
}
