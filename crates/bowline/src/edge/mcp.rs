//! The MCP endpoints: one request in, one answer or stream of events out.

mod batch;
pub(super) mod call;
mod elder;
pub(super) mod handshake;
pub(super) mod headers;
pub(super) mod list;
mod local;
mod old;
pub(super) mod outbox;
mod parse;
pub(super) mod read;

pub(super) use read::{accepts, is_json};

use std::sync::Arc;

use bowline_core::call::{Principal, Scope};
use bowline_core::caller::CallerEnd;
use bowline_core::error::{CallError, Execution};
use bowline_core::shares::ShareError;
use bowline_host::accounts::PrincipalAccounts;
use bowline_wire::jsonrpc::{write_error, write_notification, write_result};
use bowline_wire::mcp::{code, method};
use bowline_wire::{Kind, Message, object};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use hyper::body::Incoming;

use self::parse::Unparsed;
use super::body::{self, Answer, SESSION};
use super::errors::TooMuch;
use super::modern::{self, Says};
use super::session::{CallEnd, Replay, Session};
use super::stream::{EventBody, Place};
use super::{Edge, announce, errors, pace};

/// What every request to an MCP endpoint is answered with the help of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller<'a> {
    pub(super) edge: &'a Arc<Edge>,
    pub(super) principal: &'a Arc<Principal>,
    pub(super) scope: &'a Scope,
    pub(super) parts: &'a Parts,
}

impl<'a> Caller<'a> {
    /// Returns whose share its bodies are a part of.
    pub(super) fn payer(&self) -> (&'a PrincipalAccounts, &'a Principal) {
        (self.edge.host.accounts(), self.principal)
    }

    /// Returns the same caller as its session knows it: narrowed by what was set for the session.
    pub(super) const fn narrowed(self, asker: &'a Arc<Principal>) -> Self {
        Self {
            principal: asker,
            ..self
        }
    }
}

/// Reads a body within bounds, or returns the answer that refuses it.
pub(super) async fn bounded_body(
    headers: &http::HeaderMap,
    incoming: Incoming,
    payer: (&PrincipalAccounts, &Principal),
) -> Result<Bytes, Answer> {
    let read = read::bounded(headers, incoming, payer).await;
    read.map(|(bytes, _)| bytes).map_err(read::Unread::answer)
}

/// Which of the MCP endpoints of a scope is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// The one of streamable HTTP.
    Streamable,
    /// The stream of 2024-11-05.
    OldStream,
    /// Where messages are posted to that stream's session.
    OldMessages,
}

/// Answers one request to an MCP endpoint.
pub async fn answer(
    edge: &Arc<Edge>,
    principal: &Arc<Principal>,
    (endpoint, scope): (Endpoint, &Scope),
    parts: &Parts,
    incoming: Incoming,
) -> Answer {
    let caller = Caller {
        edge,
        principal,
        scope,
        parts,
    };
    if let Some(refused) = refuse_scope(caller) {
        return refused;
    }
    match (endpoint, &parts.method) {
        (Endpoint::Streamable, &Method::POST) => post(caller, incoming).await,
        (Endpoint::Streamable, &Method::GET | &Method::DELETE)
            if Says::of(&parts.headers) == Says::Modern =>
        {
            modern::not_allowed()
        }
        (Endpoint::Streamable, &Method::GET) => listen(caller),
        (Endpoint::Streamable, &Method::DELETE) => end(caller),
        (Endpoint::OldStream, &Method::GET) => old::sse(caller),
        (Endpoint::OldMessages, &Method::POST) => Box::pin(old::messages(caller, incoming)).await,
        (Endpoint::Streamable, _) => not_allowed("GET, POST, DELETE"),
        (Endpoint::OldStream, _) => not_allowed("GET"),
        (Endpoint::OldMessages, _) => not_allowed("POST"),
    }
}

/// Refuses an endpoint of a server or a profile that is not there.
fn refuse_scope(caller: Caller<'_>) -> Option<Answer> {
    let host = &caller.edge.host;
    match caller.scope {
        Scope::All => None,
        Scope::Server(server) => {
            // Of a server that is not for this caller it learns no more than of one that is not.
            let hidden = || {
                let server = Arc::clone(server);
                let is_seen = host.reaches(caller.principal, &server);
                (!is_seen).then_some(CallError::UnknownServer { server })
            };
            let error = host.server(server).err().or_else(hidden)?;
            let text = errors::answer(b"null", &error);
            Some(body::json(StatusCode::NOT_FOUND, text))
        }
        Scope::Profile(profile) if host.policy().has_profile(profile) => None,
        Scope::Profile(profile) => {
            let message = format!("there is no profile `{profile}`");
            let status = StatusCode::NOT_FOUND;
            Some(failure(status, None, code::INVALID_PARAMS, &message))
        }
    }
}

