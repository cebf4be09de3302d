//! Every failure, and what it means.

use std::collections::HashSet;
use std::mem::discriminant;
use std::time::Duration;

use bowline_core::error::{Class, Retry};
use bowline_core::pending::Sent;
use bowline_core::shares::{Resource, ShareError};
use bowline_link::http::RedirectError;
use bowline_link::{Exit, NotSent};

use super::*;

const SAFE: Retry = Retry::Safe;
const NEVER: Retry = Retry::Never;

/// The end of a call that could not be brought to the server, while its link stands.
const AWAY: Health = Health::Lost { generation: None };

/// How many kinds of errors there are.
const KINDS: usize = 41;

fn check(error: &LinkError, class: Class, retry: Retry, health: Health) {
    let explained = explain(error, &"s".into(), Some(7), ResponseWait::for_server(100));
    assert_eq!(explained.class(), class, "{error}");
    assert_eq!(explained.execution(), error.execution(), "{error}");
    assert_eq!(explained.retry(), retry, "{error}");
    assert_eq!(super::health(Some(&explained)), health, "{error}");
}

fn http(status: u16) -> LinkError {
    LinkError::Http {
        status,
        preview: "no".into(),
    }
}

fn throttled(status: u16, after: Option<Duration>) -> LinkError {
    LinkError::Throttled { status, after }
}

#[test]
fn what_comes_in_place_of_an_answer_is_told_apart() {
    let unauthorized = |status| LinkError::Unauthorized {
        status,
        challenge: None,
    };
    let page = LinkError::ContentType {
        content_type: "text/html".into(),
        preview: "<p>".into(),
    };
    let second = Duration::from_secs(1);
    let untold = Health::Untold;
    check(&unauthorized(401), Class::AuthRequired, NEVER, untold);
    check(&unauthorized(403), Class::ScopeRequired, NEVER, untold);
    for (error, retry, health) in [
        (
            throttled(429, Some(second)),
            Retry::After(second),
            Health::Bad,
        ),
        (throttled(429, None), SAFE, Health::Bad),
        (throttled(503, Some(second)), NEVER, AWAY),
    ] {
        check(&error, Class::Throttled, retry, health);
    }
    for status in [408, 500, 502, 503, 504, 599] {
        check(&http(status), Class::ConnectionLost, NEVER, AWAY);
    }
    for status in [300, 400, 404, 405, 413] {
        check(&http(status), Class::ProtocolError, NEVER, untold);
    }
    for error in [
        page,
        LinkError::BadHead("too long".into()),
        LinkError::Redirect(RedirectError::Origin),
    ] {
        check(&error, Class::ProtocolError, NEVER, untold);
    }
    let unreachable = LinkError::Unreachable("refused".into());
    check(&unreachable, Class::SendFailed, SAFE, AWAY);
}

fn s() -> Arc<str> {
    "s".into()
}

fn status(status: u16) -> CallError {
    CallError::HttpStatus {
        server: s(),
        status,
        reason: s(),
    }
}

fn gone(generation: Option<u64>) -> CallError {
    CallError::ConnectionLost {
        server: s(),
        reason: s(),
        generation,
    }
}

/// The server, or the way to it, failed.
fn failures() -> Vec<CallError> {
    use CallError as E;
    let (server, execution) = (s(), Execution::Unknown);
    vec![
        E::Timeout {
            server,
            after_ms: 1,
            execution,
            limit: TimeLimit::Server,
        },
        E::Throttled {
            server: s(),
            status: 429,
            after: None,
            execution,
        },
    ]
}

/// It could not be reached, or was lost while its link stands.
fn outages() -> Vec<CallError> {
    let (server, reason) = (s(), s());
    vec![
        gone(None),
        status(502),
        CallError::SendFailed { server, reason },
    ]
}

