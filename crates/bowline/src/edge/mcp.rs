//! The MCP endpoints: one request in, one answer or stream of events out.

mod call;
mod handshake;
mod headers;
mod read;

pub(super) use read::is_json;

use std::sync::Arc;

use bowline_core::call::{Principal, Scope};
use bowline_host::catalog::ListKind;
use bowline_wire::jsonrpc::{write_error, write_result};
use bowline_wire::mcp::{Revision, code, method};
use bowline_wire::{Kind, Message, object};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use hyper::body::Incoming;

use super::body::{self, Answer, REVISION, SESSION};
use super::session::Session;
use super::stream::EventBody;
use super::{Edge, announce, errors};

/// What every request to an MCP endpoint is answered with the help of.
#[derive(Clone, Copy, Debug)]
struct Caller<'a> {
    edge: &'a Arc<Edge>,
    principal: &'a Arc<Principal>,
    scope: &'a Scope,
    parts: &'a Parts,
}

/// Reads a body within bounds, or returns the answer that refuses it.
pub(super) async fn bounded_body(
    headers: &http::HeaderMap,
    incoming: Incoming,
) -> Result<Bytes, Answer> {
    read::bounded(headers, incoming)
        .await
        .map_err(read::Unread::answer)
}

/// Answers one request to an MCP endpoint.
pub async fn answer(
    edge: &Arc<Edge>,
    principal: &Arc<Principal>,
    scope: &Scope,
    parts: &Parts,
    incoming: Incoming,
) -> Answer {
    let caller = Caller {
        edge,
        principal,
        scope,
        parts,
    };
    if let Scope::Server(server) = scope
        && let Err(error) = edge.host.server(server)
    {
        return body::json(StatusCode::NOT_FOUND, errors::answer(b"null", &error));
    }
    match parts.method {
        Method::POST => post(caller, incoming).await,
        Method::GET => listen(caller),
        Method::DELETE => end(caller),
        _ => {
            let mut answer = body::empty(StatusCode::METHOD_NOT_ALLOWED);
            answer
                .headers_mut()
                .insert(header::ALLOW, HeaderValue::from_static("GET, POST, DELETE"));
            answer
        }
    }
}

async fn post(caller: Caller<'_>, incoming: Incoming) -> Answer {
    let text = match read::body(caller.parts, incoming).await {
        Ok(text) => text,
        Err(refused) => return refused.answer(),
    };
    let message = match Message::parse(text.clone()) {
        Ok(message) => message,
        Err(refusal) => return read::refused(&text, refusal),
    };
    if let Some(refused) = refuse_revision(caller, &message)
        .or_else(|| headers::refuse_lies(&caller.parts.headers, &message))
    {
        return refused;
    }
    match (message.kind(), message.method()) {
        (Kind::Request, Some(method::INITIALIZE)) => handshake::open(caller, &message).await,
        (Kind::Request, _) => match session(caller) {
            Ok(session) => request(caller, &session, &message).await,
            Err(status) => no_session(status, message.id()),
        },
        // A caller's answers belong to requests of ours; none is ever open.
        (Kind::Notification | Kind::Answer, _) => match session(caller) {
            Ok(session) => {
                notified(&session, &message);
                body::empty(StatusCode::ACCEPTED)
            }
            Err(status) => no_session(status, None),
        },
    }
}

async fn request(caller: Caller<'_>, session: &Session, message: &Message) -> Answer {
    let id = message.id().unwrap_or(b"null");
    match message.method() {
        Some(method::TOOLS_CALL) => call::answer(caller, session, message).await,
        Some(method::TOOLS_LIST) => list(caller, session, id, message.params()).await,
        Some(method::PING) => result(id, b"{}"),
        Some(_) | None => failure(
            StatusCode::OK,
            Some(id),
            code::METHOD_NOT_FOUND,
            "this gateway does not serve that method",
        ),
    }
}

async fn list(caller: Caller<'_>, session: &Session, id: &[u8], params: Option<&[u8]>) -> Answer {
    if params.is_some_and(|params| object::field(params, "cursor").is_some()) {
        let message = "the list has one page; no cursor was given out";
        return failure(StatusCode::OK, Some(id), code::INVALID_PARAMS, message);
    }
    caller.edge.host.settled().await;
    let view = caller
        .edge
        .host
        .view(caller.principal, caller.scope, ListKind::Tools);
    session.knows(view.fingerprint);
    result(id, &view.result)
}

