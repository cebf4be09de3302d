//! The headers by which a request that stands alone says what it is: whoever stands between us
//! and the server reads them in place of the body, so that they must never say another thing.

use bowline_core::era::Mirror;
use bowline_wire::era::mirror;
use bowline_wire::mcp::method;
use bowline_wire::object;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};

use super::road::{Labels, Verb};
use super::session::Held;
use crate::link::{LinkError, NotSent, Request};

pub(super) const METHOD: HeaderName = HeaderName::from_static("mcp-method");
pub(super) const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// How the name of a header begins that repeats an argument.
pub(super) const PARAM: &str = "mcp-param-";

/// All headers of one request. Servers refuse long heads, each at its own length, and in ways
/// that tell nobody why.
const LINES_BYTES_MAX: usize = 32 * 1024;

/// Returns what goes out for a request that stands alone.
pub(super) fn labelled(held: &Held, body: Bytes, request: Request) -> Result<Verb, LinkError> {
    let mut lines = held.post.clone();
    if let Ok(method) = HeaderValue::from_str(&request.method) {
        lines.push(&METHOD, &method);
    }
    if let Some(name) = name(&request).and_then(|name| encoded(&name)) {
        lines.push(&NAME, &name);
    }
    for (name, value) in mirrored(&request) {
        lines.push(&name, &value);
    }
    if lines.as_bytes().len() > LINES_BYTES_MAX {
        let bytes_max = LINES_BYTES_MAX;
        return Err(LinkError::NotSent(NotSent::TooLarge { bytes_max }));
    }
    let labels = Labels {
        lines,
        trace: request.trace,
        key: request.key,
    };
    Ok(Verb::Labelled(body, Box::new(labels)))
}

/// Returns what a request is about, as its server reads it.
pub(super) fn name(request: &Request) -> Option<String> {
    let key = match &*request.method {
        method::TOOLS_CALL | method::PROMPTS_GET => "name",
        method::RESOURCES_READ => "uri",
        method::TASKS_GET | method::TASKS_UPDATE | method::TASKS_CANCEL => "taskId",
        _ => return None,
    };
    let params = request.params.as_deref()?;
    let at = object::field(params, key)?;
    match &request.rename {
        // Another string may be renamed than this one.
        Some(rename) if rename.at.start == at.start => Some((*rename.to).to_owned()),
        _ => object::string(at.of(params)).map(Into::into),
    }
}

/// Returns the headers that repeat arguments.
fn mirrored(request: &Request) -> Vec<(HeaderName, HeaderValue)> {
    let mirrors = request.mirrors.as_deref().unwrap_or_default();
    let params = request.params.as_deref().unwrap_or_default();
    let Some(arguments) = object::field(params, "arguments").filter(|_| !mirrors.is_empty()) else {
        return Vec::new();
    };
    let arguments = arguments.of(params);
    let header = |mirror: &Mirror| {
        if mirror.name.is_empty() {
            return None;
        }
        let value = mirror::value(arguments, mirror)?;
        let name = format!("{PARAM}{}", mirror.name);
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        Some((name, encoded(&value)?))
    };
    mirrors.iter().filter_map(header).collect()
}

/// Returns a value as a header holds it. What a header cannot hold as it is, is encoded.
fn encoded(value: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(&mirror::encode(value)).ok()
}
