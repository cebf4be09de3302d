//! `cargo xtask count`: figures of the source code of a workspace, for a comparison of two states.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use super::allow_list::find_excuse;
use super::code_items::{FunctionSignature, function_signatures, type_definitions};
use super::{SourceFile, SourceTree, component_flags, crate_sizes, rpc_envelopes};
use crate::repo;

/// Places in the code that are counted, and places left out, each with the reason.
#[derive(Debug, Default, PartialEq, Eq)]
struct PlaceCount {
    counted: Vec<String>,
    excluded: Vec<(String, String)>,
}

/// Prints the figures of the workspace at `--root`, or of this workspace.
pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    let root = match rest {
        [] => root.to_owned(),
        [flag, path] if flag == "--root" => PathBuf::from(path),
        [other, ..] => bail!("unknown option `{other}`; known: --root WORKSPACE"),
    };
    let root = root.canonicalize().context("the workspace")?;
    let tree = SourceTree::new(repo::list_text_files(&root)?);
    let sizes = crate_sizes::crate_code_lines(&tree);
    for (folder, lines) in &sizes {
        println!("{lines:>7}  lines of code in crates/{folder}");
    }
    let all: usize = sizes.values().sum();
    println!("{all:>7}  lines of code in all crates");
    let figures = [
        (
            count_envelopes(&tree),
            "JSON-RPC envelopes outside the builder",
        ),
        (count_jitter(&tree), "functions that compute jitter"),
        (
            count_editors(&tree),
            "editors of members of JSON objects in text",
        ),
        (
            count_close_codes(&tree),
            "files that define close codes of WebSockets",
        ),
        (count_repeated_api_types(&tree), "API types declared twice"),
        (
            count_component_flags(&tree),
            "shutdown flags of a component's own",
        ),
        (
            count_waker_pairs(&tree),
            "structs with a mutex and a waker of their own",
        ),
    ];
    for (places, what) in figures {
        println!("{:>7}  {what}", places.counted.len());
        for place in &places.counted {
            println!("{:>11} {place}", "");
        }
        for (place, reason) in &places.excluded {
            println!("{:>11} not counted: {place}: {reason}", "");
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl PlaceCount {
    /// Adds a place; with a reason to leave it out, to the excluded places.
    fn add_place(&mut self, place: String, excuse: Option<impl Into<String>>) {
        match excuse {
            None => self.counted.push(place),
            Some(reason) => self.excluded.push((place, reason.into())),
        }
    }
}

fn product_files(tree: &SourceTree) -> impl Iterator<Item = &SourceFile> {
    let is_product = |path: &str| path.starts_with("crates/") && path.contains("/src/");
    let files = tree.rust.iter();
    files.filter(move |source| is_product(source.path()) && !source.path().contains("/testing/"))
}

/// Returns the functions of the product, without tests.
fn product_functions(
    tree: &SourceTree,
) -> impl Iterator<Item = (&SourceFile, FunctionSignature<'_>)> {
    product_files(tree).flat_map(|source| {
        let functions = function_signatures(&source.code).into_iter();
        let functions = functions.filter(|function| !source.is_test_line(function.line));
        functions.map(move |function| (source, function))
    })
}

fn describe_place(source: &SourceFile, line: usize, name: &str) -> String {
    format!("{}:{} {name}", source.path(), line + 1)
}

/// Returns the code of a function: up to the closing brace with the indentation of its first line.
fn function_code(source: &SourceFile, first: usize) -> String {
    let mut lines = source.code.lines().skip(first).peekable();
    let indentation = lines
        .peek()
        .map_or(0, |line| line.len() - line.trim_start().len());
    let end = format!("{}}}", " ".repeat(indentation));
    let body: Vec<_> = lines.take_while(|line| *line != end).collect();
    body.join("\n")
}

fn count_envelopes(tree: &SourceTree) -> PlaceCount {
    let mut places = PlaceCount::default();
    for finding in rpc_envelopes::check_tree(tree) {
        let place = format!("{}:{}", finding.path, finding.line);
        places.add_place(place, find_excuse(tree, &finding));
    }
    let generator = rpc_envelopes::LOAD_GENERATOR.to_owned();
    let reason = "the load generator shares no code with what it measures";
    places.add_place(generator, Some(reason));
    places
}

fn count_component_flags(tree: &SourceTree) -> PlaceCount {
    let mut places = PlaceCount::default();
    for finding in component_flags::check_tree(tree) {
        let place = format!("{}:{}", finding.path, finding.line);
        places.add_place(place, find_excuse(tree, &finding));
    }
    places
}

fn count_waker_pairs(tree: &SourceTree) -> PlaceCount {
    let counted = component_flags::waker_pairs(tree).collect();
    PlaceCount {
        counted,
        excluded: Vec::new(),
    }
}

/// A function that only passes a time to the one source computes nothing.
fn count_jitter(tree: &SourceTree) -> PlaceCount {
    let mut places = PlaceCount::default();
    for (source, function) in product_functions(tree) {
        if function.name.contains("jitter") {
            let asks_source = function_code(source, function.line).contains(".jitter(");
            let excuse = asks_source.then_some("asks the one source");
            places.add_place(describe_place(source, function.line, function.name), excuse);
        }
    }
    places
}

/// Types that end with `Editor`, and functions that are named for a change of members and change
/// them without such a type.
fn count_editors(tree: &SourceTree) -> PlaceCount {
    let mut places = PlaceCount::default();
    for source in product_files(tree) {
        for found in type_definitions(&source.code) {
            if found.name.ends_with("Editor") && !source.is_test_line(found.line) {
                let place = describe_place(source, found.line, found.name);
                places.add_place(place, None::<String>);
            }
        }
    }
    for (source, function) in product_functions(tree) {
        if !is_member_change(function.name) {
            continue;
        }
        let code = function_code(source, function.line);
        let excuse = if code.contains("ObjectEditor") {
            Some("uses the one editor")
        } else if function
            .parameters
            .iter()
            .any(|parameter| parameter.kind == "&mut Value")
        {
            Some("changes a parsed value, no text")
        } else if function.result.is_none_or(|result| !has_bytes(result)) {
            Some("returns no JSON text")
        } else {
            None
        };
        places.add_place(describe_place(source, function.line, function.name), excuse);
    }
    places
}

/// Matches `set_member`, `rename_members` and the like.
fn is_member_change(name: &str) -> bool {
    let verbs = [
        "add_", "remove_", "rename_", "replace_", "set_", "strip_", "with_",
    ];
    let is_named = name.ends_with("_member") || name.ends_with("_members");
    is_named && verbs.iter().any(|verb| name.starts_with(verb))
}

fn has_bytes(result: &str) -> bool {
    ["Bytes", "Vec<u8>", "[u8]", "String", "str"]
        .iter()
        .any(|text| result.contains(text))
}

fn count_close_codes(tree: &SourceTree) -> PlaceCount {
    let mut places = PlaceCount::default();
    for source in product_files(tree) {
        let mut lines = source.code.lines().enumerate();
        if lines.any(|(at, line)| !source.is_test_line(at) && is_close_code(line)) {
            places.add_place(source.path().to_owned(), None::<String>);
        }
    }
    places
}

/// Matches `const GOING_AWAY: u16 = 1001;` with a code of RFC 6455 or of an application.
fn is_close_code(line: &str) -> bool {
    let code = line
        .split_once(": u16 = ")
        .filter(|_| line.contains("const "));
    let code = code.and_then(|(_, code)| code.trim_end_matches(';').parse::<u16>().ok());
    code.is_some_and(|code| (1000..=1015).contains(&code) || (4000..=4999).contains(&code))
}

/// The crate that declares the bodies of the API.
const API_CRATE: &str = "crates/api/";

/// Where a second declaration would stand: with the code that writes and that reads the bodies.
const API_USERS: [&str; 2] = ["crates/edge/src/", "crates/bowline/src/cli/"];

/// Types that have the name of a type of the API, or a name that begins with `Api`, and are written
/// or read as JSON.
fn count_repeated_api_types(tree: &SourceTree) -> PlaceCount {
    let declared: BTreeSet<_> = product_files(tree)
        .filter(|source| source.path().starts_with(API_CRATE))
        .flat_map(|source| type_definitions(&source.code))
        .map(|found| found.name)
        .collect();
    let mut places = PlaceCount::default();
    let is_user =
        |source: &&SourceFile| API_USERS.iter().any(|user| source.path().starts_with(user));
    for source in product_files(tree).filter(is_user) {
        for found in type_definitions(&source.code) {
            let is_named = declared.contains(found.name) || found.name.starts_with("Api");
            if is_named && !source.is_test_line(found.line) {
                let excuse =
                    (!derives_json(source, found.line)).then_some("not read or written as JSON");
                places.add_place(describe_place(source, found.line, found.name), excuse);
            }
        }
    }
    places
}

/// Returns whether the attributes before a type derive a trait of serde.
fn derives_json(source: &SourceFile, line: usize) -> bool {
    let lines: Vec<_> = source.code.lines().take(line).collect();
    let before = lines
        .iter()
        .rev()
        .take_while(|line| !line.trim().is_empty());
    let mut attributes = before.filter(|line| line.contains("derive("));
    attributes.any(|line| line.contains("Serialize") || line.contains("Deserialize"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(text: &str) -> SourceTree {
        SourceTree::from_pairs(&[("crates/x/src/a.rs", text)])
    }

    #[track_caller]
    fn assert_counts(places: &PlaceCount, counted: usize, excluded: usize) {
        let found = (places.counted.len(), places.excluded.len());
        assert_eq!(found, (counted, excluded), "{places:?}");
    }

    #[test]
    fn excused_envelope_is_shown_as_excluded() {
        let envelope = "const A: &str = r#\"{\"jsonrpc\":\"2.0\"}\"#;\n";
        let excuse =
            "[[allow]]\nrule = \"envelope\"\npath = \"crates/x/src/b.rs\"\nreason = \"broken\"\n";
        let tree = SourceTree::from_pairs(&[
            ("crates/x/src/a.rs", envelope),
            ("crates/x/src/b.rs", envelope),
            ("xtask/tidy-allow.toml", excuse),
        ]);
        let places = count_envelopes(&tree);
        assert_counts(&places, 1, 2);
        assert_eq!(places.excluded[0].1, "broken");
    }

    #[test]
    fn file_with_close_codes_counts_once() {
        let text = "pub const GONE: u16 = 1001;\nconst FENCED: u16 = 4001;\n";
        assert_counts(&count_close_codes(&tree(text)), 1, 0);
        assert_counts(&count_close_codes(&tree("const N: u16 = 1024;\n")), 0, 0);
    }

    #[test]
    fn jitter_counts_where_it_is_computed() {
        let text = "fn random_jitter() -> u64 {\n    7\n}\n\
                    fn lane_jitter(s: &Source) -> u64 {\n    s.jitter(1)\n}\n\
                    #[cfg(test)]\nmod tests {\n    fn jitter_is_small() {}\n}\n";
        assert_counts(&count_jitter(&tree(text)), 1, 1);
    }

    #[test]
    fn editors_of_text_are_counted() {
        let text = "struct TextEditor;\n\
                    fn set_member(text: &[u8]) -> Vec<u8> {\n    splice(text)\n}\n\
                    fn with_member(&self) -> Vec<u8> {\n    ObjectEditor::new(self)\n}\n\
                    fn add_members(key: &mut Key) {\n}\n\
                    fn remove_member(object: &mut Value) -> String {\n}\n\
                    fn member_of() {}\n";
        assert_counts(&count_editors(&tree(text)), 2, 3);
    }

    #[test]
    fn repeated_api_types_are_counted() {
        let files = [
            ("crates/api/src/a.rs", "pub struct Token {\n}\n"),
            (
                "crates/bowline/src/cli/a.rs",
                "#[derive(Deserialize)]\nstruct ApiA {\n}\nstruct B;\n",
            ),
            ("crates/bowline/src/cli/b.rs", "struct ApiClient {\n}\n"),
            (
                "crates/edge/src/api/a.rs",
                "#[derive(Serialize)]\nstruct Token {\n}\n",
            ),
            (
                "crates/host/src/a.rs",
                "#[derive(Serialize)]\nstruct Token {\n}\n",
            ),
        ];
        let places = count_repeated_api_types(&SourceTree::from_pairs(&files));
        assert_counts(&places, 2, 1);
    }
}
