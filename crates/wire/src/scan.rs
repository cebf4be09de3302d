//! A strict check of a JSON text in one pass, without building anything.

use crate::span::Span;
use crate::text::{self, Literal};

mod names;
mod spelling;
use names::Names;
use spelling::Spelling;

/// How many arrays and objects may be open at once.
pub const DEPTH_MAX: usize = 64;

/// How many keys may be kept of objects that are open, to find one that comes twice. Small
/// objects, in which keys are compared one by one, do not count.
pub const OPEN_KEYS_MAX: usize = 100_000;

/// How many members that the protocol does not know its open objects may have together.
pub const UNKNOWN_MEMBERS_MAX: usize = 1_024;

/// How many may be open around a text that another one carries.
const AROUND: usize = 8;

/// Why a text is not the JSON that we take. Places are byte offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The text holds nothing but space.
    #[error("the text is empty")]
    Empty,
    /// The bytes are not UTF-8.
    #[error("the text is not UTF-8 at byte {at}")]
    Utf8 {
        /// The first wrong byte.
        at: usize,
    },
    /// The text breaks the grammar, or ends too early.
    #[error("the text is not JSON at byte {at}")]
    Syntax {
        /// The first wrong byte, or the length of a text that ends too early.
        at: usize,
    },
    /// More than [`DEPTH_MAX`] arrays and objects are open.
    #[error("the text is nested deeper than {DEPTH_MAX} levels at byte {at}")]
    Depth {
        /// The bracket that is one too many.
        at: usize,
    },
    /// An object has a key twice.
    #[error("an object repeats a key at byte {at}")]
    DuplicateKey {
        /// The opening quote of the second.
        at: usize,
    },
    /// A member of the protocol's objects differs from a name of the protocol, or from another
    /// member, in case only.
    #[error("a name differs in case only from a name of the protocol or another name at byte {at}")]
    Alike {
        /// The opening quote of the name.
        at: usize,
        /// Whether it stands in the parameters.
        in_params: bool,
    },
    /// Objects that are open hold more than [`OPEN_KEYS_MAX`] keys.
    #[error("objects inside each other hold more than {OPEN_KEYS_MAX} keys at byte {at}")]
    TooManyKeys {
        /// The opening quote of the one that is one too many.
        at: usize,
    },
    /// Open objects of the protocol hold more than [`UNKNOWN_MEMBERS_MAX`] members that the
    /// protocol does not know.
    #[error("more than {UNKNOWN_MEMBERS_MAX} members that the protocol does not know at byte {at}")]
    TooManyMembers {
        /// The opening quote of the one that is one too many.
        at: usize,
    },
    /// Something follows the value.
    #[error("something follows the value at byte {at}")]
    Trailing {
        /// Its first byte.
        at: usize,
    },
}

/// In which objects a key may come only once. Keys are compared with their escapes resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// In every object; the text is a message of a client, whose members are spelled as the
    /// protocol spells them (see [`crate::fold`]).
    Message,
    /// In every object; the text is the parameters of such a message.
    Params,
    /// In every object.
    Unique,
    /// In the outermost object.
    UniqueOutside,
    /// In none.
    Any,
}

/// Checks that the whole text is one JSON value.
///
/// # Errors
/// The first fault found; a wrong encoding is found before everything else.
pub fn check(bytes: &[u8], keys: Keys) -> Result<(), Fault> {
    walk(bytes, keys, &mut ())
}

