//! HTTP+SSE transport of 2024-11-05: the stream announces the POST endpoint and carries the
//! responses.

use std::sync::Arc;

use bowline_core::call::EndpointScope;
use bowline_core::client_handle::{ClientCapabilities, ClientHandle};
use bowline_wire::jsonrpc::MessageError;
use bowline_wire::mcp::{Revision, method};
use bowline_wire::{MessageKind, RpcMessage};
use http::StatusCode;
use hyper::body::Incoming;

use super::request_body::ParseFailure;
use super::{
    McpCaller, find_session, handle_one_way, initialize, local_requests, no_session_response,
    request_body, share_exceeded_response,
};
use crate::Edge;
use crate::call::call_params::CallKind;
use crate::call::{ResponseFuture, session_call};
use crate::client_session::{ClientSession, OpenSessionError, SessionHandle, SessionTerms};
use crate::event_stream::{self, StreamGuard};
use crate::http_listener;
use crate::response_body::{self, EdgeResponse};

/// Ends a session with its stream.
#[derive(Debug)]
struct EndSessionGuard {
    edge: Arc<Edge>,
    id: Arc<str>,
}

impl StreamGuard for EndSessionGuard {}

impl Drop for EndSessionGuard {
    fn drop(&mut self) {
        self.edge.end_session(&self.id);
    }
}

/// Opens a session and its event stream.
pub(super) fn open_sse(caller: McpCaller<'_>) -> EdgeResponse {
    let McpCaller {
        edge,
        principal,
        scope,
        parts,
    } = caller;
    if !request_body::accepts_type(parts, "text/event-stream") {
        return response_body::empty_response(StatusCode::NOT_ACCEPTABLE);
    }
    let permit = match edge.sessions.acquire_stream(principal) {
        Ok(permit) => permit,
        Err(cause) => return share_exceeded_response(None, cause),
    };
    let terms = SessionTerms {
        principal: Arc::clone(principal),
        scope: scope.clone(),
        revision: Revision::V2024_11_05,
        capabilities: ClientCapabilities::default(),
    };
    let (id, session) = match edge.open_session(terms) {
        Ok(opened) => opened,
        Err(OpenSessionError::Share(cause)) => return share_exceeded_response(None, cause),
        Err(OpenSessionError::Seal) => {
            return response_body::empty_response(StatusCode::INTERNAL_SERVER_ERROR);
        }
    };
    let mut events = session.open_listen_stream();
    let path = match scope {
        EndpointScope::All => format!("/messages?sessionId={id}"),
        EndpointScope::Profile(profile) => format!("/messages/{profile}?sessionId={id}"),
        EndpointScope::Server(server) => format!("/servers/{server}/messages?sessionId={id}"),
    };
    events.set_opening(event_stream::endpoint_event(&path));
    events.attach_guard(Box::new(permit));
    events.attach_guard(Box::new(EndSessionGuard {
        edge: Arc::clone(edge),
        id,
    }));
    response_body::event_response(events)
}

/// Accepts a message of an SSE session; the response goes to the event stream.
pub(super) async fn post_message(caller: McpCaller<'_>, incoming: Incoming) -> EdgeResponse {
    let (text, _share) =
        match request_body::read_mcp_body(caller.parts, incoming, caller.account()).await {
            Ok(read) => read,
            Err(refused) => return refused.into_response(),
        };
    let paced = http_listener::admit_body(caller.edge, caller.principal, caller.parts, text.len());
    if let Err(refused) = paced.await {
        return refused;
    }
    let Some(id) = query_session_id(caller.parts.uri.query().unwrap_or_default()) else {
        return no_session_response(StatusCode::BAD_REQUEST, None);
    };
    let session = find_session(caller, id).filter(|session| session.is_sse_session());
    let Some(session) = session else {
        return no_session_response(StatusCode::NOT_FOUND, None);
    };
    let message = match request_body::parse_message(caller, &text).await {
        Ok(message) => message,
        Err(ParseFailure::Batch) => {
            return request_body::refusal_response(&text, MessageError::Batch);
        }
        Err(ParseFailure::Refused(refused)) => {
            return response_body::json_response(StatusCode::OK, refused);
        }
        Err(ParseFailure::Busy(busy)) => return *busy,
    };
    if message.kind() == MessageKind::Request {
        let principal = session.principal_for(caller.principal);
        handle_request(caller.with_principal(&principal), &session, &message).await;
    } else {
        handle_one_way(caller, &session, &message);
    }
    response_body::empty_response(StatusCode::ACCEPTED)
}

fn query_session_id(query: &str) -> Option<&str> {
    let mut ids = query
        .split('&')
        .filter_map(|pair| pair.strip_prefix("sessionId="));
    ids.next().filter(|_| ids.next().is_none())
}

async fn handle_request(caller: McpCaller<'_>, session: &Arc<ClientSession>, message: &RpcMessage) {
    let response = if message.method() == Some(method::INITIALIZE) {
        initialize::initialize_session(caller, session, message).await
    } else if let Some(kind) = message.method().and_then(CallKind::from_method) {
        let handle = SessionHandle::for_session(session) as Arc<dyn ClientHandle>;
        match session_call::start_call(caller, session, message, kind, handle) {
            Ok(running) => return respond_later(caller.edge, session, running),
            Err(refused) => refused,
        }
    } else {
        local_requests::handle_local(caller, session, message).await
    };
    session.push_response(response);
}

/// Sends the response when ready; ending the session cancels the call.
fn respond_later(edge: &Edge, session: &Arc<ClientSession>, running: ResponseFuture) {
    let session = Arc::clone(session);
    edge.host.tasks().spawn("http+sse call", async move {
        session.push_response(running.await.text);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_id_appears_once_in_query() {
        assert_eq!(query_session_id("sessionId=a"), Some("a"));
        assert_eq!(query_session_id("x=1&sessionId=a&y"), Some("a"));
        for query in ["", "sessionid=a", "xsessionId=a", "sessionId=a&sessionId=b"] {
            assert_eq!(query_session_id(query), None, "{query}");
        }
    }
}
