//! Era of a message, and the headers that repeat parts of the body: `MCP-Protocol-Version`,
//! `Mcp-Method`, `Mcp-Name` and `Mcp-Param-*`. Legacy messages may have these headers, modern
//! requests must.

use std::borrow::Cow;

use bowline_core::era::HeaderClaim;
use bowline_wire::era::header_params;
use bowline_wire::mcp::{Revision, code, meta, method};
use bowline_wire::{MessageKind, RpcMessage, object};
use http::{HeaderMap, HeaderName, StatusCode};

use super::error_http_response;
use crate::modern_mcp::ModernRequestError;
use crate::response_body::{EdgeResponse, REVISION_HEADER, SESSION_HEADER};

/// Era given by the `MCP-Protocol-Version` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VersionHeader {
    /// No header.
    Absent,
    /// A revision with a handshake.
    Legacy,
    /// The stateless revision, possibly among further values.
    Modern,
    /// An unknown revision.
    Unknown,
}

impl VersionHeader {
    /// Parses all values of the header.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Self {
        let mut version = Self::Absent;
        for value in headers.get_all(REVISION_HEADER) {
            let revision = value.to_str().ok().and_then(Revision::parse);
            version = match (version, revision) {
                (_, Some(Revision::V2026_07_28)) => return Self::Modern,
                (Self::Absent | Self::Legacy, Some(_)) => Self::Legacy,
                (_, _) => Self::Unknown,
            };
        }
        version
    }
}

/// Returns whether a message is modern. A message with a session id is legacy unless the header
/// says modern, and `initialize` starts a legacy session.
pub(crate) fn is_modern(headers: &HeaderMap, version: VersionHeader, message: &RpcMessage) -> bool {
    let method_name = message.method();
    match version {
        VersionHeader::Modern => true,
        VersionHeader::Legacy => is_modern_only(message) && !headers.contains_key(SESSION_HEADER),
        _ if method_name == Some(method::INITIALIZE) || headers.contains_key(SESSION_HEADER) => {
            false
        }
        VersionHeader::Unknown => true,
        VersionHeader::Absent => is_modern_only(message) || has_version_meta(message),
    }
}

/// Returns whether a request method exists only in the modern era.
fn is_modern_only(message: &RpcMessage) -> bool {
    let method_name = message.method();
    message.kind() == MessageKind::Request
        && matches!(
            method_name,
            Some(method::DISCOVER | method::SUBSCRIPTIONS_LISTEN)
        )
}

/// Returns whether `_meta` carries a protocol version.
fn has_version_meta(message: &RpcMessage) -> bool {
    let params = message.params().unwrap_or_default();
    let within = object::field(params, "_meta").map(|at| at.slice(params));
    within.is_some_and(|within| object::field(within, meta::PROTOCOL_VERSION).is_some())
}

/// Header with the method of a message.
pub(crate) const METHOD_HEADER: HeaderName = HeaderName::from_static("mcp-method");

/// Header with the tool, prompt or resource of a message.
pub(crate) const NAME_HEADER: HeaderName = HeaderName::from_static("mcp-name");

