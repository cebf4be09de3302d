//! Takes text and names apart into words that can be compared.

/// A longer word is cut: nobody asks for it whole.
const WORD_CHARS_MAX: usize = 40;

/// Words that say nothing of a tool.
const EMPTY: [&str; 28] = [
    "a", "an", "and", "any", "are", "as", "at", "be", "by", "can", "for", "from", "if", "in",
    "into", "is", "it", "of", "on", "or", "that", "the", "this", "to", "use", "when", "with",
    "you",
];

/// Returns the words of a text, in lower case and without their endings. `createIssue`,
/// `create_issue` and `create issue` are the same two words.
pub(super) fn words(text: &str) -> impl Iterator<Item = Box<str>> + '_ {
    let runs = text.split(|letter: char| !letter.is_alphanumeric());
    runs.flat_map(pieces)
        .map(|piece| {
            let letters = piece.chars().flat_map(char::to_lowercase);
            letters.take(WORD_CHARS_MAX).collect::<String>()
        })
        .filter(|word| !EMPTY.contains(&word.as_str()))
        .map(|word| stem(&word).into())
}

/// Takes a name apart where small letters are followed by a capital, and where several capitals
/// are followed by a word: `getURL`, `HTTPServer`.
fn pieces(run: &str) -> impl Iterator<Item = &str> {
    let letters: Vec<(usize, char)> = run.char_indices().collect();
    let mut cuts = vec![0];
    for three in letters.windows(2).enumerate() {
        let (nth, [(_, before), (at, here)]) = three else {
            continue;
        };
        let next = letters.get(nth + 2).map(|(_, next)| *next);
        let begins = !before.is_uppercase() && here.is_uppercase();
        let ends =
            before.is_uppercase() && here.is_uppercase() && next.is_some_and(char::is_lowercase);
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

/// Takes the commonest English endings away. What it does to a word matters little, as long as it
/// does the same to what is asked and to what is found.
fn stem(word: &str) -> &str {
    const LEAST: usize = 3;
    for ending in ["ies", "ing", "ed", "es", "s"] {
        let Some(rest) = word.strip_suffix(ending) else {
            continue;
        };
        let is_word = rest.len() >= LEAST && !(ending == "s" && rest.ends_with('s'));
        return if is_word { rest } else { word };
    }
    // `query` meets `queries`, and `create` meets `creating`.
    let rest = word.strip_suffix(['e', 'y']);
    rest.filter(|rest| rest.len() >= LEAST).unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<String> {
        words(text).map(String::from).collect()
    }

    #[test]
    fn one_name_is_the_same_words_however_it_is_written() {
        for name in [
            "createIssue",
            "create_issue",
            "Create the issue!",
            "create-issues",
        ] {
            assert_eq!(all(name), ["creat", "issu"], "{name}");
        }
        assert_eq!(all("HTTPServer2"), ["http", "server2"]);
        assert_eq!(all("getURL"), ["get", "url"]);
        assert_eq!(all("Größe ändern"), ["größ", "ändern"]);
    }

    #[test]
    fn forms_of_a_word_are_one_word() {
        for forms in [
            &["query", "queries"][..],
            &["list", "lists", "listing", "listed"],
            &["file", "files"],
            &["box", "boxes"],
            &["create", "creates", "creating", "created"],
        ] {
            for form in forms {
                assert_eq!(all(form), all(forms[0]), "{form}");
            }
        }
        for word in ["gas", "class", "ring", "red", "yes"] {
            assert_eq!(all(word), [word], "{word}");
        }
    }
}
