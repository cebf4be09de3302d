//! Header parameters (`Mcp-Param-*`): definitions, values, and comparison with arguments.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bowline_core::era::{HeaderClaim, HeaderParam};

use crate::{case_fold, object};

/// The schema keyword with the header name of a property.
const HEADER_KEYWORD: &str = "x-mcp-header";

/// Marks around an encoded header value.
const ENCODED_MARKS: (&str, &str) = ("=?base64?", "?=");

/// Why the header parameters of a tool are invalid; clients must skip such a tool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderParamError {
    /// Not a header name.
    #[error("x-mcp-header is not the name of a header")]
    Name,
    /// Two properties share a header.
    #[error("two properties are mirrored in the header {0}")]
    Twice(Box<str>),
    /// The property is not a string, an integer or a boolean.
    #[error("the property mirrored in the header {0} is no string, integer or boolean")]
    Kind(Box<str>),
    /// Not reachable through a chain of `properties`.
    #[error("x-mcp-header stands where no chain of properties leads")]
    Place,
}

/// Parses the header parameters from the input schema of a tool.
///
/// # Errors
/// The definition violates a rule for names, types or positions.
pub fn parse_header_params(input_schema: &[u8]) -> Result<Vec<HeaderParam>, HeaderParamError> {
    let mut params = Vec::new();
    // Nearly no schema has the keyword; an escaped key needs the full walk.
    let spelled = memchr::memmem::find(input_schema, HEADER_KEYWORD.as_bytes()).is_some();
    if spelled || memchr::memchr(b'\\', input_schema).is_some() {
        walk_schema(input_schema, &mut Vec::new(), &mut params)?;
    }
    Ok(params)
}

/// Walks chains of properties. Recursion is bounded by [`crate::scan::DEPTH_MAX`], checked before.
fn walk_schema<'a>(
    schema: &'a [u8],
    path: &mut Vec<Cow<'a, str>>,
    params: &mut Vec<HeaderParam>,
) -> Result<(), HeaderParamError> {
    for (key, value) in object::fields(schema) {
        let value = value.slice(schema);
        match &*key {
            HEADER_KEYWORD if path.is_empty() => return Err(HeaderParamError::Place),
            HEADER_KEYWORD => {
                let mirror = parse_header_param(schema, value, path)?;
                let same = |other: &HeaderParam| other.name.eq_ignore_ascii_case(&mirror.name);
                if params.iter().any(same) {
                    return Err(HeaderParamError::Twice(mirror.name));
                }
                params.push(mirror);
            }
            "properties" => {
                for (name, property) in object::fields(value) {
                    path.push(name);
                    walk_schema(property.slice(value), path, params)?;
                    path.pop();
                }
            }
            _ if has_nested_mark(&key, value) => return Err(HeaderParamError::Place),
            _ => {}
        }
    }
    Ok(())
}

fn parse_header_param(
    schema: &[u8],
    name: &[u8],
    path: &[Cow<'_, str>],
) -> Result<HeaderParam, HeaderParamError> {
    let name = object::parse_string(name).ok_or(HeaderParamError::Name)?;
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(HeaderParamError::Name);
    }
    let name: Box<str> = name.into();
    match object::text_field(schema, "type").as_deref() {
        Some("string" | "integer" | "boolean") => Ok(HeaderParam {
            name,
            path: path.iter().map(|key| Box::from(&**key)).collect(),
        }),
        _ => Err(HeaderParamError::Kind(name)),
    }
}

/// Whether the value of a keyword except `properties` contains a schema with the header keyword.
/// Data values contain no schemas.
fn has_nested_mark(keyword: &str, value: &[u8]) -> bool {
    match keyword {
        "const" | "enum" | "default" | "examples" | "required" => false,
        "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => {
            object::fields(value).any(|(_, schema)| is_marked_schema(schema.slice(value)))
        }
        _ => {
            is_marked_schema(value)
                || object::items(value).any(|schema| is_marked_schema(schema.slice(value)))
        }
    }
}

/// Whether a schema or a nested schema has the header keyword.
fn is_marked_schema(schema: &[u8]) -> bool {
    object::fields(schema).any(|(key, value)| {
        let value = value.slice(schema);
        match &*key {
            HEADER_KEYWORD => true,
            "properties" => {
                object::fields(value).any(|(_, inner)| is_marked_schema(inner.slice(value)))
            }
            keyword => has_nested_mark(keyword, value),
        }
    })
}