/// It was there, and said something that is no answer.
fn faults() -> Vec<CallError> {
    use CallError as E;
    let (server, reason, challenge) = (s, s, None::<Arc<str>>);
    vec![
        status(404),
        E::AnswerTooLarge {
            server: server(),
            bytes_max: 1,
        },
        E::BadAnswer {
            server: server(),
            reason: reason(),
        },
        E::InputUnanswered {
            server: server(),
            reason: reason(),
        },
        E::BadOutput {
            server: server(),
            tool: s(),
            reason: reason(),
        },
        E::NoMessage {
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

/// There is no such thing, or the caller may not have it.
fn refusals() -> Vec<CallError> {
    use CallError as E;
    let (server, task, name, principal) = (s(), s(), s(), s());
    vec![
        E::UnknownServer { server: s() },
        E::UnknownTool { tool: s() },
        E::UnknownPrompt { prompt: s() },
        E::UnknownResource { uri: s() },
        E::UnknownTask { task: s() },
        E::AmbiguousTask { task, server: s() },
        E::HeaderMismatch {
            server: s(),
            tool: s(),
        },
        E::AmbiguousNames {
            server: s(),
            tool: s(),
        },
        E::InputRefused {
            reason: "forged",
            execution: Execution::NotStarted,
        },
        E::Denied {
            principal,
            server,
            name,
            reason: s(),
        },
        E::BudgetSpent {
            principal: s(),
            limit: "budget",
            allowed: 1,
            spent: 1,
            after: None,
        },
        E::TooFast {
            principal: s(),
            after: Duration::from_secs(1),
        },
        E::PinChanged {
            server: s(),
            tool: s(),
        },
        E::TooManySubscriptions { limit: 1 },
        E::TooManyCalls {
            principal: s(),
            limit: 1,
        },
    ]
}

/// It was not asked.
fn absences() -> Vec<CallError> {
    use CallError as E;
    let (server, reason, wait) = (s(), s(), Duration::from_secs(1));
    let (limit, waited_ms) = (1, 1);
    vec![
        E::ServerBusy { server: s(), limit },
        E::QueuedTooLong {
            server: s(),
            limit,
            waited_ms,
        },
        E::Stopped { server: s() },
        E::Ejected { server, reason },
        E::Resting {
            server: s(),
            rest: wait,
        },
        E::StartFailed {
            server: s(),
            reason: s(),
            next: wait,
        },
        E::ProgramNotFound {
            server: s(),
            reason: s(),
            next: wait,
        },
        E::StartTimeout { server: s() },
        E::Cancelled {
            execution: Execution::Unknown,
        },
        E::InputLost,
        E::ShuttingDown,
        E::SessionEnded {
            execution: Execution::Unknown,
        },
        E::ShareExceeded {
            cause: ShareError::Principal {
                resource: Resource::ResponseBytes,
                limit: 1,
            },
            execution: Execution::Completed,
        },
    ]
}

#[test]
fn only_failures_of_the_server_or_of_the_way_to_it_count_against_it() {
    let refused = CallError::Refused {
        server: s(),
        error: "{}".into(),
    };
    let mut kinds = HashSet::new();
    for (errors, expect) in [
        (
            vec![gone(Some(7))],
            Health::Lost {
                generation: Some(7),
            },
        ),
        (outages(), AWAY),
        (failures(), Health::Bad),
        (vec![refused], Health::Good),
        (faults(), Health::Untold),
        (refusals(), Health::Untold),
        (absences(), Health::Untold),
    ] {
        for error in errors {
            assert_eq!(health(Some(&error)), expect, "{error:?}");
            kinds.insert(discriminant(&error));
        }
    }
    let answered = health(None);
    assert_eq!(answered, Health::Good, "be it an error of the tool");
    assert_eq!(kinds.len(), KINDS, "a kind of error is missing here");
}

#[test]
fn words_in_a_message_decide_nothing() {
    let text: Arc<str> = "could not connect: timeout, connection closed, 503".into();
    let said = LinkError::BadAnswer(Arc::clone(&text));
    check(&said, Class::ProtocolError, NEVER, Health::Untold);
    let refused = CallError::Refused {
        server: "s".into(),
        error: text.as_bytes().to_vec().into(),
    };
    assert_eq!(health(Some(&refused)), Health::Good);
}

#[test]
fn transport_failures_are_told_from_what_the_server_said() {
    let gone = Health::Lost {
        generation: Some(7),
    };
    let lost = LinkError::Lost(Exit::Closed);
    check(&lost, Class::ConnectionLost, NEVER, gone);
    let cut = LinkError::Cut("reset".into());
    check(&cut, Class::ConnectionLost, NEVER, gone);
    let silent = LinkError::Timeout {
        sent: Sent::Perhaps,
    };
    check(&silent, Class::Timeout, NEVER, Health::Bad);
    let unwritten = LinkError::Timeout { sent: Sent::No };
    check(&unwritten, Class::Timeout, SAFE, Health::Bad);
    let closed = LinkError::Closed(Exit::Status(1));
    check(&closed, Class::SendFailed, SAFE, AWAY);
    let full = LinkError::NotSent(NotSent::QueueFull);
    check(&full, Class::SendFailed, SAFE, AWAY);
    let busy = LinkError::Busy { in_flight_max: 1 };
    check(&busy, Class::Throttled, SAFE, Health::Untold);
    let long = LinkError::TooLong { bytes_max: 1 };
    check(&long, Class::Truncated, NEVER, Health::Untold);
}
