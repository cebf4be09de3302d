//! Pronouns in comments: a comment names its subject instead of pointing at a noun elsewhere.

use super::{SourceFile, SourceTree, TidyFinding};

/// Shorter comments of a file prove nothing.
const COMMENT_WORDS_MIN: usize = 60;

/// Pronouns in a thousand comment words.
const PRONOUNS_PER_THOUSAND_MAX: usize = 80;

const PRONOUNS: &str = "
    who whom whose whoever somebody nobody anybody everybody what whatever which it its itself that
    those these they them their there where one others other";

pub(super) fn check_tree(tree: &SourceTree) -> Vec<TidyFinding> {
    let sources = tree.rust.iter();
    let sources = sources.filter(|source| !source.is_test_file() && !source.is_example());
    sources.filter_map(check_file).collect()
}

fn check_file(source: &SourceFile) -> Option<TidyFinding> {
    let (mut words, mut pronouns) = (0, 0);
    let lines = source.file.text.lines().zip(source.code.lines());
    for (at, (text, code)) in lines.enumerate() {
        // A literal may contain slashes; a comment leaves no code on the line.
        let is_comment = text.trim_start().starts_with("//") && code.trim().is_empty();
        if is_comment && !source.is_test_line(at) {
            for word in comment_words(&text.to_lowercase()) {
                words += 1;
                pronouns += usize::from(PRONOUNS.split_whitespace().any(|one| one == word));
            }
        }
    }
    if words < COMMENT_WORDS_MIN || pronouns * 1_000 <= words * PRONOUNS_PER_THOUSAND_MAX {
        return None;
    }
    let share = pronouns * 1_000 / words;
    let message = format!(
        "{share} pronouns per 1,000 comment words, {PRONOUNS_PER_THOUSAND_MAX} at most: name the \
         subject"
    );
    Some(TidyFinding::error("pronouns", source.path(), 0, message))
}

fn comment_words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_lowercase() && c != '\'' && c != '-');
    let words = words.map(|word| word.trim_matches(['\'', '-']));
    words.filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "/// The writer task batches frames of a connection before each write.\n";
    const VAGUE: &str = "/// What it is that they say of those who ask whose it was.\n";

    fn messages(path: &str, text: &str) -> Vec<String> {
        let findings = check_tree(&SourceTree::from_pairs(&[(path, text)]));
        findings.into_iter().map(|one| one.message).collect()
    }

    #[test]
    fn file_with_many_pronouns_is_rejected_with_figure() {
        let path = "crates/x/src/a.rs";
        assert_eq!(messages(path, &PLAIN.repeat(9)), [""; 0]);
        let found = messages(path, &[PLAIN.repeat(9), VAGUE.repeat(2)].concat());
        let wanted = "128 pronouns per 1,000 comment words, 80 at most: name the subject";
        assert_eq!(found, [wanted]);
    }

    #[test]
    fn file_with_few_comment_words_passes() {
        assert_eq!(messages("crates/x/src/a.rs", &VAGUE.repeat(4)), [""; 0]);
        assert_eq!(messages("crates/x/src/a.rs", &VAGUE.repeat(5)).len(), 1);
    }

    #[test]
    fn comments_of_tests_are_not_counted() {
        let many = VAGUE.repeat(9);
        let inside = format!("#[cfg(test)]\nmod tests {{\n{many}}}\n");
        assert_eq!(messages("crates/x/src/a.rs", &inside), [""; 0]);
        assert_eq!(messages("crates/x/tests/a.rs", &many), [""; 0]);
        let literal = format!("const A: &str = \"\n{};\n\";\n", "who x ".repeat(90));
        assert_eq!(messages("crates/x/src/a.rs", &literal), [""; 0]);
    }
}
