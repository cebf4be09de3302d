//! Checks the `Mcp-Method` and `Mcp-Name` headers against the message body.

use std::borrow::Cow;

use bowline_wire::era::header_params;
use bowline_wire::mcp::code;
use bowline_wire::{RpcMessage, object};
use http::{HeaderMap, HeaderName, StatusCode};

use super::error_http_response;
use crate::edge::response_body::EdgeResponse;

/// Header with the method of a message.
pub(in crate::edge) const METHOD_HEADER: HeaderName = HeaderName::from_static("mcp-method");

/// Header with the tool, prompt or resource of a message.
pub(in crate::edge) const NAME_HEADER: HeaderName = HeaderName::from_static("mcp-name");

/// Rejects a message that contradicts its headers, because a proxy may authorize by header while
/// the body runs. Absent headers are accepted.
pub(super) fn reject_mismatch(headers: &HeaderMap, message: &RpcMessage) -> Option<EdgeResponse> {
    let subject = || {
        let params = message.params()?;
        ["name", "uri", "taskId"]
            .into_iter()
            .find_map(|key| object::field(params, key))
            .and_then(|at| object::parse_string(at.slice(params)))
    };
    if is_consistent(headers, METHOD_HEADER, || {
        message.method().map(Cow::Borrowed)
    }) && is_consistent(headers, NAME_HEADER, subject)
    {
        return None;
    }
    Some(error_http_response(
        StatusCode::BAD_REQUEST,
        message.id(),
        code::INVALID_REQUEST,
        "the headers Mcp-Method and Mcp-Name must say what the body says",
    ))
}

/// Returns whether a header is absent, or occurs once and equals the body value.
fn is_consistent<'a>(
    headers: &HeaderMap,
    name: HeaderName,
    body_value: impl FnOnce() -> Option<Cow<'a, str>>,
) -> bool {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return true;
    };
    if values.next().is_some() {
        return false;
    }
    body_value().is_some_and(|body_value| header_equals(value.as_bytes(), &body_value))
}

/// Returns whether a header value decodes to this text.
pub(in crate::edge) fn header_equals(value: &[u8], text: &str) -> bool {
    header_params::decode_value(value).is_some_and(|decoded| decoded == text)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn is_refused(headers: &[(&'static str, &'static str)], body: &'static str) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        let message = RpcMessage::parse_from_client(body.into()).unwrap();
        reject_mismatch(&map, &message).is_some()
    }

    #[test]
    fn headers_must_match_body() {
        const CALL: &str =
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"\u00e4"}}"#;
        for honest in [
            &[][..],
            &[("mcp-method", "tools/call")],
            &[("mcp-name", "=?base64?w6Q=?=")],
        ] {
            assert!(!is_refused(honest, CALL), "{honest:?}");
        }
        for lie in [
            &[("mcp-method", "tools/list")][..],
            &[("mcp-method", "Tools/Call")],
            &[("mcp-method", "tools/call"), ("mcp-method", "tools/call")],
            &[("mcp-method", "")],
            &[("mcp-name", "a")],
            &[("mcp-name", "=?base64?!?=")],
        ] {
            assert!(is_refused(lie, CALL), "{lie:?}");
        }
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        assert!(is_refused(&[("mcp-name", "a")], list));
        let answer = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
        assert!(is_refused(&[("mcp-method", "tools/call")], answer));
    }
}
