//! Every error code has a page, `docs/errors/CODE.md`, and every page has a code.

use std::collections::BTreeSet;

use super::{Finding, Tree};

const RULE: &str = "error-pages";
const SOURCE: &str = "crates/bowline/src/edge/errors.rs";
const PAGES: &str = "docs/errors/";

/// Silent as long as the file that names the codes does not exist.
pub(super) fn rule(tree: &Tree) -> Vec<Finding> {
    let Some(source) = tree.file(SOURCE) else {
        return Vec::new();
    };
    let codes = codes(&source.text);
    if codes.is_empty() {
        let message = "names no code: neither `code: \"…\"` nor an array `CODES`";
        return vec![Finding::error(RULE, SOURCE, 0, message)];
    }
    let pages: BTreeSet<&str> = tree
        .files
        .iter()
        .filter_map(|file| page(&file.path))
        .collect();
    let unexplained = codes
        .iter()
        .filter(|code| !pages.contains(code.as_str()))
        .map(|code| {
            Finding::error(
                RULE,
                SOURCE,
                0,
                format!("`{code}` has no page {PAGES}{code}.md"),
            )
        });
    let orphaned = pages
        .iter()
        .filter(|page| !codes.contains(**page))
        .map(|page| {
            let message = format!("no error has the code `{page}`");
            Finding::error(RULE, &format!("{PAGES}{page}.md"), 0, message)
        });
    unexplained.chain(orphaned).collect()
}

fn page(path: &str) -> Option<&str> {
    path.strip_prefix(PAGES)?
        .strip_suffix(".md")
        .filter(|name| *name != "README")
}

/// The words after `code: "`, those in the array `CODES`, and the constants named in it.
fn codes(text: &str) -> BTreeSet<String> {
    let mut codes: BTreeSet<String> = text.split("code: \"").skip(1).filter_map(word).collect();
    for array in text.split("const CODES").skip(1) {
        let body = array.split_once('=').map_or("", |(_, after)| after);
        let body = body.split(';').next().unwrap_or_default();
        codes.extend(body.split('"').skip(1).step_by(2).filter_map(word));
        for name in body.split(|c: char| !c.is_alphanumeric() && c != '_') {
            codes.extend(constant(text, name));
        }
    }
    codes
}

/// The value of `const NAME: &str = "word";`.
fn constant(text: &str, name: &str) -> Option<String> {
    if name.is_empty() {
        return None;
    }
    let (_, after) = text.split_once(&format!("const {name}: &str"))?;
    word(after.split('"').nth(1)?)
}

/// A code is lower-case words joined by `_`, up to the next quote.
fn word(text: &str) -> Option<String> {
    let word = text.split('"').next()?;
    let is_code = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    (!word.is_empty() && word.chars().all(is_code)).then(|| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(files: &[(&str, &str)]) -> Vec<String> {
        rule(&Tree::of(files))
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn without_the_file_the_rule_is_silent() {
        assert_eq!(messages(&[("docs/errors/denied.md", "")]), [""; 0]);
    }

    #[test]
    fn a_code_without_a_page_is_an_error() {
        let field = "Shape { code: \"denied\", status: 403 }";
        let array = "pub const CODES: &[&str] = &[\n    \"denied\",\n];";
        let named = "const DENIED: &str = \"denied\";\npub const CODES: [&str; 1] = [DENIED];";
        for text in [field, array, named] {
            assert_eq!(messages(&[(SOURCE, text)]).len(), 1, "{text}");
            assert_eq!(
                messages(&[(SOURCE, text), ("docs/errors/denied.md", "")]),
                [""; 0]
            );
        }
    }

    #[test]
    fn a_page_without_a_code_is_an_error() {
        let files = [
            (SOURCE, "code: \"denied\""),
            ("docs/errors/denied.md", ""),
            ("docs/errors/x.md", ""),
        ];
        assert_eq!(messages(&files), ["no error has the code `x`"]);
    }

    #[test]
    fn a_file_that_names_no_code_is_an_error() {
        assert_eq!(messages(&[(SOURCE, "fn status() {}")]).len(), 1);
    }
}
