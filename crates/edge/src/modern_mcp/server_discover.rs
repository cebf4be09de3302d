//! `server/discover`: revisions, capabilities and server info of an endpoint.

use bowline_wire::mcp::meta;
use bowline_wire::object;
use bowline_wire::splice::write_string;
use http::StatusCode;

use super::{ModernRequest, write_supported_versions};
use crate::call::modern_response::{NOT_CACHED, complete_result};
use crate::mcp::{outbox_resource, result_response};
use crate::response_body::{self, EdgeResponse};

/// Handles `server/discover`. The endpoint of a single server uses the server's own info.
pub(super) async fn handle_discover(request: ModernRequest<'_>) -> EdgeResponse {
    let caller = request.caller;
    let host = &caller.edge.host;
    host.wait_server_info(caller.principal, caller.scope).await;
    let own = caller
        .edge
        .host
        .initialize_info(caller.principal, caller.scope);
    let declared =
        outbox_resource::declare_capabilities(caller.edge, caller.scope, own.capabilities);
    let mut result = Vec::from(&b"{\"supportedVersions\":"[..]);
    write_supported_versions(&mut result);
    result.extend_from_slice(b",\"capabilities\":");
    write_capabilities(&mut result, &declared);
    if let Some(words) = own.instructions {
        result.extend_from_slice(b",\"instructions\":");
        result.extend_from_slice(&words);
    }
    if let Some(meta) = own.meta {
        result.extend_from_slice(b",\"_meta\":");
        result.extend_from_slice(&meta);
    }
    result.push(b'}');
    let result = complete_result(&request, &result, Some(own.hint.unwrap_or(NOT_CACHED)));
    response_body::json_response(StatusCode::OK, result_response(request.id(), &result))
}

/// Writes capabilities in modern form: tasks become an extension.
fn write_capabilities(out: &mut Vec<u8>, declared: &[u8]) {
    let mut first = true;
    let mut extensions: Option<&[u8]> = None;
    let mut tasks = false;
    out.push(b'{');
    for (key, at) in object::fields(declared) {
        match key.as_ref() {
            "tasks" => tasks = true,
            "extensions" => extensions = Some(at.slice(declared)),
            _ => {
                write_separator(out, &mut first);
                write_string(out, &key);
                out.push(b':');
                out.extend_from_slice(at.slice(declared));
            }
        }
    }
    let extensions = extensions.unwrap_or(b"{}");
    tasks &= object::field(extensions, meta::TASKS).is_none();
    if tasks || object::fields(extensions).next().is_some() {
        write_separator(out, &mut first);
        out.extend_from_slice(b"\"extensions\":{");
        let mut first = true;
        if tasks {
            write_separator(out, &mut first);
            write_string(out, meta::TASKS);
            out.extend_from_slice(b":{}");
        }
        for (key, at) in object::fields(extensions) {
            write_separator(out, &mut first);
            write_string(out, &key);
            out.push(b':');
            out.extend_from_slice(at.slice(extensions));
        }
        out.push(b'}');
    }
    out.push(b'}');
}

fn write_separator(out: &mut Vec<u8>, first: &mut bool) {
    if !std::mem::replace(first, false) {
        out.push(b',');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_become_extension_rest_unchanged() {
        for (declared, want) in [
            ("{}", "{}"),
            (
                r#"{"tools":{"listChanged":true},"x":1,"logging":{}}"#,
                r#"{"tools":{"listChanged":true},"x":1,"logging":{}}"#,
            ),
            (
                r#"{"tasks":{"list":{}}}"#,
                r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#,
            ),
            (
                r#"{"extensions":{"a/b":{"c":1},"io.modelcontextprotocol/tasks":{"d":2}},"tasks":{},"tools":{}}"#,
                r#"{"tools":{},"extensions":{"a/b":{"c":1},"io.modelcontextprotocol/tasks":{"d":2}}}"#,
            ),
            (r#"{"extensions":{}}"#, "{}"),
        ] {
            let mut out = Vec::new();
            write_capabilities(&mut out, declared.as_bytes());
            assert_eq!(String::from_utf8(out).unwrap(), want, "{declared}");
        }
    }
}
