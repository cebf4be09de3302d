//! Takes secrets out of whatever people read, and out of what servers send to agents.

mod filter;
mod forms;

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use zeroize::Zeroizing;

use crate::sync::lock;

pub use filter::{RESULT_SECRET_BYTES_MIN, SecretFilter, SecretStream};

/// A text that is shorter than this is no secret: to hide it would hide ordinary words.
pub const SECRET_BYTES_MIN: usize = 6;

/// Stands at the end of a text that was cut.
const CUT: char = '…';

/// Secrets that are learned after the beginning; of more, the oldest are forgotten.
pub const LEARNED_MAX: usize = 256;

/// Knows secrets, and what to show in place of each. What it learns later is known to all who
/// share it from that moment on.
#[derive(Default)]
pub struct Redactor(Mutex<Option<Arc<Known>>>);

#[derive(Clone)]
struct Known {
    finder: AhoCorasick,
    /// What stands in place of each text that is looked for.
    shown: Vec<String>,
    /// Labels and secrets, to be known by others as well.
    secrets: Vec<Pair>,
    /// Those of them that came later, the oldest first.
    learned: Vec<Pair>,
}

/// A label, and the secret that it stands for.
type Pair = (Box<str>, Zeroizing<Box<str>>);

impl Redactor {
    /// Learns secrets, each with a label that may be shown. Where one secret holds another, the
    /// longer one is found. Short texts are left out.
    #[must_use]
    pub fn new<'a>(secrets: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let pairs = secrets
            .into_iter()
            .map(|(label, secret)| pair(label, secret));
        Self(Mutex::new(Known::of(pairs.collect(), Vec::new())))
    }

    /// Knows one more secret from now on. One that is known already, or short, changes nothing.
    pub fn learn(&self, label: &str, secret: &str) {
        let mut known = lock(&self.0);
        let before = known.as_deref();
        let is_known = before.is_some_and(|known| {
            let mut all = known.secrets.iter();
            all.any(|(_, one)| &***one == secret)
        });
        if is_known || secret.len() < SECRET_BYTES_MIN {
            return;
        }
        let mut learned = before.map_or_else(Vec::new, |known| known.learned.clone());
        learned.push(pair(label, secret));
        let late = learned.len().saturating_sub(LEARNED_MAX);
        let forgotten: Vec<_> = learned.drain(..late).collect();
        let mut secrets = before.map_or_else(Vec::new, |known| known.secrets.clone());
        secrets.retain(|(_, one)| !forgotten.iter().any(|(_, old)| old == one));
        secrets.push(pair(label, secret));
        *known = Known::of(secrets, learned);
    }

    /// Knows what all of these know.
    #[must_use]
    pub fn union<'a>(known: impl IntoIterator<Item = &'a Self>) -> Self {
        let known = known.into_iter().filter_map(Self::known);
        let secrets = known.flat_map(|known| known.secrets.clone());
        Self(Mutex::new(Known::of(secrets.collect(), Vec::new())))
    }

    /// Has another learn all that this one knows.
    pub fn teach(&self, other: &Self) {
        let known = self.known();
        let secrets = known.iter().flat_map(|known| &known.secrets);
        for (label, secret) in secrets {
            other.learn(label, secret);
        }
    }

    fn known(&self) -> Option<Arc<Known>> {
        lock(&self.0).clone()
    }

    /// Returns `text` with every secret replaced by its label; where it says that it was cut, also
    /// one of which only the beginning is left.
    #[must_use]
    pub fn clean<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let Some(known) = self.known() else {
            return Cow::Borrowed(text);
        };
        let cleaned = if known.finder.is_match(text) {
            Cow::Owned(known.finder.replace_all(text, &known.shown))
        } else {
            Cow::Borrowed(text)
        };
        if !text.ends_with(CUT) {
            return cleaned;
        }
        known.clean_cut(&cleaned).map_or(cleaned, Cow::Owned)
    }

    /// The same for a text that is shared, and may have been cut without saying so.
    #[must_use]
    pub fn clean_shared(&self, text: &Arc<str>) -> Arc<str> {
        let cleaned = self.clean(text);
        let cut = self.known().and_then(|known| known.clean_cut(&cleaned));
        match (cut, cleaned) {
            (Some(cut), _) => cut.into(),
            (None, Cow::Borrowed(_)) => Arc::clone(text),
            (None, Cow::Owned(cleaned)) => cleaned.into(),
        }
    }
}

impl Clone for Redactor {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.known()))
    }
}

fn pair(label: &str, secret: &str) -> Pair {
    (Box::from(label), Zeroizing::new(Box::from(secret)))
}

