//! Calls, specs and recording clients for tests.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::call::{
    CallReply, CallRequest, CallSubject, EndpointScope, Principal, RequestMessage, Role,
};
use bowline_core::client_handle::{
    ClientCapabilities, ClientCapability, ClientHandle, ServerRequest, ServerRequestId, SessionKey,
};
use bowline_core::era::Era;
use bowline_core::sync::lock;
use bowline_host::Host;
use bowline_host::ports::NotificationSink;
use bowline_host::spec::ServerSpec;
use bytes::Bytes;
use tokio::sync::watch;

use crate::sim::sim_json::to_json_string;

/// The id of every test call.
pub const CALL_ID: &str = "\"call-7\"";

/// Wait limit for a server, in test time.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

/// Returns a spec with defaults.
#[must_use]
pub fn server_spec(server: &str) -> ServerSpec {
    ServerSpec::new(server, "scripted")
}

/// Returns the owner's call of a tool by visible name. `arguments` is a JSON object.
#[must_use]
pub fn tool_call(tool: &str, arguments: &str) -> CallRequest {
    let name = to_json_string(tool);
    let start = "{\"name\":";
    CallRequest {
        principal: Arc::new(Principal::new("owner", Role::Owner)),
        scope: EndpointScope::All,
        subject: CallSubject::Tool(tool.into()),
        name_at: start.len()..start.len() + name.len(),
        wants_task: false,
        deadline: None,
        run: None,
        idempotency_key: None,
        stateless: None,
        message: RequestMessage {
            params: format!("{start}{name},\"arguments\":{arguments}}}").into(),
            progress_at: None,
            id: Bytes::from_static(CALL_ID.as_bytes()),
            client: None,
            trace: None,
            era: Era::Legacy,
        },
    }
}

/// Returns the owner's call of a tool of one server by upstream name.
#[must_use]
pub fn server_tool_call(server: &str, tool: &str, arguments: &str) -> CallRequest {
    CallRequest {
        scope: EndpointScope::Server(server.into()),
        ..tool_call(tool, arguments)
    }
}

/// Returns the result or error object of a reply.
#[must_use]
pub fn reply_body(reply: &CallReply) -> String {
    let body = reply.response.body_bytes();
    String::from_utf8_lossy(body).into_owned()
}

/// Waits for a server state; returns `false` on timeout.
pub async fn wait_for_state(host: &Host, server: &str, state: &str) -> bool {
    let Ok(server) = host.server(server) else {
        return false;
    };
    let mut states = server.subscribe_state();
    let reached = states.wait_for(|current| current.as_str() == state);
    matches!(tokio::time::timeout(WAIT_MAX, reached).await, Ok(Ok(_)))
}

/// A client with all capabilities that records notifications.
#[derive(Debug, Default)]
pub struct RecordingClient {
    session: u64,
    received: Mutex<Vec<Bytes>>,
}

impl RecordingClient {
    /// Returns the client of a call of this session.
    #[must_use]
    pub fn new(session: u64) -> Arc<Self> {
        Arc::new(Self {
            session,
            received: Mutex::default(),
        })
    }

    /// Returns the recorded notifications.
    #[must_use]
    pub fn notifications(&self) -> Vec<Bytes> {
        lock(&self.received).clone()
    }
}

impl ClientHandle for RecordingClient {
    fn session(&self) -> SessionKey {
        SessionKey(self.session)
    }

    fn capabilities(&self) -> ClientCapabilities {
        let all = ClientCapability::ALL.into_iter();
        all.fold(
            ClientCapabilities::default(),
            ClientCapabilities::with_capability,
        )
    }

    fn notify(&self, notification: Bytes) {
        lock(&self.received).push(notification);
    }

    fn request(&self, _: ServerRequest) -> Option<ServerRequestId> {
        None
    }

    fn cancel_request(&self, _: ServerRequestId) {}

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        Self::new(self.session)
    }
}

/// A sink that records the notifications of each session.
#[derive(Debug, Default)]
pub struct RecordingSink(watch::Sender<Vec<(SessionKey, Bytes)>>);

impl RecordingSink {
    /// Waits for `count` notifications in total and returns them.
    pub async fn wait_for_notifications(&self, count: usize) -> Vec<(u64, String)> {
        let mut notifications = self.0.subscribe();
        let _ = tokio::time::timeout(
            WAIT_MAX,
            notifications.wait_for(|notifications| notifications.len() >= count),
        )
        .await;
        let notifications = self.0.borrow();
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        notifications
            .iter()
            .map(|(session, notification)| (session.0, text(notification)))
            .collect()
    }
}

impl NotificationSink for RecordingSink {
    fn deliver(&self, session: SessionKey, notification: Bytes) -> bool {
        self.0
            .send_modify(|notifications| notifications.push((session, notification)));
        true
    }
}

/// Returns the owner's request for `subject` on `/mcp`; `key` is the naming member.
#[must_use]
pub fn subject_call(subject: CallSubject, key: &str) -> CallRequest {
    let name = to_json_string(subject.name());
    let start = format!("{{\"{key}\":");
    let call = tool_call("", "{}");
    CallRequest {
        subject,
        name_at: start.len()..start.len() + name.len(),
        message: RequestMessage {
            params: format!("{start}{name}}}").into(),
            ..call.message
        },
        ..call
    }
}
