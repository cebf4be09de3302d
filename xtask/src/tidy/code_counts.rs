//! `cargo xtask count`: figures of the source code of a workspace, for a comparison of two states.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use super::code_items::function_signatures;
use super::{SourceFile, SourceTree, crate_sizes, rpc_envelopes};
use crate::repo;

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
    let figures = [
        (sizes.values().sum(), "lines of code in all crates"),
        (
            rpc_envelopes::check_tree(&tree).len(),
            "JSON-RPC envelopes written by hand",
        ),
        (
            count_lines(&tree, is_close_code),
            "close codes of WebSockets defined",
        ),
        (count_functions(&tree, "jitter"), "functions for jitter"),
        (
            count_functions(&tree, "_member") + count_functions(&tree, "_members"),
            "functions named for members of JSON objects",
        ),
        (
            count_command_line_types(&tree),
            "types of the command line that read a response of the API",
        ),
    ];
    for (count, what) in figures {
        println!("{count:>7}  {what}");
    }
    Ok(ExitCode::SUCCESS)
}

fn product_files(tree: &SourceTree) -> impl Iterator<Item = &SourceFile> {
    let is_product = |path: &str| path.starts_with("crates/") && path.contains("/src/");
    let files = tree.rust.iter();
    files.filter(move |source| is_product(source.path()) && !source.path().contains("/testing/"))
}

fn count_lines(tree: &SourceTree, is_counted: fn(&str) -> bool) -> usize {
    let count = |source: &SourceFile| {
        let lines = source.code.lines().enumerate();
        let counted = lines.filter(|(at, line)| !source.is_test_line(*at) && is_counted(line));
        counted.count()
    };
    product_files(tree).map(count).sum()
}

/// Returns the number of functions whose name contains or, for a word with `_`, ends with `word`.
fn count_functions(tree: &SourceTree, word: &str) -> usize {
    let is_named = |name: &str| match word.strip_prefix('_') {
        Some(_) => name.ends_with(word),
        None => name.contains(word),
    };
    let count = |source: &SourceFile| {
        let functions = function_signatures(&source.code).into_iter();
        let named = functions.filter(|function| is_named(function.name));
        named
            .filter(|function| !source.is_test_line(function.line))
            .count()
    };
    product_files(tree).map(count).sum()
}

/// Matches `const GOING_AWAY: u16 = 1001;` with a code of RFC 6455 or of an application.
fn is_close_code(line: &str) -> bool {
    let code = line
        .split_once(": u16 = ")
        .filter(|_| line.contains("const "));
    let code = code.and_then(|(_, code)| code.trim_end_matches(';').parse::<u16>().ok());
    code.is_some_and(|code| (1000..=1015).contains(&code) || (4000..=4999).contains(&code))
}

/// Counts `struct ApiX`: the command line's own declarations of what the edge writes.
fn count_command_line_types(tree: &SourceTree) -> usize {
    let count = |source: &SourceFile| {
        let lines = source.code.lines().enumerate();
        let types = lines.filter(|(at, line)| {
            let is_type = line.contains("struct Api") || line.contains("enum Api");
            is_type && !source.is_test_line(*at)
        });
        types.count()
    };
    let sources = product_files(tree);
    let command_line = sources.filter(|source| source.path().starts_with("crates/bowline/src/cli"));
    command_line.map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_codes_and_functions_are_counted() {
        let text = "pub const GONE: u16 = 1001;\nconst FENCED: u16 = 4001;\nconst N: u16 = 1024;\n\
                    fn random_jitter() {}\nfn set_member() {}\nfn member_of() {}\n\
                    #[cfg(test)]\nmod tests {\n    fn jitter_is_small() {}\n}\n";
        let tree = SourceTree::from_pairs(&[("crates/x/src/a.rs", text)]);
        assert_eq!(count_lines(&tree, is_close_code), 2);
        assert_eq!(count_functions(&tree, "jitter"), 1);
        assert_eq!(count_functions(&tree, "_member"), 1);
    }

    #[test]
    fn api_types_of_command_line_are_counted() {
        let files = [
            (
                "crates/bowline/src/cli/a.rs",
                "struct ApiA {\n}\nstruct B;\n",
            ),
            ("crates/bowline/src/edge/a.rs", "struct ApiA {\n}\n"),
        ];
        assert_eq!(count_command_line_types(&SourceTree::from_pairs(&files)), 1);
    }
}
