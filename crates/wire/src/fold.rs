//! Member names that differ only in case: a server that matches names without regard to case
//! (Go's `encoding/json`, the Web defaults of .NET) must not read another message than we do.
//!
//! Three rules, one for each sort of object:
//! - In an object of the protocol (the envelope, `params`, `_meta`, `ref` and so on) a member
//!   whose name folds like a name of the protocol is that name, and no two members fold alike.
//!   [`crate::scan::Keys::Message`] and [`crate::scan::Keys::Params`] hold it.
//! - In arguments that a reader asks for by name, such as a condition, [`Names::check`] holds the
//!   same at every depth.
//! - In every other value a name is the sender's own, and nothing is asked of it.

use std::collections::{HashMap, HashSet};

use crate::object;
use crate::span::Span;

mod known;
pub(crate) use known::{Holds, is_known_folded, known};

/// Why arguments are not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Alike {
    /// Two members of one object fold alike.
    #[error("two names of one object differ in case only")]
    Twins,
    /// A member folds like a name that is asked for, and is another.
    #[error("a name differs in case only from one that is asked for")]
    Variant,
}

/// Folds a name: two that a reader without regard to case takes for one fold alike. Bytes that
/// are a lone surrogate (see `Literal::meaning`) fold to U+FFFD, which is what Go reads.
pub(crate) fn folded(meaning: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(meaning.len());
    let mut push = |c: char| out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    for chunk in meaning.utf8_chunks() {
        chunk.valid().chars().map(folded_char).for_each(&mut push);
        // Of the three bytes of a surrogate only the first is this one.
        if chunk.invalid().first() == Some(&0xed) {
            push('\u{fffd}');
        }
    }
    out
}

/// The simple case folding of Unicode, and the two letters i of Turkish beside it: some readers
/// compare in upper case.
fn folded_char(c: char) -> char {
    match c {
        _ if c.is_ascii() => c.to_ascii_lowercase(),
        '\u{130}' => 'i',
        // Equal by simple folding only; their upper case is several letters.
        '\u{1fd3}' => '\u{390}',
        '\u{1fe3}' => '\u{3b0}',
        '\u{fb05}' => '\u{fb06}',
        _ => {
            let upper = only(c.to_uppercase()).unwrap_or(c);
            only(upper.to_lowercase()).unwrap_or(upper)
        }
    }
}

fn only(mut letters: impl Iterator<Item = char>) -> Option<char> {
    let first = letters.next();
    first.filter(|_| letters.next().is_none())
}

/// Whether a name is another than `name`, which is ASCII, but folds like it.
pub(crate) fn is_variant(key: &[u8], name: &str) -> bool {
    if key == name.as_bytes() {
        return false;
    }
    match key.is_ascii() {
        true => key.eq_ignore_ascii_case(name.as_bytes()),
        false => folded(key).eq_ignore_ascii_case(name.as_bytes()),
    }
}

/// Whether an object has a member whose name folds like `name` and is another.
#[must_use]
pub fn has_variant(bytes: &[u8], name: &str) -> bool {
    let name = name.as_bytes();
    // A name of one's own letters is rarely asked for twice: folded when it is needed.
    object::fields(bytes).any(|(key, _)| {
        let key = key.as_bytes();
        key != name
            && match key.is_ascii() && name.is_ascii() {
                true => key.eq_ignore_ascii_case(name),
                false => folded(key) == folded(name),
            }
    })
}

/// The names by which a reader asks for members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The spellings that are taken, by what they fold to.
    spellings: HashMap<Vec<u8>, Spellings>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Spellings {
    asked: Vec<Box<[u8]>>,
    perhaps: Vec<Box<[u8]>>,
}

impl Names {
    /// Adds a name that members are asked for by.
    pub fn ask(&mut self, name: &str) {
        self.spelled(name).asked.push(name.as_bytes().into());
    }

    /// Adds a text that may be such a name. Where a name that folds like it is asked for, that
    /// one counts.
    pub fn perhaps(&mut self, text: &str) {
        self.spelled(text).perhaps.push(text.as_bytes().into());
    }

    fn spelled(&mut self, name: &str) -> &mut Spellings {
        self.spellings.entry(folded(name.as_bytes())).or_default()
    }

    /// Checks every object of a value that was checked before: no two members of one fold alike,
    /// and none folds like one of these names without being it.
    ///
    /// # Errors
    /// What is wrong with the first that breaks this.
    pub fn check(&self, json: &[u8]) -> Result<(), Alike> {
        let check = |at: Span| self.check(at.of(json));
        match json.first() {
            Some(b'{') => {
                let mut seen = HashSet::new();
                object::fields(json).try_for_each(|(key, at)| {
                    let folded = folded(key.as_bytes());
                    if self.is_other(&folded, key.as_bytes()) {
                        return Err(Alike::Variant);
                    }
                    if !seen.insert(folded) {
                        return Err(Alike::Twins);
                    }
                    check(at)
                })
            }
            Some(b'[') => object::items(json).try_for_each(check),
            _ => Ok(()),
        }
    }

    fn is_other(&self, folded: &[u8], key: &[u8]) -> bool {
        let Some(known) = self.spellings.get(folded) else {
            return false;
        };
        let taken = match known.asked.is_empty() {
            true => &known.perhaps,
            false => &known.asked,
        };
        !taken.iter().any(|name| **name == *key)
    }
}

#[cfg(test)]
mod tests;
