//! Takes secrets out of whatever people read.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};

/// A text that is shorter than this is no secret: to hide it would hide ordinary words.
pub const SECRET_BYTES_MIN: usize = 6;

/// Knows secrets, and what to show in place of each.
#[derive(Clone, Default)]
pub struct Redactor(Option<Arc<Known>>);

struct Known {
    finder: AhoCorasick,
    /// What stands in place of each secret.
    shown: Vec<String>,
}

impl Redactor {
    /// Learns secrets, each with a label that may be shown. Where one secret holds another, the
    /// longer one is found. Short texts are left out.
    #[must_use]
    pub fn new<'a>(secrets: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut known: Vec<_> = secrets
            .into_iter()
            .filter(|(_, secret)| secret.len() >= SECRET_BYTES_MIN)
            .collect();
        known.sort_by_key(|(_, secret)| *secret);
        known.dedup_by_key(|(_, secret)| *secret);
        if known.is_empty() {
            return Self(None);
        }
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(known.iter().map(|(_, secret)| secret));
        let shown = known.iter().map(|(label, _)| format!("‹{label}›"));
        let shown = shown.collect();
        // Building fails only beyond the limits of an automaton, far above any configuration.
        Self(finder.ok().map(|finder| Arc::new(Known { finder, shown })))
    }

    /// Returns `text` with every secret replaced by its label.
    #[must_use]
    pub fn clean<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match &self.0 {
            Some(known) if known.finder.is_match(text) => {
                Cow::Owned(known.finder.replace_all(text, &known.shown))
            }
            Some(_) | None => Cow::Borrowed(text),
        }
    }

    /// The same for a text that is shared.
    #[must_use]
    pub fn clean_shared(&self, text: &Arc<str>) -> Arc<str> {
        match self.clean(text) {
            Cow::Borrowed(_) => Arc::clone(text),
            Cow::Owned(cleaned) => cleaned.into(),
        }
    }
}

// Shows how much it knows, and nothing of it.
impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.as_ref().map_or(0, |known| known.shown.len());
        f.debug_tuple("Redactor").field(&count).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_replaced_by_their_labels_and_the_longest_wins() {
        let redactor = Redactor::new([("A", "secret"), ("B", "secret-two"), ("C", "x")]);
        assert_eq!(redactor.clean("a secret, secret-two, x"), "a ‹A›, ‹B›, x");
        assert!(matches!(redactor.clean("nothing"), Cow::Borrowed(_)));
        assert!(matches!(
            Redactor::default().clean("secret"),
            Cow::Borrowed(_)
        ));
        assert_eq!(format!("{redactor:?}"), "Redactor(2)");
    }
}
