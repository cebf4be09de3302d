//! What the headers say of a message must be what the message says of itself.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bowline_wire::mcp::code;
use bowline_wire::{Message, object};
use http::{HeaderMap, HeaderName, StatusCode};

use super::failure;
use crate::edge::body::Answer;

/// Names the method of a message.
pub(in crate::edge) const METHOD: HeaderName = HeaderName::from_static("mcp-method");

/// Names what a message is about: a tool, a prompt or a resource.
pub(in crate::edge) const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// Refuses a message whose headers speak of another: somebody on the way who goes by the headers
/// would have judged a message that is not this one. Absent headers say nothing.
pub(super) fn refuse_lies(headers: &HeaderMap, message: &Message) -> Option<Answer> {
    let subject = || {
        let params = message.params()?;
        ["name", "uri", "taskId"]
            .into_iter()
            .find_map(|key| object::field(params, key))
            .and_then(|at| object::string(at.of(params)))
    };
    if agrees(headers, METHOD, || message.method().map(Cow::Borrowed))
        && agrees(headers, NAME, subject)
    {
        return None;
    }
    Some(failure(
        StatusCode::BAD_REQUEST,
        message.id(),
        code::INVALID_REQUEST,
        "the headers Mcp-Method and Mcp-Name must say what the body says",
    ))
}

/// Whether a header is absent, or stands once and says what the body says.
fn agrees<'a>(
    headers: &HeaderMap,
    name: HeaderName,
    said: impl FnOnce() -> Option<Cow<'a, str>>,
) -> bool {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return true;
    };
    if values.next().is_some() {
        return false;
    }
    said().is_some_and(|said| says(value.as_bytes(), &said))
}

/// Whether the value of a header stands for this text.
pub(in crate::edge) fn says(value: &[u8], text: &str) -> bool {
    // Text that a header cannot carry stands in base64, marked as such.
    match value
        .strip_prefix(b"=?base64?")
        .and_then(|rest| rest.strip_suffix(b"?="))
    {
        Some(coded) => STANDARD
            .decode(coded)
            .is_ok_and(|decoded| decoded == text.as_bytes()),
        None => value.is_ascii() && value == text.as_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn refused(headers: &[(&'static str, &'static str)], body: &'static str) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        let message = Message::parse(body.into()).unwrap();
        refuse_lies(&map, &message).is_some()
    }

    #[test]
    fn headers_agree_with_the_body_or_the_message_is_refused() {
        const CALL: &str =
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"\u00e4"}}"#;
        for honest in [
            &[][..],
            &[("mcp-method", "tools/call")],
            &[("mcp-name", "=?base64?w6Q=?=")],
        ] {
            assert!(!refused(honest, CALL), "{honest:?}");
        }
        for lie in [
            &[("mcp-method", "tools/list")][..],
            &[("mcp-method", "Tools/Call")],
            &[("mcp-method", "tools/call"), ("mcp-method", "tools/call")],
            &[("mcp-method", "")],
            &[("mcp-name", "a")],
            &[("mcp-name", "=?base64?!?=")],
        ] {
            assert!(refused(lie, CALL), "{lie:?}");
        }
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        assert!(refused(&[("mcp-name", "a")], list));
        let answer = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
        assert!(refused(&[("mcp-method", "tools/call")], answer));
    }
}
