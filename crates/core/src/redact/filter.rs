//! Takes secrets out of JSON text of any length, in one pass over its bytes.

use std::fmt;

use aho_corasick::{AhoCorasick, AhoCorasickKind, Anchored, Input, MatchKind, StartKind};

use super::forms;

/// A shorter secret stays in results: to hide it would shred ordinary text.
pub const RESULT_SECRET_BYTES_MIN: usize = 8;

/// Bytes that are looked at together.
const BLOCK_BYTES: usize = 4;

/// Longest beginning of a form that the first look uses, in bytes.
const PREFIX_BYTES_MAX: usize = 16;

/// Bits of the table of blocks, and how a hash becomes an index into it.
const TABLE_BITS: usize = 1 << 16;
const TABLE_SHIFT: u32 = 16;

/// Bytes before a match that tell whether it begins inside an escape: `\uXXXX` is the longest.
const ESCAPE_BYTES_MAX: usize = 6;

/// Finds secrets in every form, and knows what stands in place of each.
///
/// Most text holds no secret, so the first look must be cheap: every form is at least `stride + 3`
/// bytes long, and one block of four bytes in each stride is hashed into a table of bits. Where a
/// bit is set, the forms are compared from each start that the block could belong to.
pub struct SecretFilter {
    finder: AhoCorasick,
    /// What stands in place of each form; nothing where its digits are masked.
    shown: Vec<Option<String>>,
    table: Box<[u64]>,
    stride: usize,
    /// Length of the longest form.
    longest: usize,
}

/// One secret in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    start: usize,
    end: usize,
    form: usize,
}

impl SecretFilter {
    /// Looks for these secrets, each with a label that may be shown; nothing where none of them is
    /// long enough.
    #[must_use]
    pub fn new<'a>(secrets: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Self> {
        let mut looked_for: Vec<(String, &str)> = Vec::new();
        for (label, secret) in secrets {
            if secret.len() < RESULT_SECRET_BYTES_MIN {
                continue;
            }
            let all = forms::encoded(secret).into_iter();
            for form in all.chain([secret.to_owned()]) {
                let spelled = forms::json(&form).into_iter();
                looked_for.extend(spelled.map(|form| (form, label)));
            }
        }
        looked_for.retain(|(form, _)| form.len() >= RESULT_SECRET_BYTES_MIN);
        looked_for.sort();
        looked_for.dedup_by(|one, two| one.0 == two.0);
        let lengths = looked_for.iter().map(|(form, _)| form.len());
        let (shortest, longest) = (lengths.clone().min()?, lengths.max()?);
        let prefix = shortest.min(PREFIX_BYTES_MAX);
        let stride = prefix.checked_sub(BLOCK_BYTES - 1)?;
        let mut table = vec![0; TABLE_BITS / 64].into_boxed_slice();
        for (form, _) in &looked_for {
            let start = form.as_bytes().get(..prefix).unwrap_or_default();
            for block in start.windows(BLOCK_BYTES) {
                let (word, bit) = place(block);
                if let Some(word) = table.get_mut(word) {
                    *word |= bit;
                }
            }
        }
        // Building fails only beyond the limits of an automaton, far above any configuration.
        let finder = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .match_kind(MatchKind::LeftmostLongest)
            .start_kind(StartKind::Anchored)
            .build(looked_for.iter().map(|(form, _)| form))
            .ok()?;
        let shown = looked_for
            .iter()
            .map(|(form, label)| match is_number(form) {
                true => None,
                false => Some(format!("‹{}›", forms::escaped(label, |_| false))),
            });
        Some(Self {
            shown: shown.collect(),
            finder,
            table,
            stride,
            longest,
        })
    }

    /// Returns the text without secrets; nothing where it holds none, so that it can stay as it
    /// is.
    #[must_use]
    pub fn clean(&self, text: &[u8]) -> Option<Vec<u8>> {
        self.find(text, 0, false)?;
        let mut out = Vec::with_capacity(text.len());
        let mut stream = self.stream();
        stream.push(text, &mut out);
        stream.finish(&mut out);
        Some(out)
    }

    /// Begins with a text that comes in pieces.
    #[must_use]
    pub const fn stream(&self) -> SecretStream<'_> {
        SecretStream {
            filter: self,
            held: Vec::new(),
            passed: 0,
            is_odd: false,
        }
    }

    /// Returns the first secret that begins at or after `from`. `is_odd` says whether an odd number
    /// of backslashes stands before the text.
    fn find(&self, text: &[u8], from: usize, is_odd: bool) -> Option<Found> {
        let mut done = from;
        let rest = text.get(from..)?;
        let blocks = rest.windows(BLOCK_BYTES).step_by(self.stride);
        for (nth, block) in blocks.enumerate() {
            let (word, bit) = place(block);
            if self.table.get(word).is_none_or(|word| word & bit == 0) {
                continue;
            }
            let at = from + nth * self.stride;
            let first = (at + 1).saturating_sub(self.stride).max(done);
            let mut starts = first..=at;
            if let Some(found) = starts.find_map(|start| self.at(text, start, is_odd)) {
                return Some(found);
            }
            done = at + 1;
        }
        None
    }

    fn at(&self, text: &[u8], start: usize, is_odd: bool) -> Option<Found> {
        let input = Input::new(text).range(start..).anchored(Anchored::Yes);
        let found = self.finder.try_find(input).ok()??;
        is_whole(text, start, is_odd).then(|| Found {
            start,
            end: found.end(),
            form: found.pattern().as_usize(),
        })
    }

    /// Writes what stands in place of a secret.
    fn replace(&self, found: Found, text: &[u8], out: &mut Vec<u8>) {
        match self.shown.get(found.form) {
            Some(Some(shown)) => out.extend_from_slice(shown.as_bytes()),
            // It may stand where only a number can, so it stays one.
            Some(None) | None => {
                let hidden = text.get(found.start..found.end).unwrap_or_default();
                out.extend(hidden.iter().map(|byte| match byte.is_ascii_digit() {
                    true => b'9',
                    false => *byte,
                }));
            }
        }
    }
}

