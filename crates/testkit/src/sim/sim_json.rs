//! Minimal JSON for scripted servers.

use std::fmt::Write as _;

use bowline_core::call::{BodyKind, ServerResponse};
use bowline_core::era::Era;
use bowline_link::LinkRequest;
use bowline_wire::jsonrpc::Envelope;
use bowline_wire::mcp::method;

/// Returns `text` as a JSON string.
#[must_use]
pub fn to_json_string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if u32::from(c) < 0x20 => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Returns the definition of a tool with any arguments.
#[must_use]
pub fn tool_definition(name: &str) -> String {
    let name = to_json_string(name);
    format!("{{\"name\":{name},\"inputSchema\":{{\"type\":\"object\"}}}}")
}

/// Returns the definition of a tool with any arguments and with annotations.
#[must_use]
pub fn annotated_tool(name: &str, annotations: &str) -> String {
    let name = to_json_string(name);
    format!(
        "{{\"name\":{name},\"inputSchema\":{{\"type\":\"object\"}},\
         \"annotations\":{annotations}}}"
    )
}

/// Returns one page of a list.
pub(crate) fn list_page(definitions: &[String], next: Option<&str>) -> String {
    let tools = definitions.join(",");
    match next {
        Some(next) => format!(
            "{{\"tools\":[{tools}],\"nextCursor\":{}}}",
            to_json_string(next)
        ),
        None => format!("{{\"tools\":[{tools}]}}"),
    }
}

/// Returns the parameters as received by the server, renamed if requested.
pub(crate) fn sent_params(request: &LinkRequest) -> String {
    let params = request.message.params.clone();
    let text = String::from_utf8_lossy(&params).into_owned();
    let Some(rename) = &request.rename else {
        return text;
    };
    let (before, after) = (text.get(..rename.at.start), text.get(rename.at.end..));
    format!(
        "{}{}{}",
        before.unwrap_or_default(),
        to_json_string(&rename.to),
        after.unwrap_or_default()
    )
}

/// Parses `{"name":"…","arguments":…}` as written by [`tool_call`](crate::tool_call), plain names
/// only.
pub(crate) fn parse_call(params: &str) -> Option<(&str, &str)> {
    let (name, rest) = params.strip_prefix("{\"name\":\"")?.split_once('"')?;
    let rest = rest.strip_prefix(",\"arguments\":")?.strip_suffix('}')?;
    let arguments = rest.split(",\"_meta\":").next()?;
    Some((name, arguments))
}

/// Parses `{"cursor":"…"}`; empty for the first page.
pub(crate) fn parse_cursor(params: &str) -> &str {
    params
        .strip_prefix("{\"cursor\":\"")
        .and_then(|rest| rest.strip_suffix("\"}"))
        .unwrap_or_default()
}

/// Wraps a result or error into a response to `request`.
pub(crate) fn to_response(request: &LinkRequest, body: BodyKind, text: &str) -> ServerResponse {
    let mut bytes = Vec::new();
    let body_at = Envelope::from_body(&request.message.id, body)
        .write(&mut bytes, |out| out.extend_from_slice(text.as_bytes()));
    // Only modern results have a `resultType`.
    let era = match body == BodyKind::Result && text.contains("\"resultType\"") {
        true => Era::Modern,
        false => Era::Legacy,
    };
    ServerResponse {
        bytes: bytes.into(),
        body,
        body_at,
        era,
    }
}

/// Returns a progress notification with the client's token, if requested.
pub(crate) fn progress_notification(request: &LinkRequest, done: u32) -> Option<Vec<u8>> {
    let params = &request.message.params;
    let token = params.get(request.message.progress_at.clone()?)?;
    let token = String::from_utf8_lossy(token);
    let params = format!("{{\"progressToken\":{token},\"progress\":{done}}}");
    let method = method::PROGRESS;
    Some(Envelope::Notification { method }.to_vec(params.as_bytes()))
}
