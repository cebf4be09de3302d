//! `input_required` results: pending server requests, and the sealed state for the continuation.

use std::sync::Arc;

use bowline_core::sync::lock;
use bowline_wire::era::input_required::{self, InputRequest};
use bowline_wire::object;

use super::ModernResponder;
use crate::edge::modern_mcp::modern_call_handle::ModernCallHandle;
use crate::edge::modern_mcp::request_state::{self, ParkedRound, RequestState};

/// Parks a call and writes its `input_required` result; `None` if the call cannot be parked or no
/// request is pending any more.
pub(super) fn park_call(
    responder: &ModernResponder,
    call_handle: &Arc<ModernCallHandle>,
) -> Option<Vec<u8>> {
    let edge = &responder.edge;
    let now = edge.host.clock().now();
    let (handle, round) = {
        let mut parked = lock(&edge.modern_calls.parked);
        match call_handle.parked_handle() {
            Some(handle) => (handle, parked.park_again(handle, now)?),
            None => {
                let own = &responder.principal.name;
                parked.park(own, Arc::clone(call_handle), now).ok()?
            }
        }
    };
    call_handle.set_parked_handle(handle);
    let digest = responder.request_digest();
    let ticket = RequestState::Parked(ParkedRound {
        boot_id: edge.modern_calls.boot_id,
        handle,
        round,
    });
    let now_ms = edge.host.clock().unix_ms();
    let sealed = request_state::seal_state(
        edge.sessions.seal(),
        responder.state_binding(&digest),
        now_ms,
        &ticket,
    );
    let written = sealed.and_then(|sealed| write_input_required(call_handle, &sealed));
    if written.is_none() {
        lock(&edge.modern_calls.parked).unpark(handle);
    }
    written
}

/// Writes the pending requests; `None` if none.
fn write_input_required(handle: &ModernCallHandle, state: &str) -> Option<Vec<u8>> {
    let open = open_requests(handle);
    let requests: Vec<_> = open
        .iter()
        .map(OwnedInputRequest::as_input_request)
        .collect();
    (!requests.is_empty()).then(|| input_required::write_input_required(&requests, Some(state)))
}

/// A pending server request in modern form.
#[derive(Debug)]
pub(in crate::edge::modern_mcp) struct OwnedInputRequest {
    key: String,
    method: String,
    params: Option<Vec<u8>>,
}

impl OwnedInputRequest {
    /// Returns a borrowed view for writing.
    pub(in crate::edge::modern_mcp) fn as_input_request(&self) -> InputRequest<'_> {
        InputRequest {
            key: &self.key,
            method: &self.method,
            params: self.params.as_deref(),
        }
    }
}

/// Returns the pending server requests.
pub(in crate::edge::modern_mcp) fn open_requests(
    handle: &ModernCallHandle,
) -> Vec<OwnedInputRequest> {
    let mut open = Vec::new();
    handle.for_each_open(|key, request| {
        let method = object::text_field(request, "method").unwrap_or_default();
        let params = object::field(request, "params").map(|at| at.slice(request));
        let params =
            params.map(|params| input_required::request_to_modern(&method, params).into_owned());
        open.push(OwnedInputRequest {
            key: key.to_owned(),
            method: method.into_owned(),
            params,
        });
    });
    open
}