pub(super) fn not_allowed(allowed: &'static str) -> Answer {
    let mut answer = body::empty(StatusCode::METHOD_NOT_ALLOWED);
    answer
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static(allowed));
    answer
}

async fn post(caller: Caller<'_>, incoming: Incoming) -> Answer {
    match read::body(caller.parts, incoming, caller.payer()).await {
        Ok((text, None)) => message(caller, text).await,
        Ok((text, share)) => {
            let answer = Box::pin(message(caller, text)).await;
            read::held(answer, share)
        }
        Err(refused) => refused.answer(),
    }
}

async fn message(caller: Caller<'_>, text: Bytes) -> Answer {
    let paced = pace::admit_body(caller.edge, caller.principal, caller.parts, text.len());
    if let Err(refused) = paced.await {
        return refused;
    }
    let headers = &caller.parts.headers;
    let says = Says::of(headers);
    let message = match parse::message(caller, &text).await {
        Ok(message) => message,
        Err(Unparsed::Batch) if says == Says::Modern => return modern::no_batches(),
        // What is rare is boxed, so that a call carries no room for it.
        Err(Unparsed::Batch) => return Box::pin(batch::answer(caller, text)).await,
        Err(Unparsed::Refused(refused)) if says == Says::Modern => return modern::unread(refused),
        Err(Unparsed::Refused(refused)) => return body::json(StatusCode::OK, refused),
        Err(Unparsed::Busy(busy)) => return *busy,
    };
    if modern::is_meant(headers, says, &message) {
        return Box::pin(modern::answer(caller, &message)).await;
    }
    if let Some(refused) =
        refuse_revision(says, &message).or_else(|| headers::refuse_lies(headers, &message))
    {
        return refused;
    }
    match (message.kind(), message.method()) {
        (Kind::Request, Some(method::INITIALIZE)) => {
            Box::pin(handshake::open(caller, &message)).await
        }
        (Kind::Request, _) => match session(caller) {
            Ok(session) => {
                let asker = session.asker_of(caller.principal);
                request(caller.narrowed(&asker), &session, &message).await
            }
            Err(status) => no_session(status, message.id()),
        },
        (Kind::Notification | Kind::Answer, _) => match session(caller) {
            Ok(session) => {
                heard(caller, &session, &message);
                body::empty(StatusCode::ACCEPTED)
            }
            Err(status) => no_session(status, None),
        },
    }
}

async fn request(caller: Caller<'_>, session: &Arc<Session>, message: &Message) -> Answer {
    let Some(ask) = message.method().and_then(call::Ask::of) else {
        let answer = Box::pin(local::answer(caller, session, message)).await;
        return body::json(StatusCode::OK, answer);
    };
    // A caller that takes no stream can neither be told nor asked anything on the way; but its
    // call is not nobody's, or what a server asks in it would seem to be another session's.
    let streams = accepts(caller.parts, "text/event-stream");
    let end = streams.then(|| {
        let id = Bytes::copy_from_slice(message.id().unwrap_or_default());
        CallEnd::new(session, id, Vec::new())
    });
    let told: Arc<dyn CallerEnd> = match &end {
        Some(end) => Arc::clone(end) as Arc<dyn CallerEnd>,
        None => session.without_stream(),
    };
    match call::begin(caller, session, message, ask, told) {
        Ok(running) => call::answer(caller.edge, running, end).await,
        Err(refused) => body::json(StatusCode::OK, refused),
    }
}

/// Takes what needs no answer: a notification, or the caller's answer to a question.
fn heard(caller: Caller<'_>, session: &Session, message: &Message) {
    if message.kind() == Kind::Answer {
        return session.questions.answer(message);
    }
    let params = message.params().unwrap_or_default();
    match message.method() {
        Some(method::CANCELLED) => {
            if let Some(id) = object::field(params, "requestId") {
                session.in_flight.cancel(id.of(params));
            }
        }
        Some(method::ROOTS_LIST_CHANGED) => caller.edge.host.roots_changed(session.key),
        _ => {}
    }
}