/// Rejects a legacy message that contradicts its headers, because a proxy may authorize by header
/// while the body runs. Absent headers are accepted.
pub(crate) fn reject_mismatch(headers: &HeaderMap, message: &RpcMessage) -> Option<EdgeResponse> {
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
pub(crate) fn header_equals(value: &[u8], text: &str) -> bool {
    header_params::decode_value(value).is_some_and(|decoded| decoded == text)
}

/// Prefix of headers that repeat arguments.
const PARAM_PREFIX: &str = "mcp-param-";

/// Header with the original transport. The stdio shim writes all headers and adds none for
/// arguments.
pub(crate) const CARRIED_HEADER: HeaderName = HeaderName::from_static("bowline-carried");

/// Checks the headers of a modern request against its body, and returns the argument headers.
pub(crate) fn check_headers(
    headers: &HeaderMap,
    message: &RpcMessage,
    version: Option<&str>,
) -> Result<Option<Vec<HeaderClaim>>, ModernRequestError> {
    let Some(header_version) = single_header(headers, &REVISION_HEADER) else {
        return Err(ModernRequestError::Header("MCP-Protocol-Version"));
    };
    // A version missing from the body is a separate error, reported later.
    if version.is_some_and(|version| version.as_bytes() != header_version) {
        return Err(ModernRequestError::Header("MCP-Protocol-Version"));
    }
    let method_name = message.method().unwrap_or_default();
    if single_header(headers, &METHOD_HEADER) != Some(method_name.as_bytes()) {
        return Err(ModernRequestError::Header("Mcp-Method"));
    }
    let named = expected_name(method_name, message.params().unwrap_or_default());
    let matches = match (named, headers.contains_key(NAME_HEADER)) {
        (Some(name), _) => {
            single_header(headers, &NAME_HEADER).is_some_and(|value| header_equals(value, &name))
        }
        // Legacy task methods are refused as unknown methods later.
        (None, is_present) => !is_present || method_name.starts_with("tasks/"),
    };
    if !matches {
        return Err(ModernRequestError::Header("Mcp-Name"));
    }
    Ok(param_claims(headers))
}

/// Rejects a modern notification that contradicts its headers; absent headers are accepted.
pub(crate) fn reject_notification_mismatch(
    headers: &HeaderMap,
    message: &RpcMessage,
) -> Option<EdgeResponse> {
    let method_name = message.method().unwrap_or_default();
    let is_present = headers.contains_key(METHOD_HEADER);
    let is_mismatch =
        is_present && single_header(headers, &METHOD_HEADER) != Some(method_name.as_bytes());
    is_mismatch.then(|| ModernRequestError::Header("Mcp-Method").to_response(None))
}

/// Returns the expected value of `Mcp-Name`.
fn expected_name<'a>(method_name: &str, params: &'a [u8]) -> Option<Cow<'a, str>> {
    let key = match method_name {
        method::TOOLS_CALL | method::PROMPTS_GET => "name",
        method::RESOURCES_READ => "uri",
        method::TASKS_GET | method::TASKS_UPDATE | method::TASKS_CANCEL => "taskId",
        _ => return None,
    };
    object::text_field(params, key)
}

/// Returns the value of a header with exactly one occurrence.
fn single_header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    values.next().is_none().then(|| first.as_bytes())
}

