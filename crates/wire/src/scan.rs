//! Strict JSON validation in one pass, without building values.

use key_checks::{SeenKeys, SpellingCheck};

use crate::splice::ByteSpan;
use crate::string_literal::{self, StringLiteral};

mod key_checks;

/// Nesting depth of arrays and objects.
pub const DEPTH_MAX: usize = 64;

/// Hashed keys of open objects, for duplicate detection. Keys of small objects are compared
/// directly and do not count.
pub const OPEN_KEYS_MAX: usize = 100_000;

/// Members unknown to the protocol in open protocol objects.
pub const UNKNOWN_MEMBERS_MAX: usize = 1_024;

/// Additional depth of a text that carries a second text.
const CARRIER_DEPTH: usize = 8;

/// Why a text is refused. Positions are byte offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// Only whitespace.
    #[error("the text is empty")]
    Empty,
    /// Not UTF-8.
    #[error("the text is not UTF-8 at byte {at}")]
    Utf8 {
        /// The first invalid byte.
        at: usize,
    },
    /// Syntax error, or unexpected end.
    #[error("the text is not JSON at byte {at}")]
    Syntax {
        /// The first invalid byte, or the text length for an unexpected end.
        at: usize,
    },
    /// Nested deeper than [`DEPTH_MAX`].
    #[error("the text is nested deeper than {DEPTH_MAX} levels at byte {at}")]
    Depth {
        /// The excess bracket.
        at: usize,
    },
    /// Duplicate key in an object.
    #[error("an object repeats a key at byte {at}")]
    DuplicateKey {
        /// The opening quote of the duplicate.
        at: usize,
    },
    /// A member of a protocol object differs only in case from a protocol name or a second member.
    #[error("a name differs in case only from a name of the protocol or another name at byte {at}")]
    CaseConflict {
        /// The opening quote of the name.
        at: usize,
        /// Whether the member belongs to the parameters.
        in_params: bool,
    },
    /// Open objects hold more than [`OPEN_KEYS_MAX`] keys.
    #[error("objects inside each other hold more than {OPEN_KEYS_MAX} keys at byte {at}")]
    TooManyKeys {
        /// The opening quote of the excess key.
        at: usize,
    },
    /// Open protocol objects hold more than [`UNKNOWN_MEMBERS_MAX`] unknown members.
    #[error("more than {UNKNOWN_MEMBERS_MAX} members that the protocol does not know at byte {at}")]
    TooManyMembers {
        /// The opening quote of the excess member.
        at: usize,
    },
    /// Trailing content after the value.
    #[error("something follows the value at byte {at}")]
    Trailing {
        /// The first trailing byte.
        at: usize,
    },
}

/// Objects without duplicate keys. Keys are compared unescaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPolicy {
    /// Every object; the text is a client message with protocol spelling (see
    /// [`crate::case_fold`]).
    Message,
    /// Every object; the text is the parameters of a client message.
    Params,
    /// Every object.
    Unique,
    /// The outermost object.
    UniqueOutermost,
    /// No object.
    Any,
}

/// Checks that the whole text is one JSON value.
///
/// # Errors
/// The first error; encoding errors are found first.
pub fn check_json(bytes: &[u8], keys: KeyPolicy) -> Result<(), JsonError> {
    scan_members(bytes, keys, &mut ())
}

