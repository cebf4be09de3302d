//! `mcpbench serve`: the backend over streamable HTTP. Every path is an endpoint, so that
//! `/s0/mcp` to `/s9/mcp` are ten servers on one port.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1::Builder;
use hyper::{Method, Request, Response, StatusCode, body::Incoming};

use crate::build_runtime;
use crate::http_listener::{bind_listener, serve_connections};
use crate::mcp_server::{McpServer, ServerReply};
use crate::options::ToolOptions;

const SESSION_HEADER: &str = "mcp-session-id";

#[derive(Debug)]
struct HttpBackend {
    server: McpServer,
    /// Whether the backend gives and enforces session ids.
    is_stateful: bool,
    sends_events: bool,
    next_session: AtomicU64,
    sessions: Mutex<HashSet<String>>,
}

pub(crate) fn serve(options: &ToolOptions) -> Result<()> {
    let listen = options.get("listen").unwrap_or("127.0.0.1:9000");
    let backend = Arc::new(HttpBackend {
        server: McpServer::from_options(options)?,
        is_stateful: options.has_flag("stateful"),
        sends_events: options.has_flag("sse"),
        next_session: AtomicU64::new(1),
        sessions: Mutex::default(),
    });
    build_runtime()?.block_on(async move {
        let listener = bind_listener(listen).await?;
        eprintln!("backend on http://{listen}/mcp");
        let mut server = Builder::new();
        server.pipeline_flush(true);
        let respond = move |request| {
            let backend = Arc::clone(&backend);
            async move { backend.handle_request(request).await }
        };
        serve_connections(listener, server, respond).await
    })
}

impl HttpBackend {
    async fn handle_request(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let session = request.headers().get(SESSION_HEADER);
        let session = session.and_then(|id| id.to_str().ok()).map(str::to_owned);
        match *request.method() {
            Method::POST => {}
            Method::DELETE => return self.delete_session(session),
            _ => return empty_response(StatusCode::METHOD_NOT_ALLOWED),
        }
        let Ok(body) = request.into_body().collect().await else {
            return empty_response(StatusCode::BAD_REQUEST);
        };
        let Some(reply) = self.server.respond(&body.to_bytes()) else {
            return empty_response(StatusCode::ACCEPTED);
        };
        let new_session = match self.check_session(&reply, session) {
            Ok(new_session) => new_session,
            Err(status) => return empty_response(status),
        };
        if reply.sleep_ms > 0 {
            tokio::time::sleep(Duration::from_millis(reply.sleep_ms)).await;
        }
        let mut response = self.encode_reply(&reply.body);
        if let Some(id) = new_session {
            response.headers_mut().insert(SESSION_HEADER, id);
        }
        response
    }

    /// Returns the id of a new session, or the status of a refusal.
    fn check_session(
        &self,
        reply: &ServerReply,
        session: Option<String>,
    ) -> Result<Option<HeaderValue>, StatusCode> {
        if !self.is_stateful {
            return Ok(None);
        }
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if reply.is_initialize {
            let number = self.next_session.fetch_add(1, Ordering::Relaxed);
            let id = format!("mb-{:x}-{number:x}", std::process::id());
            let header = HeaderValue::from_str(&id).ok();
            sessions.insert(id);
            return Ok(header);
        }
        match session {
            None => Err(StatusCode::BAD_REQUEST),
            Some(id) if !sessions.contains(&id) => Err(StatusCode::NOT_FOUND),
            Some(_) => Ok(None),
        }
    }

    fn delete_session(&self, session: Option<String>) -> Response<Full<Bytes>> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = session.is_some_and(|id| sessions.remove(&id));
        empty_response(if is_known || !self.is_stateful {
            StatusCode::OK
        } else {
            StatusCode::NOT_FOUND
        })
    }

    fn encode_reply(&self, reply: &[u8]) -> Response<Full<Bytes>> {
        let (content_type, payload) = if self.sends_events {
            let event = [b"event: message\ndata: ", reply, b"\n\n"].concat();
            ("text/event-stream", event)
        } else {
            ("application/json", reply.to_vec())
        };
        let mut response = Response::new(Full::from(payload));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        response
    }
}

/// Returns a response without a body.
pub(crate) fn empty_response(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}
