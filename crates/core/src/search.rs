//! Tool search: BM25 over names, descriptions and parameters.
//!
//! Each field has its own weight and length normalization: a word in a two-word name is more
//! significant than the same word in a page of description.

mod tokenize;

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::RandomState;

use tokenize::tokenize;

/// Bytes of a query in use.
pub const QUERY_BYTES_MAX: usize = 1_024;

/// Distinct words of a query in use.
const QUERY_WORDS_MAX: usize = 32;

/// Words of one field in use.
const FIELD_WORDS_MAX: usize = 2_048;

/// Words matched by one prefix.
const COMPLETIONS_MAX: usize = 16;

/// Shortest prefix that matches longer words.
const PREFIX_CHARS_MIN: usize = 3;

/// Weight of a prefix match relative to an exact match.
const PREFIX_WEIGHT: f32 = 0.4;

/// Term frequency saturation (BM25 `k1`).
const SATURATION: f32 = 1.2;

/// Length normalization (BM25 `b`).
const LENGTH_DISCOUNT: f32 = 0.7;

/// Weights of names, descriptions and parameters.
const FIELD_WEIGHTS: [f32; FIELD_COUNT] = [4.0, 1.5, 1.0];

const FIELD_COUNT: usize = 3;

/// The searchable texts of one tool.
#[derive(Clone, Debug, Default)]
pub struct ToolText {
    /// Name and title.
    pub name: String,
    /// The description.
    pub description: String,
    /// Names and descriptions of the parameters.
    pub parameters: String,
}

/// A matching tool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchHit {
    /// Position among the indexed tools.
    pub tool_index: usize,
    /// Score; comparable within one query only.
    pub score: f32,
}

/// An inverted index of all tools.
#[derive(Debug, Default)]
pub struct SearchIndex {
    /// Sorted, for prefix lookups.
    words: BTreeMap<Box<str>, Vec<TermPosting>>,
    tools: usize,
}

/// A tool containing a word, with the weighted frequency.
#[derive(Clone, Copy, Debug)]
struct TermPosting {
    tool_index: u32,
    /// Frequency weighted by field and length.
    frequency: f32,
}

impl SearchIndex {
    /// Builds the index; hits refer to tools by position.
    #[must_use]
    pub fn from_tools(texts: impl IntoIterator<Item = ToolText>) -> Self {
        let counted: Vec<[FieldCounts; FIELD_COUNT]> = texts.into_iter().map(count_words).collect();
        let tools = counted.len();
        let usual = mean_lengths(&counted);
        let mut all: BTreeMap<Box<str>, Vec<TermPosting>> = BTreeMap::new();
        for (nth, fields) in counted.into_iter().enumerate() {
            let mut weighed: HashMap<Box<str>, f32, RandomState> = HashMap::default();
            for ((field, weight), usual) in fields.into_iter().zip(FIELD_WEIGHTS).zip(usual) {
                let long = 1.0 - LENGTH_DISCOUNT + LENGTH_DISCOUNT * field.length / usual;
                for (word, times) in field.counts {
                    *weighed.entry(word).or_default() += weight * times / long;
                }
            }
            let nth = u32::try_from(nth).unwrap_or(u32::MAX);
            for (word, frequency) in weighed {
                let postings = all.entry(word).or_default();
                postings.push(TermPosting {
                    tool_index: nth,
                    frequency,
                });
            }
        }
        Self { words: all, tools }
    }

    /// Returns the best matches accepted by `may`, best first, ties by position; at most
    /// `hits_max`.
    #[must_use]
    pub fn search_tools(
        &self,
        query: &str,
        hits_max: usize,
        is_allowed: impl Fn(usize) -> bool,
    ) -> Vec<SearchHit> {
        let mut scores: HashMap<u32, f32, RandomState> = HashMap::default();
        for word in query_words(query) {
            for (weight, postings) in self.matching_postings(&word) {
                let rare = inverse_frequency(self.tools, postings.len());
                for TermPosting {
                    tool_index: nth,
                    frequency,
                } in postings
                {
                    let saturated = frequency / (SATURATION + frequency);
                    *scores.entry(*nth).or_default() += weight * rare * saturated;
                }
            }
        }
        let mut hits: Vec<SearchHit> = scores
            .into_iter()
            .map(|(nth, score)| SearchHit {
                tool_index: nth as usize,
                score,
            })
            .collect();
        hits.sort_unstable_by(|a, b| {
            b.score
                .total_cmp(&a.score)
                .then(a.tool_index.cmp(&b.tool_index))
        });
        let allowed = hits.into_iter().filter(|hit| is_allowed(hit.tool_index));
        allowed.take(hits_max).collect()
    }

    /// Returns the postings of a word and of longer words with this prefix.
    fn matching_postings<'a>(
        &'a self,
        word: &'a str,
    ) -> impl Iterator<Item = (f32, &'a [TermPosting])> {
        let is_beginning = word.chars().count() >= PREFIX_CHARS_MIN;
        let longer = is_beginning.then(|| {
            let from = (
                std::ops::Bound::Excluded(word),
                std::ops::Bound::<&str>::Unbounded,
            );
            let words = self.words.range::<str, _>(from);
            words.take_while(move |(other, _)| other.starts_with(word))
        });
        let longer = longer.into_iter().flatten().take(COMPLETIONS_MAX);
        let longer = longer.map(|(_, postings)| (PREFIX_WEIGHT, postings.as_slice()));
        let itself = self.words.get(word).map(|own| (1.0, own.as_slice()));
        itself.into_iter().chain(longer)
    }
}

