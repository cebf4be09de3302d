//! Failures sent to peers in place of a tool's response.

use std::sync::Arc;

use bowline_core::error::{
    ExecutionStatus, FailureClass, FailureOrigin, FailureReport, RetryAdvice,
};

/// Code: the request expired.
pub const EXPIRED: &str = "expired";

/// Code: the request started before a crash, and the outcome is unknown.
pub const OUTCOME_UNKNOWN: &str = "outcome_unknown";

/// Code: the request cannot be parsed.
pub const BAD_REQUEST: &str = "bad_request";

/// Code: the executor could not run the tool, or the tool panicked.
pub const TOOL_FAILED: &str = "tool_failed";

fn failure(
    class: FailureClass,
    execution: ExecutionStatus,
    retry: RetryAdvice,
    origin: FailureOrigin,
    code: &str,
    reason: impl Into<Arc<str>>,
) -> FailureReport {
    FailureReport {
        class,
        execution,
        retry,
        origin,
        code: code.into(),
        reason: reason.into(),
    }
}

/// The request expired and did not run.
#[must_use]
pub fn request_expired() -> FailureReport {
    let reason = "the request is past its time and was not carried out";
    failure(
        FailureClass::Timeout,
        ExecutionStatus::NotStarted,
        RetryAdvice::Never,
        FailureOrigin::Broker,
        EXPIRED,
        reason,
    )
}

/// The request was started by a process that is gone.
#[must_use]
pub fn outcome_unknown() -> FailureReport {
    let reason = "the request was begun before, and nobody knows whether it took effect";
    failure(
        FailureClass::ConnectionLost,
        ExecutionStatus::Unknown,
        RetryAdvice::Never,
        FailureOrigin::Broker,
        OUTCOME_UNKNOWN,
        reason,
    )
}

/// The request ran, and the response is no longer kept.
#[must_use]
pub fn response_forgotten() -> FailureReport {
    let reason = "the request was carried out before, and its answer is not kept";
    failure(
        FailureClass::ConnectionLost,
        ExecutionStatus::Completed,
        RetryAdvice::Never,
        FailureOrigin::Broker,
        OUTCOME_UNKNOWN,
        reason,
    )
}

/// The body cannot be parsed.
#[must_use]
pub fn bad_request(detail: &dyn std::fmt::Display) -> FailureReport {
    let reason = format!("bad request: {detail}");
    failure(
        FailureClass::Invalid,
        ExecutionStatus::NotStarted,
        RetryAdvice::Never,
        FailureOrigin::Gateway,
        BAD_REQUEST,
        reason,
    )
}

/// The policy denies the request.
fn policy_denied(reason: impl Into<Arc<str>>) -> FailureReport {
    failure(
        FailureClass::Denied,
        ExecutionStatus::NotStarted,
        RetryAdvice::Never,
        FailureOrigin::Policy,
        "policy_denied",
        reason,
    )
}

/// The sender's role may not use the tool.
#[must_use]
pub fn not_allowed(tool: &str, role: Option<&str>) -> FailureReport {
    let reason = match role {
        Some(role) => format!("tool `{tool}` is not allowed for role `{role}`"),
        None => format!("tool `{tool}` is not allowed without a role"),
    };
    policy_denied(reason)
}

/// The sender is unknown here.
#[must_use]
pub fn unknown_sender() -> FailureReport {
    policy_denied("nothing is allowed to whoever asks")
}

/// The sender's credential was revoked.
#[must_use]
pub fn credential_revoked() -> FailureReport {
    policy_denied("the credential that made the request was revoked")
}

/// The tool does not exist.
#[must_use]
pub fn unknown_tool(tool: &str) -> FailureReport {
    let reason = format!("no tool named `{tool}`");
    failure(
        FailureClass::NotFound,
        ExecutionStatus::NotStarted,
        RetryAdvice::Never,
        FailureOrigin::Gateway,
        "tool_not_found",
        reason,
    )
}

/// The backend serves only tools.
#[must_use]
pub fn only_tools(method: &str) -> FailureReport {
    let reason = format!("`{method}` does not go here");
    failure(
        FailureClass::NotFound,
        ExecutionStatus::NotStarted,
        RetryAdvice::Never,
        FailureOrigin::Gateway,
        BAD_REQUEST,
        reason,
    )
}

/// The server does not exist for this sender.
#[must_use]
pub fn unknown_server(server: &str) -> FailureReport {
    let reason = format!("no server named `{server}`");
    failure(
        FailureClass::NotFound,
        ExecutionStatus::NotStarted,
        RetryAdvice::Never,
        FailureOrigin::Gateway,
        "server_not_found",
        reason,
    )
}

/// The executor could not run the tool.
#[must_use]
pub fn tool_failed(reason: impl Into<Arc<str>>, execution: ExecutionStatus) -> FailureReport {
    failure(
        FailureClass::ProtocolError,
        execution,
        RetryAdvice::Never,
        FailureOrigin::Upstream,
        TOOL_FAILED,
        reason,
    )
}

/// The tool did not finish in time.
#[must_use]
pub fn tool_timeout() -> FailureReport {
    let reason = "the tool did not answer before the request was past its time";
    failure(
        FailureClass::Timeout,
        ExecutionStatus::Unknown,
        RetryAdvice::Never,
        FailureOrigin::Gateway,
        "timeout",
        reason,
    )
}

/// The sender cancelled the request, or this side is shutting down.
#[must_use]
pub fn request_cancelled(execution: ExecutionStatus) -> FailureReport {
    let reason = "the request was taken back";
    failure(
        FailureClass::Cancelled,
        execution,
        RetryAdvice::Never,
        FailureOrigin::Gateway,
        "cancelled",
        reason,
    )
}

/// The ledger could not record the start of the request.
#[must_use]
pub fn not_stored(error: &dyn std::fmt::Display, execution: ExecutionStatus) -> FailureReport {
    let reason = format!("the request could not be written down: {error}");
    failure(
        FailureClass::Unavailable,
        execution,
        RetryAdvice::Never,
        FailureOrigin::Gateway,
        "not_stored",
        reason,
    )
}

/// An earlier request had the same id and another body.
#[must_use]
pub fn idempotency_conflict() -> FailureReport {
    let reason = "a request with the same id asked for something else";
    failure(
        FailureClass::Invalid,
        ExecutionStatus::NotStarted,
        RetryAdvice::Never,
        FailureOrigin::Gateway,
        "idempotency_conflict",
        reason,
    )
}

/// The response exceeds the message size limit.
#[must_use]
pub fn response_too_large() -> FailureReport {
    let reason = "the answer is larger than a message may be";
    failure(
        FailureClass::Truncated,
        ExecutionStatus::Completed,
        RetryAdvice::Never,
        FailureOrigin::Broker,
        "answer_too_large",
        reason,
    )
}

/// Too many requests are in flight.
#[must_use]
pub fn too_many_requests(limit: usize) -> FailureReport {
    let reason = format!("{limit} requests are in hand already");
    failure(
        FailureClass::Throttled,
        ExecutionStatus::NotStarted,
        RetryAdvice::Safe,
        FailureOrigin::Gateway,
        "throttled",
        reason,
    )
}
