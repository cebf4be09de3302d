//! Case folding of member names: a case-insensitive server (Go's `encoding/json`, the web defaults
//! of .NET) must not read a message differently from Bowline.
//!
//! Three rules by type of object:
//! - Protocol objects (the envelope, `params`, `_meta`, `ref` and so on): a member name that folds
//!   like a protocol name must equal the protocol name, and no two names may fold alike.
//!   Enforced by [`crate::scan::KeyPolicy::Message`] and [`crate::scan::KeyPolicy::Params`].
//! - Arguments queried by name, such as by a condition: [`QueriedNames::check_value`] enforces the
//!   same at every depth.
//! - All remaining values: names belong to the sender and are not checked.

use std::collections::{HashMap, HashSet};

use crate::object;
use crate::splice::ByteSpan;

mod protocol_names;

pub(crate) use protocol_names::{MemberValue, is_known_folded, member_value};

/// Why arguments are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaseConflict {
    /// Two members of one object fold alike.
    #[error("two names of one object differ in case only")]
    Twins,
    /// A member folds like a queried name without being equal.
    #[error("a name differs in case only from one that is asked for")]
    Variant,
}

/// Folds a name; names equal to a case-insensitive parser fold alike. Lone surrogates (see
/// `StringLiteral::unescape`) fold to U+FFFD, as in Go.
pub(crate) fn fold_name(meaning: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(meaning.len());
    let mut push = |c: char| out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    for chunk in meaning.utf8_chunks() {
        chunk.valid().chars().map(fold_char).for_each(&mut push);
        // First of the three bytes of a surrogate.
        if chunk.invalid().first() == Some(&0xed) {
            push('\u{fffd}');
        }
    }
    out
}

/// Simple Unicode case folding, plus both Turkish letters i, since some parsers compare in upper
/// case.
fn fold_char(c: char) -> char {
    match c {
        _ if c.is_ascii() => c.to_ascii_lowercase(),
        '\u{130}' => 'i',
        // Equal by simple folding only; the upper case has several letters.
        '\u{1fd3}' => '\u{390}',
        '\u{1fe3}' => '\u{3b0}',
        '\u{fb05}' => '\u{fb06}',
        _ => {
            let upper = single_char(c.to_uppercase()).unwrap_or(c);
            single_char(upper.to_lowercase()).unwrap_or(upper)
        }
    }
}

fn single_char(mut characters: impl Iterator<Item = char>) -> Option<char> {
    let first = characters.next();
    first.filter(|_| characters.next().is_none())
}

/// Whether `key` differs from the ASCII name `name` but folds alike.
pub(crate) fn is_variant(key: &[u8], name: &str) -> bool {
    if key == name.as_bytes() {
        return false;
    }
    match key.is_ascii() {
        true => key.eq_ignore_ascii_case(name.as_bytes()),
        false => fold_name(key).eq_ignore_ascii_case(name.as_bytes()),
    }
}

/// Whether an object has a member name that differs from `name` but folds alike.
#[must_use]
pub fn has_variant(bytes: &[u8], name: &str) -> bool {
    let name = name.as_bytes();
    // Non-ASCII names are rare: folded on demand.
    object::fields(bytes).any(|(key, _)| {
        let key = key.as_bytes();
        key != name
            && match key.is_ascii() && name.is_ascii() {
                true => key.eq_ignore_ascii_case(name),
                false => fold_name(key) == fold_name(name),
            }
    })
}

/// The member names queried by a reader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueriedNames {
    /// Accepted spellings by folded name.
    spellings: HashMap<Vec<u8>, NameSpellings>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NameSpellings {
    certain: Vec<Box<[u8]>>,
    possible: Vec<Box<[u8]>>,
}

impl QueriedNames {
    /// Adds a queried name.
    pub fn add_name(&mut self, name: &str) {
        self.spellings_mut(name)
            .certain
            .push(name.as_bytes().into());
    }

    /// Adds a text that may be a queried name. A certain name with the same fold takes precedence.
    pub fn add_possible_name(&mut self, text: &str) {
        self.spellings_mut(text)
            .possible
            .push(text.as_bytes().into());
    }

    fn spellings_mut(&mut self, name: &str) -> &mut NameSpellings {
        self.spellings
            .entry(fold_name(name.as_bytes()))
            .or_default()
    }

    /// Checks every object of a validated value: no two member names fold alike, and no name folds
    /// like a queried name without being equal.
    ///
    /// # Errors
    /// The first violation.
    pub fn check_value(&self, json: &[u8]) -> Result<(), CaseConflict> {
        let check = |at: ByteSpan| self.check_value(at.slice(json));
        match json.first() {
            Some(b'{') => {
                let mut seen = HashSet::new();
                object::fields(json).try_for_each(|(key, at)| {
                    let folded = fold_name(key.as_bytes());
                    if self.is_misspelled(&folded, key.as_bytes()) {
                        return Err(CaseConflict::Variant);
                    }
                    if !seen.insert(folded) {
                        return Err(CaseConflict::Twins);
                    }
                    check(at)
                })
            }
            Some(b'[') => object::items(json).try_for_each(check),
            _ => Ok(()),
        }
    }

    fn is_misspelled(&self, folded: &[u8], key: &[u8]) -> bool {
        let Some(spelling) = self.spellings.get(folded) else {
            return false;
        };
        let accepted = match spelling.certain.is_empty() {
            true => &spelling.possible,
            false => &spelling.certain,
        };
        !accepted.iter().any(|name| **name == *key)
    }
}

#[cfg(test)]
mod tests;
