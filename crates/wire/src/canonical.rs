//! One text for every way to write a JSON value, so that values can be compared and hashed.

use std::borrow::Cow;

use crate::object::{self, Inside};
use crate::scan::{self, Fault, Keys};
use crate::span::Span;
use crate::text;

/// Writes a JSON text in its one canonical form: members sorted by the UTF-8 bytes of their
/// keys, no space, every string in its shortest escapes. A number stays as it was written,
/// because rounding it would make two numbers one: `1` is not `1.0`.
///
/// # Errors
/// The text is not JSON, is nested too deep, or an object repeats a key.
pub fn canonical(json: &[u8]) -> Result<Vec<u8>, Fault> {
    scan::check(json, Keys::Unique)?;
    let mut out = Vec::with_capacity(json.len());
    write(&mut out, json.trim_ascii());
    Ok(out)
}

/// Appends a checked value that has no space around it. Calls itself once per level, of which
/// the check allows [`scan::DEPTH_MAX`].
fn write(out: &mut Vec<u8>, value: &[u8]) {
    match value.first() {
        Some(b'{') => write_object(out, value),
        Some(b'[') => {
            out.push(b'[');
            for (index, item) in object::items(value).enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write(out, item.of(value));
            }
            out.push(b']');
        }
        Some(b'"') => match text::literal(value, 1) {
            Ok((literal, _)) => text::write_literal(out, &literal.meaning()),
            Err(_) => debug_assert!(false, "a checked string has no fault"),
        },
        _ => out.extend_from_slice(value),
    }
}

fn write_object(out: &mut Vec<u8>, value: &[u8]) {
    let mut members: Vec<(Cow<'_, [u8]>, Span)> = Vec::new();
    let mut inside = Inside::open(value, b'{');
    while let Some((key, at)) = inside.member() {
        members.push((key.meaning(), at));
    }
    members.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    out.push(b'{');
    for (index, (key, at)) in members.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        text::write_literal(out, key);
        out.push(b':');
        write(out, at.of(value));
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests;
