//! Finds tools by what is said of them: BM25 over names, descriptions and parameters.
//!
//! Each field counts with a weight of its own, and is measured by its own usual length: a word in
//! a name of two words tells more than the same word in a page of description.

mod words;

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::RandomState;

use words::words;

/// Of a query, so many bytes are looked at.
pub const QUERY_BYTES_MAX: usize = 1_024;

/// Of a query, so many different words are looked for.
const QUERY_WORDS_MAX: usize = 32;

/// Of one field of one tool, so many words are counted.
const FIELD_WORDS_MAX: usize = 2_048;

/// Words that one beginning of a word stands for.
const COMPLETIONS_MAX: usize = 16;

/// A beginning stands for words that it is at least so long a part of.
const BEGINNING_CHARS_MIN: usize = 3;

/// A word that only begins as asked counts as much less as the word itself.
const BEGINNING_WEIGHT: f32 = 0.4;

/// How soon more of the same word says nothing more.
const SATURATION: f32 = 1.2;

/// How much a field that is longer than usual is discounted.
const LENGTH: f32 = 0.7;

/// How much names, descriptions and parameters count.
const WEIGHTS: [f32; FIELDS] = [4.0, 1.5, 1.0];

const FIELDS: usize = 3;

/// What is said of one tool.
#[derive(Clone, Debug, Default)]
pub struct Text {
    /// Its name and title.
    pub name: String,
    /// What it says of itself.
    pub description: String,
    /// Names and descriptions of what it takes.
    pub parameters: String,
}

/// One tool that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// Its place among those that the index was built of.
    pub nth: usize,
    /// How well it fits; comparable within one query only.
    pub score: f32,
}

/// All tools of one moment, by the words that are said of them.
#[derive(Debug, Default)]
pub struct Index {
    /// Sorted, so that a beginning leads to all words that have it.
    words: BTreeMap<Box<str>, Vec<Posting>>,
    tools: usize,
}

/// A tool in which a word stands, and how much the word says of it.
#[derive(Clone, Copy, Debug)]
struct Posting {
    nth: u32,
    /// How often it stands there, by field and length.
    frequency: f32,
}

impl Index {
    /// Builds the index of these tools; a hit names them by their order.
    #[must_use]
    pub fn build(texts: impl IntoIterator<Item = Text>) -> Self {
        let counted: Vec<[Counted; FIELDS]> = texts.into_iter().map(count).collect();
        let tools = counted.len();
        let usual = usual_lengths(&counted);
        let mut all: BTreeMap<Box<str>, Vec<Posting>> = BTreeMap::new();
        for (nth, fields) in counted.into_iter().enumerate() {
            let mut weighed: HashMap<Box<str>, f32, RandomState> = HashMap::default();
            for ((field, weight), usual) in fields.into_iter().zip(WEIGHTS).zip(usual) {
                let long = 1.0 - LENGTH + LENGTH * field.length / usual;
                for (word, times) in field.words {
                    *weighed.entry(word).or_default() += weight * times / long;
                }
            }
            let nth = u32::try_from(nth).unwrap_or(u32::MAX);
            for (word, frequency) in weighed {
                let postings = all.entry(word).or_default();
                postings.push(Posting { nth, frequency });
            }
        }
        Self { words: all, tools }
    }

    /// Returns those tools that fit a query best and that `may` lets through, the best first; of
    /// equals the one that comes first. At most `hits_max`.
    #[must_use]
    pub fn find(&self, query: &str, hits_max: usize, may: impl Fn(usize) -> bool) -> Vec<Hit> {
        let mut scores: HashMap<u32, f32, RandomState> = HashMap::default();
        for word in asked(query) {
            for (weight, postings) in self.meant(&word) {
                let rare = rareness(self.tools, postings.len());
                for Posting { nth, frequency } in postings {
                    let said = frequency / (SATURATION + frequency);
                    *scores.entry(*nth).or_default() += weight * rare * said;
                }
            }
        }
        let mut hits: Vec<Hit> = scores
            .into_iter()
            .map(|(nth, score)| Hit {
                nth: nth as usize,
                score,
            })
            .collect();
        hits.sort_unstable_by(|a, b| b.score.total_cmp(&a.score).then(a.nth.cmp(&b.nth)));
        let seen = hits.into_iter().filter(|hit| may(hit.nth));
        seen.take(hits_max).collect()
    }

    /// Returns where a word stands, and where others stand that begin with it.
    fn meant<'a>(&'a self, word: &'a str) -> impl Iterator<Item = (f32, &'a [Posting])> {
        let is_beginning = word.chars().count() >= BEGINNING_CHARS_MIN;
        let longer = is_beginning.then(|| {
            let from = (
                std::ops::Bound::Excluded(word),
                std::ops::Bound::<&str>::Unbounded,
            );
            let words = self.words.range::<str, _>(from);
            words.take_while(move |(other, _)| other.starts_with(word))
        });
        let longer = longer.into_iter().flatten().take(COMPLETIONS_MAX);
        let longer = longer.map(|(_, postings)| (BEGINNING_WEIGHT, postings.as_slice()));
        let itself = self.words.get(word).map(|own| (1.0, own.as_slice()));
        itself.into_iter().chain(longer)
    }
}

