//! `cargo xtask tidy`: the house rules that neither rustfmt nor clippy knows.

mod allow;
mod banned;
mod behaviours;
mod compatibility;
mod crates;
mod errors;
mod ids;
mod scrub;
mod shape;
mod statics;
mod words;

use std::{fmt, ops::Range, path::Path, process::ExitCode};

use anyhow::Result;

use crate::repo::{self, File};

/// What a rule has to say about one place.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    rule: &'static str,
    level: Level,
    path: String,
    /// 1-based; 0 when the whole file is meant.
    line: usize,
    message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    /// Said, but does not fail the check.
    Warning,
    Error,
}

impl Finding {
    fn error(rule: &'static str, path: &str, line: usize, message: impl Into<String>) -> Self {
        let (path, message) = (path.to_owned(), message.into());
        Self {
            rule,
            level: Level::Error,
            path,
            line,
            message,
        }
    }

    fn warning(rule: &'static str, path: &str, message: impl Into<String>) -> Self {
        Self {
            level: Level::Warning,
            ..Self::error(rule, path, 0, message)
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Warning => "warning",
            Level::Error => "error",
        };
        write!(f, "{level}[{}] {}", self.rule, self.path)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// Everything the rules look at.
#[derive(Debug)]
struct Tree {
    files: Vec<File>,
    rust: Vec<Source>,
}

/// A Rust file, read the way the rules need it.
#[derive(Debug)]
struct Source {
    file: File,
    /// The text without comments and literals, line for line.
    code: String,
    /// Lines (0-based) that belong to in-file test modules.
    test_lines: Vec<Range<usize>>,
}

impl Tree {
    fn new(files: Vec<File>) -> Self {
        let rust = files
            .iter()
            .filter(|file| file.is_rust())
            .cloned()
            .map(Source::new)
            .collect();
        Self { files, rust }
    }

    /// For the tests of rules.
    #[cfg(test)]
    fn of(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| File {
            path: (*path).into(),
            text: (*text).into(),
        };
        Self::new(files.iter().map(file).collect())
    }

    fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }
}

impl Source {
    fn new(file: File) -> Self {
        let code = scrub::scrub(&file.text);
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

    /// Whether the whole file is test code: `tests/…` or `…/tests.rs`.
    fn is_test_file(&self) -> bool {
        let path = self.path();
        path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/tests.rs")
    }

    /// Whether a line (0-based) is test code.
    fn is_test_line(&self, line: usize) -> bool {
        self.is_test_file() || self.test_lines.iter().any(|range| range.contains(&line))
    }
}

/// Prints every finding; fails when one is an error.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let tree = Tree::new(repo::files(root)?);
    let findings = findings(&tree);
    for finding in &findings {
        eprintln!("{finding}");
    }
    let errors = findings
        .iter()
        .filter(|finding| finding.level == Level::Error)
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

fn findings(tree: &Tree) -> Vec<Finding> {
    let rules: [fn(&Tree) -> Vec<Finding>; 8] = [
        crates::rule,
        shape::rule,
        banned::rule,
        statics::rule,
        behaviours::rule,
        compatibility::rule,
        errors::rule,
        words::rule,
    ];
    let found = rules.into_iter().flat_map(|rule| rule(tree)).collect();
    allow::excuse(tree, found)
}
