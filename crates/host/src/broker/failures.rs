//! What peers are told where a request has no answer of its tool.

use std::sync::Arc;

use bowline_core::error::{Class, Execution, Failure, Origin, Retry};

/// A request that is past its time.
pub const EXPIRED: &str = "expired";

/// A request that was begun before a crash, so that nobody knows whether it took effect.
pub const OUTCOME_UNKNOWN: &str = "outcome_unknown";

/// A request that cannot be read.
pub const BAD_REQUEST: &str = "bad_request";

/// A tool that could not be run, as its executor says, or that panicked.
pub const TOOL_FAILED: &str = "tool_failed";

fn of(
    (class, execution): (Class, Execution),
    (retry, origin): (Retry, Origin),
    code: &str,
    reason: impl Into<Arc<str>>,
) -> Failure {
    Failure {
        class,
        execution,
        retry,
        origin,
        code: code.into(),
        reason: reason.into(),
    }
}

/// It is past its time and was not begun.
#[must_use]
pub fn expired() -> Failure {
    let what = (Class::Timeout, Execution::NotStarted);
    let reason = "the request is past its time and was not carried out";
    of(what, (Retry::Never, Origin::Broker), EXPIRED, reason)
}

/// It was begun by a process that is gone.
#[must_use]
pub fn outcome_unknown() -> Failure {
    let what = (Class::ConnectionLost, Execution::Unknown);
    let reason = "the request was begun before, and nobody knows whether it took effect";
    of(
        what,
        (Retry::Never, Origin::Broker),
        OUTCOME_UNKNOWN,
        reason,
    )
}

/// It was carried out, and its answer is not kept any more.
#[must_use]
pub(super) fn answer_forgotten() -> Failure {
    let what = (Class::ConnectionLost, Execution::Completed);
    let reason = "the request was carried out before, and its answer is not kept";
    of(
        what,
        (Retry::Never, Origin::Broker),
        OUTCOME_UNKNOWN,
        reason,
    )
}

/// Its body cannot be read.
#[must_use]
pub(super) fn bad_request(why: &dyn std::fmt::Display) -> Failure {
    let what = (Class::Invalid, Execution::NotStarted);
    let reason = format!("bad request: {why}");
    of(what, (Retry::Never, Origin::Gateway), BAD_REQUEST, reason)
}

/// The rules say no.
fn denied(reason: impl Into<Arc<str>>) -> Failure {
    let what = (Class::Denied, Execution::NotStarted);
    of(
        what,
        (Retry::Never, Origin::Policy),
        "policy_denied",
        reason,
    )
}

/// The role of who asks may not use the tool.
#[must_use]
pub(super) fn not_allowed(tool: &str, role: Option<&str>) -> Failure {
    let reason = match role {
        Some(role) => format!("tool `{tool}` is not allowed for role `{role}`"),
        None => format!("tool `{tool}` is not allowed without a role"),
    };
    denied(reason)
}

/// Nobody here knows who asks.
#[must_use]
pub(super) fn stranger() -> Failure {
    denied("nothing is allowed to whoever asks")
}

/// Whoever asked did so under a credential that is none any more.
#[must_use]
pub(super) fn revoked() -> Failure {
    denied("the credential that made the request was revoked")
}

/// There is no such tool.
#[must_use]
pub(super) fn unknown_tool(tool: &str) -> Failure {
    let what = (Class::NotFound, Execution::NotStarted);
    let reason = format!("no tool named `{tool}`");
    let whence = (Retry::Never, Origin::Gateway);
    of(what, whence, "tool_not_found", reason)
}

/// It wants something else than tools of somebody who has nothing else.
#[must_use]
pub(super) fn only_tools(method: &str) -> Failure {
    let what = (Class::NotFound, Execution::NotStarted);
    let reason = format!("`{method}` does not go here");
    let whence = (Retry::Never, Origin::Gateway);
    of(what, whence, BAD_REQUEST, reason)
}

/// There is no such server for whoever asks.
#[must_use]
pub(super) fn unknown_server(server: &str) -> Failure {
    let what = (Class::NotFound, Execution::NotStarted);
    let reason = format!("no server named `{server}`");
    let whence = (Retry::Never, Origin::Gateway);
    of(what, whence, "server_not_found", reason)
}

/// Its executor could not run the tool.
#[must_use]
pub(super) fn tool_failed(reason: impl Into<Arc<str>>, execution: Execution) -> Failure {
    let what = (Class::ProtocolError, execution);
    of(what, (Retry::Never, Origin::Upstream), TOOL_FAILED, reason)
}

/// It did not end in time.
#[must_use]
pub(super) fn timeout() -> Failure {
    let what = (Class::Timeout, Execution::Unknown);
    let reason = "the tool did not answer before the request was past its time";
    of(what, (Retry::Never, Origin::Gateway), "timeout", reason)
}

/// Whoever asked took it back, or this side goes down.
#[must_use]
pub(super) fn cancelled(execution: Execution) -> Failure {
    let what = (Class::Cancelled, execution);
    let reason = "the request was taken back";
    of(what, (Retry::Never, Origin::Gateway), "cancelled", reason)
}

/// What must be written down before it is begun could not be.
#[must_use]
pub(super) fn not_stored(why: &dyn std::fmt::Display, execution: Execution) -> Failure {
    let what = (Class::Unavailable, execution);
    let reason = format!("the request could not be written down: {why}");
    of(what, (Retry::Never, Origin::Gateway), "not_stored", reason)
}

/// Another request had the same name.
#[must_use]
pub(super) fn conflict() -> Failure {
    let what = (Class::Invalid, Execution::NotStarted);
    let reason = "a request with the same id asked for something else";
    let whence = (Retry::Never, Origin::Gateway);
    of(what, whence, "idempotency_conflict", reason)
}

/// The answer is larger than a message may be.
#[must_use]
pub(super) fn too_large() -> Failure {
    let what = (Class::Truncated, Execution::Completed);
    let reason = "the answer is larger than a message may be";
    let whence = (Retry::Never, Origin::Broker);
    of(what, whence, "answer_too_large", reason)
}

/// Too many requests are in hand.
#[must_use]
pub(super) fn too_many(limit: usize) -> Failure {
    let what = (Class::Throttled, Execution::NotStarted);
    let reason = format!("{limit} requests are in hand already");
    let whence = (Retry::Safe, Origin::Gateway);
    of(what, whence, "throttled", reason)
}
