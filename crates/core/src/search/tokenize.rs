//! Splits texts and names into comparable words.

/// Longer words are truncated.
const WORD_CHARS_MAX: usize = 40;

/// Stop words.
const STOP_WORDS: [&str; 28] = [
    "a", "an", "and", "any", "are", "as", "at", "be", "by", "can", "for", "from", "if", "in",
    "into", "is", "it", "of", "on", "or", "that", "the", "this", "to", "use", "when", "with",
    "you",
];

/// Returns the stemmed words of a text in lower case. `createIssue`, `create_issue` and
/// `create issue` yield the same two words.
pub(super) fn tokenize(text: &str) -> impl Iterator<Item = Box<str>> + '_ {
    let runs = text.split(|character: char| !character.is_alphanumeric());
    runs.flat_map(split_case)
        .map(|piece| {
            let lowercase = piece.chars().flat_map(char::to_lowercase);
            lowercase.take(WORD_CHARS_MAX).collect::<String>()
        })
        .filter(|word| !STOP_WORDS.contains(&word.as_str()))
        .map(|word| stem_word(&word).into())
}

/// Splits a name at case changes, and before the last capital of an acronym: `getURL`,
/// `HTTPServer`.
fn split_case(run: &str) -> impl Iterator<Item = &str> {
    let characters: Vec<(usize, char)> = run.char_indices().collect();
    let mut cuts = vec![0];
    for three in characters.windows(2).enumerate() {
        let (nth, [(_, before), (at, current)]) = three else {
            continue;
        };
        let next = characters.get(nth + 2).map(|(_, next)| *next);
        let begins = !before.is_uppercase() && current.is_uppercase();
        let ends =
            before.is_uppercase() && current.is_uppercase() && next.is_some_and(char::is_lowercase);
        if begins || ends {
            cuts.push(*at);
        }
    }
    cuts.push(run.len());
    let pairs: Vec<(usize, usize)> = cuts
        .iter()
        .copied()
        .zip(cuts.iter().copied().skip(1))
        .collect();
    pairs
        .into_iter()
        .filter_map(|(from, to)| run.get(from..to))
        .filter(|piece| !piece.is_empty())
}

/// Strips common English endings. The precise stem matters little, as long as queries and texts
/// are stemmed alike.
fn stem_word(word: &str) -> &str {
    const LEAST: usize = 3;
    for ending in ["ies", "ing", "ed", "es", "s"] {
        let Some(rest) = word.strip_suffix(ending) else {
            continue;
        };
        let is_word = rest.len() >= LEAST && !(ending == "s" && rest.ends_with('s'));
        return if is_word { rest } else { word };
    }
    // `query` matches `queries`, and `create` matches `creating`.
    let rest = word.strip_suffix(['e', 'y']);
    rest.filter(|rest| rest.len() >= LEAST).unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_words(text: &str) -> Vec<String> {
        tokenize(text).map(String::from).collect()
    }

    #[test]
    fn name_spellings_yield_same_words() {
        for name in [
            "createIssue",
            "create_issue",
            "Create the issue!",
            "create-issues",
        ] {
            assert_eq!(all_words(name), ["creat", "issu"], "{name}");
        }
        assert_eq!(all_words("HTTPServer2"), ["http", "server2"]);
        assert_eq!(all_words("getURL"), ["get", "url"]);
        assert_eq!(all_words("Größe ändern"), ["größ", "ändern"]);
    }

    #[test]
    fn word_forms_share_stem() {
        for forms in [
            &["query", "queries"][..],
            &["list", "lists", "listing", "listed"],
            &["file", "files"],
            &["box", "boxes"],
            &["create", "creates", "creating", "created"],
        ] {
            for form in forms {
                assert_eq!(all_words(form), all_words(forms[0]), "{form}");
            }
        }
        for word in ["gas", "class", "ring", "red", "yes"] {
            assert_eq!(all_words(word), [word], "{word}");
        }
    }
}
