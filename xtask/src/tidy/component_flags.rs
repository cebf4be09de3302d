//! No shutdown flag and no pair of mutex and waker of a component's own: `Lifecycle` and `Work` of
//! the runtime crate are the only ones, so that a missed wake-up is looked for in one place.

use super::{SourceFile, SourceTree, TidyFinding};

const RULE: &str = "component";

/// Crates that build on the runtime crate. The runtime crate has the one implementation.
const CRATES: &[&str] = &[
    "bowline", "broker", "catalog", "config", "edge", "executor", "host", "link",
];

/// How a flag is declared that tasks wait for.
const FLAGS: &[&str] = &[
    "watch::Sender<bool>",
    "watch::Receiver<bool>",
    "watch::channel(false)",
];

/// First letters of words that name the end of a component.
const ENDS: &[&str] = &["stop", "clos", "ended", "shut", "over", "evict", "cancel"];

pub(super) fn check_tree(tree: &SourceTree) -> Vec<TidyFinding> {
    let sources = tree.rust.iter().filter(|source| is_checked(source.path()));
    sources.flat_map(check_file).collect()
}

/// Returns the places of structs that pair a mutex with a waker.
pub(super) fn waker_pairs(tree: &SourceTree) -> impl Iterator<Item = String> {
    let sources = tree.rust.iter().filter(|source| is_checked(source.path()));
    sources.flat_map(|source| {
        let structs = struct_bodies(&source.code).into_iter();
        let pairs =
            structs.filter(|(_, body)| has_field(body, "Notify") && has_field(body, "Mutex<"));
        pairs.map(|(at, _)| format!("{}:{}", source.path(), at + 1))
    })
}

fn is_checked(path: &str) -> bool {
    let rest = path
        .strip_prefix("crates/")
        .and_then(|rest| rest.split_once("/src/"));
    rest.is_some_and(|(folder, file)| CRATES.contains(&folder) && !file.ends_with("tests.rs"))
}

fn check_file(source: &SourceFile) -> Vec<TidyFinding> {
    let lines = source.code.lines().enumerate();
    let flags = lines
        .filter(|(at, line)| !source.is_test_line(*at) && is_flag(line))
        .map(|(at, _)| {
            (
                at,
                "a shutdown flag of its own: use `Lifecycle` and `Shutdown`",
            )
        });
    let pairs = struct_bodies(&source.code)
        .into_iter()
        .filter(|(_, body)| has_field(body, "Notify") && body.iter().any(|line| is_end_bool(line)))
        .map(|(at, _)| {
            (
                at,
                "a flag and a waker of its own: use `Lifecycle` or `Work`",
            )
        });
    let found = flags.chain(pairs);
    let finding = |(at, message)| TidyFinding::error(RULE, source.path(), at + 1, message);
    found.map(finding).collect()
}

/// Returns the body of each struct with named fields, and the line (0-based) of its name; rustfmt
/// closes a body with a brace in the column of the item.
fn struct_bodies(code: &str) -> Vec<(usize, Vec<&str>)> {
    let lines: Vec<_> = code.lines().collect();
    let starts = lines.iter().enumerate().filter(|(_, line)| {
        line.ends_with('{') && line.split_whitespace().any(|word| word == "struct")
    });
    starts
        .map(|(at, line)| {
            let indent = line.len() - line.trim_start().len();
            let is_end = |line: &&&str| line.trim_start() == "}" && line.len() == indent + 1;
            let body = lines.iter().skip(at + 1);
            (
                at,
                body.copied().take_while(|line| !is_end(&line)).collect(),
            )
        })
        .collect()
}

fn is_flag(line: &str) -> bool {
    FLAGS.iter().any(|flag| line.contains(flag)) && names_end(line)
}

fn is_end_bool(line: &str) -> bool {
    let field = line.split_once(": ");
    field.is_some_and(|(name, kind)| {
        let kind = kind.strip_prefix("Arc<").unwrap_or(kind);
        names_end(name) && (kind.starts_with("AtomicBool") || kind.starts_with("bool"))
    })
}

/// Returns whether a word of an identifier names the end of something.
fn names_end(text: &str) -> bool {
    let words = text.split(|letter: char| !letter.is_ascii_alphabetic());
    let is_end = |word: &str| ENDS.iter().any(|end| word.starts_with(end));
    words.into_iter().any(is_end)
}

fn has_field(body: &[&str], kind: &str) -> bool {
    let types = body.iter().filter_map(|line| line.split_once(": "));
    types.map(|(_, kind)| kind).any(|declared| {
        let declared = declared.strip_prefix("Arc<").unwrap_or(declared);
        declared.starts_with(kind)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_findings(path: &str, text: &str) -> usize {
        check_tree(&SourceTree::from_pairs(&[(path, text)])).len()
    }

    #[test]
    fn flag_or_pair_of_component_is_rejected() {
        for text in [
            "struct A {\n    stop: watch::Sender<bool>,\n}\n",
            "fn a(mut stop: watch::Receiver<bool>) {}\n",
            "let (stop, stopped) = watch::channel(false);\n",
            "pub(super) struct A {\n    /// Wakes.\n    wake: Notify,\n    is_over: AtomicBool,\n}\n",
            "mod a {\n    struct A {\n        is_over: Arc<AtomicBool>,\n        wake: Notify,\n    }\n}\n",
        ] {
            assert_eq!(count_findings("crates/host/src/a.rs", text), 1, "{text}");
            assert_eq!(count_findings("crates/runtime/src/a.rs", text), 0, "{text}");
            assert_eq!(count_findings("crates/host/tests/a.rs", text), 0, "{text}");
        }
    }

    #[test]
    fn values_and_separate_structs_pass() {
        for text in [
            "struct A {\n    version: watch::Sender<u64>,\n    settled: watch::Sender<bool>,\n}\n",
            "struct A {\n    wake: Notify,\n    is_lazy: AtomicBool,\n}\n",
            "struct A {\n    wake: Notify,\n}\nstruct B {\n    is_over: AtomicBool,\n}\n",
            "#[cfg(test)]\nmod tests {\n    fn a(stop: watch::Receiver<bool>) {}\n}\n",
        ] {
            assert_eq!(count_findings("crates/host/src/a.rs", text), 0, "{text}");
        }
    }

    #[test]
    fn waker_pairs_are_counted() {
        let pair = "struct A {\n    state: Mutex<u8>,\n    wake: Notify,\n}\n";
        let tree = SourceTree::from_pairs(&[("crates/link/src/a.rs", pair)]);
        assert_eq!(waker_pairs(&tree).count(), 1);
        assert_eq!(check_tree(&tree), []);
    }
}
