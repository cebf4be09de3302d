//! Checks the headers of a modern request against its body.

use std::borrow::Cow;

use bowline_core::era::HeaderClaim;
use bowline_wire::mcp::method;
use bowline_wire::{RpcMessage, object};
use http::{HeaderMap, HeaderName};

use super::request_check::ModernRequestError;
use crate::edge::mcp::legacy_headers::{METHOD_HEADER, NAME_HEADER, header_equals};
use crate::edge::response_body::{EdgeResponse, REVISION_HEADER};

/// Prefix of headers that repeat arguments.
const PARAM_PREFIX: &str = "mcp-param-";

/// Header with the original transport. The stdio shim writes all headers and adds none for
/// arguments.
pub(crate) const CARRIED_HEADER: HeaderName = HeaderName::from_static("bowline-carried");

/// Checks the headers against the request, and returns the argument headers.
pub(super) fn check_headers(
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

/// Rejects a notification that contradicts its headers; absent headers are accepted.
pub(super) fn reject_mismatch(headers: &HeaderMap, message: &RpcMessage) -> Option<EdgeResponse> {
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