impl Known {
    /// Makes what finds these; nothing where there is nothing to find.
    fn of(mut secrets: Vec<Pair>, learned: Vec<Pair>) -> Option<Arc<Self>> {
        secrets.retain(|(_, secret)| secret.len() >= SECRET_BYTES_MIN);
        secrets.sort_by(|(_, one), (_, two)| one.cmp(two));
        secrets.dedup_by(|(_, one), (_, two)| one == two);
        if secrets.is_empty() {
            return None;
        }
        let looked_for: Vec<_> = secrets
            .iter()
            .flat_map(|(label, secret)| forms(secret).into_iter().map(move |form| (label, form)))
            .collect();
        let finder = AhoCorasick::builder()
            // Small, however long a secret is.
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .match_kind(MatchKind::LeftmostLongest)
            .build(looked_for.iter().map(|(_, form)| form));
        let shown = looked_for.iter().map(|(label, _)| format!("‹{label}›"));
        let shown = shown.collect();
        drop(looked_for);
        // Building fails only beyond the limits of an automaton, far above any configuration.
        let finder = finder.ok()?;
        Some(Arc::new(Self {
            finder,
            shown,
            secrets,
            learned,
        }))
    }

    /// Returns the text without the beginning of a secret that it ends with, if it does.
    fn clean_cut(&self, text: &str) -> Option<String> {
        let kept = text.strip_suffix(CUT).unwrap_or(text);
        let begun = self.secrets.iter().filter_map(|(label, secret)| {
            let starts = (SECRET_BYTES_MIN..secret.len()).rev();
            let mut starts = starts.filter_map(|length| secret.get(..length));
            let start = starts.find(|start| kept.ends_with(start))?;
            Some((label, start.len()))
        });
        let (label, length) = begun.max_by_key(|(_, length)| *length)?;
        let before = kept.get(..kept.len().checked_sub(length)?)?;
        Some(format!("{before}‹{label}›{CUT}"))
    }
}

/// Returns the ways in which a secret may stand in a text: as it is, escaped, and encoded where it
/// is long enough that ordinary words do not look like it.
fn forms(secret: &str) -> Vec<String> {
    let mut all = vec![secret.to_owned(), secret.escape_debug().collect()];
    if secret.len() >= RESULT_SECRET_BYTES_MIN {
        all.extend(forms::json(secret));
        all.extend(forms::encoded(secret));
    }
    all.sort();
    all.dedup();
    all
}

// Shows how much it knows, and nothing of it.
impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.known().map_or(0, |known| known.secrets.len());
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
    #[test]
    fn a_secret_that_is_escaped_is_found_as_well() {
        let redactor = Redactor::new([("KEY", "line one\n\"two\"")]);
        assert_eq!(redactor.clean("a line one\n\"two\" b"), "a ‹KEY› b");
        let logged = format!("{:?}", "a line one\n\"two\" b");
        assert_eq!(redactor.clean(&logged), "\"a ‹KEY› b\"");
    }

    #[test]
    fn the_beginning_of_a_secret_at_a_cut_is_found() {
        let redactor = Redactor::new([("KEY", "hunter2222"), ("LONG", "x-hunter2222")]);
        assert_eq!(redactor.clean("it is hunter2…"), "it is ‹KEY›…");
        assert_eq!(redactor.clean("it is x-hunter2…"), "it is ‹LONG›…");
        // Too little of it is left to say anything.
        assert_eq!(redactor.clean("it is hunte…"), "it is hunte…");
        assert_eq!(redactor.clean("it is hunter2"), "it is hunter2");
        let shared = |text: &str| redactor.clean_shared(&Arc::from(text)).to_string();
        assert_eq!(shared("hunter2222 or hunter2"), "‹KEY› or ‹KEY›…");
        assert_eq!(shared("nothing"), "nothing");
    }

    #[test]
    fn what_is_learned_is_known_to_all_who_share_it_and_the_oldest_is_forgotten() {
        let redactor = Redactor::new([("A", "secret-one")]);
        let copy = redactor.clone();
        redactor.learn("B", "secret-two");
        redactor.learn("B", "tiny");
        redactor.learn("C", "secret-one");
        assert_eq!(redactor.clean("secret-one secret-two tiny"), "‹A› ‹B› tiny");
        assert_eq!(copy.clean("secret-two"), "secret-two");
        for number in 0..LEARNED_MAX {
            redactor.learn("D", &format!("rotated-{number:04}"));
        }
        assert_eq!(redactor.clean("secret-two secret-one"), "secret-two ‹A›");
        assert_eq!(redactor.clean("rotated-0000 rotated-0255"), "‹D› ‹D›");
        assert_eq!(format!("{redactor:?}"), "Redactor(257)");
        let fresh = Redactor::default();
        fresh.learn("E", "another-secret");
        assert_eq!(Redactor::union([&fresh]).clean("another-secret"), "‹E›");
    }

    #[test]
    fn a_union_knows_what_each_of_them_knows() {
        let one = Redactor::new([("A", "secret-one")]);
        let two = Redactor::new([("B", "secret-two"), ("C", "secret-one")]);
        let all = Redactor::union([&one, &Redactor::default(), &two]);
        assert_eq!(all.clean("secret-one secret-two"), "‹A› ‹B›");
        assert_eq!(format!("{:?}", Redactor::union([])), "Redactor(0)");
    }
}
