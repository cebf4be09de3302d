//! Redacts secrets in JSON text of any length, in one pass.

use std::fmt;

use aho_corasick::{AhoCorasick, AhoCorasickKind, Anchored, Input, MatchKind, StartKind};

use super::secret_forms;

/// Shorter secrets stay in results: redaction would damage ordinary text.
pub const RESULT_SECRET_BYTES_MIN: usize = 8;

/// Bytes per hashed block.
const BLOCK_BYTES: usize = 4;

/// Longest form prefix used by the block filter, in bytes.
const PREFIX_BYTES_MAX: usize = 16;

/// Bits of the block table, and the shift from hash to index.
const TABLE_BITS: usize = 1 << 16;
const TABLE_SHIFT: u32 = 16;

/// Bytes before a match needed to detect an enclosing escape; `\uXXXX` is the longest.
const ESCAPE_BYTES_MAX: usize = 6;

/// Finds secrets in every form, with their replacements.
///
/// Most text holds no secret, so the first pass must be cheap: every form has at least `stride + 3`
/// bytes, and one four-byte block per stride is hashed into a bit table. On a hit, the automaton
/// tests each possible start of the block.
pub struct SecretFilter {
    automaton: AhoCorasick,
    /// The replacement of each form; `None` for masked digits.
    replacements: Vec<Option<String>>,
    block_table: Box<[u64]>,
    stride: usize,
    /// Length of the longest form.
    longest_form: usize,
}

/// A secret found in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SecretMatch {
    start: usize,
    end: usize,
    form: usize,
}

impl SecretFilter {
    /// Builds a filter from labelled secrets; `None` if no secret is long enough.
    #[must_use]
    pub fn new<'a>(secrets: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Self> {
        let mut patterns: Vec<(String, &str)> = Vec::new();
        for (label, secret) in secrets {
            if secret.len() < RESULT_SECRET_BYTES_MIN {
                continue;
            }
            let all = secret_forms::encoded_forms(secret).into_iter();
            for form in all.chain([secret.to_owned()]) {
                let spelled = secret_forms::json_forms(&form).into_iter();
                patterns.extend(spelled.map(|form| (form, label)));
            }
        }
        patterns.retain(|(form, _)| form.len() >= RESULT_SECRET_BYTES_MIN);
        patterns.sort();
        patterns.dedup_by(|one, two| one.0 == two.0);
        let lengths = patterns.iter().map(|(form, _)| form.len());
        let (shortest, longest) = (lengths.clone().min()?, lengths.max()?);
        let prefix = shortest.min(PREFIX_BYTES_MAX);
        let stride = prefix.checked_sub(BLOCK_BYTES - 1)?;
        let mut table = vec![0; TABLE_BITS / 64].into_boxed_slice();
        for (form, _) in &patterns {
            let start = form.as_bytes().get(..prefix).unwrap_or_default();
            for block in start.windows(BLOCK_BYTES) {
                let (word, bit) = table_slot(block);
                if let Some(word) = table.get_mut(word) {
                    *word |= bit;
                }
            }
        }
        // Building fails only beyond the limits of an automaton, far above any configuration.
        let automaton = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .match_kind(MatchKind::LeftmostLongest)
            .start_kind(StartKind::Anchored)
            .build(patterns.iter().map(|(form, _)| form))
            .ok()?;
        let replacements = patterns
            .iter()
            .map(|(form, label)| match is_number_form(form) {
                true => None,
                false => Some(format!("‹{}›", secret_forms::json_escape(label, |_| false))),
            });
        Some(Self {
            replacements: replacements.collect(),
            automaton,
            block_table: table,
            stride,
            longest_form: longest,
        })
    }

    /// Returns the redacted text; `None` if the text holds no secret.
    #[must_use]
    pub fn redact_json(&self, text: &[u8]) -> Option<Vec<u8>> {
        self.find_secret(text, 0, false)?;
        let mut out = Vec::with_capacity(text.len());
        let mut stream = self.start_stream();
        stream.push_chunk(text, &mut out);
        stream.finish(&mut out);
        Some(out)
    }

    /// Starts redaction of a text in chunks.
    #[must_use]
    pub const fn start_stream(&self) -> SecretStream<'_> {
        SecretStream {
            filter: self,
            buffer: Vec::new(),
            flushed: 0,
            odd_backslashes: false,
        }
    }

    /// Returns the first secret starting at or after `from`. `is_odd` tells whether an odd number
    /// of backslashes precedes the text.
    fn find_secret(&self, text: &[u8], from: usize, is_odd: bool) -> Option<SecretMatch> {
        let mut done = from;
        let rest = text.get(from..)?;
        let blocks = rest.windows(BLOCK_BYTES).step_by(self.stride);
        for (nth, block) in blocks.enumerate() {
            let (word, bit) = table_slot(block);
            if self
                .block_table
                .get(word)
                .is_none_or(|word| word & bit == 0)
            {
                continue;
            }
            let at = from + nth * self.stride;
            let first = (at + 1).saturating_sub(self.stride).max(done);
            let mut starts = first..=at;
            if let Some(found) = starts.find_map(|start| self.match_at(text, start, is_odd)) {
                return Some(found);
            }
            done = at + 1;
        }
        None
    }

    fn match_at(&self, text: &[u8], start: usize, is_odd: bool) -> Option<SecretMatch> {
        let input = Input::new(text).range(start..).anchored(Anchored::Yes);
        let found = self.automaton.try_find(input).ok()??;
        is_outside_escape(text, start, is_odd).then(|| SecretMatch {
            start,
            end: found.end(),
            form: found.pattern().as_usize(),
        })
    }

    /// Writes the replacement of a secret.
    fn write_replacement(&self, found: SecretMatch, text: &[u8], out: &mut Vec<u8>) {
        match self.replacements.get(found.form) {
            Some(Some(replacement)) => out.extend_from_slice(replacement.as_bytes()),
            // The match may stand at the position of a number, so the replacement stays numeric.
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
            .field(&self.replacements.len())
            .finish()
    }
}