/// Receives the members of the outermost object during validation.
pub(crate) trait MemberSink {
    /// Called for a complete member; `value` is the span without whitespace.
    fn on_member(&mut self, key: StringLiteral<'_>, value: ByteSpan);
}

impl MemberSink for () {
    #[inline(always)]
    fn on_member(&mut self, _: StringLiteral<'_>, _: ByteSpan) {}
}

/// Validates a text and passes the members of the outermost object to `sink`; valid only if the
/// function returns `Ok`.
pub(crate) fn scan_members(
    bytes: &[u8],
    keys: KeyPolicy,
    sink: &mut impl MemberSink,
) -> Result<(), JsonError> {
    scan_within(bytes, keys, DEPTH_MAX, sink)
}

/// Checks that a text is valid JSON without duplicate keys in its own members.
///
/// # Errors
/// The text is something else.
pub fn check_carrier(bytes: &[u8]) -> Result<(), JsonError> {
    scan_carrier(bytes, &mut ())
}

/// Validates a text that carries a second text of full depth; only the outermost object is checked
/// for duplicate keys.
pub(crate) fn scan_carrier(bytes: &[u8], sink: &mut impl MemberSink) -> Result<(), JsonError> {
    scan_within(
        bytes,
        KeyPolicy::UniqueOutermost,
        DEPTH_MAX + CARRIER_DEPTH,
        sink,
    )
}

fn scan_within(
    bytes: &[u8],
    keys: KeyPolicy,
    depth_max: usize,
    sink: &mut impl MemberSink,
) -> Result<(), JsonError> {
    if let Err(error) = std::str::from_utf8(bytes) {
        let at = error.valid_up_to();
        return Err(JsonError::Utf8 { at });
    }
    let mut walk = JsonScanner {
        bytes,
        at: 0,
        depth: 0,
        depth_max,
        object_levels: 0,
        keys,
        seen_keys: SeenKeys::new(),
        spelling: SpellingCheck::new(match bytes.trim_ascii_start().first() {
            // The messages of a batch are checked individually.
            Some(b'[') => KeyPolicy::Unique,
            _ => keys,
        }),
        key: StringLiteral {
            raw: &[],
            escapes: 0,
        },
        value_start: 0,
    };
    walk.run(sink)
}

// One bit of `JsonScanner::object_levels` per level.
const _: () = assert!(DEPTH_MAX + CARRIER_DEPTH <= u128::BITS as usize);

/// The state of one pass. Nesting is a counter and a bit set, so deep text cannot grow the stack.
#[derive(Debug)]
struct JsonScanner<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Number of open arrays and objects.
    depth: usize,
    /// Limit of `depth`.
    depth_max: usize,
    /// Open levels, innermost in the lowest bit: 1 for an object, 0 for an array.
    object_levels: u128,
    keys: KeyPolicy,
    seen_keys: SeenKeys<'a>,
    spelling: SpellingCheck,
    /// Key of the current member of the outermost object.
    key: StringLiteral<'a>,
    /// Start of the value of this member.
    value_start: usize,
}

impl JsonScanner<'_> {
    fn run(&mut self, sink: &mut impl MemberSink) -> Result<(), JsonError> {
        if self.skip_space().is_none() {
            return Err(JsonError::Empty);
        }
        loop {
            if self.begin_value()? {
                self.end_value(sink)?;
                if self.depth == 0 {
                    break;
                }
            }
        }
        match self.skip_space() {
            Some(_) => Err(JsonError::Trailing { at: self.at }),
            None => Ok(()),
        }
    }

    /// Begins a value. Returns true if complete, false if the first nested value begins here.
    #[inline(always)]
    fn begin_value(&mut self) -> Result<bool, JsonError> {
        match self.peek() {
            Some(b'"') => {
                self.read_literal()?;
            }
            Some(b'{') => {
                self.open_level(1)?;
                if self.skip_space() != Some(b'}') {
                    self.read_key()?;
                    return Ok(false);
                }
                self.close_level();
            }
            Some(b'[') => {
                self.open_level(0)?;
                if self.skip_space() != Some(b']') {
                    return Ok(false);
                }
                self.close_level();
            }
            Some(b'-' | b'0'..=b'9') => self.at = skip_number(self.bytes, self.at)?,
            Some(b't') => self.at = expect_word(self.bytes, self.at, b"true")?,
            Some(b'f') => self.at = expect_word(self.bytes, self.at, b"false")?,
            Some(b'n') => self.at = expect_word(self.bytes, self.at, b"null")?,
            _ => return self.syntax_error(),
        }
        Ok(true)
    }

