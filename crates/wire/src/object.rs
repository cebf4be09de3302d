//! Shallow access to a validated object or array.
//!
//! The text is trusted to be JSON, so values are skipped without validation. On invalid text the
//! functions return partial or wrong results, but terminate without panics.

use std::borrow::Cow;

use crate::splice::ByteSpan;
use crate::string_literal::{self, StringLiteral};

/// Whether a value without surrounding whitespace is an object.
#[must_use]
pub fn is_object(value: &[u8]) -> bool {
    value.first() == Some(&b'{')
}

/// Returns the members of an object, in order; empty for non-objects.
#[must_use]
pub fn fields(bytes: &[u8]) -> FieldIter<'_> {
    FieldIter {
        inside: JsonCursor::open(bytes, b'{'),
    }
}

/// Returns the member with this key, if a string.
#[must_use]
pub fn text_field<'a>(object: &'a [u8], key: &str) -> Option<Cow<'a, str>> {
    parse_string(field(object, key)?.slice(object))
}

/// Returns the value of a key; the last duplicate wins, as in most parsers.
#[must_use]
pub fn field(bytes: &[u8], key: &str) -> Option<ByteSpan> {
    let mut inside = JsonCursor::open(bytes, b'{');
    let mut found = None;
    while let Some((name, value)) = inside.next_member() {
        if *name.unescape() == *key.as_bytes() {
            found = Some(value);
        }
    }
    found
}

/// Returns the elements of an array; empty for non-arrays.
#[must_use]
pub fn items(bytes: &[u8]) -> ItemIter<'_> {
    ItemIter {
        inside: JsonCursor::open(bytes, b'['),
    }
}

/// Parses a string literal without surrounding whitespace. `None` for non-strings and lone
/// surrogates.
#[must_use]
pub fn parse_string(bytes: &[u8]) -> Option<Cow<'_, str>> {
    let b'"' = bytes.first()? else {
        return None;
    };
    let (literal, end) = string_literal::parse_literal(bytes, 1).ok()?;
    if end == bytes.len() {
        literal.to_text()
    } else {
        None
    }
}

/// Iterator of [`fields`]: a key and the span of the value. Lone surrogates in a key become U+FFFD.
#[derive(Clone, Debug)]
pub struct FieldIter<'a> {
    inside: JsonCursor<'a>,
}

impl<'a> Iterator for FieldIter<'a> {
    type Item = (Cow<'a, str>, ByteSpan);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, value) = self.inside.next_member()?;
        let key = match key.unescape() {
            Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
            Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        };
        Some((key, value))
    }
}

/// Iterator of [`items`]: the span of each element.
#[derive(Clone, Debug)]
pub struct ItemIter<'a> {
    inside: JsonCursor<'a>,
}

impl Iterator for ItemIter<'_> {
    type Item = ByteSpan;

    fn next(&mut self) -> Option<ByteSpan> {
        self.inside.skip_comma()?;
        self.inside.next_value()
    }
}

/// A cursor between members or elements.
#[derive(Clone, Debug)]
pub(crate) struct JsonCursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Whether a comma must precede the next element.
    needs_comma: bool,
}

impl<'a> JsonCursor<'a> {
    /// Enters the object or array opened by `bracket`; immediately at the end if missing.
    pub(crate) fn open(bytes: &'a [u8], bracket: u8) -> Self {
        let mut inside = Self {
            bytes,
            at: 0,
            needs_comma: false,
        };
        if inside.skip_space() == Some(bracket) {
            inside.at += 1;
        } else {
            inside.at = bytes.len();
        }
        inside
    }

    /// Returns the next member of an object.
    pub(crate) fn next_member(&mut self) -> Option<(StringLiteral<'a>, ByteSpan)> {
        let Some(b'"') = self.skip_comma() else {
            return self.stop_here();
        };
        let Ok((key, end)) = string_literal::parse_literal(self.bytes, self.at + 1) else {
            return self.stop_here();
        };
        self.at = end;
        let Some(b':') = self.skip_space() else {
            return self.stop_here();
        };
        self.at += 1;
        let value = self.next_value()?;
        Some((key, value))
    }

    /// Skips the comma and returns the first byte of the next member or element.
    fn skip_comma(&mut self) -> Option<u8> {
        let next = self.skip_space();
        if !self.needs_comma {
            self.needs_comma = true;
            return next.filter(|&byte| byte != b']' && byte != b'}');
        }
        if next != Some(b',') {
            return self.stop_here();
        }
        self.at += 1;
        self.skip_space()
    }

    /// Skips the next value.
    fn next_value(&mut self) -> Option<ByteSpan> {
        self.skip_space();
        let start = self.at;
        let end = value_end(self.bytes, start);
        if end == start {
            return self.stop_here();
        }
        self.at = end;
        Some(ByteSpan { start, end })
    }

    /// Ends the iteration.
    fn stop_here<T>(&mut self) -> Option<T> {
        self.needs_comma = true;
        self.at = self.bytes.len();
        None
    }

    fn skip_space(&mut self) -> Option<u8> {
        loop {
            match self.bytes.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                other => return other.copied(),
            }
        }
    }
}

/// Returns the position after the value at `at`; `at` itself without a value.
fn value_end(bytes: &[u8], at: usize) -> usize {
    match bytes.get(at) {
        Some(b'"') => string_end(bytes, at + 1),
        Some(b'{' | b'[') => nested_end(bytes, at + 1),
        _ => scalar_end(bytes, at),
    }
}

/// Returns the position after the matching closing bracket. Validated text has balanced brackets
/// outside strings, so counting suffices.
fn nested_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 1_usize;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'"' => at = string_end(bytes, at),
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
            _ => {}
        }
    }
    at
}

/// Returns the position after the closing quote of a string whose content starts at `at`.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    loop {
        at = string_literal::find_special(bytes, at);
        match bytes.get(at) {
            Some(b'"') => return at + 1,
            Some(b'\\') => at += 2,
            Some(_) => at += 1,
            None => return bytes.len(),
        }
    }
}

/// Returns the position after the number or word at `at`.
fn scalar_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'.' | b'+' | b'-') = bytes.get(at) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests;
