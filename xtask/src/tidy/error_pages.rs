//! Every error code has a page `docs/errors/CODE.md`, and every page has a code.

use std::collections::BTreeSet;

use super::{SourceTree, TidyFinding};

const RULE: &str = "error-pages";
const CODES_FILE: &str = "crates/edge/src/call_errors.rs";
const PAGES_FOLDER: &str = "docs/errors/";

/// Passes as long as the file with the codes does not exist.
pub(super) fn check_tree(tree: &SourceTree) -> Vec<TidyFinding> {
    let Some(source) = tree.file(CODES_FILE) else {
        return Vec::new();
    };
    let codes = parse_codes(&source.text);
    if codes.is_empty() {
        let message = "names no code: neither `code: \"…\"` nor an array `CODES`";
        return vec![TidyFinding::error(RULE, CODES_FILE, 0, message)];
    }
    let pages: BTreeSet<&str> = tree
        .files
        .iter()
        .filter_map(|file| page_code(&file.path))
        .collect();
    let unexplained = codes
        .iter()
        .filter(|code| !pages.contains(code.as_str()))
        .map(|code| {
            TidyFinding::error(
                RULE,
                CODES_FILE,
                0,
                format!("`{code}` has no page {PAGES_FOLDER}{code}.md"),
            )
        });
    let orphaned = pages
        .iter()
        .filter(|page| !codes.contains(**page))
        .map(|page| {
            let message = format!("no error has the code `{page}`");
            TidyFinding::error(RULE, &format!("{PAGES_FOLDER}{page}.md"), 0, message)
        });
    unexplained.chain(orphaned).collect()
}

fn page_code(path: &str) -> Option<&str> {
    path.strip_prefix(PAGES_FOLDER)?
        .strip_suffix(".md")
        .filter(|name| *name != "README")
}

/// Returns the words after `code: "`, in the array `CODES`, and of constants named in the array.
fn parse_codes(text: &str) -> BTreeSet<String> {
    let mut codes: BTreeSet<String> = text
        .split("code: \"")
        .skip(1)
        .filter_map(parse_code)
        .collect();
    for array in text.split("const CODES").skip(1) {
        let body = array.split_once('=').map_or("", |(_, after)| after);
        let body = body.split(';').next().unwrap_or_default();
        codes.extend(body.split('"').skip(1).step_by(2).filter_map(parse_code));
        for name in body.split(|c: char| !c.is_alphanumeric() && c != '_') {
            codes.extend(constant_value(text, name));
        }
    }
    codes
}

/// Returns the value of `const NAME: &str = "word";`.
fn constant_value(text: &str, name: &str) -> Option<String> {
    if name.is_empty() {
        return None;
    }
    let (_, after) = text.split_once(&format!("const {name}: &str"))?;
    parse_code(after.split('"').nth(1)?)
}

/// Parses a code up to the next quote: lower-case words joined by `_`.
fn parse_code(text: &str) -> Option<String> {
    let word = text.split('"').next()?;
    let is_code = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    (!word.is_empty() && word.chars().all(is_code)).then(|| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_messages(files: &[(&str, &str)]) -> Vec<String> {
        check_tree(&SourceTree::from_pairs(files))
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn missing_file_passes() {
        assert_eq!(found_messages(&[("docs/errors/denied.md", "")]), [""; 0]);
    }

    #[test]
    fn code_without_page_is_error() {
        let field = "Shape { code: \"denied\", status: 403 }";
        let array = "pub const CODES: &[&str] = &[\n    \"denied\",\n];";
        let named = "const DENIED: &str = \"denied\";\npub const CODES: [&str; 1] = [DENIED];";
        for text in [field, array, named] {
            assert_eq!(found_messages(&[(CODES_FILE, text)]).len(), 1, "{text}");
            assert_eq!(
                found_messages(&[(CODES_FILE, text), ("docs/errors/denied.md", "")]),
                [""; 0]
            );
        }
    }

    #[test]
    fn page_without_code_is_error() {
        let files = [
            (CODES_FILE, "code: \"denied\""),
            ("docs/errors/denied.md", ""),
            ("docs/errors/x.md", ""),
        ];
        assert_eq!(found_messages(&files), ["no error has the code `x`"]);
    }

    #[test]
    fn file_without_codes_is_error() {
        assert_eq!(found_messages(&[(CODES_FILE, "fn status() {}")]).len(), 1);
    }
}
