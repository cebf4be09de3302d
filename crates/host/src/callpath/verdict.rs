//! What a failure means: to the caller, to the server's health, and for a second attempt.

use std::sync::Arc;

use bowline_core::breaker::Health;
use bowline_core::call::{Call, Route, Subject, TaskVerb, TimeLimit};
use bowline_core::error::{CallError, Class, Execution, is_away};
use bowline_core::lane::{Channel, Queueing};
use bowline_link::{Exit, KeyHeader, LinkError};

/// The status of a server that knows who asks and wants more rights.
const FORBIDDEN: u16 = 403;

/// Whether a call may be sent a second time: it surely never left, or running it twice is like
/// running it once. A task would be made twice, and what is cancelled twice may be another's.
pub(super) fn may_repeat(error: &LinkError, call: &Call, route: &Route) -> bool {
    let changes = |verb: TaskVerb| matches!(verb, TaskVerb::Cancel | TaskVerb::Update);
    let once =
        call.makes_task || matches!(&call.subject, Subject::Task { verb, .. } if changes(*verb));
    match error {
        LinkError::Closed(_) => true,
        // It was ended for what it did, and would do it again.
        LinkError::Lost(Exit::Overrun | Exit::OverMemory { .. } | Exit::OverProcesses { .. }) => {
            false
        }
        LinkError::Lost(_) | LinkError::Cut(_) => {
            (route.is_repeatable() || is_known_again(call, route)) && !once
        }
        LinkError::Busy { .. }
        | LinkError::NotSent(_)
        | LinkError::Timeout { .. }
        | LinkError::TooLong { .. }
        | LinkError::BadAnswer(_)
        | LinkError::Unreachable(_)
        | LinkError::Credentials(_)
        | LinkError::Unauthorized { .. }
        | LinkError::Throttled { .. }
        | LinkError::Http { .. }
        | LinkError::ContentType { .. }
        | LinkError::BadHead(_)
        | LinkError::Redirect(_)
        | LinkError::Unanswered(_)
        | LinkError::Elsewhere(_) => false,
    }
}

/// Whether the server was told a key by which it knows a repeated call.
fn is_known_again(call: &Call, route: &Route) -> bool {
    let is_told = |queue: &Arc<Queueing>| queue.channel.is_told();
    call.key.is_some() && route.queue.as_ref().is_some_and(is_told)
}

/// Returns the header that carries the key of a call, where its server looks there.
pub(super) fn key_header(call: &Call, route: &Route) -> Option<Box<KeyHeader>> {
    let Channel::Header(name) = &route.queue.as_ref()?.channel else {
        return None;
    };
    let key = call.key.as_ref()?;
    Some(Box::new(KeyHeader {
        name: Arc::clone(name),
        value: Arc::clone(key),
    }))
}

/// How long a response was waited for, and whose limit ended the wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseWait {
    pub(crate) ms: u64,
    pub(crate) limit: TimeLimit,
}

impl ResponseWait {
    /// A wait that the server's own timeout ends.
    pub(crate) const fn for_server(ms: u64) -> Self {
        Self {
            ms,
            limit: TimeLimit::Server,
        }
    }
}

/// Puts what a link knows into the caller's terms.
pub(crate) fn explain(
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
        LinkError::Cut(reason) => CallError::ConnectionLost {
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
        LinkError::TooLong { bytes_max } => CallError::AnswerTooLarge {
            server,
            bytes_max: *bytes_max,
        },
        LinkError::BadAnswer(reason) => CallError::BadAnswer {
            server,
            reason: Arc::clone(reason),
        },
        LinkError::Unauthorized { status, challenge } => {
            unauthorized(server, *status, challenge.as_ref())
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
            CallError::NoMessage {
                server,
                reason: error.to_string().into(),
            }
        }
        LinkError::Unanswered(why) => CallError::InputUnanswered {
            server,
            reason: why.to_string().into(),
        },
        LinkError::Elsewhere(failure) => CallError::Elsewhere {
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
            debug_assert_eq!(error.execution(), Execution::NotStarted);
            CallError::SendFailed {
                server,
                reason: error.to_string().into(),
            }
        }
    }
}

/// A server that knows who we are and wants more is another matter than one that does not.
fn unauthorized(server: Arc<str>, status: u16, challenge: Option<&Arc<str>>) -> CallError {
    let challenge = challenge.cloned();
    match status {
        FORBIDDEN => CallError::ScopeRequired { server, challenge },
        _ => CallError::AuthRequired { server, challenge },
    }
}

/// What a call's end says about its server.
pub(crate) fn health(error: Option<&CallError>) -> Health {
    match error {
        None => Health::Good,
        Some(CallError::ConnectionLost { generation, .. }) => Health::Lost {
            generation: *generation,
        },
        // The supervisor paces starts by itself; the breaker must not rest on after a good one.
        Some(CallError::StartFailed { .. } | CallError::ProgramNotFound { .. }) => Health::Untold,
        // It answered, be it with a refusal.
        Some(CallError::Refused { .. }) => Health::Good,
        Some(error) if !error.counts_against_server() => Health::Untold,
        Some(error) if is_outage(error) => Health::Lost { generation: None },
        Some(_) => Health::Bad,
    }
}

/// Whether a failure says that the server is away: all calls of one outage see it, and it is over
/// for all of them at once.
fn is_outage(error: &CallError) -> bool {
    match error {
        CallError::Throttled { status, .. } => is_away(*status),
        error => matches!(error.class(), Class::SendFailed | Class::ConnectionLost),
    }
}

#[cfg(test)]
mod tests;