    /// Ends a value: closes finished levels up to the next value or the end of the outermost value.
    #[inline(always)]
    fn end_value(&mut self, sink: &mut impl MemberSink) -> Result<(), JsonError> {
        while self.depth > 0 {
            let in_object = self.object_levels & 1 == 1;
            if self.depth == 1 && in_object {
                let (start, end) = (self.value_start, self.at);
                sink.on_member(self.key, ByteSpan { start, end });
            }
            match (self.skip_space(), in_object) {
                (Some(b','), true) => {
                    self.at += 1;
                    self.skip_space();
                    return self.read_key();
                }
                (Some(b','), false) => {
                    self.at += 1;
                    self.skip_space();
                    return Ok(());
                }
                (Some(b'}'), true) | (Some(b']'), false) => self.close_level(),
                _ => return self.syntax_error(),
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn open_level(&mut self, object: u128) -> Result<(), JsonError> {
        if self.depth == self.depth_max {
            return Err(JsonError::Depth { at: self.at });
        }
        if object == 1 && self.is_tracked(self.depth) {
            self.seen_keys.open(self.depth);
        }
        self.at += 1;
        self.depth += 1;
        self.object_levels = self.object_levels << 1 | object;
        Ok(())
    }

    #[inline(always)]
    fn close_level(&mut self) {
        let object = self.object_levels & 1;
        self.at += 1;
        self.depth -= 1;
        self.object_levels >>= 1;
        if object == 1 {
            if self.is_tracked(self.depth) {
                self.seen_keys.close(self.depth);
            }
            self.spelling.close(self.depth);
        }
    }

    /// Whether an object at nesting `level` must not repeat a key.
    #[inline(always)]
    fn is_tracked(&self, level: usize) -> bool {
        match self.keys {
            KeyPolicy::Message | KeyPolicy::Params | KeyPolicy::Unique => true,
            KeyPolicy::UniqueOutermost => level == 0,
            KeyPolicy::Any => false,
        }
    }

    /// Reads a key and the colon.
    #[inline(always)]
    fn read_key(&mut self) -> Result<(), JsonError> {
        let at = self.at;
        if self.peek() != Some(b'"') {
            return self.syntax_error();
        }
        let key = self.read_literal()?;
        let owner = self.depth - 1;
        if self.is_tracked(owner) && !self.seen_keys.insert(owner, key) {
            return Err(self.key_error(at));
        }
        if self.spelling.is_checked(owner) && !self.spelling.check_key(owner, key) {
            return Err(self.case_error(at, owner));
        }
        if self.skip_space() != Some(b':') {
            return self.syntax_error();
        }
        self.at += 1;
        self.skip_space();
        if owner == 0 {
            self.key = key;
            self.value_start = self.at;
        }
        Ok(())
    }
}

impl<'a> JsonScanner<'a> {
    #[cold]
    fn case_error(&self, at: usize, level: usize) -> JsonError {
        if self.spelling.is_full() {
            return JsonError::TooManyMembers { at };
        }
        let in_params = match self.keys {
            KeyPolicy::Params => true,
            _ => level > 0 && *self.key.unescape() == *b"params",
        };
        JsonError::CaseConflict { at, in_params }
    }

    #[inline(always)]
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Skips whitespace and returns the next byte.
    #[inline(always)]
    fn skip_space(&mut self) -> Option<u8> {
        loop {
            match self.peek() {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                other => return other,
            }
        }
    }

    /// Returns the error for a refused key.
    #[cold]
    const fn key_error(&self, at: usize) -> JsonError {
        if self.seen_keys.is_full() {
            JsonError::TooManyKeys { at }
        } else {
            JsonError::DuplicateKey { at }
        }
    }

    fn syntax_error<T>(&self) -> Result<T, JsonError> {
        Err(JsonError::Syntax { at: self.at })
    }

    #[inline(always)]
    fn read_literal(&mut self) -> Result<StringLiteral<'a>, JsonError> {
        match string_literal::parse_literal(self.bytes, self.at + 1) {
            Ok((literal, end)) => {
                self.at = end;
                Ok(literal)
            }
            Err(at) => Err(JsonError::Syntax { at }),
        }
    }
}

/// Returns the position after `word`, expected at `at`.
fn expect_word(bytes: &[u8], at: usize, word: &[u8]) -> Result<usize, JsonError> {
    let rest = bytes.get(at..).unwrap_or_default();
    if rest.starts_with(word) {
        Ok(at + word.len())
    } else {
        Err(JsonError::Syntax { at })
    }
}

/// Returns the position after the number at `at`.
fn skip_number(bytes: &[u8], mut at: usize) -> Result<usize, JsonError> {
    if bytes.get(at) == Some(&b'-') {
        at += 1;
    }
    at = match bytes.get(at) {
        Some(b'0') => at + 1,
        _ => skip_digits(bytes, at)?,
    };
    if bytes.get(at) == Some(&b'.') {
        at = skip_digits(bytes, at + 1)?;
    }
    if let Some(b'e' | b'E') = bytes.get(at) {
        at += 1;
        if let Some(b'+' | b'-') = bytes.get(at) {
            at += 1;
        }
        at = skip_digits(bytes, at)?;
    }
    Ok(at)
}

/// Returns the position after the digits at `at`; at least one digit.
fn skip_digits(bytes: &[u8], start: usize) -> Result<usize, JsonError> {
    let mut at = start;
    while let Some(b'0'..=b'9') = bytes.get(at) {
        at += 1;
    }
    if at == start {
        Err(JsonError::Syntax { at })
    } else {
        Ok(at)
    }
}

#[cfg(test)]
mod tests;