/// Hears of the members of the outermost object while a text is checked.
pub(crate) trait Sink {
    /// A member is complete; `value` is its span without the space around it.
    fn member(&mut self, key: Literal<'_>, value: Span);
}

impl Sink for () {
    #[inline(always)]
    fn member(&mut self, _: Literal<'_>, _: Span) {}
}

/// Checks a text and tells `sink` of the members of the outermost object. What the sink heard
/// counts only when the answer is `Ok`.
pub(crate) fn walk(bytes: &[u8], keys: Keys, sink: &mut impl Sink) -> Result<(), Fault> {
    walk_within(bytes, keys, DEPTH_MAX, sink)
}

/// Checks a text that carries another, which may itself be as deep as any; only the outermost
/// object is looked at for a key that comes twice.
pub(crate) fn walk_around(bytes: &[u8], sink: &mut impl Sink) -> Result<(), Fault> {
    walk_within(bytes, Keys::UniqueOutside, DEPTH_MAX + AROUND, sink)
}

fn walk_within(
    bytes: &[u8],
    keys: Keys,
    depth_max: usize,
    sink: &mut impl Sink,
) -> Result<(), Fault> {
    if let Err(error) = std::str::from_utf8(bytes) {
        let at = error.valid_up_to();
        return Err(Fault::Utf8 { at });
    }
    let mut walk = Walk {
        bytes,
        at: 0,
        depth: 0,
        depth_max,
        objects: 0,
        keys,
        names: Names::new(),
        spelling: Spelling::new(match bytes.trim_ascii_start().first() {
            // Each message of a batch is judged when it is read alone.
            Some(b'[') => Keys::Unique,
            _ => keys,
        }),
        key: Literal {
            raw: &[],
            escapes: 0,
        },
        value_start: 0,
    };
    walk.run(sink)
}

// One bit of `Walk::objects` per level.
const _: () = assert!(DEPTH_MAX + AROUND <= u128::BITS as usize);

/// The state of one pass. Nesting is a number and a row of bits, so that a deep text cannot
/// grow the stack.
#[derive(Debug)]
struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    /// How many arrays and objects are open.
    depth: usize,
    /// How many may be.
    depth_max: usize,
    /// The open levels, the innermost in the lowest bit: 1 is an object, 0 an array.
    objects: u128,
    keys: Keys,
    names: Names<'a>,
    spelling: Spelling,
    /// The key of the member of the outermost object that is being read.
    key: Literal<'a>,
    /// Where its value begins.
    value_start: usize,
}

impl Walk<'_> {
    fn run(&mut self, sink: &mut impl Sink) -> Result<(), Fault> {
        if self.space().is_none() {
            return Err(Fault::Empty);
        }
        loop {
            if self.begin()? {
                self.end(sink)?;
                if self.depth == 0 {
                    break;
                }
            }
        }
        match self.space() {
            Some(_) => Err(Fault::Trailing { at: self.at }),
            None => Ok(()),
        }
    }

    /// Begins the value that stands here. True when it is complete, false when another value
    /// begins here, the first inside it.
    #[inline(always)]
    fn begin(&mut self) -> Result<bool, Fault> {
        match self.peek() {
            Some(b'"') => {
                self.literal()?;
            }
            Some(b'{') => {
                self.open(1)?;
                if self.space() != Some(b'}') {
                    self.key()?;
                    return Ok(false);
                }
                self.close();
            }
            Some(b'[') => {
                self.open(0)?;
                if self.space() != Some(b']') {
                    return Ok(false);
                }
                self.close();
            }
            Some(b'-' | b'0'..=b'9') => self.at = number(self.bytes, self.at)?,
            Some(b't') => self.at = word(self.bytes, self.at, b"true")?,
            Some(b'f') => self.at = word(self.bytes, self.at, b"false")?,
            Some(b'n') => self.at = word(self.bytes, self.at, b"null")?,
            _ => return self.wrong(),
        }
        Ok(true)
    }

