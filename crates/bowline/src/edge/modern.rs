//! Requests of the modern era: each says what it needs, and none builds on one before it.

mod call;
mod client;
mod discover;
mod end;
mod headers;
pub(super) mod listen;
mod lists;
mod parked;
mod read;
mod result;
mod state;
mod status;
mod tasks;

use bowline_core::call::TaskVerb;
use bowline_host::catalog::ListKind;
use bowline_wire::jsonrpc::Refusal;
use bowline_wire::mcp::{Revision, code, meta, method};
use bowline_wire::{Kind, Message, object};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::body::{self, Answer, REVISION, SESSION};
use super::mcp::call::Ask;
use super::mcp::{Caller, error, failure};

pub(super) use call::Calls;
pub(super) use result::GATEWAY;

/// What `MCP-Protocol-Version` says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    /// It is absent.
    Nothing,
    /// A revision that opens with a handshake.
    Legacy,
    /// A revision without one, perhaps among others.
    Modern,
    /// A revision that is not known here.
    Unknown,
}

impl Says {
    /// Reads the header, all of it where it stands more than once.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut said = Self::Nothing;
        for value in headers.get_all(REVISION) {
            let known = value.to_str().ok().and_then(Revision::parse);
            said = match (said, known) {
                (_, Some(Revision::V2026_07_28)) => return Self::Modern,
                (Self::Nothing | Self::Legacy, Some(_)) => Self::Legacy,
                (_, _) => Self::Unknown,
            };
        }
        said
    }
}

/// Whether a message is to be answered here. A caller with a session is none of ours, unless it
/// says so in the header; and `initialize` is what callers of the other era begin with.
pub(super) fn is_meant(headers: &HeaderMap, says: Says, message: &Message) -> bool {
    let asked = message.method();
    match says {
        Says::Modern => true,
        Says::Legacy => is_new(message) && !headers.contains_key(SESSION),
        _ if asked == Some(method::INITIALIZE) || headers.contains_key(SESSION) => false,
        Says::Unknown => true,
        Says::Nothing => is_new(message) || tells_version(message),
    }
}

/// Whether a request is one that only this era has.
fn is_new(message: &Message) -> bool {
    let asked = message.method();
    message.kind() == Kind::Request
        && matches!(asked, Some(method::DISCOVER | method::SUBSCRIPTIONS_LISTEN))
}

/// Whether the parameters say in which revision they are written.
fn tells_version(message: &Message) -> bool {
    let params = message.params().unwrap_or_default();
    let within = object::field(params, "_meta").map(|at| at.of(params));
    within.is_some_and(|within| object::field(within, meta::PROTOCOL_VERSION).is_some())
}

/// Answers a message of this era.
pub(super) async fn answer(caller: Caller<'_>, message: &Message) -> Answer {
    // What narrows every session narrows whoever has none.
    let asker = caller.edge.sessions.narrowed(caller.principal);
    let caller = caller.narrowed(&asker);
    match message.kind() {
        Kind::Request => request(caller, message).await,
        Kind::Notification => match headers::refuse_lies(&caller.parts.headers, message) {
            Some(refused) => refused,
            // Whoever no longer wants an answer closes the stream that it would come on.
            None => body::empty(StatusCode::ACCEPTED),
        },
        Kind::Answer => {
            let text = "questions are answered in the parameters of a request";
            failure(StatusCode::BAD_REQUEST, None, code::INVALID_REQUEST, text)
        }
    }
}

async fn request(caller: Caller<'_>, message: &Message) -> Answer {
    let asked = match read::check(caller, message) {
        Ok(asked) => asked,
        Err(refused) => return refused.answer(message.id()),
    };
    if let Some(kind) = ListKind::ALL
        .into_iter()
        .find(|kind| kind.method() == asked.method)
    {
        return lists::answer(asked, kind).await;
    }
    if let Some(ask) = subject(asked.method) {
        return call::answer(asked, ask).await;
    }
    if let Some(verb) = verb(asked.method) {
        return Box::pin(tasks::answer(asked, verb)).await;
    }
    match asked.method {
        method::DISCOVER => discover::answer(asked).await,
        method::SUBSCRIPTIONS_LISTEN => match tasks::refuse_news(&asked) {
            Some(refused) => refused,
            None => Box::pin(listen::open(asked)).await,
        },
        _ => read::Refused::Method.answer(message.id()),
    }
}

