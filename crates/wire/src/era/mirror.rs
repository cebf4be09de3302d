//! Arguments that are repeated in headers: which ones, what they say, and whether they agree.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bowline_core::era::{Claim, Mirror};

use crate::{fold, object};

/// The word in a schema that names the header of a property.
const WORD: &str = "x-mcp-header";

/// Begins and ends a value that a header cannot carry as it is.
const CODED: (&str, &str) = ("=?base64?", "?=");

/// Why the headers of a tool cannot be used; clients must leave such a tool out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMirror {
    /// The name is empty, or no name of a header.
    #[error("x-mcp-header is not the name of a header")]
    Name,
    /// Two properties have the same.
    #[error("two properties are mirrored in the header {0}")]
    Twice(Box<str>),
    /// The property is not a string, an integer or a boolean.
    #[error("the property mirrored in the header {0} is no string, integer or boolean")]
    Kind(Box<str>),
    /// It stands where no chain of `properties` leads.
    #[error("x-mcp-header stands where no chain of properties leads")]
    Place,
}

/// Reads which arguments of a tool are repeated in headers from the schema of its arguments.
///
/// # Errors
/// The definition breaks a rule for the names, kinds or places of such arguments.
pub fn read(input_schema: &[u8]) -> Result<Vec<Mirror>, BadMirror> {
    let mut found = Vec::new();
    // Nearly no schema has any, and a key can be written with escapes.
    let spelled = memchr::memmem::find(input_schema, WORD.as_bytes()).is_some();
    if spelled || memchr::memchr(b'\\', input_schema).is_some() {
        walk(input_schema, &mut Vec::new(), &mut found)?;
    }
    Ok(found)
}

/// Walks along the chains of properties. Calls itself once per level, of which the check of a
/// text allows [`crate::scan::DEPTH_MAX`].
fn walk<'a>(
    schema: &'a [u8],
    path: &mut Vec<Cow<'a, str>>,
    found: &mut Vec<Mirror>,
) -> Result<(), BadMirror> {
    for (key, value) in object::fields(schema) {
        let value = value.of(schema);
        match &*key {
            WORD if path.is_empty() => return Err(BadMirror::Place),
            WORD => {
                let mirror = named(schema, value, path)?;
                let same = |other: &Mirror| other.name.eq_ignore_ascii_case(&mirror.name);
                if found.iter().any(same) {
                    return Err(BadMirror::Twice(mirror.name));
                }
                found.push(mirror);
            }
            "properties" => {
                for (name, property) in object::fields(value) {
                    path.push(name);
                    walk(property.of(value), path, found)?;
                    path.pop();
                }
            }
            _ if holds(&key, value) => return Err(BadMirror::Place),
            _ => {}
        }
    }
    Ok(())
}

fn named(schema: &[u8], name: &[u8], path: &[Cow<'_, str>]) -> Result<Mirror, BadMirror> {
    let name = object::string(name).ok_or(BadMirror::Name)?;
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(BadMirror::Name);
    }
    let name: Box<str> = name.into();
    match object::text(schema, "type").as_deref() {
        Some("string" | "integer" | "boolean") => Ok(Mirror {
            name,
            path: path.iter().map(|key| Box::from(&**key)).collect(),
        }),
        _ => Err(BadMirror::Kind(name)),
    }
}

/// Whether the value of a keyword other than `properties` holds a schema with the word. Values
/// that are data hold none, whatever they look like.
fn holds(keyword: &str, value: &[u8]) -> bool {
    match keyword {
        "const" | "enum" | "default" | "examples" | "required" => false,
        "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => {
            object::fields(value).any(|(_, schema)| marked(schema.of(value)))
        }
        _ => marked(value) || object::items(value).any(|schema| marked(schema.of(value))),
    }
}

