//! No hand-written JSON-RPC envelope: one builder in the wire crate spells the members, so that
//! versions, ids and line breaks are right everywhere.

use super::{SourceFile, SourceTree, TidyFinding};

const RULE: &str = "envelope";

/// The builder, the only place with a spelled envelope.
const BUILDER: &str = "crates/wire/src/jsonrpc/envelope.rs";

pub(super) fn check_tree(tree: &SourceTree) -> Vec<TidyFinding> {
    let sources = tree.rust.iter().filter(|source| is_checked(source));
    sources.flat_map(check_file).collect()
}

/// The load generator, which shares no code with the measured program.
pub(super) const LOAD_GENERATOR: &str = "crates/bench/";

/// Test support: messages of peers, spelled on purpose.
const TEST_SUPPORT: &str = "crates/testkit/";

/// Product code only: tests spell messages on purpose, and `testing/` has their corpora.
fn is_checked(source: &SourceFile) -> bool {
    let path = source.path();
    path.starts_with("crates/")
        && path.contains("/src/")
        && !path.contains("/testing/")
        && !path.starts_with(LOAD_GENERATOR)
        && !path.starts_with(TEST_SUPPORT)
        && path != BUILDER
}

fn check_file(source: &SourceFile) -> Vec<TidyFinding> {
    let message = format!("an envelope written by hand: use `Envelope` of {BUILDER}");
    let lines = source.file.text.lines().enumerate();
    lines
        .filter(|(at, line)| !source.is_test_line(*at) && has_envelope(line))
        .map(|(at, _)| TidyFinding::error(RULE, source.path(), at + 1, &message))
        .collect()
}

/// Returns whether a line spells the version member as a key, in any kind of literal or in `json!`.
fn has_envelope(line: &str) -> bool {
    if line.trim_start().starts_with("//") {
        return false;
    }
    let is_key = |rest: &str| {
        let rest = rest.strip_prefix('\\').unwrap_or(rest);
        let rest = rest.strip_prefix('"').map(str::trim_start);
        rest.is_some_and(|rest| rest.starts_with(':'))
    };
    line.match_indices("\"jsonrpc")
        .any(|(at, word)| line.get(at + word.len()..).is_some_and(is_key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_findings(path: &str, text: &str) -> usize {
        check_tree(&SourceTree::from_pairs(&[(path, text)])).len()
    }

    #[test]
    fn envelope_outside_builder_is_rejected() {
        for line in [
            "let a = br#\"{\"jsonrpc\":\"2.0\",\"id\":\"#;",
            "let a = b\"{\\\"jsonrpc\\\":\\\"2.0\\\",\\\"id\\\":\";",
            "let a = json!({ \"jsonrpc\": \"2.0\", \"method\": \"m\" });",
            "let a = format!(\"{{\\\"jsonrpc\\\": \\\"2.0\\\"}}\");",
        ] {
            assert_eq!(count_findings("crates/x/src/a.rs", line), 1, "{line}");
            assert_eq!(count_findings(BUILDER, line), 0, "{line}");
        }
    }

    #[test]
    fn tests_comments_and_reading_pass() {
        let line = "let a = r#\"{\"jsonrpc\":\"2.0\"}\"#;\n";
        let inside = format!("fn a() {{}}\n#[cfg(test)]\nmod tests {{\n    {line}}}\n");
        for (path, text) in [
            ("crates/x/tests/a.rs", line),
            ("crates/x/src/a/tests.rs", line),
            ("crates/x/src/testing/fuzz.rs", line),
            ("crates/x/src/a.rs", &inside),
            ("crates/x/src/a.rs", "// `{\"jsonrpc\":\"2.0\"}`\n"),
            ("crates/x/src/a.rs", "b\"jsonrpc\" => &mut self.version,\n"),
            ("crates/x/src/a.rs", "(\"jsonrpc\", Members),\n"),
            ("xtask/src/a.rs", line),
            ("crates/bench/src/a.rs", line),
            ("crates/testkit/src/a.rs", line),
        ] {
            assert_eq!(count_findings(path, text), 0, "{path}: {text}");
        }
    }
}
