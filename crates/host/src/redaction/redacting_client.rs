//! A client handle with redacted notifications and server requests.

use std::sync::Arc;

use bowline_core::client_handle::{
    ClientCapabilities, ClientCapability, ClientHandle, ServerRequest, ServerRequestId, SessionKey,
};
use bowline_core::log_level::LogLevel;
use bowline_core::task_table::TaskRecord;
use bytes::Bytes;

use super::ResultSecrets;

/// Forwards to the client; redacts notifications and server requests.
#[derive(Debug)]
pub(super) struct RedactingClient {
    caller: Arc<dyn ClientHandle>,
    secrets: Arc<ResultSecrets>,
}

impl RedactingClient {
    pub(super) fn wrap(
        caller: Arc<dyn ClientHandle>,
        secrets: &Arc<ResultSecrets>,
    ) -> Arc<dyn ClientHandle> {
        let secrets = Arc::clone(secrets);
        Arc::new(Self { caller, secrets })
    }
}

impl ClientHandle for RedactingClient {
    fn session(&self) -> SessionKey {
        self.caller.session()
    }

    fn durable_id(&self) -> Option<u64> {
        self.caller.durable_id()
    }

    fn capabilities(&self) -> ClientCapabilities {
        self.caller.capabilities()
    }

    fn log_level(&self) -> Option<LogLevel> {
        self.caller.log_level()
    }

    fn notify(&self, notification: Bytes) {
        self.caller.notify(self.secrets.redact(notification));
    }

    fn request(&self, mut server_request: ServerRequest) -> Option<ServerRequestId> {
        // The id stays unchanged: the server matches the response by it.
        let behind = server_request.id_at.end..server_request.request.len();
        let request = std::mem::take(&mut server_request.request);
        let (request, _) = self.secrets.redact_part(request, behind);
        let (request, before) = self
            .secrets
            .redact_part(request, 0..server_request.id_at.start);
        let length = server_request.id_at.len();
        server_request.id_at = before.end..before.end + length;
        server_request.request = request;
        self.caller.request(server_request)
    }

    fn note_missing_capability(&self, capability: ClientCapability) {
        self.caller.note_missing_capability(capability);
    }

    fn answers_by_retry(&self) -> bool {
        self.caller.answers_by_retry()
    }

    fn cancel_request(&self, id: ServerRequestId) {
        self.caller.cancel_request(id);
    }

    fn on_task_created(&self, task: &TaskRecord) {
        self.caller.on_task_created(task);
    }

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        Self::wrap(self.caller.session_handle(), &self.secrets)
    }
}