impl fmt::Debug for SecretFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SecretFilter")
            .field(&self.shown.len())
            .finish()
    }
}

/// A text in pieces. It holds back what could be the beginning of a secret, never more than the
/// longest form, so that the text need not be in memory as a whole.
#[derive(Debug)]
pub struct SecretStream<'a> {
    filter: &'a SecretFilter,
    held: Vec<u8>,
    /// Bytes at the front of `held` that were passed on, kept to see escapes that reach over.
    passed: usize,
    /// Whether an odd number of backslashes stands before `held`.
    is_odd: bool,
}

impl SecretStream<'_> {
    /// Takes the next piece, and passes on what is sure by now.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        self.held.extend_from_slice(piece);
        // A secret that begins before this is here as a whole.
        let sure = self.held.len().saturating_sub(self.filter.longest - 1);
        self.pass(sure, out);
    }

    /// Passes on the rest.
    pub fn finish(mut self, out: &mut Vec<u8>) {
        self.pass(self.held.len(), out);
    }

    fn pass(&mut self, sure: usize, out: &mut Vec<u8>) {
        let mut at = self.passed;
        while let Some(found) = self.filter.find(&self.held, at, self.is_odd)
            && found.start < sure
        {
            out.extend_from_slice(self.held.get(at..found.start).unwrap_or_default());
            self.filter.replace(found, &self.held, out);
            at = found.end;
        }
        let end = sure.max(at);
        out.extend_from_slice(self.held.get(at..end).unwrap_or_default());
        let kept = end.saturating_sub(ESCAPE_BYTES_MAX);
        self.is_odd = is_odd_before(&self.held, kept, self.is_odd);
        self.held.drain(..kept);
        self.passed = end - kept;
    }
}

fn place(block: &[u8]) -> (usize, u64) {
    let block = <[u8; BLOCK_BYTES]>::try_from(block).unwrap_or_default();
    let hash = u32::from_le_bytes(block).wrapping_mul(0x9E37_79B1) >> TABLE_SHIFT;
    (hash as usize / 64, 1 << (hash % 64))
}

/// Whether a form could stand outside of a string, as a number or a part of one.
fn is_number(form: &str) -> bool {
    form.bytes()
        .all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte))
}

/// Whether the number of backslashes right before a place is odd.
fn is_odd_before(text: &[u8], at: usize, is_odd: bool) -> bool {
    let before = text.get(..at).unwrap_or_default();
    let run = before.iter().rev().take_while(|byte| **byte == b'\\');
    let run = run.count();
    (run % 2 == 1) ^ (run == at && is_odd)
}

/// Whether a place is not inside an escape: what looks like a secret there is none, and without
/// it the text would not be JSON any more.
fn is_whole(text: &[u8], at: usize, is_odd: bool) -> bool {
    if is_odd_before(text, at, is_odd) {
        return false;
    }
    let from = at.saturating_sub(ESCAPE_BYTES_MAX - 1);
    let before = text.get(from..at).unwrap_or_default();
    let unicode = before.iter().position(|byte| *byte == b'u');
    let digits = |nth: usize| {
        let digits = before.get(nth + 1..).unwrap_or_default();
        digits.iter().all(u8::is_ascii_hexdigit)
    };
    !unicode.is_some_and(|nth| {
        digits(nth) && nth + 5 > before.len() && { is_odd_before(text, from + nth, is_odd) }
    })
}

#[cfg(test)]
mod tests;