/// Returns the distinct words of a query, in order.
fn query_words(query: &str) -> Vec<Box<str>> {
    let mut end = query.len().min(QUERY_BYTES_MAX);
    while !query.is_char_boundary(end) {
        end -= 1;
    }
    let mut words: Vec<Box<str>> = Vec::new();
    for word in tokenize(query.get(..end).unwrap_or_default()) {
        if words.len() < QUERY_WORDS_MAX && !words.contains(&word) {
            words.push(word);
        }
    }
    words
}

/// Word counts of one field.
#[derive(Debug, Default)]
struct FieldCounts {
    counts: HashMap<Box<str>, f32, RandomState>,
    length: f32,
}

fn count_words(text: ToolText) -> [FieldCounts; FIELD_COUNT] {
    [text.name, text.description, text.parameters].map(|field| {
        let mut counted = FieldCounts::default();
        for word in tokenize(&field).take(FIELD_WORDS_MAX) {
            counted.length += 1.0;
            *counted.counts.entry(word).or_default() += 1.0;
        }
        counted
    })
}

/// Returns the mean length of each field, at least 1.
fn mean_lengths(all: &[[FieldCounts; FIELD_COUNT]]) -> [f32; FIELD_COUNT] {
    let mut sums = [0.0_f32; FIELD_COUNT];
    for fields in all {
        for (sum, field) in sums.iter_mut().zip(fields) {
            *sum += field.length;
        }
    }
    sums.map(|sum| (sum / to_f32(all.len().max(1))).max(1.0))
}

/// Returns the inverse document frequency of a word.
fn inverse_frequency(tools: usize, with: usize) -> f32 {
    let (tools, with) = (to_f32(tools), to_f32(with));
    ((tools - with + 0.5) / (with + 0.5)).ln_1p()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a catalog has far fewer tools than numbers that are exact"
)]
const fn to_f32(count: usize) -> f32 {
    count as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_index(tools: &[(&str, &str, &str)]) -> SearchIndex {
        SearchIndex::from_tools(
            tools
                .iter()
                .map(|(name, description, parameters)| ToolText {
                    name: (*name).to_owned(),
                    description: (*description).to_owned(),
                    parameters: (*parameters).to_owned(),
                }),
        )
    }

    fn found_tools(index: &SearchIndex, query: &str) -> Vec<usize> {
        let hits = index.search_tools(query, 10, |_| true);
        hits.into_iter().map(|hit| hit.tool_index).collect()
    }

    #[test]
    fn name_match_outranks_description_and_parameters() {
        let index = build_index(&[
            ("files__read", "Reads what an issue is about.", ""),
            ("github__createIssue", "Makes one.", "title"),
            ("mail__send", "Sends.", "issue the issue that it is about"),
            ("clock__now", "Tells the time.", ""),
        ]);
        assert_eq!(found_tools(&index, "issue"), [1, 0, 2]);
        assert_eq!(found_tools(&index, "create issue"), [1, 0, 2]);
        assert_eq!(found_tools(&index, "weather"), [0_usize; 0]);
        assert_eq!(found_tools(&index, ""), [0_usize; 0]);
    }

    #[test]
    fn names_split_and_words_stem() {
        let index = build_index(&[
            ("github__list_pull_requests", "", ""),
            ("HTTPServer__getURL", "", ""),
            ("db__query", "Runs queries against tables.", ""),
        ]);
        assert_eq!(found_tools(&index, "pull request"), [0]);
        assert_eq!(found_tools(&index, "Listing PULLS"), [0]);
        assert_eq!(found_tools(&index, "get url"), [1]);
        assert_eq!(found_tools(&index, "http"), [1]);
        assert_eq!(found_tools(&index, "table"), [2]);
        assert_eq!(found_tools(&index, "tab"), [2], "a beginning");
        assert_eq!(
            found_tools(&index, "ta"),
            [0_usize; 0],
            "too short a beginning"
        );
    }

    #[test]
    fn hidden_tool_takes_no_result_slot() {
        let tools: Vec<(String, String)> = (0..50)
            .map(|nth| (format!("s__tool{nth}"), "common words".to_owned()))
            .collect();
        let index = SearchIndex::from_tools(tools.iter().map(|(name, description)| ToolText {
            name: name.clone(),
            description: description.clone(),
            parameters: String::new(),
        }));
        let hits = index.search_tools("common", 5, |nth| nth >= 40);
        let nths: Vec<_> = hits.iter().map(|hit| hit.tool_index).collect();
        assert_eq!(nths, [40, 41, 42, 43, 44]);
    }

    #[test]
    fn long_query_is_truncated() {
        let index = build_index(&[("s__word", "", ""), ("s__late", "", "")]);
        let query = format!("word {} late", "ä".repeat(QUERY_BYTES_MAX));
        assert_eq!(found_tools(&index, &query), [0]);
        let many: String = (0..1_000).map(|nth| format!("w{nth} ")).collect();
        assert_eq!(query_words(&many).len(), QUERY_WORDS_MAX);
    }
}
