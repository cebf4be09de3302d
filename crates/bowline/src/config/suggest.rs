//! Did you mean.

/// The candidate most like `word`, when one is near enough to be a slip of the fingers.
pub(crate) fn nearest<'a>(
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
    fn a_slip_is_recognised_and_a_stranger_is_not() {
        let known = ["command", "args", "env", "restart"];
        assert_eq!(nearest("comand", known), Some("command"));
        assert_eq!(nearest("agrs", known), Some("args"));
        assert_eq!(nearest("retires", known), None);
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest("x", ["y"]), None);
    }
}
