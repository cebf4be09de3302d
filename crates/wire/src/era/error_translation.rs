//! Translates error objects between eras by their codes.

use std::borrow::Cow;

use crate::mcp::{code, method};
use crate::object;
use crate::object_editor::{MemberList, ObjectEditor};
use crate::splice::{ByteSpan, replace_span, to_literal};

/// Codes reserved by the modern era, usable freely by legacy servers.
const RESERVED_CODES: std::ops::RangeInclusive<i64> = -32_099..=-32_020;

/// Returns the code of an error object.
#[must_use]
pub fn error_code(error: &[u8]) -> Option<i64> {
    parse_code(error).map(|(code, _)| code)
}

/// Translates a legacy error object to modern; `uri` is the requested resource. A URL elicitation
/// error stays unchanged: modern servers use an input request instead, built by the caller.
#[must_use]
pub fn to_modern<'a>(error: &'a [u8], uri: Option<&str>) -> Cow<'a, [u8]> {
    let Some((code, at)) = parse_code(error) else {
        return Cow::Borrowed(error);
    };
    match (code, uri) {
        (code::RESOURCE_NOT_FOUND, Some(uri)) => {
            let mut editor = ObjectEditor::new(error);
            editor.replace(at, format_code(code::INVALID_PARAMS));
            add_resource_uri(&mut editor, error, uri);
            Cow::Owned(editor.finish())
        }
        (code::URL_ELICITATION_REQUIRED, _) => Cow::Borrowed(error),
        (code, _) if RESERVED_CODES.contains(&code) => {
            Cow::Owned(replace_span(error, at, &format_code(code::INTERNAL)))
        }
        _ => Cow::Borrowed(error),
    }
}

/// Translates a modern error object to legacy.
#[must_use]
pub fn to_legacy<'a>(error: &'a [u8], method: &str) -> Cow<'a, [u8]> {
    let Some((code, at)) = parse_code(error) else {
        return Cow::Borrowed(error);
    };
    let legacy = match code {
        code::INVALID_PARAMS if method == method::RESOURCES_READ && has_resource_uri(error) => {
            code::RESOURCE_NOT_FOUND
        }
        code::HEADER_MISMATCH | code::MISSING_CAPABILITY | code::UNSUPPORTED_VERSION => {
            code::INTERNAL
        }
        _ => return Cow::Borrowed(error),
    };
    Cow::Owned(replace_span(error, at, &format_code(legacy)))
}

fn parse_code(error: &[u8]) -> Option<(i64, ByteSpan)> {
    let at = object::field(error, "code")?;
    let code = std::str::from_utf8(at.slice(error)).ok()?.parse().ok()?;
    Some((code, at))
}

fn format_code(code: i64) -> Vec<u8> {
    itoa::Buffer::new().format(code).as_bytes().to_vec()
}

/// Whether an error names its resource.
fn has_resource_uri(error: &[u8]) -> bool {
    let Some(data) = object::field(error, "data") else {
        return false;
    };
    object::text_field(data.slice(error), "uri").is_some()
}

/// Names the resource of an error, if missing.
fn add_resource_uri(editor: &mut ObjectEditor<'_>, error: &[u8], uri: &str) {
    let literal = to_literal(uri);
    match object::field(error, "data") {
        None => {
            editor.set_first(editor.whole(), &["data", "uri"], literal);
        }
        Some(at) if object::field(at.slice(error), "uri").is_none() => {
            editor.insert_first(at, MemberList::from_member("uri", &literal));
        }
        Some(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_resource_code_differs_by_era() {
        let uri = Some("a://b");
        for (legacy, modern) in [
            (
                r#"{"code":-32002,"message":"no"}"#,
                r#"{"data":{"uri":"a://b"},"code":-32602,"message":"no"}"#,
            ),
            (
                r#"{"code":-32002,"message":"no","data":{"uri":"own","x":1}}"#,
                r#"{"code":-32602,"message":"no","data":{"uri":"own","x":1}}"#,
            ),
            (
                r#"{"code":-32002,"message":"no","data":{"x":1}}"#,
                r#"{"code":-32602,"message":"no","data":{"uri":"a://b","x":1}}"#,
            ),
            (
                r#"{"code":-32002,"message":"no","data":"words"}"#,
                r#"{"code":-32602,"message":"no","data":"words"}"#,
            ),
        ] {
            let got = to_modern(legacy.as_bytes(), uri);
            assert_eq!(String::from_utf8(got.into_owned()).unwrap(), modern);
            // Without a resource, the code is server-defined.
            assert_eq!(&*to_modern(legacy.as_bytes(), None), legacy.as_bytes());
        }
        let modern = r#"{"code":-32602,"message":"no","data":{"uri":"a://b"}}"#;
        let legacy = r#"{"code":-32002,"message":"no","data":{"uri":"a://b"}}"#;
        let got = to_legacy(modern.as_bytes(), method::RESOURCES_READ);
        assert_eq!(&*got, legacy.as_bytes());
        let other = to_legacy(modern.as_bytes(), method::TOOLS_CALL);
        assert_eq!(&*other, modern.as_bytes());
        let plain = br#"{"code":-32602,"message":"no uri"}"#;
        assert_eq!(&*to_legacy(plain, method::RESOURCES_READ), plain);
    }

    #[test]
    fn reserved_codes_do_not_cross_eras() {
        for code in [-32_020, -32_021, -32_022] {
            let error = format!(r#"{{"message":"m","code":{code},"data":[1]}}"#);
            let want = r#"{"message":"m","code":-32603,"data":[1]}"#;
            assert_eq!(
                &*to_legacy(error.as_bytes(), method::TOOLS_CALL),
                want.as_bytes()
            );
            assert_eq!(&*to_modern(error.as_bytes(), None), want.as_bytes());
        }
        for code in [-32_700, -32_601, -32_042, -32_019, -1, 5, 404] {
            let error = format!(r#"{{"code":{code},"message":"m"}}"#);
            assert_eq!(
                &*to_legacy(error.as_bytes(), method::TOOLS_CALL),
                error.as_bytes()
            );
            assert_eq!(&*to_modern(error.as_bytes(), None), error.as_bytes());
            assert_eq!(error_code(error.as_bytes()), Some(code));
        }
        let odd = br#"{"code":"x"}"#;
        assert_eq!(&*to_modern(odd, None), odd);
        assert_eq!(error_code(odd), None);
    }
}
