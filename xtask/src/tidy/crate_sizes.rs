//! Size of a crate: small enough that one person can hold the whole crate in mind.

use std::collections::BTreeMap;

use super::{SourceFile, SourceTree, TidyFinding};

const RULE: &str = "crate-size";

/// Lines of code in a crate, without blank lines, comments and tests.
const CRATE_LINES_MAX: usize = 20_000;

pub(super) fn check_tree(tree: &SourceTree) -> Vec<TidyFinding> {
    let sizes = crate_code_lines(tree).into_iter();
    let findings = sizes
        .filter(|(_, lines)| *lines > CRATE_LINES_MAX)
        .map(|(folder, lines)| {
            let message = format!("{lines} lines of code, {CRATE_LINES_MAX} at most: split it");
            TidyFinding::error(RULE, &format!("crates/{folder}"), 0, message)
        });
    findings.collect()
}

/// Returns the lines of code of each crate, by folder below `crates/`.
pub(super) fn crate_code_lines(tree: &SourceTree) -> BTreeMap<&str, usize> {
    let mut sizes = BTreeMap::new();
    for source in &tree.rust {
        let path = source.path().strip_prefix("crates/");
        let Some((folder, path)) = path.and_then(|path| path.split_once("/src/")) else {
            continue;
        };
        // Deeper folders belong to programs that tests build outside the workspace.
        if folder.contains('/') {
            continue;
        }
        // A folder `testing` is compiled for tests only.
        if path.starts_with("testing/") || path == "testing.rs" {
            continue;
        }
        *sizes.entry(folder).or_default() += count_code_lines(source);
    }
    sizes
}

fn count_code_lines(source: &SourceFile) -> usize {
    let lines = source.file.text.lines().zip(source.code.lines());
    let code = lines.enumerate().filter(|(at, (text, code))| {
        // A line of a literal has no code left and is none of a comment.
        let is_comment = text.trim_start().starts_with("//") && code.trim().is_empty();
        !text.trim().is_empty() && !is_comment && !source.is_test_line(*at)
    });
    code.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_outside_tests_counts() {
        let text = "//! X.\n\nuse a::b; // why\n/// Doc.\nconst A: &str = \"\n  text\n\";\n\
                    #[cfg(test)]\nmod tests {\n    fn a() {}\n}\n";
        let files = [
            ("crates/x/src/a.rs", text),
            ("crates/x/src/a/tests.rs", text),
            ("crates/x/src/testing/b.rs", text),
            ("crates/x/tests/c.rs", text),
            ("xtask/src/a.rs", text),
        ];
        let tree = SourceTree::from_pairs(&files);
        let sizes = crate_code_lines(&tree);
        assert_eq!(sizes, [("x", 4)].into());
    }

    #[test]
    fn large_crate_is_named() {
        let large = "fn a() {}\n".repeat(CRATE_LINES_MAX + 1);
        let found = check_tree(&SourceTree::from_pairs(&[("crates/x/src/a.rs", &large)]));
        assert_eq!(found.len(), 1, "{found:?}");
        let small = "fn a() {}\n".repeat(CRATE_LINES_MAX);
        let found = check_tree(&SourceTree::from_pairs(&[("crates/x/src/a.rs", &small)]));
        assert_eq!(found, []);
    }
}
