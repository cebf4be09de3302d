//! Redacts secrets in texts for people, and in server results for agents.

mod secret_filter;
mod secret_forms;

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use zeroize::Zeroizing;

use crate::sync::lock;

pub use secret_filter::{RESULT_SECRET_BYTES_MIN, SecretFilter, SecretStream};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_secret_is_replaced_by_label() {
        let redactor = Redactor::new([("A", "secret"), ("B", "secret-two"), ("C", "x")]);
        assert_eq!(
            redactor.redact_text("a secret, secret-two, x"),
            "a ‹A›, ‹B›, x"
        );
        assert!(matches!(redactor.redact_text("nothing"), Cow::Borrowed(_)));
        assert!(matches!(
            Redactor::default().redact_text("secret"),
            Cow::Borrowed(_)
        ));
        assert_eq!(format!("{redactor:?}"), "Redactor(2)");
    }
    #[test]
    fn escaped_secret_is_redacted() {
        let redactor = Redactor::new([("KEY", "line one\n\"two\"")]);
        assert_eq!(redactor.redact_text("a line one\n\"two\" b"), "a ‹KEY› b");
        let logged = format!("{:?}", "a line one\n\"two\" b");
        assert_eq!(redactor.redact_text(&logged), "\"a ‹KEY› b\"");
    }

    #[test]
    fn truncated_secret_is_redacted() {
        let redactor = Redactor::new([("KEY", "hunter2222"), ("LONG", "x-hunter2222")]);
        assert_eq!(redactor.redact_text("it is hunter2…"), "it is ‹KEY›…");
        assert_eq!(redactor.redact_text("it is x-hunter2…"), "it is ‹LONG›…");
        // Too short a prefix is not redacted.
        assert_eq!(redactor.redact_text("it is hunte…"), "it is hunte…");
        assert_eq!(redactor.redact_text("it is hunter2"), "it is hunter2");
        let shared = |text: &str| redactor.redact_shared(&Arc::from(text)).to_string();
        assert_eq!(shared("hunter2222 or hunter2"), "‹KEY› or ‹KEY›…");
        assert_eq!(shared("nothing"), "nothing");
    }

    #[test]
    fn added_secret_is_shared_and_oldest_evicted() {
        let redactor = Redactor::new([("A", "secret-one")]);
        let copy = redactor.clone();
        redactor.add_secret("B", "secret-two");
        redactor.add_secret("B", "tiny");
        redactor.add_secret("C", "secret-one");
        assert_eq!(
            redactor.redact_text("secret-one secret-two tiny"),
            "‹A› ‹B› tiny"
        );
        assert_eq!(copy.redact_text("secret-two"), "secret-two");
        for number in 0..ADDED_SECRETS_MAX {
            redactor.add_secret("D", &format!("rotated-{number:04}"));
        }
        assert_eq!(
            redactor.redact_text("secret-two secret-one"),
            "secret-two ‹A›"
        );
        assert_eq!(redactor.redact_text("rotated-0000 rotated-0255"), "‹D› ‹D›");
        assert_eq!(format!("{redactor:?}"), "Redactor(257)");
        let fresh = Redactor::default();
        fresh.add_secret("E", "another-secret");
        assert_eq!(
            Redactor::from_union([&fresh]).redact_text("another-secret"),
            "‹E›"
        );
    }

    #[test]
    fn union_redacts_all_secrets() {
        let one = Redactor::new([("A", "secret-one")]);
        let two = Redactor::new([("B", "secret-two"), ("C", "secret-one")]);
        let all = Redactor::from_union([&one, &Redactor::default(), &two]);
        assert_eq!(all.redact_text("secret-one secret-two"), "‹A› ‹B›");
        assert_eq!(format!("{:?}", Redactor::from_union([])), "Redactor(0)");
    }
}