/// Opens the stream on which a session hears of changes, or one that its caller has lost.
fn listen(caller: Caller<'_>) -> Answer {
    if !accepts(caller.parts, "text/event-stream") {
        return body::empty(StatusCode::NOT_ACCEPTABLE);
    }
    if let Some(refused) = refuse_unknown(Says::of(&caller.parts.headers), None) {
        return refused;
    }
    let session = match session(caller) {
        Ok(session) => session,
        Err(status) => return no_session(status, None),
    };
    let seat = match caller.edge.sessions.seat(caller.principal) {
        Ok(seat) => seat,
        Err(cause) => return over_share(None, cause),
    };
    let events = match caller.parts.headers.get("last-event-id") {
        None => Some(session.listen()),
        Some(id) => resume(caller, &session, id),
    };
    let Some(mut events) = events else {
        let message = "there is no such event to go on from in this session";
        return failure(StatusCode::NOT_FOUND, None, code::INVALID_REQUEST, message);
    };
    events.keep(Box::new(seat));
    announce::catch_up(caller.edge, &session);
    body::events(events)
}

fn resume(caller: Caller<'_>, session: &Arc<Session>, id: &HeaderValue) -> Option<EventBody> {
    let place = Place::parse(id.to_str().ok()?)?;
    let (events, replay) = session.resume(place, caller.edge.host.clock().now())?;
    if replay == Replay::Partial {
        warn_of_gap(caller, session);
    }
    Some(events)
}

/// Tells a session that notifications may have been missed, where its endpoint logs at all.
fn warn_of_gap(caller: Caller<'_>, session: &Session) {
    let host = &caller.edge.host;
    let own = host.introduction(caller.principal, caller.scope);
    if object::field(&own.capabilities, "logging").is_none() {
        return;
    }
    let mut text = Vec::new();
    write_notification(&mut text, method::MESSAGE, Some(GAP.as_bytes()));
    session.tell(text.into());
}

/// What a session is told when it comes back to a stream of which not all is kept.
const GAP: &str = concat!(
    r#"{"level":"warning","logger":"bowline","data":"Notifications may have been missed: the "#,
    r#"gateway was restarted, or more was sent than it keeps. List again, and subscribe again "#,
    r#"to resources."}"#
);

/// Refuses a request for which its principal, or all together, hold too much already. Nothing was
/// done for it.
pub(super) fn over_share(id: Option<&[u8]>, cause: ShareError) -> Answer {
    let status = match cause {
        ShareError::Principal { .. } => StatusCode::TOO_MANY_REQUESTS,
        ShareError::Total { .. } => StatusCode::SERVICE_UNAVAILABLE,
    };
    let error = CallError::ShareExceeded {
        cause,
        execution: Execution::NotStarted,
    };
    let text = errors::answer(id.unwrap_or(b"null"), &error);
    let mut answer = body::json(status, text);
    if let Some(seconds) = TooMuch::of(&error).and_then(TooMuch::seconds) {
        let wait = HeaderValue::from(seconds);
        answer.headers_mut().insert(header::RETRY_AFTER, wait);
    }
    answer
}

fn end(caller: Caller<'_>) -> Answer {
    if let Some(refused) = refuse_unknown(Says::of(&caller.parts.headers), None) {
        return refused;
    }
    match (session(caller), session_id(caller)) {
        (Ok(_), Some(id)) => {
            caller.edge.end_session(id);
            body::empty(StatusCode::NO_CONTENT)
        }
        (Err(status), _) => no_session(status, None),
        (Ok(_), None) => no_session(StatusCode::BAD_REQUEST, None),
    }
}

/// Refuses a revision that is not served here.
fn refuse_revision(says: Says, message: &Message) -> Option<Answer> {
    if message.method() == Some(method::INITIALIZE) {
        return None;
    }
    refuse_unknown(says, message.id())
}

/// Refuses a request whose header names a revision that is not known here.
fn refuse_unknown(says: Says, id: Option<&[u8]>) -> Option<Answer> {
    if says != Says::Unknown {
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
    find(caller, id).ok_or(StatusCode::NOT_FOUND)
}

fn find(caller: Caller<'_>, id: &str) -> Option<Arc<Session>> {
    let clock = caller.edge.host.clock().as_ref();
    let sessions = &caller.edge.sessions;
    sessions.find(id, caller.principal, caller.scope, clock)
}

fn no_session(status: StatusCode, id: Option<&[u8]>) -> Answer {
    let message = if status == StatusCode::BAD_REQUEST {
        "a session id is needed; open a session with initialize"
    } else {
        "there is no such session; open one with initialize"
    };
    failure(status, id, code::INVALID_REQUEST, message)
}

pub(super) fn result(id: &[u8], result: &[u8]) -> Bytes {
    let mut out = Vec::new();
    write_result(&mut out, id, result);
    out.into()
}

pub(super) fn error(id: Option<&[u8]>, code: i64, message: &str) -> Bytes {
    let mut out = Vec::new();
    write_error(&mut out, id, code, message, None);
    out.into()
}

pub(super) fn failure(status: StatusCode, id: Option<&[u8]>, code: i64, message: &str) -> Answer {
    body::json(status, error(id, code, message))
}
