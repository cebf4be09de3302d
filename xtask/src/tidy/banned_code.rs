//! Banned code: ignored tests, unfinished code, and tests that wait for time to pass.

use super::{SourceFile, SourceTree, TidyFinding};

/// Banned everywhere: (rule, needle, reason).
const EVERYWHERE: &[(&str, &str, &str)] = &[
    ("ignore", "#[ignore", "a test runs or does not exist"),
    (
        "should-panic",
        "#[should_panic",
        "assert on the value that came back",
    ),
    ("todo", "todo!(", "finish it or leave it out"),
    ("todo", "unimplemented!(", "finish it or leave it out"),
];

/// Banned in test code: sleeps, and waits that end by time or hope for another thread's progress.
const SLEEPS: &[&str] = &[
    "thread::sleep",
    "time::sleep",
    "std::thread::{sleep",
    "recv_timeout(",
    "wait_timeout(",
    "park_timeout(",
    "yield_now(",
];
const SLEEP_WHY: &str = "wait for the event itself, or move a paused clock";

pub(super) fn check_tree(tree: &SourceTree) -> Vec<TidyFinding> {
    tree.rust.iter().flat_map(check_file).collect()
}

fn check_file(source: &SourceFile) -> Vec<TidyFinding> {
    let mut found = Vec::new();
    for (at, line) in source.code.lines().enumerate() {
        for (rule, needle, why) in EVERYWHERE {
            if line.contains(needle) {
                let message = format!("`{needle}`: {why}");
                found.push(TidyFinding::error(rule, source.path(), at + 1, message));
            }
        }
        if source.is_test_line(at) && is_sleep(line) {
            let message = format!("sleeps in a test: {SLEEP_WHY}");
            found.push(TidyFinding::error("sleep", source.path(), at + 1, message));
        }
    }
    found
}

fn is_sleep(line: &str) -> bool {
    let grouped = ["tokio::time::{", "std::thread::{"];
    SLEEPS.iter().any(|needle| line.contains(needle))
        || (grouped.iter().any(|needle| line.contains(needle)) && line.contains("sleep"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_rules(path: &str, text: &str) -> Vec<&'static str> {
        check_tree(&SourceTree::from_pairs(&[(path, text)]))
            .into_iter()
            .map(|finding| finding.rule)
            .collect()
    }

    #[test]
    fn banned_macros_and_attributes_are_found() {
        for (rule, line) in [
            ("ignore", "#[ignore]"),
            ("ignore", "#[ignore = \"slow\"]"),
            ("should-panic", "#[should_panic(expected = \"x\")]"),
            ("todo", "fn a() { todo!() }"),
            ("todo", "fn a() { unimplemented!() }"),
        ] {
            assert_eq!(found_rules("crates/x/src/a.rs", line), [rule], "{line}");
        }
    }

    #[test]
    fn sleep_is_found_in_tests_only() {
        let sleeps = [
            "std::thread::sleep(d);",
            "tokio::time::sleep(d).await;",
            "use tokio::time::{Duration, sleep};",
        ];
        for line in sleeps {
            assert_eq!(
                found_rules("crates/x/tests/a.rs", line),
                ["sleep"],
                "{line}"
            );
            assert_eq!(
                found_rules("crates/x/src/a/tests.rs", line),
                ["sleep"],
                "{line}"
            );
            assert_eq!(found_rules("crates/x/src/a.rs", line), [""; 0], "{line}");
        }
        let inside = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { time::sleep(d); }\n}\n";
        assert_eq!(found_rules("crates/x/src/a.rs", inside), ["sleep"]);
    }

    #[test]
    fn timed_wait_is_found_in_tests_only() {
        for line in [
            "let _ = receiver.recv_timeout(wait);",
            "let (guard, _) = condvar.wait_timeout(guard, wait).unwrap();",
            "thread::park_timeout(wait);",
            "tokio::task::yield_now().await;",
        ] {
            assert_eq!(
                found_rules("crates/x/tests/a.rs", line),
                ["sleep"],
                "{line}"
            );
            assert_eq!(found_rules("crates/x/src/a.rs", line), [""; 0], "{line}");
        }
        let event = "let value = receiver.recv().unwrap();";
        assert_eq!(found_rules("crates/x/tests/a.rs", event), [""; 0]);
    }

    #[test]
    fn comments_and_strings_are_ignored() {
        let text = "// no #[ignore], no todo!()\nconst A: &str = \"#[ignore] thread::sleep\";\n";
        assert_eq!(found_rules("crates/x/tests/a.rs", text), [""; 0]);
    }
}
