//! Dispatches a server request to the client of its call, or refuses the request.

use std::sync::Arc;

use bowline_core::client_handle::{ClientCapability, ClientHandle, ServerRequest};
use bowline_wire::jsonrpc::{write_error, write_result};
use bowline_wire::mcp::{code, method};
use bowline_wire::object;
use bytes::Bytes;

use super::pending_requests::Recipient;
use super::{
    CoalescedEvent, Demux, DemuxCounters, IncomingMessage, required_capability, secret_forms,
    with_server_name,
};

/// Longest id of a server request.
const SERVER_ID_BYTES_MAX: usize = 1024;

/// Characters of a refused method in an error message.
const METHOD_CHARS_MAX: usize = 64;

impl<D: Demux> IncomingMessage<'_, D> {
    /// Relays a server request for a certain session; a guess could cross principals.
    pub(super) fn dispatch_request(&self) {
        if !self.demux.accepts_requests() {
            return DemuxCounters::increment(&self.demux.counters().dropped);
        }
        let Some(id) = self
            .message
            .id()
            .filter(|id| id.len() <= SERVER_ID_BYTES_MAX)
        else {
            return DemuxCounters::increment(&self.demux.counters().dropped);
        };
        let method = self.message.method().unwrap_or_default();
        if method == method::PING {
            let mut pong = Vec::new();
            write_result(&mut pong, id, b"{}");
            return self.demux.send_reply(pong);
        }
        let Some(capability) = required_capability(self.message) else {
            return self.demux.send_reply(undeclared_error(id, method));
        };
        if capability == ClientCapability::ElicitationForm
            && let Some(property) =
                secret_forms::find_secret_property(self.message.params().unwrap_or_default())
        {
            return self
                .demux
                .send_reply(self.refuse_secret_form(id, &property));
        }
        match self
            .demux
            .with_pending(|requests| requests.find_recipient(self.via))
        {
            Recipient::Client { caller, call } if caller.capabilities().supports(capability) => {
                // This call stays in flight, so the next server request would be ambiguous.
                if self.via.is_none() && caller.answers_by_retry() {
                    self.events
                        .emit_coalesced(CoalescedEvent::UnattributedRequest);
                }
                self.relay_request(id, method, capability, &caller, call);
            }
            Recipient::Client { caller, .. } => {
                caller.note_missing_capability(capability);
                self.demux.send_reply(undeclared_error(id, method));
            }
            Recipient::Ambiguous => {
                self.events
                    .emit_coalesced(CoalescedEvent::UnattributedRequest);
                let message =
                    "calls of several clients are in flight; nobody can say whose this is";
                self.demux
                    .send_reply(error_reply(id, code::INTERNAL, message));
            }
            Recipient::NoClient if capability == ClientCapability::Roots => {
                let mut none = Vec::new();
                write_result(&mut none, id, br#"{"roots":[]}"#);
                self.demux.send_reply(none);
            }
            Recipient::NoClient => {
                let message = "no call is in flight, so there is nobody to ask";
                self.demux
                    .send_reply(error_reply(id, code::INTERNAL, message));
            }
        }
    }

    fn refuse_secret_form(&self, id: &[u8], property: &str) -> Vec<u8> {
        let property: String = property.chars().take(METHOD_CHARS_MAX).collect();
        let server = self.demux.server_name();
        tracing::warn!(server, property, "refused a form that asks for a secret");
        let message =
            format!("a form must not ask for secrets (`{property}`); send the user to an address");
        error_reply(id, code::INVALID_PARAMS, &message)
    }

    fn relay_request(
        &self,
        id: &[u8],
        method: &str,
        capability: ClientCapability,
        caller: &Arc<dyn ClientHandle>,
        call: Option<u64>,
    ) {
        let id = Bytes::copy_from_slice(id);
        let elicitation_id = (capability == ClientCapability::ElicitationUrl)
            .then(|| object::text_field(self.message.params()?, "elicitationId"))
            .flatten();
        let opened = self.demux.with_pending(|requests| {
            if let Some(elicitation_id) = elicitation_id {
                requests
                    .server_requests
                    .remember_elicitation(&elicitation_id, caller.session());
            }
            requests.open_server_request(&id, caller, call)
        });
        if !opened {
            let message = "too many questions are open, or one with this id is";
            return self
                .demux
                .send_reply(error_reply(&id, code::INTERNAL, message));
        }
        let (request, id_at) = with_server_name(self.message, self.demux.server_name());
        let demux = Arc::downgrade(self.demux);
        let (key, method) = (id.clone(), method.to_owned());
        let reply = move |answer: Option<Bytes>| {
            let Some(demux) = demux.upgrade() else {
                return;
            };
            // A cancelled server request must not be answered.
            if demux
                .with_pending(|requests| requests.close_server_request(&key))
                .is_some()
            {
                demux.send_reply(answer.map_or_else(|| unanswered_error(&key, &method), Vec::from));
            }
        };
        let server_request = ServerRequest::new(request, id_at, capability, reply);
        if let Some(client_id) = caller.request(server_request) {
            self.demux
                .with_pending(|requests| requests.server_requests.set_client_id(&id, client_id));
        }
    }
}

fn undeclared_error(id: &[u8], method: &str) -> Vec<u8> {
    let method: String = method.chars().take(METHOD_CHARS_MAX).collect();
    let message = format!("this client has not declared the capability for `{method}`");
    error_reply(id, code::METHOD_NOT_FOUND, &message)
}

fn unanswered_error(id: &[u8], method: &str) -> Vec<u8> {
    let method: String = method.chars().take(METHOD_CHARS_MAX).collect();
    let message = format!("the client gave no answer to `{method}`");
    error_reply(id, code::INTERNAL, &message)
}

fn error_reply(id: &[u8], code: i64, message: &str) -> Vec<u8> {
    let mut out = Vec::new();
    write_error(&mut out, Some(id), code, message, None);
    out
}
