//! What the headers say of a request must be what the request says of itself.

use std::borrow::Cow;

use bowline_core::era::Claim;
use bowline_wire::mcp::method;
use bowline_wire::{Message, object};
use http::{HeaderMap, HeaderName};

use super::read::Refused;
use crate::edge::body::{Answer, REVISION};
use crate::edge::mcp::headers::{METHOD, NAME, says};

/// How the headers begin that repeat arguments.
const PARAM: &str = "mcp-param-";

/// Says what the request came over before it came here. What comes over standard input has no
/// headers of its own: those it has were written here, and none of them repeats an argument.
pub(in crate::edge) const CARRIED: HeaderName = HeaderName::from_static("bowline-carried");

/// Checks that the headers say what the request says, and returns what they say of its arguments.
pub(super) fn check(
    headers: &HeaderMap,
    message: &Message,
    version: Option<&str>,
) -> Result<Option<Vec<Claim>>, Refused> {
    let Some(said) = only(headers, &REVISION) else {
        return Err(Refused::Header("MCP-Protocol-Version"));
    };
    // A request that says nothing itself lacks more than agreement.
    if version.is_some_and(|version| version.as_bytes() != said) {
        return Err(Refused::Header("MCP-Protocol-Version"));
    }
    let asked = message.method().unwrap_or_default();
    if only(headers, &METHOD) != Some(asked.as_bytes()) {
        return Err(Refused::Header("Mcp-Method"));
    }
    let named = name_of(asked, message.params().unwrap_or_default());
    let honest = match (named, headers.contains_key(NAME)) {
        (Some(name), _) => only(headers, &NAME).is_some_and(|value| says(value, &name)),
        // Methods that tasks had before are refused for what they are.
        (None, given) => !given || asked.starts_with("tasks/"),
    };
    if !honest {
        return Err(Refused::Header("Mcp-Name"));
    }
    Ok(claims(headers))
}

/// Refuses a notification whose headers speak of another; absent ones say nothing.
pub(super) fn refuse_lies(headers: &HeaderMap, message: &Message) -> Option<Answer> {
    let asked = message.method().unwrap_or_default();
    let given = headers.contains_key(METHOD);
    let lies = given && only(headers, &METHOD) != Some(asked.as_bytes());
    lies.then(|| Refused::Header("Mcp-Method").answer(None))
}

/// Returns what `Mcp-Name` must say of a request.
fn name_of<'a>(asked: &str, params: &'a [u8]) -> Option<Cow<'a, str>> {
    let key = match asked {
        method::TOOLS_CALL | method::PROMPTS_GET => "name",
        method::RESOURCES_READ => "uri",
        method::TASKS_GET | method::TASKS_UPDATE | method::TASKS_CANCEL => "taskId",
        _ => return None,
    };
    object::text(params, key)
}

/// Returns the value of a header that stands exactly once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    values.next().is_none().then(|| first.as_bytes())
}

fn claims(headers: &HeaderMap) -> Option<Vec<Claim>> {
    let mut claims = Vec::new();
    for (name, value) in headers {
        if let Some(name) = name.as_str().strip_prefix(PARAM) {
            claims.push(Claim {
                name: name.into(),
                value: value.as_bytes().into(),
            });
        }
    }
    let carried = only(headers, &CARRIED) == Some(b"stdio");
    (!claims.is_empty() || !carried).then_some(claims)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const VERSION: (&str, &str) = ("mcp-protocol-version", "2026-07-28");
    const CALL: (&str, &str) = ("mcp-method", "tools/call");
    const NAMED: (&str, &str) = ("mcp-name", "=?base64?w6Q=?=");

    fn checked(
        headers: &[(&'static str, &'static str)],
        body: &'static str,
    ) -> Result<Option<Vec<Claim>>, Refused> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        let message = Message::parse(body.into()).unwrap();
        check(&map, &message, Some("2026-07-28"))
    }

    #[test]
    fn every_header_stands_once_and_says_what_the_body_says() {
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"\u00e4"}}"#;
        let want = Ok(Some(Vec::new()));
        assert_eq!(checked(&[VERSION, CALL, NAMED], call), want);
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
            assert_eq!(checked(lie, call), Err(Refused::Header(header)), "{lie:?}");
        }
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"name":"a"}}"#;
        let method = ("mcp-method", "tools/list");
        assert!(checked(&[VERSION, method], list).is_ok());
        let named = checked(&[VERSION, method, ("mcp-name", "a")], list);
        assert_eq!(named, Err(Refused::Header("Mcp-Name")));
    }

    #[test]
    fn headers_of_arguments_are_claims_unless_nobody_could_write_any() {
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#;
        let method = ("mcp-method", "tools/list");
        let carried = ("bowline-carried", "stdio");
        let region = ("Mcp-Param-Region", "x");
        assert_eq!(checked(&[VERSION, method, carried], list), Ok(None));
        let claimed = Ok(Some(vec![Claim {
            name: "region".into(),
            value: b"x"[..].into(),
        }]));
        assert_eq!(checked(&[VERSION, method, region], list), claimed);
        assert_eq!(checked(&[VERSION, method, carried, region], list), claimed);
    }
}
