//! Stems of Rust files: rare enough that a fuzzy finder leads to the right file.

use std::collections::BTreeMap;

use super::{SourceTree, TidyFinding};

/// More files with the same stem are an error.
const FILES_MAX: usize = 4;

/// Stems with a meaning for cargo or by convention.
const CONVENTIONAL: &[&str] = &["lib", "main", "tests"];

pub(super) fn check_tree(tree: &SourceTree) -> Vec<TidyFinding> {
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for source in tree.rust.iter().filter(|source| !source.is_example()) {
        let stem = file_stem(source.path());
        if !source.is_test_file() && !CONVENTIONAL.contains(&stem) {
            files.entry(stem).or_default().push(source.path());
        }
    }
    let repeated = files
        .into_iter()
        .filter(|(_, paths)| paths.len() > FILES_MAX);
    let findings = repeated.flat_map(|(stem, paths)| {
        let message = format!(
            "{} files of the workspace are named `{stem}.rs`, {FILES_MAX} at most: add the \
             component's name",
            paths.len()
        );
        let finding = move |path| TidyFinding::error("stem", path, 0, message.clone());
        paths.into_iter().map(finding)
    });
    findings.collect()
}

fn file_stem(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.strip_suffix(".rs").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_findings(paths: &[&str]) -> usize {
        let files: Vec<(&str, &str)> = paths.iter().map(|path| (*path, "")).collect();
        check_tree(&SourceTree::from_pairs(&files)).len()
    }

    #[test]
    fn fifth_file_with_same_stem_is_rejected() {
        let four = [
            "crates/a/src/x.rs",
            "crates/b/src/x.rs",
            "xtask/src/x.rs",
            "crates/b/src/c/x.rs",
        ];
        assert_eq!(count_findings(&four), 0);
        assert_eq!(
            count_findings(&[&four[..], &["crates/d/src/x.rs"]].concat()),
            5
        );
    }

    #[test]
    fn tests_examples_and_conventional_stems_are_free() {
        let four = [
            "crates/a/src/x.rs",
            "crates/b/src/x.rs",
            "xtask/src/x.rs",
            "crates/b/src/c/x.rs",
        ];
        for other in ["crates/d/tests/x.rs", "crates/d/examples/x.rs"] {
            assert_eq!(
                count_findings(&[&four[..], &[other]].concat()),
                0,
                "{other}"
            );
        }
        let roots = ["a", "b", "c", "d", "e"].map(|name| format!("crates/{name}/src/lib.rs"));
        assert_eq!(count_findings(&roots.each_ref().map(String::as_str)), 0);
    }
}