const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

/// Returns the unencoded header value of an argument; `None` if the argument is absent, null, or
/// of an unsupported type.
#[must_use]
pub fn header_value(arguments: &[u8], mirror: &HeaderParam) -> Option<String> {
    let value = find_argument(arguments, mirror)?;
    match value.first()? {
        b'"' => object::parse_string(value).map(Cow::into_owned),
        b't' | b'f' | b'-' | b'0'..=b'9' => {
            let text = std::str::from_utf8(value).ok()?;
            Some(
                parse_whole_number(text)
                    .map_or_else(|| text.to_owned(), |number| number.to_string()),
            )
        }
        _ => None,
    }
}

fn find_argument<'a>(arguments: &'a [u8], mirror: &HeaderParam) -> Option<&'a [u8]> {
    let mut value = arguments;
    for key in &mirror.path {
        value = object::field(value, key)?.slice(value);
    }
    Some(value)
}

/// Whether no argument differs only in case from a header parameter: a case-insensitive server
/// could read a value different from the header.
#[must_use]
pub fn is_unambiguous(mirrors: &[HeaderParam], arguments: &[u8]) -> bool {
    mirrors.iter().all(|mirror| {
        let mut value = Some(arguments);
        mirror.path.iter().all(|key| {
            let Some(object) = value else {
                return true;
            };
            value = object::field(object, key).map(|at| at.slice(object));
            !case_fold::has_variant(object, key)
        })
    })
}

/// Parses a whole number in any JSON spelling.
fn parse_whole_number(text: &str) -> Option<i64> {
    /// Largest integer exact in every JSON parser.
    const SAFE: f64 = 9_007_199_254_740_991.0;
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let digits = text
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'));
    let number: f64 = digits.then(|| text.parse().ok())??;
    // Below the limit, a whole number equals its text without a fraction.
    (number.fract() == 0.0 && number.abs() <= SAFE).then(|| format!("{number:.0}").parse().ok())?
}

/// Encodes a text as a header value.
#[must_use]
pub fn encode_value(text: &str) -> Cow<'_, str> {
    let padded = text.starts_with([' ', '\t']) || text.ends_with([' ', '\t']);
    let plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
    // Texts with both marks would decode as base64, even if the marks overlap.
    let lookalike = text.starts_with(ENCODED_MARKS.0) && text.ends_with(ENCODED_MARKS.1);
    if plain && !padded && !lookalike {
        return Cow::Borrowed(text);
    }
    let (begin, end) = ENCODED_MARKS;
    Cow::Owned(format!("{begin}{}{end}", STANDARD.encode(text)))
}

/// Decodes a header value; `None` if invalid.
#[must_use]
pub fn decode_value(value: &[u8]) -> Option<Cow<'_, str>> {
    let text = std::str::from_utf8(value).ok()?;
    if !text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t')) {
        return None;
    }
    match strip_encoding(text) {
        None => Some(Cow::Borrowed(text)),
        Some(code) => {
            let bytes = STANDARD.decode(code).ok()?;
            String::from_utf8(bytes).ok().map(Cow::Owned)
        }
    }
}

fn strip_encoding(text: &str) -> Option<&str> {
    text.strip_prefix(ENCODED_MARKS.0)?
        .strip_suffix(ENCODED_MARKS.1)
}

/// Whether the headers match the arguments: exactly one header per argument with a value, and none
/// without. Unrelated headers are ignored.
#[must_use]
pub fn headers_match(claims: &[HeaderClaim], mirrors: &[HeaderParam], arguments: &[u8]) -> bool {
    mirrors.iter().all(|mirror| {
        let mut claimed = claims
            .iter()
            .filter(|claim| claim.name.eq_ignore_ascii_case(&mirror.name));
        match (
            claimed.next(),
            claimed.next(),
            header_value(arguments, mirror),
        ) {
            (None, None, None) => true,
            (Some(claim), None, Some(value)) => {
                let is_number = !matches!(find_argument(arguments, mirror), Some([b'"', ..]));
                decode_value(&claim.value).is_some_and(|claimed| {
                    claimed == value || is_number && is_same_number(&claimed, &value)
                })
            }
            _ => false,
        }
    })
}

fn is_same_number(one: &str, other: &str) -> bool {
    parse_whole_number(one).is_some_and(|one| parse_whole_number(other) == Some(one))
}

#[cfg(test)]
mod tests;
