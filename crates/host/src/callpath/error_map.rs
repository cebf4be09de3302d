//! Maps link errors: to the caller's error, to the server's health, and to the retry decision.

use std::sync::Arc;

use bowline_core::breaker::HealthSignal;
use bowline_core::call::{CallRequest, CallSubject, Route, TaskOperation};
use bowline_core::error::{CallError, ExecutionStatus, FailureClass, is_gateway_status};
use bowline_core::lane::QueuePolicy;
use bowline_core::time::TimeLimit;
use bowline_link::{LinkError, LinkExit};

/// HTTP status of a server that recognizes the credentials but requires more rights.
const FORBIDDEN: u16 = 403;

/// True if a call may be sent again: the first attempt surely never left, or the call is
/// idempotent. Never for calls that create, cancel or update a task: a repeat would act twice.
pub(super) fn can_retry(error: &LinkError, call: &CallRequest, route: &Route) -> bool {
    let changes =
        |verb: TaskOperation| matches!(verb, TaskOperation::Cancel | TaskOperation::Update);
    let once = call.wants_task
        || matches!(&call.subject, CallSubject::Task { operation, .. } if changes(*operation));
    match error {
        LinkError::Closed(_) => true,
        // The process was killed for exceeding its limits and would exceed them again.
        LinkError::Lost(
            LinkExit::Overrun | LinkExit::OverMemory { .. } | LinkExit::OverProcesses { .. },
        ) => false,
        LinkError::Lost(_) | LinkError::ConnectionLost(_) => {
            (route.is_repeatable() || is_deduplicated(call, route)) && !once
        }
        LinkError::Busy { .. }
        | LinkError::NotSent(_)
        | LinkError::Timeout { .. }
        | LinkError::TooLong { .. }
        | LinkError::BadResponse(_)
        | LinkError::Unreachable(_)
        | LinkError::Credentials(_)
        | LinkError::Unauthorized { .. }
        | LinkError::Throttled { .. }
        | LinkError::Http { .. }
        | LinkError::ContentType { .. }
        | LinkError::BadHead(_)
        | LinkError::Redirect(_)
        | LinkError::InputFailed(_)
        | LinkError::RemoteFailure(_) => false,
    }
}

/// True if the server received an idempotency key and so recognizes a repeated call.
fn is_deduplicated(call: &CallRequest, route: &Route) -> bool {
    let is_told = |queue: &Arc<QueuePolicy>| queue.key_channel.carries_key();
    call.idempotency_key.is_some() && route.queue_policy.as_ref().is_some_and(is_told)
}

/// Duration of the wait for a response, and the limit in effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseWait {
    pub(crate) ms: u64,
    pub(crate) limit: TimeLimit,
}

impl ResponseWait {
    /// A wait limited by the server's own timeout.
    pub(crate) const fn for_server(ms: u64) -> Self {
        Self {
            ms,
            limit: TimeLimit::Server,
        }
    }
}

/// Translates a link error into a call error.
pub(crate) fn to_call_error(
    error: &LinkError,
    server: &Arc<str>,
    generation: Option<u64>,
    wait: ResponseWait,
) -> CallError {
    let server = Arc::clone(server);
    match error {
        LinkError::Lost(exit) => CallError::ConnectionLost {
            server,
            reason: exit.to_string().into(),
            generation,
        },
        LinkError::ConnectionLost(reason) => CallError::ConnectionLost {
            server,
            reason: Arc::clone(reason),
            generation,
        },
        LinkError::Timeout { .. } => CallError::Timeout {
            server,
            execution: error.execution(),
            after_ms: wait.ms,
            limit: wait.limit,
        },
        LinkError::TooLong { bytes_max } => CallError::ResponseTooLarge {
            server,
            bytes_max: *bytes_max,
        },
        LinkError::BadResponse(reason) => CallError::BadResponse {
            server,
            reason: Arc::clone(reason),
        },
        LinkError::Unauthorized { status, challenge } => {
            to_auth_error(server, *status, challenge.as_ref())
        }
        LinkError::Throttled { status, after } => CallError::Throttled {
            server,
            status: *status,
            after: *after,
            execution: error.execution(),
        },
        LinkError::Http { status, .. } => CallError::HttpStatus {
            server,
            status: *status,
            reason: error.to_string().into(),
        },
        LinkError::ContentType { .. } | LinkError::BadHead(_) | LinkError::Redirect(_) => {
            CallError::NotAMessage {
                server,
                reason: error.to_string().into(),
            }
        }
        LinkError::InputFailed(why) => CallError::InputUnanswered {
            server,
            reason: why.to_string().into(),
        },
        LinkError::RemoteFailure(failure) => CallError::RemoteFailure {
            server,
            failure: Arc::clone(failure),
        },
        LinkError::Busy { in_flight_max } => CallError::ServerBusy {
            server,
            limit: *in_flight_max,
        },
        LinkError::Closed(_)
        | LinkError::NotSent(_)
        | LinkError::Unreachable(_)
        | LinkError::Credentials(_) => {
            debug_assert_eq!(error.execution(), ExecutionStatus::NotStarted);
            CallError::SendFailed {
                server,
                reason: error.to_string().into(),
            }
        }
    }
}

/// 403 requires more rights; any other status requires credentials.
fn to_auth_error(server: Arc<str>, status: u16, challenge: Option<&Arc<str>>) -> CallError {
    let challenge = challenge.cloned();
    match status {
        FORBIDDEN => CallError::ScopeRequired { server, challenge },
        _ => CallError::AuthRequired { server, challenge },
    }
}

/// Returns the health signal of a failed call.
pub(crate) fn to_health(error: &CallError) -> HealthSignal {
    match error {
        CallError::ConnectionLost { generation, .. } => HealthSignal::Lost {
            generation: *generation,
        },
        // The supervisor paces starts; the breaker must not stay open after a successful start.
        CallError::StartFailed { .. } | CallError::ProgramNotFound { .. } => HealthSignal::Unknown,
        // The server responded, even if with a refusal.
        CallError::Refused { .. } => HealthSignal::Healthy,
        error if !error.counts_against_server() => HealthSignal::Unknown,
        error if is_outage(error) => HealthSignal::Lost { generation: None },
        _ => HealthSignal::Unhealthy,
    }
}

/// True if the failure indicates an outage: an outage hits all calls and ends for all at once.
fn is_outage(error: &CallError) -> bool {
    match error {
        CallError::Throttled { status, .. } => is_gateway_status(*status),
        error => matches!(
            error.failure_class(),
            FailureClass::SendFailed | FailureClass::ConnectionLost
        ),
    }
}

#[cfg(test)]
mod tests;
