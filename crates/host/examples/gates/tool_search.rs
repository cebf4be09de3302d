//! Two thousand realistic tools, and a search query.

use std::fmt::Write as _;

use bowline_core::policy::{
    DefaultAction, ExposeMode, FeaturePattern, Policy, RoleRules, ToolExposure,
};

/// Number of tools and servers.
pub(crate) const TOOLS: usize = 2_000;
pub(crate) const SERVERS: usize = 2;

/// A query with words and prefixes of many tools.
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

/// A policy that allows everything by a rule, and lists nothing.
pub(crate) fn search_policy() -> Policy {
    let rules = RoleRules {
        allow: FeaturePattern::parse("*").into_iter().collect(),
        deny: FeaturePattern::parse("null.write_*").into_iter().collect(),
        ..RoleRules::default()
    };
    Policy::new(DefaultAction::Deny)
        .with_role("reader", rules)
        .with_exposure(ToolExposure {
            expose: ExposeMode::Search,
            favourites: Vec::new(),
        })
}

/// Returns a unique definition that shares words with many others.
pub(crate) fn tool_definition(nth: usize) -> String {
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
