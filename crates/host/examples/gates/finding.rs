//! Two thousand tools as real servers describe theirs, and a question about them.

use std::fmt::Write as _;

use bowline_core::policy::{Expose, Exposure, Otherwise, Pattern, Policy, RoleRules};

/// How many tools there are, and on how many servers.
pub(crate) const TOOLS: usize = 2_000;
pub(crate) const SERVERS: usize = 2;

/// What is looked for: words of many tools, and beginnings of words.
pub(crate) const ARGUMENTS: &str =
    r#"{"query":"create a new issue in the repository with labels"}"#;

const VERBS: [&str; 10] = [
    "create", "update", "delete", "list", "search", "get", "close", "merge", "assign", "export",
];
const THINGS: [&str; 10] = [
    "issue",
    "repository",
    "branch",
    "label",
    "comment",
    "release",
    "milestone",
    "project",
    "team",
    "pipeline",
];
const WAYS: [&str; 10] = [
    "by_name",
    "in_bulk",
    "for_user",
    "with_history",
    "by_date",
    "as_draft",
    "in_archive",
    "for_group",
    "by_query",
    "with_labels",
];

/// Everything may be used, by a rule, and nothing is listed.
pub(crate) fn policy() -> Policy {
    let rules = RoleRules {
        allow: Pattern::parse("*").into_iter().collect(),
        deny: Pattern::parse("null.write_*").into_iter().collect(),
        ..RoleRules::default()
    };
    Policy::new(Otherwise::Deny)
        .with_role("reader", rules)
        .with_exposure(Exposure {
            expose: Expose::Search,
            favourites: Vec::new(),
        })
}

/// Returns the definition of a tool that is like no other, and shares its words with many.
pub(crate) fn definition(nth: usize) -> String {
    let pick = |words: &[&'static str], by: usize| words.get(by % words.len()).copied();
    let verb = pick(&VERBS, nth).unwrap_or_default();
    let thing = pick(&THINGS, nth / 10).unwrap_or_default();
    let way = pick(&WAYS, nth / 100).unwrap_or_default();
    let other = pick(&THINGS, nth / 7 + 3).unwrap_or_default();
    let mut properties = String::new();
    for (at, of) in [thing, other, "limit", "cursor"].iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let about = format!("The {of} to {verb}, as the {other} names it");
        let _ = write!(
            properties,
            r#"{comma}"{of}_{at}":{{"type":"string","description":"{about}"}}"#,
        );
    }
    format!(
        concat!(
            r#"{{"name":"{}_{}_{}_{}","description":"Lets you {} one {} or several of a {}, and "#,
            r#"returns what changed, who changed it and when, with the {} it belongs to.","#,
            r#""inputSchema":{{"type":"object","properties":{{{}}},"required":["{}_0"]}}}}"#,
        ),
        verb, thing, way, nth, verb, thing, other, way, properties, thing
    )
}
