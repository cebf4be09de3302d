//! Routing headers of a stateless request: `Mcp-Method`, `Mcp-Name` and `Mcp-Param-*`. Proxies read
//! the headers instead of the body, so both must always agree.

use bowline_core::era::HeaderParam;
use bowline_wire::era::header_params;
use bowline_wire::mcp::method;
use bowline_wire::object;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};

use super::http_session::SessionHeaders;
use super::sender::{RequestKind, StatelessHeaders};
use crate::link::{LinkError, LinkRequest, NotSentReason};

pub(super) const METHOD_HEADER: HeaderName = HeaderName::from_static("mcp-method");
pub(super) const NAME_HEADER: HeaderName = HeaderName::from_static("mcp-name");

/// Prefix of headers that repeat an argument.
pub(super) const PARAM_PREFIX: &str = "mcp-param-";

/// Longest header lines of a request. Servers reject long heads at different lengths, with unclear
/// errors.
const LINES_BYTES_MAX: usize = 32 * 1024;

/// Builds a stateless request.
pub(super) fn stateless_request(
    session: &SessionHeaders,
    body: Bytes,
    request: LinkRequest,
) -> Result<RequestKind, LinkError> {
    let mut lines = session.post_headers.clone();
    if let Ok(method) = HeaderValue::from_str(&request.method) {
        lines.push(&METHOD_HEADER, &method);
    }
    if let Some(name) = routing_name(&request).and_then(|name| encode_header(&name)) {
        lines.push(&NAME_HEADER, &name);
    }
    for (name, value) in param_headers(&request) {
        lines.push(&name, &value);
    }
    if lines.as_bytes().len() > LINES_BYTES_MAX {
        let bytes_max = LINES_BYTES_MAX;
        return Err(LinkError::NotSent(NotSentReason::TooLarge { bytes_max }));
    }
    let labels = StatelessHeaders {
        lines,
        trace: request.message.trace,
        key: request.idempotency_header,
    };
    Ok(RequestKind::Stateless(body, Box::new(labels)))
}

/// Returns the tool, prompt, resource or task name, as sent to the server.
pub(super) fn routing_name(request: &LinkRequest) -> Option<String> {
    let key = match &*request.method {
        method::TOOLS_CALL | method::PROMPTS_GET => "name",
        method::RESOURCES_READ => "uri",
        method::TASKS_GET | method::TASKS_UPDATE | method::TASKS_CANCEL => "taskId",
        _ => return None,
    };
    let params = &request.message.params;
    let at = object::field(params, key)?;
    match &request.rename {
        // The rename may concern a different string.
        Some(rename) if rename.at.start == at.start => Some((*rename.to).to_owned()),
        _ => object::parse_string(at.slice(params)).map(Into::into),
    }
}

/// Returns the headers that repeat arguments.
fn param_headers(request: &LinkRequest) -> Vec<(HeaderName, HeaderValue)> {
    let mirrors = request.header_params.as_deref().unwrap_or_default();
    let params = &request.message.params;
    let Some(arguments) = object::field(params, "arguments").filter(|_| !mirrors.is_empty()) else {
        return Vec::new();
    };
    let arguments = arguments.slice(params);
    let header = |mirror: &HeaderParam| {
        if mirror.name.is_empty() {
            return None;
        }
        let value = header_params::header_value(arguments, mirror)?;
        let name = format!("{PARAM_PREFIX}{}", mirror.name);
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        Some((name, encode_header(&value)?))
    };
    mirrors.iter().filter_map(header).collect()
}

/// Encodes a header value; text that a header cannot hold is escaped.
fn encode_header(value: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(&header_params::encode_value(value)).ok()
}
