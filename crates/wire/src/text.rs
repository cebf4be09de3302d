//! JSON string literals: where they end, what they mean, how they are written.

use std::borrow::Cow;

/// A string literal found in a text, without its quotes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Literal<'a> {
    /// What stands between the quotes.
    pub(crate) raw: &'a [u8],
    /// How many escapes stand among it.
    pub(crate) escapes: usize,
}

impl<'a> Literal<'a> {
    /// What the literal means, with lone surrogates as three bytes each (WTF-8), so that two
    /// literals mean the same exactly when these bytes are the same.
    #[inline]
    pub(crate) fn meaning(self) -> Cow<'a, [u8]> {
        if self.escapes > 0 {
            Cow::Owned(unescape(self.raw))
        } else {
            Cow::Borrowed(self.raw)
        }
    }

    /// What the literal means as text; nothing when it holds a lone surrogate.
    pub(crate) fn text(self) -> Option<Cow<'a, str>> {
        match self.meaning() {
            Cow::Borrowed(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
            Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
        }
    }
}

/// Reads the literal whose opening quote stands before `at`. Answers the literal and the place
/// after its closing quote, or the place of the byte that makes it wrong.
#[inline(always)]
pub(crate) fn literal(bytes: &[u8], at: usize) -> Result<(Literal<'_>, usize), usize> {
    let start = at;
    let mut at = at;
    let mut escapes = 0;
    loop {
        at = special(bytes, at);
        match bytes.get(at) {
            Some(b'"') => {
                let raw = bytes.get(start..at).unwrap_or_default();
                return Ok((Literal { raw, escapes }, at + 1));
            }
            Some(b'\\') => {
                escapes += 1;
                at = escape(bytes, at + 1)?;
            }
            _ => return Err(at),
        }
    }
}

/// The place of the next quote, backslash or control character at or after `at`.
#[inline(always)]
pub(crate) fn special(bytes: &[u8], mut at: usize) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGHS: u64 = ONES * 0x80;
    // Eight bytes at a time. The lowest mark is exact; marks above it may come from a borrow.
    while let Some(chunk) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*chunk);
        let quote = word ^ (ONES * 0x22);
        let slash = word ^ (ONES * 0x5c);
        let marks = (quote.wrapping_sub(ONES) & !quote)
            | (slash.wrapping_sub(ONES) & !slash)
            | (word.wrapping_sub(ONES * 0x20) & !word);
        let marks = marks & HIGHS;
        if marks != 0 {
            return at + (marks.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while let Some(&byte) = bytes.get(at) {
        if byte == b'"' || byte == b'\\' || byte < 0x20 {
            break;
        }
        at += 1;
    }
    at
}

/// Checks the escape whose backslash stands before `at` and answers the place after it.
fn escape(bytes: &[u8], at: usize) -> Result<usize, usize> {
    match bytes.get(at) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 1),
        Some(b'u') if hex4(bytes, at + 1).is_some() => Ok(at + 5),
        _ => Err(at),
    }
}

/// Reads four hexadecimal digits.
fn hex4(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..)?.first_chunk::<4>()?;
    digits.iter().try_fold(0, |value, &digit| {
        Some(value << 4 | char::from(digit).to_digit(16)?)
    })
}

/// Resolves the escapes of a checked literal into WTF-8.
fn unescape(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(slash) = memchr::memchr(b'\\', rest) {
        let (plain, tail) = rest.split_at(slash);
        out.extend_from_slice(plain);
        let (taken, code) = escaped(tail);
        push_code(&mut out, code);
        rest = tail.get(taken..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    out
}

/// The length and the code point of the escape at the start of `tail`, which begins with its
/// backslash. A surrogate pair is one escape; a lone surrogate is its own code.
fn escaped(tail: &[u8]) -> (usize, u32) {
    let code = match tail.get(1) {
        Some(b'b') => 0x08,
        Some(b'f') => 0x0c,
        Some(b'n') => 0x0a,
        Some(b'r') => 0x0d,
        Some(b't') => 0x09,
        Some(b'u') => {
            let first = hex4(tail, 2).unwrap_or(0xfffd);
            if (0xd800..0xdc00).contains(&first)
                && tail.get(6..8) == Some(b"\\u")
                && let Some(second @ 0xdc00..0xe000) = hex4(tail, 8)
            {
                return (12, 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00));
            }
            return (6, first);
        }
        Some(&other) => u32::from(other),
        None => 0xfffd,
    };
    (2, code)
}

/// Appends a code point, a surrogate in the three bytes that UTF-8 forbids.
fn push_code(out: &mut Vec<u8>, code: u32) {
    if let Some(scalar) = char::from_u32(code) {
        let mut buffer = [0; 4];
        out.extend_from_slice(scalar.encode_utf8(&mut buffer).as_bytes());
        return;
    }
    let [_, _, high, low] = code.to_be_bytes();
    out.extend_from_slice(&[
        0xe0 | high >> 4,
        0x80 | (high & 0x0f) << 2 | low >> 6,
        0x80 | low & 0x3f,
    ]);
}

/// Appends the one normal literal of a meaning, quotes included: escapes only where JSON needs
/// them, and a lone surrogate (see [`Literal::meaning`]) as its escape.
pub(crate) fn write_literal(out: &mut Vec<u8>, meaning: &[u8]) {
    out.push(b'"');
    let mut plain = 0;
    let mut at = 0;
    while let Some(&byte) = meaning.get(at) {
        let wide = byte == 0xed && meaning.get(at + 1).is_some_and(|&next| next >= 0xa0);
        if !wide && byte >= 0x20 && byte != b'"' && byte != b'\\' {
            at += 1;
            continue;
        }
        out.extend_from_slice(meaning.get(plain..at).unwrap_or_default());
        if wide {
            let next = meaning.get(at + 1).copied().unwrap_or_default();
            let last = meaning.get(at + 2).copied().unwrap_or_default();
            let low = u32::from(next & 0x3f) << 6 | u32::from(last & 0x3f);
            write_unit(out, 0xd000 | low);
        } else {
            write_escape(out, byte);
        }
        at += if wide { 3 } else { 1 };
        plain = at;
    }
    out.extend_from_slice(meaning.get(plain..).unwrap_or_default());
    out.push(b'"');
}

fn write_escape(out: &mut Vec<u8>, byte: u8) {
    let short = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        0x09 => b't',
        0x0a => b'n',
        0x0c => b'f',
        0x0d => b'r',
        _ => return write_unit(out, u32::from(byte)),
    };
    out.extend_from_slice(&[b'\\', short]);
}

fn write_unit(out: &mut Vec<u8>, unit: u32) {
    out.extend_from_slice(b"\\u");
    for shift in [12, 8, 4, 0] {
        let digit = char::from_digit(unit >> shift & 0xf, 16).unwrap_or('0');
        out.push(digit as u8);
    }
}
