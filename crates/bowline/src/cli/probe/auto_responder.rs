//! A client that declares all capabilities and answers server requests automatically.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_core::client_handle::{
    ClientCapabilities, ClientCapability, ClientHandle, ServerRequest, ServerRequestId, SessionKey,
};
use bowline_wire::jsonrpc::write_result;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::sample;

/// The only session.
const SESSION: SessionKey = SessionKey(1);

/// Queues server requests for the pending call to answer.
#[derive(Debug)]
pub(super) struct AutoResponder {
    server_requests: mpsc::Sender<ServerRequest>,
    next_id: AtomicU64,
}

impl AutoResponder {
    pub(super) fn new(server_requests: mpsc::Sender<ServerRequest>) -> Self {
        Self {
            server_requests,
            next_id: AtomicU64::new(1),
        }
    }
}

impl ClientHandle for AutoResponder {
    fn session(&self) -> SessionKey {
        SESSION
    }

    fn capabilities(&self) -> ClientCapabilities {
        let all = ClientCapability::ALL.into_iter();
        all.fold(
            ClientCapabilities::default(),
            ClientCapabilities::with_capability,
        )
    }

    fn notify(&self, _: Bytes) {}

    fn request(&self, server_request: ServerRequest) -> Option<ServerRequestId> {
        self.server_requests.try_send(server_request).ok()?;
        Some(ServerRequestId(
            self.next_id.fetch_add(1, Ordering::Relaxed),
        ))
    }

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        Arc::new(Self {
            server_requests: self.server_requests.clone(),
            next_id: AtomicU64::new(1),
        })
    }
}

/// Answers a server request: accepts everything and changes nothing.
pub(super) fn answer_request(server_request: ServerRequest) {
    let request: Value = serde_json::from_slice(&server_request.request).unwrap_or_default();
    let request = &request;
    let params = &request["params"];
    let result = match request["method"].as_str().unwrap_or_default() {
        "elicitation/create" if params["mode"] == "url" => json!({"action": "accept"}),
        "elicitation/create" => json!({
            "action": "accept", "content": sample::sample_form(&params["requestedSchema"]),
        }),
        "sampling/createMessage" => json!({
            "role": "assistant", "model": "none", "stopReason": "endTurn",
            "content": {"type": "text", "text": "text"},
        }),
        _ => json!({"roots": []}),
    };
    let mut text = Vec::new();
    write_result(
        &mut text,
        server_request.id(),
        result.to_string().as_bytes(),
    );
    server_request.respond(text.into());
}