/// The different words of a query, in order.
fn asked(query: &str) -> Vec<Box<str>> {
    let mut end = query.len().min(QUERY_BYTES_MAX);
    while !query.is_char_boundary(end) {
        end -= 1;
    }
    let mut asked: Vec<Box<str>> = Vec::new();
    for word in words(query.get(..end).unwrap_or_default()) {
        if asked.len() < QUERY_WORDS_MAX && !asked.contains(&word) {
            asked.push(word);
        }
    }
    asked
}

/// The words of one field, and how many they are.
#[derive(Debug, Default)]
struct Counted {
    words: HashMap<Box<str>, f32, RandomState>,
    length: f32,
}

fn count(text: Text) -> [Counted; FIELDS] {
    [text.name, text.description, text.parameters].map(|field| {
        let mut counted = Counted::default();
        for word in words(&field).take(FIELD_WORDS_MAX) {
            counted.length += 1.0;
            *counted.words.entry(word).or_default() += 1.0;
        }
        counted
    })
}

/// How long each field is on the average; never zero.
fn usual_lengths(all: &[[Counted; FIELDS]]) -> [f32; FIELDS] {
    let mut sums = [0.0_f32; FIELDS];
    for fields in all {
        for (sum, field) in sums.iter_mut().zip(fields) {
            *sum += field.length;
        }
    }
    sums.map(|sum| (sum / number(all.len().max(1))).max(1.0))
}

/// How much it says of a tool that a word stands there at all.
fn rareness(tools: usize, with: usize) -> f32 {
    let (tools, with) = (number(tools), number(with));
    ((tools - with + 0.5) / (with + 0.5)).ln_1p()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a catalog has far fewer tools than numbers that are exact"
)]
const fn number(count: usize) -> f32 {
    count as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(tools: &[(&str, &str, &str)]) -> Index {
        Index::build(tools.iter().map(|(name, description, parameters)| Text {
            name: (*name).to_owned(),
            description: (*description).to_owned(),
            parameters: (*parameters).to_owned(),
        }))
    }

    fn found(index: &Index, query: &str) -> Vec<usize> {
        let hits = index.find(query, 10, |_| true);
        hits.into_iter().map(|hit| hit.nth).collect()
    }

    #[test]
    fn a_word_in_a_name_counts_more_than_in_a_description_or_a_parameter() {
        let index = index(&[
            ("files__read", "Reads what an issue is about.", ""),
            ("github__createIssue", "Makes one.", "title"),
            ("mail__send", "Sends.", "issue the issue that it is about"),
            ("clock__now", "Tells the time.", ""),
        ]);
        assert_eq!(found(&index, "issue"), [1, 0, 2]);
        assert_eq!(found(&index, "create issue"), [1, 0, 2]);
        assert_eq!(found(&index, "weather"), [0_usize; 0]);
        assert_eq!(found(&index, ""), [0_usize; 0]);
    }

    #[test]
    fn names_are_taken_apart_and_words_are_found_in_any_form() {
        let index = index(&[
            ("github__list_pull_requests", "", ""),
            ("HTTPServer__getURL", "", ""),
            ("db__query", "Runs queries against tables.", ""),
        ]);
        assert_eq!(found(&index, "pull request"), [0]);
        assert_eq!(found(&index, "Listing PULLS"), [0]);
        assert_eq!(found(&index, "get url"), [1]);
        assert_eq!(found(&index, "http"), [1]);
        assert_eq!(found(&index, "table"), [2]);
        assert_eq!(found(&index, "tab"), [2], "a beginning");
        assert_eq!(found(&index, "ta"), [0_usize; 0], "too short a beginning");
    }

    #[test]
    fn what_a_rule_hides_is_not_found_and_takes_nobodys_place() {
        let tools: Vec<(String, String)> = (0..50)
            .map(|nth| (format!("s__tool{nth}"), "common words".to_owned()))
            .collect();
        let index = Index::build(tools.iter().map(|(name, description)| Text {
            name: name.clone(),
            description: description.clone(),
            parameters: String::new(),
        }));
        let hits = index.find("common", 5, |nth| nth >= 40);
        let nths: Vec<_> = hits.iter().map(|hit| hit.nth).collect();
        assert_eq!(nths, [40, 41, 42, 43, 44]);
    }

    #[test]
    fn a_query_without_end_costs_no_more_than_its_beginning() {
        let index = index(&[("s__word", "", ""), ("s__late", "", "")]);
        let query = format!("word {} late", "ä".repeat(QUERY_BYTES_MAX));
        assert_eq!(found(&index, &query), [0]);
        let many: String = (0..1_000).map(|nth| format!("w{nth} ")).collect();
        assert_eq!(asked(&many).len(), QUERY_WORDS_MAX);
    }
}
