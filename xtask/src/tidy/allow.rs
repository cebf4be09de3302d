//! The list of excused findings, `xtask/tidy-allow.toml`: each names a rule, a file and a reason.

use serde::Deserialize;

use super::{Finding, Level, Tree};

const PATH: &str = "xtask/tidy-allow.toml";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    allow: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    rule: String,
    path: String,
    reason: String,
}

/// Takes excused errors out; an entry that excuses nothing, or says no reason, is an error itself.
pub(super) fn excuse(tree: &Tree, found: Vec<Finding>) -> Vec<Finding> {
    let Some(file) = tree.file(PATH) else {
        return found;
    };
    let list: List = match toml::from_str(&file.text) {
        Ok(list) => list,
        Err(error) => {
            let message = error.message().to_owned();
            return found
                .into_iter()
                .chain([Finding::error("allow", PATH, 0, message)])
                .collect();
        }
    };
    let excuses = |entry: &Entry, finding: &Finding| {
        entry.rule == finding.rule && entry.path == finding.path && finding.level == Level::Error
    };
    let complaints = list.allow.iter().filter_map(|entry| {
        let Entry { rule, path, reason } = entry;
        if reason.trim().is_empty() {
            let message = format!("`{rule}` for {path} gives no reason");
            return Some(Finding::error("allow", PATH, 0, message));
        }
        if found.iter().any(|finding| excuses(entry, finding)) {
            return None;
        }
        let message = format!("`{rule}` for {path} excuses nothing any more: take it out");
        Some(Finding::error("allow", PATH, 0, message))
    });
    let complaints: Vec<Finding> = complaints.collect();
    let kept = |finding: &Finding| !list.allow.iter().any(|entry| excuses(entry, finding));
    found.into_iter().filter(kept).chain(complaints).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLEEP: &str = "[[allow]]\nrule = \"sleep\"\npath = \"a.rs\"\nreason = \"waits\"\n";

    fn finding() -> Finding {
        Finding::error("sleep", "a.rs", 3, "sleeps")
    }

    #[test]
    fn a_listed_finding_is_excused() {
        assert_eq!(excuse(&Tree::of(&[(PATH, SLEEP)]), vec![finding()]), []);
    }

    #[test]
    fn an_entry_that_excuses_nothing_is_an_error() {
        let found = excuse(&Tree::of(&[(PATH, SLEEP)]), Vec::new());
        assert!(
            found.iter().any(|f| f.message.contains("excuses nothing")),
            "{found:?}"
        );
    }

    #[test]
    fn an_entry_without_a_reason_is_an_error() {
        let list = SLEEP.replace("waits", " ");
        let found = excuse(&Tree::of(&[(PATH, &list)]), vec![finding()]);
        assert!(
            found.iter().any(|f| f.message.contains("gives no reason")),
            "{found:?}"
        );
    }

    #[test]
    fn a_list_that_cannot_be_read_is_an_error() {
        let found = excuse(&Tree::of(&[(PATH, "[[allow]]\nrules = 1\n")]), Vec::new());
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