fn param_claims(headers: &HeaderMap) -> Option<Vec<HeaderClaim>> {
    let mut claims = Vec::new();
    for (name, value) in headers {
        if let Some(name) = name.as_str().strip_prefix(PARAM_PREFIX) {
            claims.push(HeaderClaim {
                name: name.into(),
                value: value.as_bytes().into(),
            });
        }
    }
    let carried = single_header(headers, &CARRIED_HEADER) == Some(b"stdio");
    (!claims.is_empty() || !carried).then_some(claims)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn header_map(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    const MODERN: (&str, &str) = ("mcp-protocol-version", "2026-07-28");
    const LEGACY: (&str, &str) = ("mcp-protocol-version", "2025-11-25");
    const UNKNOWN: (&str, &str) = ("mcp-protocol-version", "x");

    #[test]
    fn version_header_selects_era() {
        for (headers, want) in [
            (&[][..], VersionHeader::Absent),
            (&[LEGACY], VersionHeader::Legacy),
            (&[LEGACY, LEGACY], VersionHeader::Legacy),
            (&[MODERN], VersionHeader::Modern),
            (&[LEGACY, MODERN], VersionHeader::Modern),
            (&[UNKNOWN, MODERN], VersionHeader::Modern),
            (&[UNKNOWN], VersionHeader::Unknown),
            (&[UNKNOWN, LEGACY], VersionHeader::Unknown),
            (&[LEGACY, UNKNOWN], VersionHeader::Unknown),
            (
                &[("mcp-protocol-version", "2026-07-28 ")],
                VersionHeader::Unknown,
            ),
        ] {
            assert_eq!(
                VersionHeader::from_headers(&header_map(headers)),
                want,
                "{headers:?}"
            );
        }
    }

    #[test]
    fn session_requests_are_not_modern() {
        const SESSION: (&str, &str) = ("mcp-session-id", "s");
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        let open = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
        let probe = r#"{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{}}"#;
        let note = r#"{"jsonrpc":"2.0","method":"server/discover","params":{}}"#;
        let told = concat!(
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":"#,
            r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#,
        );
        for (headers, body, want) in [
            (&[][..], list, false),
            (&[], probe, true),
            (&[], note, false),
            (&[], told, true),
            (&[SESSION], told, false),
            (&[SESSION], probe, false),
            (&[LEGACY], list, false),
            (&[LEGACY], told, false),
            (&[LEGACY], probe, true),
            (&[LEGACY, SESSION], probe, false),
            (&[MODERN], open, true),
            (&[MODERN, SESSION], list, true),
            (&[UNKNOWN], list, true),
            (&[UNKNOWN], open, false),
            (&[UNKNOWN, SESSION], list, false),
        ] {
            let headers = header_map(headers);
            let message = RpcMessage::parse_from_client(body.into()).unwrap();
            let says = VersionHeader::from_headers(&headers);
            assert_eq!(is_modern(&headers, says, &message), want, "{headers:?}");
        }
    }

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

    const VERSION: (&str, &str) = ("mcp-protocol-version", "2026-07-28");
    const CALL: (&str, &str) = ("mcp-method", "tools/call");
    const NAMED: (&str, &str) = ("mcp-name", "=?base64?w6Q=?=");

    fn check_body(
        headers: &[(&'static str, &'static str)],
        body: &'static str,
    ) -> Result<Option<Vec<HeaderClaim>>, ModernRequestError> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        let message = RpcMessage::parse_from_client(body.into()).unwrap();
        check_headers(&map, &message, Some("2026-07-28"))
    }

    #[test]
    fn each_header_once_and_matches_body() {
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"\u00e4"}}"#;
        let want = Ok(Some(Vec::new()));
        assert_eq!(check_body(&[VERSION, CALL, NAMED], call), want);
        for (lie, header) in [
            (&[CALL, NAMED][..], "MCP-Protocol-Version"),
            (&[VERSION, VERSION, CALL, NAMED], "MCP-Protocol-Version"),
            (
                &[("mcp-protocol-version", "2025-11-25"), CALL, NAMED],
                "MCP-Protocol-Version",
            ),
            (&[VERSION, NAMED], "Mcp-Method"),
            (&[VERSION, CALL, CALL, NAMED], "Mcp-Method"),
            (
                &[VERSION, ("mcp-method", "Tools/Call"), NAMED],
                "Mcp-Method",
            ),
            (
                &[
                    VERSION,
                    ("mcp-method", "=?base64?dG9vbHMvY2FsbA==?="),
                    NAMED,
                ],
                "Mcp-Method",
            ),
            (&[VERSION, CALL], "Mcp-Name"),
            (&[VERSION, CALL, NAMED, NAMED], "Mcp-Name"),
            (&[VERSION, CALL, ("mcp-name", "a")], "Mcp-Name"),
            (
                &[VERSION, CALL, ("mcp-name", "=?BASE64?w6Q=?=")],
                "Mcp-Name",
            ),
            (&[VERSION, CALL, ("mcp-name", "=?base64?w6Q?=")], "Mcp-Name"),
            (&[VERSION, CALL, ("mcp-name", "=?base64?w6Q=")], "Mcp-Name"),
            (&[VERSION, CALL, ("mcp-name", "=?base64?!?=")], "Mcp-Name"),
            (&[VERSION, CALL, ("mcp-name", "")], "Mcp-Name"),
        ] {
            assert_eq!(
                check_body(lie, call),
                Err(ModernRequestError::Header(header)),
                "{lie:?}"
            );
        }
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"name":"a"}}"#;
        let method = ("mcp-method", "tools/list");
        assert!(check_body(&[VERSION, method], list).is_ok());
        let named = check_body(&[VERSION, method, ("mcp-name", "a")], list);
        assert_eq!(named, Err(ModernRequestError::Header("Mcp-Name")));
    }

    #[test]
    fn param_headers_are_claims_except_stdio() {
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#;
        let method = ("mcp-method", "tools/list");
        let carried = ("bowline-carried", "stdio");
        let region = ("Mcp-Param-Region", "x");
        assert_eq!(check_body(&[VERSION, method, carried], list), Ok(None));
        let claimed = Ok(Some(vec![HeaderClaim {
            name: "region".into(),
            value: b"x"[..].into(),
        }]));
        assert_eq!(check_body(&[VERSION, method, region], list), claimed);
        assert_eq!(
            check_body(&[VERSION, method, carried, region], list),
            claimed
        );
    }
}
