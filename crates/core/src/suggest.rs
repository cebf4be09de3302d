//! "Did you mean" suggestions.

/// Returns the candidate closest to `word`, if close enough to be a typo.
pub fn nearest_match<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let edits_max = (word.chars().count() / 3).clamp(1, 3);
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|(edits, candidate)| *edits <= edits_max && *edits < candidate.chars().count())
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typo_is_matched_and_unrelated_word_is_not() {
        let known = ["command", "args", "env", "restart"];
        assert_eq!(nearest_match("comand", known), Some("command"));
        assert_eq!(nearest_match("agrs", known), Some("args"));
        assert_eq!(nearest_match("retires", known), None);
        assert_eq!(nearest_match("colour", known), None);
        assert_eq!(nearest_match("x", ["y"]), None);
    }
}
