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

    fn request(&self, mut question: ServerRequest) -> Option<ServerRequestId> {
        // The id stays unchanged: the server matches the response by it.
        let behind = question.id_at.end..question.request.len();
        let request = std::mem::take(&mut question.request);
        let (request, _) = self.secrets.redact_part(request, behind);
        let (request, before) = self.secrets.redact_part(request, 0..question.id_at.start);
        let length = question.id_at.len();
        question.id_at = before.end..before.end + length;
        question.request = request;
        self.caller.request(question)
    }

    fn note_missing_capability(&self, ability: ClientCapability) {
        self.caller.note_missing_capability(ability);
    }

    fn answers_by_retry(&self) -> bool {
        self.caller.answers_by_retry()
    }

    fn cancel_request(&self, question: ServerRequestId) {
        self.caller.cancel_request(question);
    }

    fn on_task_created(&self, task: &TaskRecord) {
        self.caller.on_task_created(task);
    }

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        Self::wrap(self.caller.session_handle(), &self.secrets)
    }
}
