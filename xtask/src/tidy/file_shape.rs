//! Shape of a Rust file: first sentence, length, line width, name.

use super::{SourceFile, SourceTree, TidyFinding};

/// A longer file, without in-file tests, contains several concepts.
const CODE_LINES_MAX: usize = 500;
/// A longer file, with tests, is too long for a review in a single sitting.
const FILE_LINES_MAX: usize = 800;
const LINE_CHARS_MAX: usize = 100;

pub(super) fn check_tree(tree: &SourceTree) -> Vec<TidyFinding> {
    let each = |source| {
        [
            check_first_sentence(source),
            check_length(source),
            check_name(source),
        ]
    };
    let mut found: Vec<TidyFinding> = tree.rust.iter().flat_map(each).flatten().collect();
    found.extend(tree.rust.iter().flat_map(check_lines));
    found
}

fn check_first_sentence(source: &SourceFile) -> Option<TidyFinding> {
    let first = source.file.text.lines().next().unwrap_or_default();
    let said = first
        .strip_prefix("//!")
        .is_some_and(|words| !words.trim().is_empty());
    (!said).then(|| {
        TidyFinding::error(
            "first-sentence",
            source.path(),
            1,
            "does not start with a `//!` sentence",
        )
    })
}

fn check_length(source: &SourceFile) -> Option<TidyFinding> {
    let whole = source.file.text.lines().count();
    if whole > FILE_LINES_MAX {
        let message = format!("{whole} lines, {FILE_LINES_MAX} at most: split it by noun");
        return Some(TidyFinding::error("length", source.path(), 0, message));
    }
    let tests: usize = source.test_lines.iter().map(ExactSizeIterator::len).sum();
    let code = whole.saturating_sub(tests);
    (code > CODE_LINES_MAX).then(|| {
        let message = format!("{code} lines without tests, {CODE_LINES_MAX} wanted");
        TidyFinding::warning("length", source.path(), message)
    })
}

fn check_name(source: &SourceFile) -> Option<TidyFinding> {
    let file = source.path().rsplit('/').next().unwrap_or_default();
    (file == "mod.rs").then(|| {
        TidyFinding::error(
            "mod-rs",
            source.path(),
            0,
            "name it after its folder: `foo.rs` + `foo/`",
        )
    })
}

fn check_lines(source: &SourceFile) -> Vec<TidyFinding> {
    let pairs = source
        .file
        .text
        .lines()
        .zip(source.code.lines())
        .enumerate();
    pairs
        .filter_map(|(at, (line, code))| {
            let chars = line.chars().count();
            if chars <= LINE_CHARS_MAX || line.contains("://") {
                return None;
            }
            // Expected bytes are easier to read unbroken.
            if source.is_test_line(at) && width_without_literals(code) <= LINE_CHARS_MAX {
                return None;
            }
            let message = format!("{chars} characters, {LINE_CHARS_MAX} at most");
            Some(TidyFinding::error("line", source.path(), at + 1, message))
        })
        .collect()
}

/// Returns the width of a scrubbed line with every string literal empty.
fn width_without_literals(code: &str) -> usize {
    let mut width = 0;
    let mut inside = false;
    for c in code.trim_end().chars() {
        if c == '"' {
            inside = !inside;
        } else if !inside {
            width += 1;
        }
    }
    // A line inside a multi-line literal is all blank.
    if code.trim().is_empty() { 0 } else { width }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::FindingLevel;

    fn found_rules(path: &str, text: &str) -> Vec<&'static str> {
        check_tree(&SourceTree::from_pairs(&[(path, text)]))
            .into_iter()
            .map(|finding| finding.rule)
            .collect()
    }

    #[test]
    fn file_starts_with_sentence() {
        assert_eq!(found_rules("a.rs", "//! What it is.\n"), [""; 0]);
        assert_eq!(found_rules("a.rs", "use x;\n"), ["first-sentence"]);
        assert_eq!(found_rules("a.rs", "//!\n"), ["first-sentence"]);
        assert_eq!(found_rules("a.rs", ""), ["first-sentence"]);
    }

    #[test]
    fn long_file_warns_then_fails() {
        let lines = |n: usize| format!("//! X.\n{}", "\n".repeat(n - 1));
        assert_eq!(found_rules("a.rs", &lines(500)), [""; 0]);
        let warned = check_tree(&SourceTree::from_pairs(&[("a.rs", &lines(501))]));
        assert_eq!(warned.first().map(|f| f.level), Some(FindingLevel::Warning));
        let refused = check_tree(&SourceTree::from_pairs(&[("a.rs", &lines(801))]));
        assert_eq!(refused.first().map(|f| f.level), Some(FindingLevel::Error));
    }

    #[test]
    fn in_file_tests_are_not_counted() {
        let body = "\n".repeat(400);
        let text = format!("//! X.\n{body}#[cfg(test)]\nmod tests {{{body}}}\n");
        assert_eq!(found_rules("a.rs", &text), ["length"; 1]);
        let body = "\n".repeat(390);
        let text = format!("//! X.\n{body}#[cfg(test)]\nmod tests {{{body}}}\n");
        assert_eq!(found_rules("a.rs", &text), [""; 0]);
    }

    #[test]
    fn long_line_fails_unless_url() {
        let long = "x".repeat(101);
        assert_eq!(
            found_rules("a.rs", &format!("//! X.\n// {long}\n")),
            ["line"]
        );
        assert_eq!(
            found_rules("a.rs", &format!("//! X.\n// https://{long}\n")),
            [""; 0]
        );
    }

    #[test]
    fn long_literal_passes_in_tests_only() {
        let text = format!("//! X.\nfn a() {{\n    f(\"{}\");\n}}\n", "x".repeat(100));
        assert_eq!(found_rules("crates/x/tests/a.rs", &text), [""; 0]);
        assert_eq!(found_rules("crates/x/src/a.rs", &text), ["line"]);
    }

    #[test]
    fn mod_rs_is_rejected() {
        assert_eq!(found_rules("crates/x/src/a/mod.rs", "//! X.\n"), ["mod-rs"]);
    }
}
