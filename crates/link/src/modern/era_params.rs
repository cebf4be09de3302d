//! Translates request parameters between eras, before any further edit.

use std::ops::Range;

use bowline_core::client_handle::ClientCapabilities;
use bowline_core::era::Era;
use bowline_core::log_level::LogLevel;
use bowline_wire::ByteSpan;
use bowline_wire::era::request_meta::{self, MetaFields, NO_PARAMS, TaskSupport};
use bowline_wire::era::task_translation::wants_task;
use bowline_wire::era::{OwnedEdit, apply_edits};
use bowline_wire::mcp::method;
use bowline_wire::object::fields;
use bowline_wire::splice::{replace_span, write_string};
use bytes::Bytes;

use crate::link::LinkRequest;
use crate::stdio::ClientInfo;

/// Default log level of a caller; legacy servers choose their own.
const LEVEL_DEFAULT: LogLevel = LogLevel::Info;

/// Translates a legacy request to the modern era: `_meta` carries the handshake data.
/// `capabilities` belong to the caller.
pub(crate) fn to_modern(
    request: &mut LinkRequest,
    client: &ClientInfo,
    capabilities: ClientCapabilities,
) {
    to_round(request, client, capabilities, b"");
}

/// Translates a request for a further round, with the members in `front`.
pub(super) fn to_round(
    request: &mut LinkRequest,
    client: &ClientInfo,
    capabilities: ClientCapabilities,
    front: &[u8],
) {
    // A legacy caller did not write modern members; remove them.
    to_legacy(request);
    let level = request.caller.as_ref().map(|caller| caller.log_level());
    let level = level.map(|level| level.unwrap_or(LEVEL_DEFAULT).as_str());
    let params = request.params.take();
    let params = params.unwrap_or_else(|| Bytes::from_static(NO_PARAMS));
    let stamp = MetaFields {
        capabilities: &request_meta::write_capabilities(
            capabilities,
            task_support(&request.method, &params),
        ),
        client_info: &client_info_json(client),
        log_level: level,
        extra_meta: b"",
        extra_params: front,
    };
    let mut changes = Vec::new();
    request_meta::add_meta(&params, &stamp, &mut changes);
    request.params = Some(apply_changes(params, changes, request));
    request.era = Era::Modern;
}

/// Translates a modern request to the legacy era: removes handshake data and continuation members,
/// as legacy servers use server requests instead.
pub(crate) fn to_legacy(request: &mut LinkRequest) {
    request.era = Era::Legacy;
    if let Some(params) = request.params.take() {
        let mut changes = Vec::new();
        request_meta::strip_meta(&params, &mut changes);
        request.params = Some(apply_changes(params, changes, request));
    }
}

/// Returns a text without one member of the object at `at`.
pub(crate) fn without_member(text: &[u8], at: ByteSpan, key: &str) -> Bytes {
    let object = at.slice(text);
    let mut left = vec![b'{'];
    for (name, value) in fields(object).filter(|(name, _)| name != key) {
        if left.len() > 1 {
            left.push(b',');
        }
        write_string(&mut left, &name);
        left.push(b':');
        left.extend_from_slice(value.slice(object));
    }
    left.push(b'}');
    replace_span(text, at, &left).into()
}

/// Whether the response may be a task: if the caller wants a task, or asks about a task.
fn task_support(method: &str, params: &[u8]) -> TaskSupport {
    let is_wanted = match method {
        method::TOOLS_CALL => wants_task(params),
        method => method.starts_with("tasks/"),
    };
    match is_wanted {
        true => TaskSupport::Supported,
        false => TaskSupport::Unsupported,
    }
}

/// Returns the client information as a JSON object.
fn client_info_json(client: &ClientInfo) -> Vec<u8> {
    let mut out = b"{\"name\":".to_vec();
    write_string(&mut out, &client.name);
    out.extend_from_slice(b",\"version\":");
    write_string(&mut out, &client.version);
    out.push(b'}');
    out
}

/// Applies edits, and shifts the positions that the request refers to.
fn apply_changes(params: Bytes, mut changes: Vec<OwnedEdit>, request: &mut LinkRequest) -> Bytes {
    if changes.is_empty() {
        return params;
    }
    let new = apply_edits(&params, &mut changes).into();
    if let Some(rename) = &mut request.rename {
        shift_range(&mut rename.at, &changes);
    }
    if let Some(at) = &mut request.progress_at {
        shift_range(at, &changes);
    }
    new
}

/// Shifts a range by the edits before it.
fn shift_range(range: &mut Range<usize>, changes: &[OwnedEdit]) {
    let before = changes.iter().filter(|(at, _)| at.end <= range.start);
    let (mut removed, mut inserted) = (0, 0);
    for (at, with) in before {
        removed += at.len();
        inserted += with.len();
    }
    range.start = range.start - removed + inserted;
    range.end = range.end - removed + inserted;
}

#[cfg(test)]
mod tests;
