//! Redacts secrets in texts for people, and in server results for agents.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex};

use aho_corasick::{AhoCorasick, AhoCorasickKind, Anchored, Input, MatchKind, StartKind};
use zeroize::Zeroizing;

use crate::sync::lock;

mod secret_forms;
mod secret_stream;

pub use secret_stream::SecretStream;

/// Shorter texts are no secrets: redaction would hide ordinary words.
pub const SECRET_BYTES_MIN: usize = 6;

/// Marks the end of a truncated text.
const TRUNCATION_MARK: char = '…';

/// Secrets added at run time; the oldest are evicted beyond.
pub const ADDED_SECRETS_MAX: usize = 256;

/// A set of secrets with replacement labels. Secrets added later take effect for all users of the
/// shared set at once.
#[derive(Default)]
pub struct Redactor(Mutex<Option<Arc<SecretSet>>>);

#[derive(Clone)]
struct SecretSet {
    automaton: AhoCorasick,
    /// The replacement of each pattern.
    replacements: Vec<String>,
    /// Labels and secrets, for sharing with further redactors.
    secrets: Vec<LabelledSecret>,
    /// Secrets added at run time, oldest first.
    added: Vec<LabelledSecret>,
}

/// A label and its secret.
type LabelledSecret = (Box<str>, Zeroizing<Box<str>>);

impl Redactor {
    /// Builds a redactor from labelled secrets. The longest match wins if a secret contains a
    /// second secret. Short texts are skipped.
    #[must_use]
    pub fn new<'a>(secrets: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let pairs = secrets
            .into_iter()
            .map(|(label, secret)| labelled_secret(label, secret));
        Self(Mutex::new(SecretSet::build(pairs.collect(), Vec::new())))
    }

    /// Adds a secret; known or short secrets are ignored.
    pub fn add_secret(&self, label: &str, secret: &str) {
        let mut set = lock(&self.0);
        let before = set.as_deref();
        let is_known = before.is_some_and(|set| {
            let mut all = set.secrets.iter();
            all.any(|(_, one)| &***one == secret)
        });
        if is_known || secret.len() < SECRET_BYTES_MIN {
            return;
        }
        let mut learned = before.map_or_else(Vec::new, |set| set.added.clone());
        learned.push(labelled_secret(label, secret));
        let late = learned.len().saturating_sub(ADDED_SECRETS_MAX);
        let forgotten: Vec<_> = learned.drain(..late).collect();
        let mut secrets = before.map_or_else(Vec::new, |set| set.secrets.clone());
        secrets.retain(|(_, one)| !forgotten.iter().any(|(_, old)| old == one));
        secrets.push(labelled_secret(label, secret));
        *set = SecretSet::build(secrets, learned);
    }

    /// Returns a redactor for the secrets of all given redactors.
    #[must_use]
    pub fn from_union<'a>(known: impl IntoIterator<Item = &'a Self>) -> Self {
        let known = known.into_iter().filter_map(Self::secret_set);
        let secrets = known.flat_map(|known| known.secrets.clone());
        Self(Mutex::new(SecretSet::build(secrets.collect(), Vec::new())))
    }

    /// Adds all secrets of this redactor to `other`.
    pub fn share_secrets_with(&self, other: &Self) {
        let set = self.secret_set();
        let secrets = set.iter().flat_map(|set| &set.secrets);
        for (label, secret) in secrets {
            other.add_secret(label, secret);
        }
    }

    fn secret_set(&self) -> Option<Arc<SecretSet>> {
        lock(&self.0).clone()
    }

    /// Replaces every secret in `text` by its label; in a truncated text also a truncated secret at
    /// the end.
    #[must_use]
    pub fn redact_text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let Some(set) = self.secret_set() else {
            return Cow::Borrowed(text);
        };
        let cleaned = if set.automaton.is_match(text) {
            Cow::Owned(set.automaton.replace_all(text, &set.replacements))
        } else {
            Cow::Borrowed(text)
        };
        if !text.ends_with(TRUNCATION_MARK) {
            return cleaned;
        }
        set.redact_truncated(&cleaned).map_or(cleaned, Cow::Owned)
    }

    /// Like [`redact_text`](Self::redact_text), for a shared text possibly truncated without a
    /// mark.
    #[must_use]
    pub fn redact_shared(&self, text: &Arc<str>) -> Arc<str> {
        let cleaned = self.redact_text(text);
        let cut = self
            .secret_set()
            .and_then(|set| set.redact_truncated(&cleaned));
        match (cut, cleaned) {
            (Some(cut), _) => cut.into(),
            (None, Cow::Borrowed(_)) => Arc::clone(text),
            (None, Cow::Owned(cleaned)) => cleaned.into(),
        }
    }
}

