//! The shape of a Rust file: its first sentence, its length, its lines, its name.

use super::{Finding, Source, Tree};

/// Beyond this, without in-file tests, a file holds more than one noun.
const CODE_LINES_MAX: usize = 500;
/// Beyond this, tests included, nobody proofreads it in one sitting.
const FILE_LINES_MAX: usize = 800;
const LINE_CHARS_MAX: usize = 100;

pub(super) fn rule(tree: &Tree) -> Vec<Finding> {
    let each = |source| [first_sentence(source), length(source), name(source)];
    let mut found: Vec<Finding> = tree.rust.iter().flat_map(each).flatten().collect();
    found.extend(tree.rust.iter().flat_map(long_lines));
    found
}

fn first_sentence(source: &Source) -> Option<Finding> {
    let first = source.file.text.lines().next().unwrap_or_default();
    let said = first
        .strip_prefix("//!")
        .is_some_and(|words| !words.trim().is_empty());
    (!said).then(|| {
        Finding::error(
            "first-sentence",
            source.path(),
            1,
            "does not start with a `//!` sentence",
        )
    })
}

fn length(source: &Source) -> Option<Finding> {
    let whole = source.file.text.lines().count();
    if whole > FILE_LINES_MAX {
        let message = format!("{whole} lines, {FILE_LINES_MAX} at most: split it by noun");
        return Some(Finding::error("length", source.path(), 0, message));
    }
    let tests: usize = source.test_lines.iter().map(ExactSizeIterator::len).sum();
    let code = whole.saturating_sub(tests);
    (code > CODE_LINES_MAX).then(|| {
        let message = format!("{code} lines without tests, {CODE_LINES_MAX} wanted");
        Finding::warning("length", source.path(), message)
    })
}

fn name(source: &Source) -> Option<Finding> {
    let file = source.path().rsplit('/').next().unwrap_or_default();
    (file == "mod.rs").then(|| {
        Finding::error(
            "mod-rs",
            source.path(),
            0,
            "name it after its folder: `foo.rs` + `foo/`",
        )
    })
}

fn long_lines(source: &Source) -> Vec<Finding> {
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
            // Expected bytes are easier to read whole than cut at a margin.
            if source.is_test_line(at) && without_literals(code) <= LINE_CHARS_MAX {
                return None;
            }
            let message = format!("{chars} characters, {LINE_CHARS_MAX} at most");
            Some(Finding::error("line", source.path(), at + 1, message))
        })
        .collect()
}

/// The width a scrubbed line would have with every string literal empty.
fn without_literals(code: &str) -> usize {
    let mut width = 0;
    let mut inside = false;
    for c in code.trim_end().chars() {
        if c == '"' {
            inside = !inside;
        } else if !inside {
            width += 1;
        }
    }
    // A literal that runs over several lines leaves no quote here: all of it is blank.
    if code.trim().is_empty() { 0 } else { width }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<&'static str> {
        rule(&Tree::of(&[(path, text)]))
            .into_iter()
            .map(|finding| finding.rule)
            .collect()
    }

    #[test]
    fn a_file_starts_with_its_sentence() {
        assert_eq!(rules("a.rs", "//! What it is.\n"), [""; 0]);
        assert_eq!(rules("a.rs", "use x;\n"), ["first-sentence"]);
        assert_eq!(rules("a.rs", "//!\n"), ["first-sentence"]);
        assert_eq!(rules("a.rs", ""), ["first-sentence"]);
    }

    #[test]
    fn a_long_file_is_warned_of_and_a_longer_one_refused() {
        let lines = |n: usize| format!("//! X.\n{}", "\n".repeat(n - 1));
        assert_eq!(rules("a.rs", &lines(500)), [""; 0]);
        let warned = rule(&Tree::of(&[("a.rs", &lines(501))]));
        assert_eq!(
            warned.first().map(|f| f.level),
            Some(super::super::Level::Warning)
        );
        let refused = rule(&Tree::of(&[("a.rs", &lines(801))]));
        assert_eq!(
            refused.first().map(|f| f.level),
            Some(super::super::Level::Error)
        );
    }

    #[test]
    fn in_file_tests_do_not_count_towards_the_first_limit() {
        let body = "\n".repeat(400);
        let text = format!("//! X.\n{body}#[cfg(test)]\nmod tests {{{body}}}\n");
        assert_eq!(rules("a.rs", &text), ["length"; 1]);
        let body = "\n".repeat(390);
        let text = format!("//! X.\n{body}#[cfg(test)]\nmod tests {{{body}}}\n");
        assert_eq!(rules("a.rs", &text), [""; 0]);
    }

    #[test]
    fn a_long_line_is_refused_unless_it_holds_an_address() {
        let long = "x".repeat(101);
        assert_eq!(rules("a.rs", &format!("//! X.\n// {long}\n")), ["line"]);
        assert_eq!(
            rules("a.rs", &format!("//! X.\n// https://{long}\n")),
            [""; 0]
        );
    }

    #[test]
    fn a_long_literal_is_for_tests_only() {
        let text = format!("//! X.\nfn a() {{\n    f(\"{}\");\n}}\n", "x".repeat(100));
        assert_eq!(rules("crates/x/tests/a.rs", &text), [""; 0]);
        assert_eq!(rules("crates/x/src/a.rs", &text), ["line"]);
    }

    #[test]
    fn mod_rs_is_refused() {
        assert_eq!(rules("crates/x/src/a/mod.rs", "//! X.\n"), ["mod-rs"]);
    }
}
