//! `docs/behaviours.md`: every promise has a row, every row a test that exists or a room to come.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Tree, ids};

const RULE: &str = "behaviours";
const PATH: &str = "docs/behaviours.md";
const ROOMS: &[&str] = &["core", "wire", "journal", "link", "host", "bowline", "sim"];

/// One row of a table: `| NUMBER | behaviour | tests or "later: room" |`.
#[derive(Debug)]
struct Row<'a> {
    line: usize,
    number: &'a str,
    behaviour: &'a str,
    /// Names of tests that show it.
    tests: Vec<&'a str>,
    /// The room that will hold what is not shown yet.
    later: Option<&'a str>,
}

pub(super) fn rule(tree: &Tree) -> Vec<Finding> {
    against(tree, &ids::all())
}

fn against(tree: &Tree, required: &[String]) -> Vec<Finding> {
    let Some(file) = tree.file(PATH) else {
        return vec![Finding::error(RULE, PATH, 0, "does not exist")];
    };
    let rows = rows(&file.text);
    let mut found = Vec::new();
    let mut complain =
        |line: usize, message: String| found.push(Finding::error(RULE, PATH, line, message));
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
    let functions = functions(tree);
    for row in &rows {
        for fault in row_faults(row, &functions) {
            complain(row.line, fault);
        }
    }
    let named: BTreeSet<&str> = rows
        .iter()
        .flat_map(|row| row.tests.iter().copied())
        .collect();
    for name in functions
        .iter()
        .filter(|name| is_attack(name) && !named.contains(*name))
    {
        complain(0, format!("`{name}` is a test that no row names"));
    }
    found
}

fn row_faults(row: &Row<'_>, functions: &BTreeSet<&str>) -> Vec<String> {
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
    if let Some(room) = room.filter(|room| !ROOMS.contains(room)) {
        faults.push(format!(
            "{number}: `{room}` is no room ({})",
            ROOMS.join(", ")
        ));
    }
    for test in row.tests.iter().filter(|test| !functions.contains(*test)) {
        faults.push(format!("{number}: there is no `fn {test}`"));
    }
    faults
}

fn rows(text: &str) -> Vec<Row<'_>> {
    text.lines()
        .enumerate()
        .filter_map(|(at, line)| row(at + 1, line))
        .collect()
}

/// None for prose, and for the head and rule of a table.
fn row(line: usize, text: &str) -> Option<Row<'_>> {
    let cells = text.trim().strip_prefix('|')?.strip_suffix('|')?;
    let mut cells = cells.splitn(3, '|').map(str::trim);
    let (number, behaviour, shown) = (cells.next()?, cells.next()?, cells.next()?);
    if number == "number" || number.starts_with('-') || number.starts_with(':') {
        return None;
    }
    let mut row = Row {
        line,
        number,
        behaviour,
        tests: Vec::new(),
        later: None,
    };
    for part in shown.split(';').map(str::trim) {
        match part.strip_prefix("later:") {
            Some(room) => row.later = Some(room.trim()),
            // Names stand in backticks; words around them are for people.
            None => row.tests.extend(part.split('`').skip(1).step_by(2)),
        }
    }
    Some(row)
}

/// The name of every function of the workspace.
fn functions(tree: &Tree) -> BTreeSet<&str> {
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
fn is_attack(name: &str) -> bool {
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

    fn messages(rows: &str, code: &str) -> Vec<String> {
        let page = format!("{HEAD}{rows}");
        let tree = Tree::of(&[(PATH, &page), ("crates/x/tests/a.rs", code)]);
        let required = ["S1".to_owned()];
        against(&tree, &required)
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn a_row_with_an_existing_test_or_a_room_is_silent() {
        assert_eq!(
            messages("| S1 | starts | `it_starts` |", "fn it_starts() {}"),
            [""; 0]
        );
        assert_eq!(
            messages("| S1 | starts | later: host (embedding) |", ""),
            [""; 0]
        );
        let both = "| S1 | starts | `it_starts`, `it_stops`; later: link |";
        assert_eq!(
            messages(both, "async fn it_starts() {}\nfn it_stops() {}"),
            [""; 0]
        );
    }

    #[test]
    fn a_number_without_a_row_is_an_error() {
        assert_eq!(messages("", ""), ["S1 has no row"]);
    }

    #[test]
    fn a_number_with_two_rows_is_an_error() {
        let twice = "| S1 | a | later: link |\n| S1 | b | later: link |";
        assert_eq!(messages(twice, ""), ["S1 has a row already, line 3"]);
    }

    #[test]
    fn a_test_that_does_not_exist_is_an_error() {
        let commented = "// fn it_starts() {}\nconst A: &str = \"fn it_starts()\";";
        for code in ["", "fn it_starts_late() {}", commented] {
            let found = messages("| S1 | starts | `it_starts` |", code);
            assert_eq!(found, ["S1: there is no `fn it_starts`"], "{code}");
        }
    }

    #[test]
    fn a_row_that_shows_nothing_is_an_error() {
        assert_eq!(
            messages("| S1 | starts | soon |", ""),
            ["S1 names neither a test nor `later: ROOM`"]
        );
        assert_eq!(
            messages("| S1 | | later: link |", ""),
            ["S1 says no behaviour"]
        );
    }

    #[test]
    fn a_room_that_does_not_exist_is_an_error() {
        let found = messages("| S1 | starts | later: cellar |", "");
        assert!(
            found
                .first()
                .is_some_and(|message| message.contains("`cellar` is no room"))
        );
    }

    #[test]
    fn an_attack_that_no_row_names_is_an_error() {
        let found = messages("| S1 | starts | later: link |", "fn sec_07_a_big_body() {}");
        assert_eq!(found, ["`sec_07_a_big_body` is a test that no row names"]);
        assert_eq!(
            messages("| S1 | starts | later: link |", "fn sec_key() {}"),
            [""; 0]
        );
    }

    #[test]
    fn without_the_page_the_rule_complains() {
        assert_eq!(against(&Tree::of(&[]), &[]).len(), 1);
    }
}