/// Redacts a text.
pub type RedactFn = Arc<dyn for<'a> Fn(&'a str) -> Cow<'a, str> + Send + Sync>;

/// Redacts secrets of the configuration in force and of earlier ones, in logs, traces and audit
/// rows. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct LogRedactor(Arc<LogRedactorState>);

#[derive(Debug, Default)]
struct LogRedactorState {
    /// Secrets of the configuration in force.
    current: Redactor,
    /// Secrets learned since, and secrets of earlier configurations, whose servers may still be
    /// shutting down. Bounded: the oldest entries are dropped first.
    earlier: Redactor,
}

impl LogRedactor {
    /// Redacts secrets in a text.
    #[must_use]
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.0.current.redact_text(text) {
            Cow::Borrowed(text) => self.0.earlier.redact_text(text),
            Cow::Owned(text) => Cow::Owned(self.0.earlier.redact_text(&text).into_owned()),
        }
    }

    /// Returns the redaction as a function.
    #[must_use]
    pub fn to_redact_fn(&self) -> RedactFn {
        let redactor = self.clone();
        Arc::new(move |text| redactor.redact(text))
    }

    /// Sets the current secrets; earlier ones stay redacted.
    pub fn replace_current(&self, latest: &Redactor) {
        self.0.current.share_secrets_with(&self.0.earlier);
        *lock(&self.0.current.0) = latest.secret_set();
    }

    /// Adds one secret.
    pub fn add_secret(&self, label: &str, secret: &str) {
        self.0.earlier.add_secret(label, secret);
    }
}

impl Clone for Redactor {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.secret_set()))
    }
}

fn labelled_secret(label: &str, secret: &str) -> LabelledSecret {
    (Box::from(label), Zeroizing::new(Box::from(secret)))
}

impl SecretSet {
    /// Builds the automaton; `None` without secrets.
    fn build(mut secrets: Vec<LabelledSecret>, learned: Vec<LabelledSecret>) -> Option<Arc<Self>> {
        secrets.retain(|(_, secret)| secret.len() >= SECRET_BYTES_MIN);
        secrets.sort_by(|(_, one), (_, two)| one.cmp(two));
        secrets.dedup_by(|(_, one), (_, two)| one == two);
        if secrets.is_empty() {
            return None;
        }
        let forms: Vec<_> = secrets
            .iter()
            .flat_map(|(label, secret)| {
                all_forms(secret).into_iter().map(move |form| (label, form))
            })
            .collect();
        let automaton = AhoCorasick::builder()
            // Compact, regardless of the length of secrets.
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .match_kind(MatchKind::LeftmostLongest)
            .build(forms.iter().map(|(_, form)| form));
        let replacements = forms.iter().map(|(label, _)| format!("‹{label}›"));
        let replacements = replacements.collect();
        drop(forms);
        // Building fails only beyond the limits of an automaton, far above any configuration.
        let automaton = automaton.ok()?;
        Some(Arc::new(Self {
            automaton,
            replacements,
            secrets,
            added: learned,
        }))
    }

    /// Redacts a truncated secret at the end of the text, if present.
    fn redact_truncated(&self, text: &str) -> Option<String> {
        let visible = text.strip_suffix(TRUNCATION_MARK).unwrap_or(text);
        let candidates = self.secrets.iter().filter_map(|(label, secret)| {
            let starts = (SECRET_BYTES_MIN..secret.len()).rev();
            let mut starts = starts.filter_map(|length| secret.get(..length));
            let start = starts.find(|start| visible.ends_with(start))?;
            Some((label, start.len()))
        });
        let (label, length) = candidates.max_by_key(|(_, length)| *length)?;
        let before = visible.get(..visible.len().checked_sub(length)?)?;
        Some(format!("{before}‹{label}›{TRUNCATION_MARK}"))
    }
}

/// Returns the forms of a secret in texts: plain, escaped, and, for secrets long enough to avoid
/// false matches, encoded.
fn all_forms(secret: &str) -> Vec<String> {
    let mut all = vec![secret.to_owned(), secret.escape_debug().collect()];
    if secret.len() >= RESULT_SECRET_BYTES_MIN {
        all.extend(secret_forms::json_forms(secret));
        all.extend(secret_forms::encoded_forms(secret));
    }
    all.sort();
    all.dedup();
    all
}

// Shows only the number of secrets.
impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.secret_set().map_or(0, |set| set.secrets.len());
        f.debug_tuple("Redactor").field(&count).finish()
    }
}

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
