//! Failures of an HTTP request with an executor as their origin.

use std::sync::Arc;

use bowline_core::egress::DeniedDestination;
use bowline_core::error::{
    ExecutionStatus, FailureClass, FailureOrigin, FailureReport, RetryAdvice,
};

/// Error code: the executor may not connect to the destination.
pub const EGRESS_DENIED: &str = "egress_denied";

/// Error code: no stream or buffer is free.
pub const EXECUTOR_BUSY: &str = "executor_busy";

/// Returns the failure for a denied destination.
pub(crate) fn denied_failure(denied: &DeniedDestination) -> Arc<FailureReport> {
    let reason = denied.to_string();
    let never = ExecutionStatus::NotStarted;
    executor_failure(
        FailureClass::Denied,
        never,
        RetryAdvice::Never,
        EGRESS_DENIED,
        &reason,
    )
}

/// Returns the failure for a response that arrived faster than it was read. The server is not at
/// fault, and the request may have run.
pub(crate) fn overflow_failure(reason: &str) -> Arc<FailureReport> {
    let unknown = ExecutionStatus::Unknown;
    executor_failure(
        FailureClass::Throttled,
        unknown,
        RetryAdvice::Never,
        EXECUTOR_BUSY,
        reason,
    )
}

/// Returns a failure that an executor causes.
#[must_use]
pub fn executor_failure(
    class: FailureClass,
    execution: ExecutionStatus,
    retry: RetryAdvice,
    code: &str,
    reason: &str,
) -> Arc<FailureReport> {
    Arc::new(FailureReport {
        class,
        execution,
        retry,
        origin: FailureOrigin::Executor,
        code: code.into(),
        reason: reason.into(),
    })
}
