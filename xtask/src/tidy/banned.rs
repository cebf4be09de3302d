//! Words of code that pretend, or wait on luck.

use super::{Finding, Source, Tree};

/// Banned everywhere: (rule, needle, why).
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

/// Banned in test code.
const SLEEPS: &[&str] = &["thread::sleep", "time::sleep", "std::thread::{sleep"];
const SLEEP_WHY: &str = "wait for the event itself, or move a paused clock";

pub(super) fn rule(tree: &Tree) -> Vec<Finding> {
    tree.rust.iter().flat_map(faults).collect()
}

fn faults(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for (at, line) in source.code.lines().enumerate() {
        for (rule, needle, why) in EVERYWHERE {
            if line.contains(needle) {
                let message = format!("`{needle}`: {why}");
                found.push(Finding::error(rule, source.path(), at + 1, message));
            }
        }
        if source.is_test_line(at) && sleeps(line) {
            let message = format!("sleeps in a test: {SLEEP_WHY}");
            found.push(Finding::error("sleep", source.path(), at + 1, message));
        }
    }
    found
}

fn sleeps(line: &str) -> bool {
    let grouped = ["tokio::time::{", "std::thread::{"];
    SLEEPS.iter().any(|needle| line.contains(needle))
        || (grouped.iter().any(|needle| line.contains(needle)) && line.contains("sleep"))
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
    fn what_pretends_is_refused_everywhere() {
        for (rule, line) in [
            ("ignore", "#[ignore]"),
            ("ignore", "#[ignore = \"slow\"]"),
            ("should-panic", "#[should_panic(expected = \"x\")]"),
            ("todo", "fn a() { todo!() }"),
            ("todo", "fn a() { unimplemented!() }"),
        ] {
            assert_eq!(rules("crates/x/src/a.rs", line), [rule], "{line}");
        }
    }

    #[test]
    fn a_sleep_is_refused_in_tests_only() {
        let sleeps = [
            "std::thread::sleep(d);",
            "tokio::time::sleep(d).await;",
            "use tokio::time::{Duration, sleep};",
        ];
        for line in sleeps {
            assert_eq!(rules("crates/x/tests/a.rs", line), ["sleep"], "{line}");
            assert_eq!(rules("crates/x/src/a/tests.rs", line), ["sleep"], "{line}");
            assert_eq!(rules("crates/x/src/a.rs", line), [""; 0], "{line}");
        }
        let inside = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { time::sleep(d); }\n}\n";
        assert_eq!(rules("crates/x/src/a.rs", inside), ["sleep"]);
    }

    #[test]
    fn comments_and_strings_may_speak_of_them() {
        let text = "// no #[ignore], no todo!()\nconst A: &str = \"#[ignore] thread::sleep\";\n";
        assert_eq!(rules("crates/x/tests/a.rs", text), [""; 0]);
    }
}