/// Returns what a method asks servers for, if this era has it.
fn subject(method: &str) -> Option<Ask> {
    match method {
        method::TOOLS_CALL => Some(Ask::Tool),
        method::PROMPTS_GET => Some(Ask::Prompt),
        method::RESOURCES_READ => Some(Ask::Resource),
        method::COMPLETION_COMPLETE => Some(Ask::Complete),
        _ => None,
    }
}

/// Returns what a method wants of a task.
fn verb(method: &str) -> Option<TaskVerb> {
    match method {
        method::TASKS_GET => Some(TaskVerb::Get),
        method::TASKS_UPDATE => Some(TaskVerb::Update),
        method::TASKS_CANCEL => Some(TaskVerb::Cancel),
        _ => None,
    }
}

/// Answers a body that is no message, or several.
pub(super) fn unread(refused: Bytes) -> Answer {
    body::json(StatusCode::BAD_REQUEST, refused)
}

/// Writes the refusal of several messages in one body.
pub(super) fn no_batches() -> Answer {
    let text = Refusal::Batch.to_string();
    unread(error(None, code::INVALID_REQUEST, &text))
}

/// Answers a method of HTTP that this era has no use for.
pub(super) fn not_allowed() -> Answer {
    super::mcp::not_allowed("POST")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn map(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    const MODERN: (&str, &str) = ("mcp-protocol-version", "2026-07-28");
    const LEGACY: (&str, &str) = ("mcp-protocol-version", "2025-11-25");
    const UNKNOWN: (&str, &str) = ("mcp-protocol-version", "x");

    #[test]
    fn the_header_says_which_era_is_meant() {
        for (headers, want) in [
            (&[][..], Says::Nothing),
            (&[LEGACY], Says::Legacy),
            (&[LEGACY, LEGACY], Says::Legacy),
            (&[MODERN], Says::Modern),
            (&[LEGACY, MODERN], Says::Modern),
            (&[UNKNOWN, MODERN], Says::Modern),
            (&[UNKNOWN], Says::Unknown),
            (&[UNKNOWN, LEGACY], Says::Unknown),
            (&[LEGACY, UNKNOWN], Says::Unknown),
            (&[("mcp-protocol-version", "2026-07-28 ")], Says::Unknown),
        ] {
            assert_eq!(Says::of(&map(headers)), want, "{headers:?}");
        }
    }

    #[test]
    fn what_belongs_to_a_session_is_not_taken_for_modern() {
        const SESSION: (&str, &str) = ("mcp-session-id", "s");
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        let open = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
        let probe = r#"{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{}}"#;
        let note = r#"{"jsonrpc":"2.0","method":"server/discover","params":{}}"#;
        let told = concat!(
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":"#,
            r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#,
        );
        for (headers, body, want) in [
            (&[][..], list, false),
            (&[], probe, true),
            (&[], note, false),
            (&[], told, true),
            (&[SESSION], told, false),
            (&[SESSION], probe, false),
            (&[LEGACY], list, false),
            (&[LEGACY], told, false),
            (&[LEGACY], probe, true),
            (&[LEGACY, SESSION], probe, false),
            (&[MODERN], open, true),
            (&[MODERN, SESSION], list, true),
            (&[UNKNOWN], list, true),
            (&[UNKNOWN], open, false),
            (&[UNKNOWN, SESSION], list, false),
        ] {
            let headers = map(headers);
            let message = Message::parse(body.into()).unwrap();
            let says = Says::of(&headers);
            assert_eq!(is_meant(&headers, says, &message), want, "{headers:?}");
        }
    }
}
