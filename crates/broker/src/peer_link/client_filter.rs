//! Filters the notifications that a peer may send to a client before the response.

use std::sync::Arc;

use bowline_core::client_handle::{
    ClientCapabilities, ClientCapability, ClientHandle, ServerRequest, ServerRequestId, SessionKey,
};
use bowline_core::log_level::LogLevel;
use bowline_wire::mcp::method;
use bowline_wire::object;
use bytes::Bytes;

/// Client handle given to a peer: passes progress of this call, log messages, and server requests
/// supported by the client.
#[derive(Debug)]
pub(super) struct FilteredClientHandle {
    client: Arc<dyn ClientHandle>,
    /// The client's progress token, byte for byte.
    progress_token: Option<Bytes>,
}

impl FilteredClientHandle {
    pub(super) fn wrap(
        caller: &Arc<dyn ClientHandle>,
        token: Option<Bytes>,
    ) -> Arc<dyn ClientHandle> {
        Arc::new(Self {
            client: Arc::clone(caller),
            progress_token: token,
        })
    }

    fn is_allowed(&self, notification: &[u8]) -> bool {
        let method_name = object::text_field(notification, "method");
        match method_name.as_deref() {
            Some(method::PROGRESS) => {
                let params = object::field(notification, "params").map(|at| at.slice(notification));
                let token = params.and_then(|params| {
                    object::field(params, "progressToken").map(|at| at.slice(params))
                });
                token.is_some() && token == self.progress_token.as_deref()
            }
            Some(method::MESSAGE | method::ELICITATION_COMPLETE) => true,
            Some(_) | None => false,
        }
    }
}

impl ClientHandle for FilteredClientHandle {
    fn session(&self) -> SessionKey {
        self.client.session()
    }

    fn capabilities(&self) -> ClientCapabilities {
        self.client.capabilities()
    }

    fn log_level(&self) -> Option<LogLevel> {
        self.client.log_level()
    }

    fn request(&self, server_request: ServerRequest) -> Option<ServerRequestId> {
        self.client.request(server_request)
    }

    fn note_missing_capability(&self, capability: ClientCapability) {
        self.client.note_missing_capability(capability);
    }

    fn cancel_request(&self, request_id: ServerRequestId) {
        self.client.cancel_request(request_id);
    }

    fn notify(&self, notification: Bytes) {
        if self.is_allowed(&notification) {
            self.client.notify(notification);
        }
    }

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        self.client.session_handle()
    }
}