/// Whether a schema or one inside it has the word.
fn marked(schema: &[u8]) -> bool {
    object::fields(schema).any(|(key, value)| {
        let value = value.of(schema);
        match &*key {
            WORD => true,
            "properties" => object::fields(value).any(|(_, inner)| marked(inner.of(value))),
            keyword => holds(keyword, value),
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

/// Returns what the header of a mirrored argument says, not encoded yet; nothing where the
/// argument is absent, null, or nothing that a header could say.
#[must_use]
pub fn value(arguments: &[u8], mirror: &Mirror) -> Option<String> {
    let value = found(arguments, mirror)?;
    match value.first()? {
        b'"' => object::string(value).map(Cow::into_owned),
        b't' | b'f' | b'-' | b'0'..=b'9' => {
            let text = std::str::from_utf8(value).ok()?;
            Some(whole_number(text).map_or_else(|| text.to_owned(), |number| number.to_string()))
        }
        _ => None,
    }
}

fn found<'a>(arguments: &'a [u8], mirror: &Mirror) -> Option<&'a [u8]> {
    let mut value = arguments;
    for key in &mirror.path {
        value = object::field(value, key)?.of(value);
    }
    Some(value)
}

/// Whether no argument differs from a mirrored one in case only: a server that takes the one for
/// the other would be told something else than the header says.
#[must_use]
pub fn is_clear(mirrors: &[Mirror], arguments: &[u8]) -> bool {
    mirrors.iter().all(|mirror| {
        let mut value = Some(arguments);
        mirror.path.iter().all(|key| {
            let Some(object) = value else {
                return true;
            };
            value = object::field(object, key).map(|at| at.of(object));
            !fold::has_variant(object, key)
        })
    })
}

/// Returns a number that is whole, however it is written.
fn whole_number(text: &str) -> Option<i64> {
    /// What every reader of JSON takes for the number it is.
    const SAFE: f64 = 9_007_199_254_740_991.0;
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let digits = text
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'));
    let number: f64 = digits.then(|| text.parse().ok())??;
    // Below the limit, a whole number and its text without a fraction are the same.
    (number.fract() == 0.0 && number.abs() <= SAFE).then(|| format!("{number:.0}").parse().ok())?
}

/// Returns the value of a header that says a text.
#[must_use]
pub fn encode(text: &str) -> Cow<'_, str> {
    let padded = text.starts_with([' ', '\t']) || text.ends_with([' ', '\t']);
    let plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
    // What begins and ends so is read as code, even where the two overlap.
    let lookalike = text.starts_with(CODED.0) && text.ends_with(CODED.1);
    if plain && !padded && !lookalike {
        return Cow::Borrowed(text);
    }
    let (begin, end) = CODED;
    Cow::Owned(format!("{begin}{}{end}", STANDARD.encode(text)))
}

/// Returns the text that the value of a header says; nothing where it is none.
#[must_use]
pub fn decode(value: &[u8]) -> Option<Cow<'_, str>> {
    let text = std::str::from_utf8(value).ok()?;
    if !text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t')) {
        return None;
    }
    match coded(text) {
        None => Some(Cow::Borrowed(text)),
        Some(code) => {
            let bytes = STANDARD.decode(code).ok()?;
            String::from_utf8(bytes).ok().map(Cow::Owned)
        }
    }
}

fn coded(text: &str) -> Option<&str> {
    text.strip_prefix(CODED.0)?.strip_suffix(CODED.1)
}

/// Whether headers say of the mirrored arguments what the arguments say: each once where there is
/// a value, and not at all where there is none. Other headers are nobody's business.
#[must_use]
pub fn agrees(claims: &[Claim], mirrors: &[Mirror], arguments: &[u8]) -> bool {
    mirrors.iter().all(|mirror| {
        let mut said = claims
            .iter()
            .filter(|claim| claim.name.eq_ignore_ascii_case(&mirror.name));
        match (said.next(), said.next(), value(arguments, mirror)) {
            (None, None, None) => true,
            (Some(claim), None, Some(value)) => {
                let is_number = !matches!(found(arguments, mirror), Some([b'"', ..]));
                decode(&claim.value)
                    .is_some_and(|said| said == value || is_number && same_number(&said, &value))
            }
            _ => false,
        }
    })
}

fn same_number(one: &str, other: &str) -> bool {
    whole_number(one).is_some_and(|one| whole_number(other) == Some(one))
}

#[cfg(test)]
mod tests;
