//! `docs/behaviours.md`: every promise has a row, every row an existing test or a crate to come.

use std::collections::{BTreeMap, BTreeSet};

use super::{SourceTree, TidyFinding, behaviour_ids};

const RULE: &str = "behaviours";
const BEHAVIOURS_FILE: &str = "docs/behaviours.md";
const CRATE_NAMES: &[&str] = &[
    "core", "wire", "journal", "link", "host", "bowline", "testkit",
];

/// One table row: `| NUMBER | behaviour | tests or "later: CRATE" |`.
#[derive(Debug)]
struct BehaviourRow<'a> {
    line: usize,
    number: &'a str,
    behaviour: &'a str,
    /// Names of the tests that prove the behaviour.
    tests: Vec<&'a str>,
    /// The crate that will contain the missing tests.
    later: Option<&'a str>,
}

pub(super) fn check_tree(tree: &SourceTree) -> Vec<TidyFinding> {
    check_required(tree, &behaviour_ids::required_ids())
}

fn check_required(tree: &SourceTree, required: &[String]) -> Vec<TidyFinding> {
    let Some(file) = tree.file(BEHAVIOURS_FILE) else {
        return vec![TidyFinding::error(
            RULE,
            BEHAVIOURS_FILE,
            0,
            "does not exist",
        )];
    };
    let rows = parse_rows(&file.text);
    let mut found = Vec::new();
    let mut complain = |line: usize, message: String| {
        found.push(TidyFinding::error(RULE, BEHAVIOURS_FILE, line, message))
    };
    let mut seen = BTreeMap::new();
    for row in &rows {
        if let Some(first) = seen.insert(row.number, row.line) {
            complain(
                row.line,
                format!("{} has a row already, line {first}", row.number),
            );
        }
    }
    for number in required
        .iter()
        .filter(|number| !seen.contains_key(number.as_str()))
    {
        complain(0, format!("{number} has no row"));
    }
    let functions = function_names(tree);
    for row in &rows {
        for fault in row_errors(row, &functions) {
            complain(row.line, fault);
        }
    }
    let named: BTreeSet<&str> = rows
        .iter()
        .flat_map(|row| row.tests.iter().copied())
        .collect();
    for name in functions
        .iter()
        .filter(|name| is_security_test(name) && !named.contains(*name))
    {
        complain(0, format!("`{name}` is a test that no row names"));
    }
    found
}

fn row_errors(row: &BehaviourRow<'_>, functions: &BTreeSet<&str>) -> Vec<String> {
    let number = row.number;
    let mut faults = Vec::new();
    if row.behaviour.is_empty() {
        faults.push(format!("{number} says no behaviour"));
    }
    if row.tests.is_empty() && row.later.is_none() {
        faults.push(format!("{number} names neither a test nor `later: ROOM`"));
    }
    let room = row
        .later
        .map(|later| later.split_whitespace().next().unwrap_or_default());
    if let Some(room) = room.filter(|room| !CRATE_NAMES.contains(room)) {
        faults.push(format!(
            "{number}: `{room}` is no room ({})",
            CRATE_NAMES.join(", ")
        ));
    }
    for test in row.tests.iter().filter(|test| !functions.contains(*test)) {
        faults.push(format!("{number}: there is no `fn {test}`"));
    }
    faults
}

fn parse_rows(text: &str) -> Vec<BehaviourRow<'_>> {
    text.lines()
        .enumerate()
        .filter_map(|(at, line)| parse_row(at + 1, line))
        .collect()
}

/// Returns `None` for prose, and for the header and separator of a table.
fn parse_row(line: usize, text: &str) -> Option<BehaviourRow<'_>> {
    let cells = text.trim().strip_prefix('|')?.strip_suffix('|')?;
    let mut cells = cells.splitn(3, '|').map(str::trim);
    let (number, behaviour, shown) = (cells.next()?, cells.next()?, cells.next()?);
    if number == "number" || number.starts_with('-') || number.starts_with(':') {
        return None;
    }
    let mut row = BehaviourRow {
        line,
        number,
        behaviour,
        tests: Vec::new(),
        later: None,
    };
    for part in shown.split(';').map(str::trim) {
        match part.strip_prefix("later:") {
            Some(room) => row.later = Some(room.trim()),
            // Test names are in backticks; text around them is ignored.
            None => row.tests.extend(part.split('`').skip(1).step_by(2)),
        }
    }
    Some(row)
}

