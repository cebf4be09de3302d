//! The endpoints of 2024-11-05: a stream that tells where to post, and answers on that stream.

use std::sync::Arc;

use bowline_core::call::Scope;
use bowline_core::caller::{Abilities, CallerEnd};
use bowline_wire::jsonrpc::Refusal;
use bowline_wire::mcp::{Revision, method};
use bowline_wire::{Kind, Message};
use http::StatusCode;
use hyper::body::Incoming;

use super::call::{self, Ask, Running};
use super::parse::{self, Unparsed};
use super::{Caller, find, handshake, heard, local, no_session, over_share, read};
use crate::edge::Edge;
use crate::edge::body::{self, Answer};
use crate::edge::pace;
use crate::edge::session::{Home, OpenError, Session, Terms};
use crate::edge::stream::{self, Guard};

/// Ends a session with its stream.
#[derive(Debug)]
struct Leaving {
    edge: Arc<Edge>,
    id: Arc<str>,
}

impl Guard for Leaving {}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.edge.end_session(&self.id);
    }
}

/// Opens a session and its stream.
pub(super) fn sse(caller: Caller<'_>) -> Answer {
    let Caller {
        edge,
        principal,
        scope,
        parts,
    } = caller;
    if !read::accepts(parts, "text/event-stream") {
        return body::empty(StatusCode::NOT_ACCEPTABLE);
    }
    let seat = match edge.sessions.seat(principal) {
        Ok(seat) => seat,
        Err(cause) => return over_share(None, cause),
    };
    let terms = Terms {
        principal: Arc::clone(principal),
        scope: scope.clone(),
        revision: Revision::V2024_11_05,
        abilities: Abilities::default(),
    };
    let (id, session) = match edge.open_session(terms) {
        Ok(opened) => opened,
        Err(OpenError::Share(cause)) => return over_share(None, cause),
        Err(OpenError::Seal) => return body::empty(StatusCode::INTERNAL_SERVER_ERROR),
    };
    let mut events = session.listen();
    let path = match scope {
        Scope::All => format!("/messages?sessionId={id}"),
        Scope::Profile(profile) => format!("/messages/{profile}?sessionId={id}"),
        Scope::Server(server) => format!("/servers/{server}/messages?sessionId={id}"),
    };
    events.begin_with(stream::endpoint(&path));
    events.keep(Box::new(seat));
    events.keep(Box::new(Leaving {
        edge: Arc::clone(edge),
        id,
    }));
    body::events(events)
}

/// Takes a message of such a session; its answer goes to the stream.
pub(super) async fn messages(caller: Caller<'_>, incoming: Incoming) -> Answer {
    let (text, _share) = match read::body(caller.parts, incoming, caller.payer()).await {
        Ok(read) => read,
        Err(refused) => return refused.answer(),
    };
    let paced = pace::admit_body(caller.edge, caller.principal, caller.parts, text.len());
    if let Err(refused) = paced.await {
        return refused;
    }
    let Some(id) = session_id(caller.parts.uri.query().unwrap_or_default()) else {
        return no_session(StatusCode::BAD_REQUEST, None);
    };
    let session = find(caller, id).filter(|session| session.is_old());
    let Some(session) = session else {
        return no_session(StatusCode::NOT_FOUND, None);
    };
    let message = match parse::message(caller, &text).await {
        Ok(message) => message,
        Err(Unparsed::Batch) => return read::refused(&text, Refusal::Batch),
        Err(Unparsed::Refused(refused)) => return body::json(StatusCode::OK, refused),
        Err(Unparsed::Busy(busy)) => return *busy,
    };
    if message.kind() == Kind::Request {
        let asker = session.asker_of(caller.principal);
        request(caller.narrowed(&asker), &session, &message).await;
    } else {
        heard(caller, &session, &message);
    }
    body::empty(StatusCode::ACCEPTED)
}

fn session_id(query: &str) -> Option<&str> {
    let mut ids = query
        .split('&')
        .filter_map(|pair| pair.strip_prefix("sessionId="));
    ids.next().filter(|_| ids.next().is_none())
}

async fn request(caller: Caller<'_>, session: &Arc<Session>, message: &Message) {
    let answer = if message.method() == Some(method::INITIALIZE) {
        handshake::greet(caller, session, message).await
    } else if let Some(ask) = message.method().and_then(Ask::of) {
        let end = Home::of(session) as Arc<dyn CallerEnd>;
        match call::begin(caller, session, message, ask, end) {
            Ok(running) => return later(caller.edge, session, running),
            Err(refused) => refused,
        }
    } else {
        local::answer(caller, session, message).await
    };
    session.answer_at_home(answer);
}

/// Answers when the server does; the end of the session ends the call.
fn later(edge: &Edge, session: &Arc<Session>, running: Running) {
    let session = Arc::clone(session);
    edge.host.tasks().spawn("old call", async move {
        session.answer_at_home(running.await.answer);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_named_once_in_the_query() {
        assert_eq!(session_id("sessionId=a"), Some("a"));
        assert_eq!(session_id("x=1&sessionId=a&y"), Some("a"));
        for query in ["", "sessionid=a", "xsessionId=a", "sessionId=a&sessionId=b"] {
            assert_eq!(session_id(query), None, "{query}");
        }
    }
}
