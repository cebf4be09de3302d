//! Translates request parameters between eras, before any further edit.

use bowline_core::client_handle::ClientCapabilities;
use bowline_core::era::Era;
use bowline_core::log_level::LogLevel;
use bowline_wire::era::request_meta::{self, MetaFields, NO_PARAMS, TaskSupport};
use bowline_wire::era::task_translation::wants_task;
use bowline_wire::mcp::method;
use bowline_wire::{MemberList, ObjectEditor};
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
    to_round(request, client, capabilities, MemberList::default());
}

/// Translates a request for a further round, with the members in `front`.
pub(super) fn to_round(
    request: &mut LinkRequest,
    client: &ClientInfo,
    capabilities: ClientCapabilities,
    front: MemberList,
) {
    // A legacy caller did not write modern members; remove them.
    to_legacy(request);
    let level = request
        .message
        .client
        .as_ref()
        .map(|caller| caller.log_level());
    let level = level.map(|level| level.unwrap_or(LEVEL_DEFAULT).as_str());
    let params = match std::mem::take(&mut request.message.params) {
        params if params.is_empty() => Bytes::from_static(NO_PARAMS),
        params => params,
    };
    let stamp = MetaFields {
        capabilities: &request_meta::write_capabilities(
            capabilities,
            task_support(&request.method, &params),
        ),
        client_info: &client_info_json(client),
        log_level: level,
    };
    let mut editor = ObjectEditor::new(&params);
    request_meta::add_meta(&mut editor, &stamp, front);
    request.message.params = finish_params(editor, request);
    request.message.era = Era::Modern;
}

/// Translates a modern request to the legacy era: removes handshake data and continuation members,
/// as legacy servers use server requests instead.
pub(crate) fn to_legacy(request: &mut LinkRequest) {
    request.message.era = Era::Legacy;
    let params = std::mem::take(&mut request.message.params);
    if params.is_empty() {
        return;
    }
    let mut editor = ObjectEditor::new(&params);
    request_meta::strip_meta(&mut editor);
    request.message.params = match editor.is_unchanged() {
        true => params,
        false => finish_params(editor, request),
    };
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
    let mut members = MemberList::default();
    members.push_text("name", &client.name);
    members.push_text("version", &client.version);
    members.into_object()
}

/// Applies edits, and moves the positions that the request refers to.
fn finish_params(editor: ObjectEditor<'_>, request: &mut LinkRequest) -> Bytes {
    if let Some(rename) = &mut request.rename {
        rename.at = editor.moved_range(&rename.at);
    }
    if let Some(at) = &mut request.message.progress_at {
        *at = editor.moved_range(at);
    }
    editor.finish().into()
}

#[cfg(test)]
mod tests;