/// Returns the name of every function of the workspace.
fn function_names(tree: &SourceTree) -> BTreeSet<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut names = BTreeSet::new();
    for source in &tree.rust {
        for (at, _) in source.code.match_indices("fn ") {
            let (before, after) = source.code.split_at(at);
            if before.chars().next_back().is_some_and(is_word) {
                continue;
            }
            let name = after.get("fn ".len()..).unwrap_or_default();
            names.extend(
                name.split(|c| !is_word(c))
                    .next()
                    .filter(|name| !name.is_empty()),
            );
        }
    }
    names
}

/// `sec_NN_…`
pub(super) fn is_security_test(name: &str) -> bool {
    let digits = name
        .strip_prefix("sec_")
        .and_then(|rest| rest.split_once('_'));
    digits
        .is_some_and(|(number, _)| number.len() >= 2 && number.chars().all(|c| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "| number | behaviour | shown by |\n|---|---|---|\n";

    fn found_messages(rows: &str, code: &str) -> Vec<String> {
        let page = format!("{HEAD}{rows}");
        let tree =
            SourceTree::from_pairs(&[(BEHAVIOURS_FILE, &page), ("crates/x/tests/a.rs", code)]);
        let required = ["S1".to_owned()];
        check_required(&tree, &required)
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn row_with_test_or_crate_passes() {
        assert_eq!(
            found_messages("| S1 | starts | `it_starts` |", "fn it_starts() {}"),
            [""; 0]
        );
        assert_eq!(
            found_messages("| S1 | starts | later: host (embedding) |", ""),
            [""; 0]
        );
        let both = "| S1 | starts | `it_starts`, `it_stops`; later: link |";
        assert_eq!(
            found_messages(both, "async fn it_starts() {}\nfn it_stops() {}"),
            [""; 0]
        );
    }

    #[test]
    fn number_without_row_is_error() {
        assert_eq!(found_messages("", ""), ["S1 has no row"]);
    }

    #[test]
    fn duplicate_row_is_error() {
        let twice = "| S1 | a | later: link |\n| S1 | b | later: link |";
        assert_eq!(found_messages(twice, ""), ["S1 has a row already, line 3"]);
    }

    #[test]
    fn unknown_test_is_error() {
        let commented = "// fn it_starts() {}\nconst A: &str = \"fn it_starts()\";";
        for code in ["", "fn it_starts_late() {}", commented] {
            let found = found_messages("| S1 | starts | `it_starts` |", code);
            assert_eq!(found, ["S1: there is no `fn it_starts`"], "{code}");
        }
    }

    #[test]
    fn row_without_test_or_text_is_error() {
        assert_eq!(
            found_messages("| S1 | starts | soon |", ""),
            ["S1 names neither a test nor `later: ROOM`"]
        );
        assert_eq!(
            found_messages("| S1 | | later: link |", ""),
            ["S1 says no behaviour"]
        );
    }

    #[test]
    fn unknown_crate_is_error() {
        let found = found_messages("| S1 | starts | later: cellar |", "");
        assert!(
            found
                .first()
                .is_some_and(|message| message.contains("`cellar` is no room"))
        );
    }

    #[test]
    fn unlisted_security_test_is_error() {
        let found = found_messages("| S1 | starts | later: link |", "fn sec_07_a_big_body() {}");
        assert_eq!(found, ["`sec_07_a_big_body` is a test that no row names"]);
        assert_eq!(
            found_messages("| S1 | starts | later: link |", "fn sec_key() {}"),
            [""; 0]
        );
    }

    #[test]
    fn missing_page_is_error() {
        assert_eq!(check_required(&SourceTree::from_pairs(&[]), &[]).len(), 1);
    }
}
