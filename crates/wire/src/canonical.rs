//! Canonical JSON, for comparing and hashing values.

use std::borrow::Cow;

use crate::object::{self, JsonCursor};
use crate::scan::{self, JsonError, KeyPolicy};
use crate::splice::ByteSpan;
use crate::string_literal;

/// Writes a JSON text in canonical form: members sorted by the UTF-8 bytes of their keys, no
/// whitespace, strings with minimal escapes. Numbers keep their spelling, since rounding would
/// merge different numbers: `1` is not `1.0`.
///
/// # Errors
/// The text is not JSON, is nested too deep, or an object repeats a key.
pub fn to_canonical(json: &[u8]) -> Result<Vec<u8>, JsonError> {
    scan::check_json(json, KeyPolicy::Unique)?;
    let mut out = Vec::with_capacity(json.len());
    write_value(&mut out, json.trim_ascii());
    Ok(out)
}

/// Appends a checked value without surrounding whitespace. Recursion is bounded by
/// [`scan::DEPTH_MAX`].
fn write_value(out: &mut Vec<u8>, value: &[u8]) {
    match value.first() {
        Some(b'{') => write_object(out, value),
        Some(b'[') => {
            out.push(b'[');
            for (index, item) in object::items(value).enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_value(out, item.slice(value));
            }
            out.push(b']');
        }
        Some(b'"') => match string_literal::parse_literal(value, 1) {
            Ok((literal, _)) => string_literal::write_literal(out, &literal.unescape()),
            Err(_) => debug_assert!(false, "a checked string has no fault"),
        },
        _ => out.extend_from_slice(value),
    }
}

fn write_object(out: &mut Vec<u8>, value: &[u8]) {
    let mut members: Vec<(Cow<'_, [u8]>, ByteSpan)> = Vec::new();
    let mut inside = JsonCursor::open(value, b'{');
    while let Some((key, at)) = inside.next_member() {
        members.push((key.unescape(), at));
    }
    members.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    out.push(b'{');
    for (index, (key, at)) in members.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        string_literal::write_literal(out, key);
        out.push(b':');
        write_value(out, at.slice(value));
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests;
