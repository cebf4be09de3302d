//! Serializes messages to a server as whole lines.

use bowline_wire::ByteSpan;
use bowline_wire::jsonrpc::{flatten_lines, write_notification, write_request};
use bowline_wire::mcp::method;
use bowline_wire::splice::{ByteEdit, EditedText, write_string};

use crate::link::LinkRequest;

mod trace_params;
use trace_params::ParamChange;
pub(crate) use trace_params::TracePlacement;

/// Envelope bytes besides method and parameters.
const ENVELOPE_BYTES: usize = 80;

/// Returns a request with the link's own id.
pub(crate) fn request_frame(id: u64, request: &LinkRequest, placement: TracePlacement) -> Vec<u8> {
    let params = request.params.as_deref().unwrap_or_default();
    let mut out = Vec::with_capacity(params.len() + request.method.len() + ENVELOPE_BYTES);
    let mut number = itoa::Buffer::new();
    let token = number.format(id).as_bytes();
    let mut name = Vec::new();
    let rename = request.rename.as_ref().map(|rename| {
        write_string(&mut name, &rename.to);
        to_span(&rename.at)
    });
    let rename = rename.map(|at| ByteEdit { at, with: &name });
    let progress = request.progress_at.as_ref().map(|at| ByteEdit {
        at: to_span(at),
        with: token,
    });
    let both;
    let edits: &[ByteEdit<'_>] = match (&rename, &progress) {
        (Some(rename), Some(progress)) => {
            both = if rename.at.start < progress.at.start {
                [*rename, *progress]
            } else {
                [*progress, *rename]
            };
            &both
        }
        (Some(one), None) | (None, Some(one)) => std::slice::from_ref(one),
        (None, None) => &[],
    };
    let (changes, all);
    let edits = match &request.trace {
        None => edits,
        Some(trace) => {
            changes = trace_params::trace_changes(params, trace, placement);
            all = merge_edits(edits, &changes);
            &all
        }
    };
    let params = request.params.as_deref();
    let params = params.map(|source| EditedText { source, edits });
    write_request(&mut out, id, &request.method, params);
    out.push(b'\n');
    out
}

/// Merges edits in position order.
fn merge_edits<'a>(edits: &[ByteEdit<'a>], changes: &'a [ParamChange]) -> Vec<ByteEdit<'a>> {
    let changes = changes.iter().map(|(at, with)| ByteEdit { at: *at, with });
    let mut all: Vec<_> = edits.iter().copied().chain(changes).collect();
    all.sort_by_key(|edit| edit.at.start);
    all
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

fn to_span(range: &std::ops::Range<usize>) -> ByteSpan {
    ByteSpan {
        start: range.start,
        end: range.end,
    }
}
