//! Errors of one era for a reader of the other, told apart by their numbers alone.

use std::borrow::Cow;

use super::change::Fate;
use super::change::{Change, applied, literal, push_member, rewrite, whole};
use crate::mcp::{code, method};
use crate::object;
use crate::span::Span;

/// The numbers that the modern era keeps for itself, of which servers of the legacy era could
/// make what they liked.
const KEPT: std::ops::RangeInclusive<i64> = -32_099..=-32_020;

/// Returns the number of an error object.
#[must_use]
pub fn code_of(error: &[u8]) -> Option<i64> {
    number(error).map(|(code, _)| code)
}

/// Writes an error object of the legacy era as one of the modern; `uri` is that of the resource
/// that was asked for. An address that a user must open stays as it is: it is no error there, and
/// whoever knows the request makes a question of it.
#[must_use]
pub fn to_modern<'a>(error: &'a [u8], uri: Option<&str>) -> Cow<'a, [u8]> {
    let Some((code, at)) = number(error) else {
        return Cow::Borrowed(error);
    };
    match (code, uri) {
        (code::RESOURCE_NOT_FOUND, Some(uri)) => {
            let mut changes = vec![(at, digits(code::INVALID_PARAMS))];
            name_resource(error, uri, &mut changes);
            Cow::Owned(applied(error, &mut changes))
        }
        (code::URL_ELICITATION_REQUIRED, _) => Cow::Borrowed(error),
        (code, _) if KEPT.contains(&code) => {
            Cow::Owned(applied(error, &mut [(at, digits(code::INTERNAL))]))
        }
        _ => Cow::Borrowed(error),
    }
}

/// Writes an error object of the modern era as one of the legacy.
#[must_use]
pub fn to_legacy<'a>(error: &'a [u8], method: &str) -> Cow<'a, [u8]> {
    let Some((code, at)) = number(error) else {
        return Cow::Borrowed(error);
    };
    let legacy = match code {
        code::INVALID_PARAMS if method == method::RESOURCES_READ && names_resource(error) => {
            code::RESOURCE_NOT_FOUND
        }
        code::HEADER_MISMATCH | code::MISSING_CAPABILITY | code::UNSUPPORTED_VERSION => {
            code::INTERNAL
        }
        _ => return Cow::Borrowed(error),
    };
    Cow::Owned(applied(error, &mut [(at, digits(legacy))]))
}

fn number(error: &[u8]) -> Option<(i64, Span)> {
    let at = object::field(error, "code")?;
    let code = std::str::from_utf8(at.of(error)).ok()?.parse().ok()?;
    Some((code, at))
}

fn digits(code: i64) -> Vec<u8> {
    itoa::Buffer::new().format(code).as_bytes().to_vec()
}

/// Whether an error says which resource it is about.
fn names_resource(error: &[u8]) -> bool {
    let Some(data) = object::field(error, "data") else {
        return false;
    };
    object::text(data.of(error), "uri").is_some()
}

/// Appends the change that says which resource an error is about, where it does not.
fn name_resource(error: &[u8], uri: &str, changes: &mut Vec<Change>) {
    let mut member = Vec::new();
    push_member(&mut member, "uri", &literal(uri));
    match object::field(error, "data") {
        None => {
            let mut data = Vec::new();
            push_member(&mut data, "data", &[b"{", &*member, b"}"].concat());
            rewrite(error, whole(error), data, |_, _| Fate::Stays, changes);
        }
        Some(at) if object::field(at.of(error), "uri").is_none() => {
            rewrite(error, at, member, |_, _| Fate::Stays, changes);
        }
        Some(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_that_is_not_there_has_another_number_in_each_era() {
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
            // Of what is no resource, the number says something of the server's own.
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
    fn numbers_that_one_era_keeps_do_not_mislead_the_other() {
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
            assert_eq!(code_of(error.as_bytes()), Some(code));
        }
        let odd = br#"{"code":"x"}"#;
        assert_eq!(&*to_modern(odd, None), odd);
        assert_eq!(code_of(odd), None);
    }
}
