//! Open server requests of a link, and the client capability of each method.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bowline_core::client_handle::{ClientCapability, ClientHandle, ServerRequestId, SessionKey};
use bowline_wire::mcp::method;
use bowline_wire::{RpcMessage, object};
use bytes::Bytes;

/// Open server requests per server.
const SERVER_REQUESTS_MAX: usize = 64;

/// Remembered elicitation ids; the oldest is evicted.
const ELICITATIONS_MAX: usize = 256;

/// Open server requests and remembered elicitations of a server.
#[derive(Debug, Default)]
pub(crate) struct ServerRequests {
    /// By the raw id of the server.
    open: HashMap<Bytes, OpenServerRequest>,
    /// Elicitation ids, and the session of the user.
    elicitations: VecDeque<(Box<str>, SessionKey)>,
}

#[derive(Debug)]
pub(super) struct OpenServerRequest {
    pub(super) caller: Arc<dyn ClientHandle>,
    /// Id at the client handle; absent until the client has accepted the request.
    pub(super) client_id: Option<ServerRequestId>,
    /// The pending request in flight at arrival.
    pub(super) call: Option<u64>,
}

impl ServerRequests {
    /// Inserts a server request; `false` when the table is full or the id is taken.
    pub(super) fn insert(&mut self, id: &Bytes, request: OpenServerRequest) -> bool {
        if self.open.len() >= SERVER_REQUESTS_MAX || self.open.contains_key(id) {
            return false;
        }
        self.open.insert(id.clone(), request);
        true
    }

    /// Sets the client handle id of a request.
    pub(crate) fn set_client_id(&mut self, id: &Bytes, client_id: ServerRequestId) {
        if let Some(open) = self.open.get_mut(id) {
            open.client_id = Some(client_id);
        }
    }

    pub(super) fn remove(&mut self, id: &[u8]) -> Option<OpenServerRequest> {
        self.open.remove(id)
    }

    /// Removes all server requests of a call.
    pub(super) fn remove_for_call(&mut self, call: u64) -> Vec<OpenServerRequest> {
        self.open
            .extract_if(|_, open| open.call == Some(call))
            .map(|(_, open)| open)
            .collect()
    }

    /// Remembers the session of an elicitation.
    pub(crate) fn remember_elicitation(&mut self, elicitation: &str, session: SessionKey) {
        if self.elicitations.len() >= ELICITATIONS_MAX {
            self.elicitations.pop_front();
        }
        self.elicitations.push_back((elicitation.into(), session));
    }

    /// Returns the session of an elicitation.
    pub(crate) fn session_for_elicitation(&self, elicitation: &str) -> Option<SessionKey> {
        let mut newest = self.elicitations.iter().rev();
        newest
            .find(|(known, _)| **known == *elicitation)
            .map(|(_, session)| *session)
    }
}

/// Returns the client capability of a server request; `None` for unknown methods.
#[must_use]
pub fn required_capability(message: &RpcMessage) -> Option<ClientCapability> {
    let params = message.params().unwrap_or_default();
    match message.method()? {
        method::SAMPLING_CREATE_MESSAGE if object::field(params, "tools").is_some() => {
            Some(ClientCapability::SamplingTools)
        }
        method::SAMPLING_CREATE_MESSAGE => Some(ClientCapability::Sampling),
        method::ELICITATION_CREATE
            if object::text_field(params, "mode").as_deref() == Some("url") =>
        {
            Some(ClientCapability::ElicitationUrl)
        }
        method::ELICITATION_CREATE => Some(ClientCapability::ElicitationForm),
        method::ROOTS_LIST => Some(ClientCapability::Roots),
        _ => None,
    }
}
