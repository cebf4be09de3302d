//! Names of types: nouns that are rarely shared and shadow nothing of the standard prelude.

use std::collections::BTreeMap;

use super::code_items::{TypeDefinition, type_definitions};
use super::{SourceFile, SourceTree, TidyFinding};

/// More definitions of the same name in the workspace are an error.
const DEFINITIONS_MAX: usize = 4;

/// Names with more definitions, each with the reason.
const REPEATED_ALLOWED: &[(&str, &str)] = &[];

/// Items of the standard prelude.
const PRELUDE: &[&str] = &[
    "Option",
    "Some",
    "None",
    "Result",
    "Ok",
    "Err",
    "From",
    "Into",
    "Default",
    "Clone",
    "Copy",
    "Send",
    "Sync",
    "Drop",
    "Fn",
    "FnMut",
    "FnOnce",
    "Iterator",
    "Extend",
    "String",
    "Vec",
    "Box",
    "ToString",
    "ToOwned",
    "AsRef",
    "AsMut",
    "Eq",
    "Ord",
    "PartialEq",
    "PartialOrd",
    "TryFrom",
    "TryInto",
    "FromIterator",
    "IntoIterator",
    "DoubleEndedIterator",
    "ExactSizeIterator",
];

/// Participles without a regular ending, and words that are used like participles.
const IRREGULAR_PARTICIPLES: &str = "
    Said Told Held Kept Met Made Seen Sent Found Known Given Taken Begun Worn Shown Proven Heard
    Written Broken Left Lost Bound Unread Unfit Spent Done Gone Brought Unmet Chosen Drawn Hidden
    Put Asked Answered";

/// Nouns and adjectives that only look like participles.
const ED_NOUNS: &str = "
    Speed Feed Seed Need Embed Shared Unauthorized Thread Read Head Overhead Spread";
const ING_NOUNS: &str = "
    String Encoding Framing Timing Setting Warning Ordering Routing Heading Ping Padding Binding
    Tracing";

pub(super) fn check_tree(tree: &SourceTree) -> Vec<TidyFinding> {
    let mut definitions: BTreeMap<&str, Vec<(&SourceFile, usize)>> = BTreeMap::new();
    for source in tree.rust.iter().filter(|source| !source.is_example()) {
        for TypeDefinition { name, line } in type_definitions(&source.code) {
            if !source.is_test_line(line) {
                definitions.entry(name).or_default().push((source, line));
            }
        }
    }
    let mut found = Vec::new();
    for (name, places) in &definitions {
        for (rule, message) in name_errors(name, places.len()) {
            let finding = |(source, line): &(&SourceFile, usize)| {
                TidyFinding::error(rule, source.path(), line + 1, message.clone())
            };
            found.extend(places.iter().map(finding));
        }
    }
    found
}

/// Returns the rule and message of each violation.
fn name_errors(name: &str, count: usize) -> Vec<(&'static str, String)> {
    let mut errors = Vec::new();
    if is_participle(name) {
        let message = format!("`{name}` is a bare participle: name the thing with a noun");
        errors.push(("participle-type", message));
    }
    if PRELUDE.contains(&name) {
        let message = format!("`{name}` shadows an item of the standard prelude");
        errors.push(("prelude-name", message));
    }
    let is_allowed = REPEATED_ALLOWED.iter().any(|(allowed, _)| *allowed == name);
    if count > DEFINITIONS_MAX && !is_allowed {
        let message = format!(
            "`{name}` is defined {count} times in the workspace, {DEFINITIONS_MAX} at most: add \
             the component's name"
        );
        errors.push(("repeated-type", message));
    }
    errors
}

fn is_participle(name: &str) -> bool {
    let lists = |words: &str| words.split_whitespace().any(|word| word == name);
    if lists(IRREGULAR_PARTICIPLES) {
        return true;
    }
    let is_single_word = name.chars().skip(1).all(|c| c.is_ascii_lowercase());
    let ends_in_ed = name.ends_with("ed") && name.len() > 4 && !lists(ED_NOUNS);
    let ends_in_ing = name.ends_with("ing") && name.len() > 5 && !lists(ING_NOUNS);
    is_single_word && (ends_in_ed || ends_in_ing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_rules(path: &str, text: &str) -> Vec<&'static str> {
        let findings = check_tree(&SourceTree::from_pairs(&[(path, text)]));
        findings.into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn bare_participle_is_rejected() {
        for name in ["Told", "Prepared", "Waiting", "Unread"] {
            let text = format!("pub(crate) struct {name};\n");
            let found = found_rules("crates/x/src/a.rs", &text);
            assert_eq!(found, ["participle-type"], "{name}");
        }
        for name in [
            "Shared",
            "Setting",
            "Seed",
            "PreparedGateway",
            "Ring",
            "Bed",
        ] {
            let text = format!("enum {name} {{}}\n");
            assert_eq!(found_rules("crates/x/src/a.rs", &text), [""; 0], "{name}");
        }
    }

    #[test]
    fn prelude_name_is_rejected_but_associated_type_passes() {
        let alias = "pub type Result<T> = std::result::Result<T, E>;\n";
        assert_eq!(found_rules("crates/x/src/a.rs", alias), ["prelude-name"]);
        let associated = "impl A for B {\n    type Result = u8;\n}\nstruct ResultForm;\n";
        assert_eq!(found_rules("crates/x/src/a.rs", associated), [""; 0]);
    }

    #[test]
    fn name_defined_five_times_is_rejected_everywhere() {
        let text = "struct Entry;\nstruct Entry;\n";
        let twice = [("crates/x/src/a.rs", text), ("xtask/src/b.rs", text)];
        assert_eq!(check_tree(&SourceTree::from_pairs(&twice)), []);
        let third = [twice[0], twice[1], ("crates/y/src/c.rs", "struct Entry;\n")];
        let found = check_tree(&SourceTree::from_pairs(&third));
        assert_eq!(found.len(), 5, "{found:?}");
        assert!(found.iter().all(|finding| finding.rule == "repeated-type"));
    }

    #[test]
    fn tests_and_examples_may_use_any_name() {
        let inside = "#[cfg(test)]\nmod tests {\n    struct Told;\n}\n";
        assert_eq!(found_rules("crates/x/src/a.rs", inside), [""; 0]);
        for path in ["crates/x/tests/a.rs", "crates/x/examples/a.rs"] {
            assert_eq!(found_rules(path, "struct Told;\n"), [""; 0], "{path}");
        }
    }
}