    /// A value is complete: closes what ends with it, up to the place where the next value
    /// begins or the outermost value ends.
    #[inline(always)]
    fn end(&mut self, sink: &mut impl Sink) -> Result<(), Fault> {
        while self.depth > 0 {
            let in_object = self.objects & 1 == 1;
            if self.depth == 1 && in_object {
                let (start, end) = (self.value_start, self.at);
                sink.member(self.key, Span { start, end });
            }
            match (self.space(), in_object) {
                (Some(b','), true) => {
                    self.at += 1;
                    self.space();
                    return self.key();
                }
                (Some(b','), false) => {
                    self.at += 1;
                    self.space();
                    return Ok(());
                }
                (Some(b'}'), true) | (Some(b']'), false) => self.close(),
                _ => return self.wrong(),
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn open(&mut self, object: u128) -> Result<(), Fault> {
        if self.depth == self.depth_max {
            return Err(Fault::Depth { at: self.at });
        }
        if object == 1 && self.tracked(self.depth) {
            self.names.open(self.depth);
        }
        self.at += 1;
        self.depth += 1;
        self.objects = self.objects << 1 | object;
        Ok(())
    }

    #[inline(always)]
    fn close(&mut self) {
        let object = self.objects & 1;
        self.at += 1;
        self.depth -= 1;
        self.objects >>= 1;
        if object == 1 {
            if self.tracked(self.depth) {
                self.names.close(self.depth);
            }
            self.spelling.close(self.depth);
        }
    }

    /// Whether an object with `level` arrays and objects around it must not repeat a key.
    #[inline(always)]
    fn tracked(&self, level: usize) -> bool {
        match self.keys {
            Keys::Message | Keys::Params | Keys::Unique => true,
            Keys::UniqueOutside => level == 0,
            Keys::Any => false,
        }
    }

    /// Reads a key and its colon.
    #[inline(always)]
    fn key(&mut self) -> Result<(), Fault> {
        let at = self.at;
        if self.peek() != Some(b'"') {
            return self.wrong();
        }
        let key = self.literal()?;
        let owner = self.depth - 1;
        if self.tracked(owner) && !self.names.insert(owner, key) {
            return Err(self.untaken(at));
        }
        if self.spelling.judges(owner) && !self.spelling.take(owner, key) {
            return Err(self.alike(at, owner));
        }
        if self.space() != Some(b':') {
            return self.wrong();
        }
        self.at += 1;
        self.space();
        if owner == 0 {
            self.key = key;
            self.value_start = self.at;
        }
        Ok(())
    }
}

impl<'a> Walk<'a> {
    #[cold]
    fn alike(&self, at: usize, level: usize) -> Fault {
        if self.spelling.is_full() {
            return Fault::TooManyMembers { at };
        }
        let in_params = match self.keys {
            Keys::Params => true,
            _ => level > 0 && *self.key.meaning() == *b"params",
        };
        Fault::Alike { at, in_params }
    }

    #[inline(always)]
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Passes over space and answers the byte that follows it.
    #[inline(always)]
    fn space(&mut self) -> Option<u8> {
        loop {
            match self.peek() {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                other => return other,
            }
        }
    }

    /// Says why a key was not taken.
    #[cold]
    const fn untaken(&self, at: usize) -> Fault {
        if self.names.is_full() {
            Fault::TooManyKeys { at }
        } else {
            Fault::DuplicateKey { at }
        }
    }

    fn wrong<T>(&self) -> Result<T, Fault> {
        Err(Fault::Syntax { at: self.at })
    }

    #[inline(always)]
    fn literal(&mut self) -> Result<Literal<'a>, Fault> {
        match text::literal(self.bytes, self.at + 1) {
            Ok((literal, end)) => {
                self.at = end;
                Ok(literal)
            }
            Err(at) => Err(Fault::Syntax { at }),
        }
    }
}

/// The place after `word`, which should begin at `at`.
fn word(bytes: &[u8], at: usize, word: &[u8]) -> Result<usize, Fault> {
    let rest = bytes.get(at..).unwrap_or_default();
    if rest.starts_with(word) {
        Ok(at + word.len())
    } else {
        Err(Fault::Syntax { at })
    }
}

/// The place after the number that begins at `at`.
fn number(bytes: &[u8], mut at: usize) -> Result<usize, Fault> {
    if bytes.get(at) == Some(&b'-') {
        at += 1;
    }
    at = match bytes.get(at) {
        Some(b'0') => at + 1,
        _ => digits(bytes, at)?,
    };
    if bytes.get(at) == Some(&b'.') {
        at = digits(bytes, at + 1)?;
    }
    if let Some(b'e' | b'E') = bytes.get(at) {
        at += 1;
        if let Some(b'+' | b'-') = bytes.get(at) {
            at += 1;
        }
        at = digits(bytes, at)?;
    }
    Ok(at)
}

/// The place after the digits that begin at `at`, of which there is at least one.
fn digits(bytes: &[u8], start: usize) -> Result<usize, Fault> {
    let mut at = start;
    while let Some(b'0'..=b'9') = bytes.get(at) {
        at += 1;
    }
    if at == start {
        Err(Fault::Syntax { at })
    } else {
        Ok(at)
    }
}

#[cfg(test)]
mod tests;
