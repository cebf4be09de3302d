//! A shallow look into an object or array that was checked before.
//!
//! The text is trusted to be JSON, so that values are skipped without another check. On any
//! other text these functions answer less or nonsense, but they end and do not panic.

use std::borrow::Cow;

use crate::span::Span;
use crate::text::{self, Literal};

/// The members of an object, in the order written. Nothing when `bytes` is not an object.
#[must_use]
pub fn fields(bytes: &[u8]) -> Fields<'_> {
    Fields {
        inside: Inside::open(bytes, b'{'),
    }
}

/// Returns the member of an object with this key, where it is a string.
#[must_use]
pub fn text<'a>(object: &'a [u8], key: &str) -> Option<Cow<'a, str>> {
    string(field(object, key)?.of(object))
}

/// The value of a key; of the last one where the text repeats it, as most parsers do.
#[must_use]
pub fn field(bytes: &[u8], key: &str) -> Option<Span> {
    let mut inside = Inside::open(bytes, b'{');
    let mut found = None;
    while let Some((name, value)) = inside.member() {
        if *name.meaning() == *key.as_bytes() {
            found = Some(value);
        }
    }
    found
}

/// The elements of an array. Nothing when `bytes` is not an array.
#[must_use]
pub fn items(bytes: &[u8]) -> Items<'_> {
    Items {
        inside: Inside::open(bytes, b'['),
    }
}

/// The text of a string literal, without space around it. Nothing when `bytes` is something
/// else or the text holds a lone surrogate.
#[must_use]
pub fn string(bytes: &[u8]) -> Option<Cow<'_, str>> {
    let b'"' = bytes.first()? else {
        return None;
    };
    let (literal, end) = text::literal(bytes, 1).ok()?;
    if end == bytes.len() {
        literal.text()
    } else {
        None
    }
}

/// Iterator of [`fields`]: a key and the span of its value in the text. A lone surrogate in a
/// key reads as U+FFFD.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    inside: Inside<'a>,
}

impl<'a> Iterator for Fields<'a> {
    type Item = (Cow<'a, str>, Span);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, value) = self.inside.member()?;
        let key = match key.meaning() {
            Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
            Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        };
        Some((key, value))
    }
}

/// Iterator of [`items`]: the span of each element in the text.
#[derive(Clone, Debug)]
pub struct Items<'a> {
    inside: Inside<'a>,
}

impl Iterator for Items<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        self.inside.comma()?;
        self.inside.value()
    }
}

/// A place between two members or elements.
#[derive(Clone, Debug)]
pub(crate) struct Inside<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Whether a comma must come before the next one.
    begun: bool,
}

impl<'a> Inside<'a> {
    /// Enters the object or array that `bracket` opens; an end at once when there is none.
    pub(crate) fn open(bytes: &'a [u8], bracket: u8) -> Self {
        let mut inside = Self {
            bytes,
            at: 0,
            begun: false,
        };
        if inside.space() == Some(bracket) {
            inside.at += 1;
        } else {
            inside.at = bytes.len();
        }
        inside
    }

    /// The next member of an object.
    pub(crate) fn member(&mut self) -> Option<(Literal<'a>, Span)> {
        let Some(b'"') = self.comma() else {
            return self.stop();
        };
        let Ok((key, end)) = text::literal(self.bytes, self.at + 1) else {
            return self.stop();
        };
        self.at = end;
        let Some(b':') = self.space() else {
            return self.stop();
        };
        self.at += 1;
        let value = self.value()?;
        Some((key, value))
    }

    /// Passes over the comma and answers the byte that begins the next member or element.
    fn comma(&mut self) -> Option<u8> {
        let next = self.space();
        if !self.begun {
            self.begun = true;
            return next.filter(|&byte| byte != b']' && byte != b'}');
        }
        if next != Some(b',') {
            return self.stop();
        }
        self.at += 1;
        self.space()
    }

    /// Skips the value that comes next.
    fn value(&mut self) -> Option<Span> {
        self.space();
        let start = self.at;
        let end = skip(self.bytes, start);
        if end == start {
            return self.stop();
        }
        self.at = end;
        Some(Span { start, end })
    }

    /// Ends the iteration for good.
    fn stop<T>(&mut self) -> Option<T> {
        self.begun = true;
        self.at = self.bytes.len();
        None
    }

    fn space(&mut self) -> Option<u8> {
        loop {
            match self.bytes.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                other => return other.copied(),
            }
        }
    }
}

/// The place after the value that begins at `at`; `at` itself when none begins there.
fn skip(bytes: &[u8], at: usize) -> usize {
    match bytes.get(at) {
        Some(b'"') => skip_string(bytes, at + 1),
        Some(b'{' | b'[') => skip_nested(bytes, at + 1),
        _ => skip_scalar(bytes, at),
    }
}

/// The place after the bracket that closes the one before `at`. In a checked text every
/// bracket outside a string has its partner, so that counting them is enough.
fn skip_nested(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 1_usize;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'"' => at = skip_string(bytes, at),
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

/// The place after the closing quote of the string whose opening quote stands before `at`.
fn skip_string(bytes: &[u8], mut at: usize) -> usize {
    loop {
        at = text::special(bytes, at);
        match bytes.get(at) {
            Some(b'"') => return at + 1,
            Some(b'\\') => at += 2,
            Some(_) => at += 1,
            None => return bytes.len(),
        }
    }
}

/// The place after the number or word that begins at `at`.
fn skip_scalar(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'.' | b'+' | b'-') = bytes.get(at) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests;
