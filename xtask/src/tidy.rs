//! `cargo xtask tidy`: project rules beyond rustfmt and clippy.

mod allow_list;
mod banned_code;
mod behaviour_ids;
mod behaviours;
pub(crate) mod code_counts;
mod code_items;
mod comment_pronouns;
mod compatibility;
mod component_flags;
mod crate_rules;
mod crate_sizes;
mod error_pages;
mod file_shape;
mod file_stems;
mod function_signatures;
mod machine_words;
mod publishing;
mod rpc_envelopes;
mod scrub;
mod statics;
mod test_names;
mod type_names;
mod unused_dependencies;

use std::{fmt, ops::Range, path::Path, process::ExitCode};

use anyhow::Result;

use crate::repo::{self, RepoFile};

/// A violation of a rule at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TidyFinding {
    rule: &'static str,
    level: FindingLevel,
    path: String,
    /// 1-based; 0 for the whole file.
    line: usize,
    message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FindingLevel {
    /// Printed, but does not fail the check.
    Warning,
    Error,
}

impl TidyFinding {
    fn error(rule: &'static str, path: &str, line: usize, message: impl Into<String>) -> Self {
        let (path, message) = (path.to_owned(), message.into());
        Self {
            rule,
            level: FindingLevel::Error,
            path,
            line,
            message,
        }
    }

    fn warning(rule: &'static str, path: &str, message: impl Into<String>) -> Self {
        Self {
            level: FindingLevel::Warning,
            ..Self::error(rule, path, 0, message)
        }
    }
}

impl fmt::Display for TidyFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            FindingLevel::Warning => "warning",
            FindingLevel::Error => "error",
        };
        write!(f, "{level}[{}] {}", self.rule, self.path)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// All files for the rules to check.
#[derive(Debug)]
struct SourceTree {
    files: Vec<RepoFile>,
    rust: Vec<SourceFile>,
}

/// A Rust file, prepared for the rules.
#[derive(Debug)]
struct SourceFile {
    file: RepoFile,
    /// The text with comments and literals blanked, line for line.
    code: String,
    /// Lines (0-based) of in-file test modules.
    test_lines: Vec<Range<usize>>,
}

impl SourceTree {
    fn new(files: Vec<RepoFile>) -> Self {
        let rust = files
            .iter()
            .filter(|file| file.is_rust())
            .cloned()
            .map(SourceFile::from_file)
            .collect();
        Self { files, rust }
    }

    /// Builds a tree from (path, text) pairs, for the tests of rules.
    #[cfg(test)]
    fn from_pairs(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| RepoFile {
            path: (*path).into(),
            text: (*text).into(),
        };
        Self::new(files.iter().map(file).collect())
    }

    fn file(&self, path: &str) -> Option<&RepoFile> {
        self.files.iter().find(|file| file.path == path)
    }
}

impl SourceFile {
    fn from_file(file: RepoFile) -> Self {
        let code = scrub::blank_comments_and_literals(&file.text);
        let test_lines = scrub::test_lines(&code);
        Self {
            file,
            code,
            test_lines,
        }
    }

    fn path(&self) -> &str {
        &self.file.path
    }

    /// Returns whether the whole file is test code: `tests/…` or `…/tests.rs`.
    fn is_test_file(&self) -> bool {
        let path = self.path();
        path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/tests.rs")
    }

    /// Returns whether the file belongs to an example, which naming rules leave out.
    fn is_example(&self) -> bool {
        self.path().starts_with("examples/") || self.path().contains("/examples/")
    }

    /// Returns whether a line (0-based) is test code.
    fn is_test_line(&self, line: usize) -> bool {
        self.is_test_file() || self.test_lines.iter().any(|range| range.contains(&line))
    }
}

/// Prints every finding; fails if any is an error.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let tree = SourceTree::new(repo::list_text_files(root)?);
    let findings = collect_findings(&tree);
    for finding in &findings {
        eprintln!("{finding}");
    }
    let errors = findings
        .iter()
        .filter(|finding| finding.level == FindingLevel::Error)
        .count();
    let warnings = findings.len() - errors;
    let verdict = if errors == 0 { "ok" } else { "failed" };
    println!(
        "tidy: {verdict} ({} files, {errors} errors, {warnings} warnings)",
        tree.files.len()
    );
    Ok(if errors == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn collect_findings(tree: &SourceTree) -> Vec<TidyFinding> {
    let rules: [fn(&SourceTree) -> Vec<TidyFinding>; 18] = [
        crate_rules::check_tree,
        crate_sizes::check_tree,
        unused_dependencies::check_tree,
        publishing::check_tree,
        file_shape::check_tree,
        banned_code::check_tree,
        statics::check_tree,
        behaviours::check_tree,
        compatibility::check_tree,
        error_pages::check_tree,
        machine_words::check_tree,
        type_names::check_tree,
        function_signatures::check_tree,
        test_names::check_tree,
        comment_pronouns::check_tree,
        file_stems::check_tree,
        rpc_envelopes::check_tree,
        component_flags::check_tree,
    ];
    let found = rules.into_iter().flat_map(|rule| rule(tree)).collect();
    allow_list::apply_allow_list(tree, found)
}
