//! List of excused findings, `xtask/tidy-allow.toml`: each entry has a rule, a file and a reason.

use serde::Deserialize;

use super::{FindingLevel, SourceTree, TidyFinding};

const ALLOW_FILE: &str = "xtask/tidy-allow.toml";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowList {
    #[serde(default)]
    allow: Vec<AllowEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowEntry {
    rule: String,
    path: String,
    reason: String,
}

/// Returns the reason that excuses a finding, if any.
pub(super) fn find_excuse(tree: &SourceTree, finding: &TidyFinding) -> Option<String> {
    let list: AllowList = toml::from_str(&tree.file(ALLOW_FILE)?.text).ok()?;
    let mut entries = list.allow.into_iter();
    let entry = entries.find(|entry| entry.rule == finding.rule && entry.path == finding.path);
    Some(entry?.reason)
}

/// Removes excused errors; an unused entry or an entry without a reason is an error.
pub(super) fn apply_allow_list(tree: &SourceTree, found: Vec<TidyFinding>) -> Vec<TidyFinding> {
    let Some(file) = tree.file(ALLOW_FILE) else {
        return found;
    };
    let list: AllowList = match toml::from_str(&file.text) {
        Ok(list) => list,
        Err(error) => {
            let message = error.message().to_owned();
            return found
                .into_iter()
                .chain([TidyFinding::error("allow", ALLOW_FILE, 0, message)])
                .collect();
        }
    };
    let excuses = |entry: &AllowEntry, finding: &TidyFinding| {
        entry.rule == finding.rule
            && entry.path == finding.path
            && finding.level == FindingLevel::Error
    };
    let complaints = list.allow.iter().filter_map(|entry| {
        let AllowEntry { rule, path, reason } = entry;
        if reason.trim().is_empty() {
            let message = format!("`{rule}` for {path} gives no reason");
            return Some(TidyFinding::error("allow", ALLOW_FILE, 0, message));
        }
        if found.iter().any(|finding| excuses(entry, finding)) {
            return None;
        }
        let message = format!("`{rule}` for {path} excuses nothing any more: take it out");
        Some(TidyFinding::error("allow", ALLOW_FILE, 0, message))
    });
    let complaints: Vec<TidyFinding> = complaints.collect();
    let kept = |finding: &TidyFinding| !list.allow.iter().any(|entry| excuses(entry, finding));
    found.into_iter().filter(kept).chain(complaints).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLEEP: &str = "[[allow]]\nrule = \"sleep\"\npath = \"a.rs\"\nreason = \"waits\"\n";

    fn sleep_finding() -> TidyFinding {
        TidyFinding::error("sleep", "a.rs", 3, "sleeps")
    }

    #[test]
    fn listed_finding_is_excused() {
        assert_eq!(
            apply_allow_list(
                &SourceTree::from_pairs(&[(ALLOW_FILE, SLEEP)]),
                vec![sleep_finding()]
            ),
            []
        );
    }

    #[test]
    fn unused_entry_is_error() {
        let found = apply_allow_list(&SourceTree::from_pairs(&[(ALLOW_FILE, SLEEP)]), Vec::new());
        assert!(
            found.iter().any(|f| f.message.contains("excuses nothing")),
            "{found:?}"
        );
    }

    #[test]
    fn entry_without_reason_is_error() {
        let list = SLEEP.replace("waits", " ");
        let found = apply_allow_list(
            &SourceTree::from_pairs(&[(ALLOW_FILE, &list)]),
            vec![sleep_finding()],
        );
        assert!(
            found.iter().any(|f| f.message.contains("gives no reason")),
            "{found:?}"
        );
    }

    #[test]
    fn malformed_list_is_error() {
        let found = apply_allow_list(
            &SourceTree::from_pairs(&[(ALLOW_FILE, "[[allow]]\nrules = 1\n")]),
            Vec::new(),
        );
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
