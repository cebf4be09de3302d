//! Function signatures: predicates return `bool`, and no parameter is a tuple.

use super::code_items::{FunctionSignature, function_signatures, is_tuple};
use super::{SourceFile, SourceTree, TidyFinding};

/// Prefixes of predicates.
const PREDICATES: &[&str] = &["is_", "has_", "can_"];

/// Text in the return type of a predicate; `Poll` and `impl` wrap a result.
const PREDICATE_RESULTS: &[&str] = &["bool", "Poll", "impl"];

pub(super) fn check_tree(tree: &SourceTree) -> Vec<TidyFinding> {
    let sources = tree.rust.iter().filter(|source| !source.is_example());
    sources.flat_map(check_file).collect()
}

fn check_file(source: &SourceFile) -> Vec<TidyFinding> {
    let mut found = Vec::new();
    for function in function_signatures(&source.code) {
        if source.is_test_line(function.line) {
            continue;
        }
        let errors = [predicate_error(&function), tuple_error(&function)];
        for (rule, message) in errors.into_iter().flatten() {
            let line = function.line + 1;
            found.push(TidyFinding::error(rule, source.path(), line, message));
        }
    }
    found
}

fn predicate_error(function: &FunctionSignature<'_>) -> Option<(&'static str, String)> {
    let name = function.name;
    let is_predicate = PREDICATES.iter().any(|prefix| name.starts_with(prefix));
    let result = function.result.unwrap_or("()");
    if !is_predicate || PREDICATE_RESULTS.iter().any(|word| result.contains(word)) {
        return None;
    }
    let message = format!("`{name}` returns `{result}`: a predicate returns `bool`, rename it");
    Some(("predicate", message))
}

fn tuple_error(function: &FunctionSignature<'_>) -> Option<(&'static str, String)> {
    let mut parameters = function.parameters.iter();
    let tuple = parameters.find(|one| is_tuple(one.pattern) || is_tuple(one.kind))?;
    let (name, pattern) = (function.name, tuple.pattern);
    let message = format!("parameter `{pattern}` of `{name}` is a tuple: use a struct");
    Some(("tuple-parameter", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_rules(path: &str, text: &str) -> Vec<&'static str> {
        let findings = check_tree(&SourceTree::from_pairs(&[(path, text)]));
        findings.into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn predicate_without_bool_is_rejected() {
        let path = "crates/x/src/a.rs";
        for text in [
            "fn is_queued(&self) {}",
            "pub(super) async fn has_room(&self) -> Result<()> {}",
            "fn can_run(&self,\n    a: bool,\n) -> Option<u8>;",
        ] {
            assert_eq!(found_rules(path, text), ["predicate"], "{text}");
        }
        for text in [
            "const fn is_queued(&self) -> bool {}",
            "async fn has_room(&self) -> Result<bool> {}",
            "fn can_run(&self) -> Poll<()>;",
            "fn is_kind(a: A) -> impl Fn(&B) -> bool {}",
            "fn issue(&self) {}",
        ] {
            assert_eq!(found_rules(path, text), [""; 0], "{text}");
        }
    }

    #[test]
    fn tuple_parameter_is_rejected() {
        let path = "crates/x/src/a.rs";
        for text in [
            "fn f((a, b): (A, B)) {}",
            "fn f<'a, T: Fn(A) -> B>(\n    c: T,\n    x: &'a (A, B),\n) {}",
            "fn f(&self, x: (A, B<C, D>)) -> E;",
        ] {
            assert_eq!(found_rules(path, text), ["tuple-parameter"], "{text}");
        }
        for text in [
            "fn f(a: A, b: B) -> (A, B) {\n    let g = |(a, b): (A, B)| a;\n}",
            "fn f(x: &[(A, B)], y: Option<(A, B)>, z: &(dyn A + B)) {}",
            "fn f(g: impl Fn((A, B)) -> C, h: ()) {}",
        ] {
            assert_eq!(found_rules(path, text), [""; 0], "{text}");
        }
    }

    #[test]
    fn signatures_in_tests_are_free() {
        let text = "fn is_sent((a, b): (A, B)) {}\n";
        assert_eq!(found_rules("crates/x/tests/a.rs", text), [""; 0]);
        let inside = format!("#[cfg(test)]\nmod tests {{\n    {text}}}\n");
        assert_eq!(found_rules("crates/x/src/a.rs", &inside), [""; 0]);
    }
}
