//! JSON string literals: parsing, unescaping and writing.

use std::borrow::Cow;

/// A string literal without quotes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StringLiteral<'a> {
    /// The raw bytes between the quotes.
    pub(crate) raw: &'a [u8],
    /// The number of escapes.
    pub(crate) escapes: usize,
}

impl<'a> StringLiteral<'a> {
    /// Returns the unescaped bytes, with lone surrogates as three bytes each (WTF-8), so that two
    /// literals are equal exactly if their unescaped bytes are.
    #[inline]
    pub(crate) fn unescape(self) -> Cow<'a, [u8]> {
        if self.escapes > 0 {
            Cow::Owned(unescape_raw(self.raw))
        } else {
            Cow::Borrowed(self.raw)
        }
    }

    /// Returns the unescaped text; `None` with a lone surrogate.
    pub(crate) fn to_text(self) -> Option<Cow<'a, str>> {
        match self.unescape() {
            Cow::Borrowed(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
            Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
        }
    }
}

/// Parses the literal whose content starts at `at`. Returns the literal and the position after the
/// closing quote, or the position of the invalid byte.
#[inline(always)]
pub(crate) fn parse_literal(bytes: &[u8], at: usize) -> Result<(StringLiteral<'_>, usize), usize> {
    let start = at;
    let mut at = at;
    let mut escapes = 0;
    loop {
        at = find_special(bytes, at);
        match bytes.get(at) {
            Some(b'"') => {
                let raw = bytes.get(start..at).unwrap_or_default();
                return Ok((StringLiteral { raw, escapes }, at + 1));
            }
            Some(b'\\') => {
                escapes += 1;
                at = skip_escape(bytes, at + 1)?;
            }
            _ => return Err(at),
        }
    }
}

/// Returns the position of the next quote, backslash or control character from `at`.
#[inline(always)]
pub(crate) fn find_special(bytes: &[u8], mut at: usize) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGHS: u64 = ONES * 0x80;
    // Eight bytes at a time. The lowest mark is exact; higher marks may come from a borrow.
    while let Some(chunk) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*chunk);
        let quote = word ^ (ONES * 0x22);
        let slash = word ^ (ONES * 0x5c);
        let special_bits = (quote.wrapping_sub(ONES) & !quote)
            | (slash.wrapping_sub(ONES) & !slash)
            | (word.wrapping_sub(ONES * 0x20) & !word);
        let special_bits = special_bits & HIGHS;
        if special_bits != 0 {
            return at + (special_bits.trailing_zeros() / 8) as usize;
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

/// Validates the escape after the backslash before `at`; returns the position after the escape.
fn skip_escape(bytes: &[u8], at: usize) -> Result<usize, usize> {
    match bytes.get(at) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 1),
        Some(b'u') if parse_hex4(bytes, at + 1).is_some() => Ok(at + 5),
        _ => Err(at),
    }
}

/// Parses four hexadecimal digits.
fn parse_hex4(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..)?.first_chunk::<4>()?;
    digits.iter().try_fold(0, |value, &digit| {
        Some(value << 4 | char::from(digit).to_digit(16)?)
    })
}

/// Unescapes a validated literal into WTF-8.
fn unescape_raw(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(slash) = memchr::memchr(b'\\', rest) {
        let (plain, tail) = rest.split_at(slash);
        out.extend_from_slice(plain);
        let (consumed, code) = decode_escape(tail);
        push_code(&mut out, code);
        rest = tail.get(consumed..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    out
}

/// Returns length and code point of the escape at the start of `tail`, including the backslash. A
/// surrogate pair is one escape; a lone surrogate is returned as such.
fn decode_escape(tail: &[u8]) -> (usize, u32) {
    let code = match tail.get(1) {
        Some(b'b') => 0x08,
        Some(b'f') => 0x0c,
        Some(b'n') => 0x0a,
        Some(b'r') => 0x0d,
        Some(b't') => 0x09,
        Some(b'u') => {
            let first = parse_hex4(tail, 2).unwrap_or(0xfffd);
            if (0xd800..0xdc00).contains(&first)
                && tail.get(6..8) == Some(b"\\u")
                && let Some(second @ 0xdc00..0xe000) = parse_hex4(tail, 8)
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

/// Appends a code point; surrogates as the three bytes forbidden in UTF-8.
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

/// Appends the canonical literal, including quotes: escapes only if required by JSON, and lone
/// surrogates (see [`StringLiteral::unescape`]) as escapes.
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