/// Redaction of a chunked text. Buffers a possible start of a secret, at most the longest form, so
/// the whole text need not be in memory.
#[derive(Debug)]
pub struct SecretStream<'a> {
    filter: &'a SecretFilter,
    buffer: Vec<u8>,
    /// Flushed bytes at the front of `buffer`, kept to detect escapes across chunks.
    flushed: usize,
    /// Whether an odd number of backslashes precedes `buffer`.
    odd_backslashes: bool,
}

impl SecretStream<'_> {
    /// Adds a chunk and flushes the bytes that cannot start a secret.
    pub fn push_chunk(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        self.buffer.extend_from_slice(piece);
        // A secret starting before this offset is complete.
        let sure = self
            .buffer
            .len()
            .saturating_sub(self.filter.longest_form - 1);
        self.flush_until(sure, out);
    }

    /// Flushes the rest.
    pub fn finish(mut self, out: &mut Vec<u8>) {
        self.flush_until(self.buffer.len(), out);
    }

    fn flush_until(&mut self, sure: usize, out: &mut Vec<u8>) {
        let mut at = self.flushed;
        while let Some(found) = self
            .filter
            .find_secret(&self.buffer, at, self.odd_backslashes)
            && found.start < sure
        {
            out.extend_from_slice(self.buffer.get(at..found.start).unwrap_or_default());
            self.filter.write_replacement(found, &self.buffer, out);
            at = found.end;
        }
        let end = sure.max(at);
        out.extend_from_slice(self.buffer.get(at..end).unwrap_or_default());
        let drained = end.saturating_sub(ESCAPE_BYTES_MAX);
        self.odd_backslashes = has_odd_backslashes(&self.buffer, drained, self.odd_backslashes);
        self.buffer.drain(..drained);
        self.flushed = end - drained;
    }
}

fn table_slot(block: &[u8]) -> (usize, u64) {
    let block = <[u8; BLOCK_BYTES]>::try_from(block).unwrap_or_default();
    let hash = u32::from_le_bytes(block).wrapping_mul(0x9E37_79B1) >> TABLE_SHIFT;
    (hash as usize / 64, 1 << (hash % 64))
}

/// Whether a form could stand outside a string, as a number or a part of a number.
fn is_number_form(form: &str) -> bool {
    form.bytes()
        .all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte))
}

/// Whether an odd number of backslashes directly precedes a position.
fn has_odd_backslashes(text: &[u8], at: usize, is_odd: bool) -> bool {
    let before = text.get(..at).unwrap_or_default();
    let run = before.iter().rev().take_while(|byte| **byte == b'\\');
    let run = run.count();
    (run % 2 == 1) ^ (run == at && is_odd)
}

/// Whether a position lies outside any escape. A match inside an escape is no secret, and a
/// replacement would break the JSON.
fn is_outside_escape(text: &[u8], at: usize, is_odd: bool) -> bool {
    if has_odd_backslashes(text, at, is_odd) {
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
        digits(nth) && nth + 5 > before.len() && { has_odd_backslashes(text, from + nth, is_odd) }
    })
}

#[cfg(test)]
mod tests;
