//! Serializes messages to a server as whole lines.

use bowline_wire::jsonrpc::{flatten_lines, write_notification, write_request};
use bowline_wire::mcp::method;
use bowline_wire::splice::{to_literal, write_string};
use bowline_wire::{ByteSpan, ObjectEditor};

use crate::link::LinkRequest;

mod trace_params;
pub(crate) use trace_params::TracePlacement;

/// Envelope bytes besides method and parameters.
const ENVELOPE_BYTES: usize = 80;

/// Returns a request with the link's own id.
pub(crate) fn request_frame(id: u64, request: &LinkRequest, placement: TracePlacement) -> Vec<u8> {
    let params = request.params.as_deref().unwrap_or_default();
    let mut out = Vec::with_capacity(params.len() + request.method.len() + ENVELOPE_BYTES);
    let mut digits = itoa::Buffer::new();
    let mut editor = ObjectEditor::new(params);
    if let Some(rename) = &request.rename {
        editor.replace(ByteSpan::from_range(&rename.at), to_literal(&rename.to));
    }
    if let Some(at) = &request.progress_at {
        editor.replace(ByteSpan::from_range(at), digits.format(id).as_bytes());
    }
    if let Some(trace) = &request.trace {
        trace_params::add_trace(&mut editor, trace, placement);
    }
    let params = request.params.is_some().then(|| editor.edited());
    write_request(&mut out, id, &request.method, params);
    out.push(b'\n');
    out
}

/// Returns a notification.
pub(crate) fn notification_frame(method: &str, params: Option<&[u8]>) -> Vec<u8> {
    let room = params.unwrap_or_default().len() + method.len() + ENVELOPE_BYTES;
    let mut out = Vec::with_capacity(room);
    write_notification(&mut out, method, params);
    out.push(b'\n');
    out
}

/// Appends `notifications/cancelled` for a request.
pub(crate) fn write_cancelled(out: &mut Vec<u8>, id: u64, reason: &str) {
    let mut params = br#"{"requestId":"#.to_vec();
    params.extend_from_slice(itoa::Buffer::new().format(id).as_bytes());
    params.extend_from_slice(br#","reason":"#);
    write_string(&mut params, reason);
    params.push(b'}');
    write_notification(out, method::CANCELLED, Some(&params));
    out.push(b'\n');
}

/// Makes the message one line: replaces line breaks in its whitespace and appends the line end.
pub(super) fn finish_line(message: &mut Vec<u8>) {
    flatten_lines(message);
    message.push(b'\n');
}