fn notified(session: &Session, message: &Message) {
    if message.method() != Some(method::CANCELLED) {
        return;
    }
    let Some(params) = message.params() else {
        return;
    };
    if let Some(id) = object::field(params, "requestId") {
        session.in_flight.cancel(id.of(params));
    }
}

/// Opens the stream on which a session hears of changes.
fn listen(caller: Caller<'_>) -> Answer {
    if !read::accepts(caller.parts, "text/event-stream") {
        return body::empty(StatusCode::NOT_ACCEPTABLE);
    }
    if let Some(refused) = refuse_unknown(caller, None) {
        return refused;
    }
    // No stream of ours gives out event ids, so there is none to resume from.
    if caller.parts.headers.contains_key("last-event-id") {
        return no_session(StatusCode::NOT_FOUND, None);
    }
    match session(caller) {
        Ok(session) => {
            let Some(seat) = caller.edge.sessions.seat() else {
                return too_many_streams();
            };
            let (sender, events) = EventBody::open(Box::new(seat));
            session.listen(sender);
            announce::catch_up(caller.edge, &session);
            body::events(events)
        }
        Err(status) => no_session(status, None),
    }
}

/// Calls must find a connection however many listen.
fn too_many_streams() -> Answer {
    let message = "too many streams are open; try again later";
    let mut answer = failure(
        StatusCode::SERVICE_UNAVAILABLE,
        None,
        errors::CALL_FAILED,
        message,
    );
    answer
        .headers_mut()
        .insert(header::RETRY_AFTER, HeaderValue::from_static("30"));
    answer
}

fn end(caller: Caller<'_>) -> Answer {
    if let Some(refused) = refuse_unknown(caller, None) {
        return refused;
    }
    match (session(caller), session_id(caller)) {
        (Ok(_), Some(id)) => {
            caller.edge.sessions.end(id);
            body::empty(StatusCode::NO_CONTENT)
        }
        (Err(status), _) => no_session(status, None),
        (Ok(_), None) => no_session(StatusCode::BAD_REQUEST, None),
    }
}

/// Refuses a revision that is not served here. A modern client that only asks is told in the way
/// that makes it fall back to a handshake.
fn refuse_revision(caller: Caller<'_>, message: &Message) -> Option<Answer> {
    if message.kind() == Kind::Request && message.method() == Some(method::DISCOVER) {
        return Some(failure(
            StatusCode::OK,
            message.id(),
            code::METHOD_NOT_FOUND,
            "this gateway opens with initialize",
        ));
    }
    if message.method() == Some(method::INITIALIZE) {
        return None;
    }
    refuse_unknown(caller, message.id())
}

/// Refuses a request whose header names a revision that is not known here.
fn refuse_unknown(caller: Caller<'_>, id: Option<&[u8]>) -> Option<Answer> {
    let mut asked = caller.parts.headers.get_all(REVISION).iter();
    if asked.all(|asked| asked.to_str().ok().and_then(Revision::parse).is_some()) {
        return None;
    }
    Some(failure(
        StatusCode::BAD_REQUEST,
        id,
        code::INVALID_REQUEST,
        "this revision of the protocol is not served here",
    ))
}

fn session_id<'a>(caller: Caller<'a>) -> Option<&'a str> {
    caller.parts.headers.get(SESSION)?.to_str().ok()
}

/// Returns the caller's session, or the status that says why there is none. A session of somebody
/// else looks just like one that never was.
fn session(caller: Caller<'_>) -> Result<Arc<Session>, StatusCode> {
    let id = session_id(caller).ok_or(StatusCode::BAD_REQUEST)?;
    caller
        .edge
        .sessions
        .find(
            id,
            caller.principal,
            caller.scope,
            caller.edge.host.clock().as_ref(),
        )
        .ok_or(StatusCode::NOT_FOUND)
}

fn no_session(status: StatusCode, id: Option<&[u8]>) -> Answer {
    let message = if status == StatusCode::BAD_REQUEST {
        "a session id is needed; open a session with initialize"
    } else {
        "there is no such session; open one with initialize"
    };
    failure(status, id, code::INVALID_REQUEST, message)
}

fn result(id: &[u8], result: &[u8]) -> Answer {
    let mut out = Vec::new();
    write_result(&mut out, id, result);
    body::json(StatusCode::OK, Bytes::from(out))
}

fn failure(status: StatusCode, id: Option<&[u8]>, code: i64, message: &str) -> Answer {
    let mut out = Vec::new();
    write_error(&mut out, id, code, message, None);
    body::json(status, Bytes::from(out))
}
