//! Every link error and call error with its classification.

use std::collections::HashSet;
use std::mem::discriminant;
use std::time::Duration;

use bowline_core::error::{FailureClass, RetryAdvice};
use bowline_core::pending_table::SendState;
use bowline_core::shares::{ShareError, SharedResource};
use bowline_link::http::RedirectError;
use bowline_link::{LinkExit, NotSentReason};

use super::*;

const SAFE: RetryAdvice = RetryAdvice::Safe;
const NEVER: RetryAdvice = RetryAdvice::Never;

/// Health after a failed send while the link stays open.
const AWAY: HealthSignal = HealthSignal::Lost { generation: None };

/// Number of error variants.
const KINDS: usize = 41;

fn assert_mapping(
    error: &LinkError,
    class: FailureClass,
    retry: RetryAdvice,
    health: HealthSignal,
) {
    let explained = to_call_error(error, &"s".into(), Some(7), ResponseWait::for_server(100));
    assert_eq!(explained.failure_class(), class, "{error}");
    assert_eq!(explained.execution_status(), error.execution(), "{error}");
    assert_eq!(explained.retry_advice(), retry, "{error}");
    assert_eq!(to_health(&explained), health, "{error}");
}

fn http_error(status: u16) -> LinkError {
    LinkError::Http {
        status,
        preview: "no".into(),
    }
}

fn throttled_error(status: u16, after: Option<Duration>) -> LinkError {
    LinkError::Throttled { status, after }
}

#[test]
fn http_failures_map_to_distinct_classes() {
    let unauthorized = |status| LinkError::Unauthorized {
        status,
        challenge: None,
    };
    let page = LinkError::ContentType {
        content_type: "text/html".into(),
        preview: "<p>".into(),
    };
    let second = Duration::from_secs(1);
    let untold = HealthSignal::Unknown;
    assert_mapping(
        &unauthorized(401),
        FailureClass::AuthRequired,
        NEVER,
        untold,
    );
    assert_mapping(
        &unauthorized(403),
        FailureClass::ScopeRequired,
        NEVER,
        untold,
    );
    for (error, retry, health) in [
        (
            throttled_error(429, Some(second)),
            RetryAdvice::After(second),
            HealthSignal::Unhealthy,
        ),
        (throttled_error(429, None), SAFE, HealthSignal::Unhealthy),
        (throttled_error(503, Some(second)), NEVER, AWAY),
    ] {
        assert_mapping(&error, FailureClass::Throttled, retry, health);
    }
    for status in [408, 500, 502, 503, 504, 599] {
        assert_mapping(
            &http_error(status),
            FailureClass::ConnectionLost,
            NEVER,
            AWAY,
        );
    }
    for status in [300, 400, 404, 405, 413] {
        assert_mapping(
            &http_error(status),
            FailureClass::ProtocolError,
            NEVER,
            untold,
        );
    }
    for error in [
        page,
        LinkError::BadHead("too long".into()),
        LinkError::Redirect(RedirectError::Origin),
    ] {
        assert_mapping(&error, FailureClass::ProtocolError, NEVER, untold);
    }
    let unreachable = LinkError::Unreachable("refused".into());
    assert_mapping(&unreachable, FailureClass::SendFailed, SAFE, AWAY);
}

fn server_name() -> Arc<str> {
    "s".into()
}

fn http_status_error(status: u16) -> CallError {
    CallError::HttpStatus {
        server: server_name(),
        status,
        reason: server_name(),
    }
}

fn connection_lost(generation: Option<u64>) -> CallError {
    CallError::ConnectionLost {
        server: server_name(),
        reason: server_name(),
        generation,
    }
}

/// Failures of the server or the connection.
fn server_failures() -> Vec<CallError> {
    use CallError as E;
    let (server, execution) = (server_name(), ExecutionStatus::Unknown);
    vec![
        E::Timeout {
            server,
            after_ms: 1,
            execution,
            limit: TimeLimit::Server,
        },
        E::Throttled {
            server: server_name(),
            status: 429,
            after: None,
            execution,
        },
    ]
}

/// Outages: unreachable, or lost while the link stays open.
fn outages() -> Vec<CallError> {
    let (server, reason) = (server_name(), server_name());
    vec![
        connection_lost(None),
        http_status_error(502),
        CallError::SendFailed { server, reason },
    ]
}

/// Invalid responses of a reachable server.
fn invalid_responses() -> Vec<CallError> {
    use CallError as E;
    let (server, reason, challenge) = (server_name, server_name, None::<Arc<str>>);
    vec![
        http_status_error(404),
        E::ResponseTooLarge {
            server: server(),
            bytes_max: 1,
        },
        E::BadResponse {
            server: server(),
            reason: reason(),
        },
        E::InputUnanswered {
            server: server(),
            reason: reason(),
        },
        E::BadOutput {
            server: server(),
            tool: server_name(),
            reason: reason(),
        },
        E::NotAMessage {
            server: server(),
            reason: reason(),
        },
        E::AuthRequired {
            server: server(),
            challenge: challenge.clone(),
        },
        E::ScopeRequired {
            server: server(),
            challenge,
        },
    ]
}

