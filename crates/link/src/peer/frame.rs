//! Messages to a server as whole lines.

use bowline_wire::Span;
use bowline_wire::jsonrpc::{write_notification, write_request};
use bowline_wire::mcp::method;
use bowline_wire::splice::{Edit, Edited, write_string};

use crate::link::Request;

mod trace;
use trace::Change;
pub(crate) use trace::Place;

/// What an envelope needs beside method and parameters.
const ENVELOPE_BYTES: usize = 80;

/// Returns a request under the link's own id.
pub(crate) fn request(id: u64, request: &Request, place: Place) -> Vec<u8> {
    let params = request.params.as_deref().unwrap_or_default();
    let mut out = Vec::with_capacity(params.len() + request.method.len() + ENVELOPE_BYTES);
    let mut number = itoa::Buffer::new();
    let token = number.format(id).as_bytes();
    let mut name = Vec::new();
    let rename = request.rename.as_ref().map(|rename| {
        write_string(&mut name, &rename.to);
        span(&rename.at)
    });
    let rename = rename.map(|at| Edit { at, with: &name });
    let progress = request.progress_at.as_ref().map(|at| Edit {
        at: span(at),
        with: token,
    });
    let both;
    let edits: &[Edit<'_>] = match (&rename, &progress) {
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
            changes = trace::changes(params, trace, place);
            all = merged(edits, &changes);
            &all
        }
    };
    let params = request.params.as_deref();
    let params = params.map(|source| Edited { source, edits });
    write_request(&mut out, id, &request.method, params);
    out.push(b'\n');
    out
}

/// Returns all edits in the order of their places.
fn merged<'a>(edits: &[Edit<'a>], changes: &'a [Change]) -> Vec<Edit<'a>> {
    let changes = changes.iter().map(|(at, with)| Edit { at: *at, with });
    let mut all: Vec<_> = edits.iter().copied().chain(changes).collect();
    all.sort_by_key(|edit| edit.at.start);
    all
}

/// Returns a notification.
pub(crate) fn notification(method: &str, params: Option<&[u8]>) -> Vec<u8> {
    let room = params.unwrap_or_default().len() + method.len() + ENVELOPE_BYTES;
    let mut out = Vec::with_capacity(room);
    write_notification(&mut out, method, params);
    out.push(b'\n');
    out
}

/// Appends the news that nobody waits for a request any more.
pub(crate) fn write_cancelled(out: &mut Vec<u8>, id: u64, reason: &str) {
    let mut params = br#"{"requestId":"#.to_vec();
    params.extend_from_slice(itoa::Buffer::new().format(id).as_bytes());
    params.extend_from_slice(br#","reason":"#);
    write_string(&mut params, reason);
    params.push(b'}');
    write_notification(out, method::CANCELLED, Some(&params));
    out.push(b'\n');
}

/// Ends a message: on a pipe, one line is one message, whatever white space it was written with.
pub(super) fn end(message: &mut Vec<u8>) {
    for byte in message.iter_mut() {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    message.push(b'\n');
}

fn span(range: &std::ops::Range<usize>) -> Span {
    Span {
        start: range.start,
        end: range.end,
    }
}