/// Unknown names and refusals.
fn refusals() -> Vec<CallError> {
    use CallError as E;
    let (server, task, name, principal) =
        (server_name(), server_name(), server_name(), server_name());
    vec![
        E::UnknownServer {
            server: server_name(),
        },
        E::UnknownTool {
            tool: server_name(),
        },
        E::UnknownPrompt {
            prompt: server_name(),
        },
        E::UnknownResource { uri: server_name() },
        E::UnknownTask {
            task: server_name(),
        },
        E::AmbiguousTask {
            task,
            server: server_name(),
        },
        E::HeaderMismatch {
            server: server_name(),
            tool: server_name(),
        },
        E::AmbiguousNames {
            server: server_name(),
            tool: server_name(),
        },
        E::InputRefused {
            reason: "forged",
            execution: ExecutionStatus::NotStarted,
        },
        E::Denied {
            principal,
            server,
            name,
            reason: server_name(),
        },
        E::BudgetExceeded {
            principal: server_name(),
            limit: "budget",
            allowed: 1,
            spent: 1,
            after: None,
        },
        E::RateExceeded {
            principal: server_name(),
            after: Duration::from_secs(1),
        },
        E::PinChanged {
            server: server_name(),
            tool: server_name(),
        },
        E::TooManySubscriptions { limit: 1 },
        E::TooManyCalls {
            principal: server_name(),
            limit: 1,
        },
    ]
}

/// Calls that never reached the server.
fn not_sent_errors() -> Vec<CallError> {
    use CallError as E;
    let (server, reason, wait) = (server_name(), server_name(), Duration::from_secs(1));
    let (limit, waited_ms) = (1, 1);
    vec![
        E::ServerBusy {
            server: server_name(),
            limit,
        },
        E::QueuedTooLong {
            server: server_name(),
            limit,
            waited_ms,
        },
        E::Stopped {
            server: server_name(),
        },
        E::Ejected { server, reason },
        E::CircuitOpen {
            server: server_name(),
            cooldown: wait,
        },
        E::StartFailed {
            server: server_name(),
            reason: server_name(),
            retry_after: wait,
        },
        E::ProgramNotFound {
            server: server_name(),
            reason: server_name(),
            retry_after: wait,
        },
        E::StartTimeout {
            server: server_name(),
        },
        E::Cancelled {
            execution: ExecutionStatus::Unknown,
        },
        E::InputLost,
        E::ShuttingDown,
        E::SessionEnded {
            execution: ExecutionStatus::Unknown,
        },
        E::ShareExceeded {
            cause: ShareError::Principal {
                resource: SharedResource::ResponseBytes,
                limit: 1,
            },
            execution: ExecutionStatus::Completed,
        },
    ]
}

#[test]
fn only_server_and_transport_failures_count_against_server() {
    let refused = CallError::Refused {
        server: server_name(),
        error: "{}".into(),
    };
    let mut kinds = HashSet::new();
    for (errors, expect) in [
        (
            vec![connection_lost(Some(7))],
            HealthSignal::Lost {
                generation: Some(7),
            },
        ),
        (outages(), AWAY),
        (server_failures(), HealthSignal::Unhealthy),
        (vec![refused], HealthSignal::Healthy),
        (invalid_responses(), HealthSignal::Unknown),
        (refusals(), HealthSignal::Unknown),
        (not_sent_errors(), HealthSignal::Unknown),
    ] {
        for error in errors {
            assert_eq!(to_health(&error), expect, "{error:?}");
            kinds.insert(discriminant(&error));
        }
    }
    assert_eq!(kinds.len(), KINDS, "a kind of error is missing here");
}

#[test]
fn message_text_does_not_affect_classification() {
    let text: Arc<str> = "could not connect: timeout, connection closed, 503".into();
    let said = LinkError::BadResponse(Arc::clone(&text));
    assert_mapping(
        &said,
        FailureClass::ProtocolError,
        NEVER,
        HealthSignal::Unknown,
    );
    let refused = CallError::Refused {
        server: "s".into(),
        error: text.as_bytes().to_vec().into(),
    };
    assert_eq!(to_health(&refused), HealthSignal::Healthy);
}

#[test]
fn transport_failures_differ_from_server_errors() {
    let gone = HealthSignal::Lost {
        generation: Some(7),
    };
    let lost = LinkError::Lost(LinkExit::Closed);
    assert_mapping(&lost, FailureClass::ConnectionLost, NEVER, gone);
    let cut = LinkError::ConnectionLost("reset".into());
    assert_mapping(&cut, FailureClass::ConnectionLost, NEVER, gone);
    let silent = LinkError::Timeout {
        sent: SendState::MaybeSent,
    };
    assert_mapping(
        &silent,
        FailureClass::Timeout,
        NEVER,
        HealthSignal::Unhealthy,
    );
    let unwritten = LinkError::Timeout {
        sent: SendState::NotSent,
    };
    assert_mapping(
        &unwritten,
        FailureClass::Timeout,
        SAFE,
        HealthSignal::Unhealthy,
    );
    let closed = LinkError::Closed(LinkExit::Status(1));
    assert_mapping(&closed, FailureClass::SendFailed, SAFE, AWAY);
    let full = LinkError::NotSent(NotSentReason::QueueFull);
    assert_mapping(&full, FailureClass::SendFailed, SAFE, AWAY);
    let busy = LinkError::Busy { in_flight_max: 1 };
    assert_mapping(&busy, FailureClass::Throttled, SAFE, HealthSignal::Unknown);
    let long = LinkError::TooLong { bytes_max: 1 };
    assert_mapping(&long, FailureClass::Truncated, NEVER, HealthSignal::Unknown);
}
