//! What the rules say of one thing for one role, and which rule says it. The gateway asks it of
//! the rules in force, and the command line of a file that is not in force yet.

use bowline_core::call::{Contexts, Kind, Principal, Role, Scope};
use bowline_core::policy::{Pattern, Policy, Ruling, Thing};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use thiserror::Error;

use crate::config::Mention;
use crate::config::suggest::nearest;

/// What is asked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    /// The role, or `owner`.
    pub(crate) role: String,
    /// `SERVER.NAME`, with `prompt:` or `resource:` before it where it is no tool.
    pub(crate) target: String,
    /// Who asks, for conditions that look at it; its role in the file counts instead.
    #[serde(default)]
    pub(crate) principal: Option<String>,
    /// Rules that narrow it.
    #[serde(default)]
    pub(crate) contexts: Vec<String>,
    /// The profile whose endpoint is used.
    #[serde(default)]
    pub(crate) profile: Option<String>,
    /// The arguments of a call; without them it is asked what is seen.
    #[serde(default)]
    pub(crate) arguments: Option<Box<RawValue>>,
}

/// Why nothing was decided.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum Unclear {
    /// The target names no one thing.
    #[error("the target must be SERVER.NAME, `prompt:SERVER.NAME` or `resource:SERVER.URI`")]
    Target,
    /// The arguments are no object.
    #[error("the arguments must be a JSON object")]
    Arguments,
}

/// Decides, and returns what a program reads of it.
pub(crate) fn decide(
    policy: &Policy,
    mentions: &[Mention],
    asked: &Asked,
) -> Result<Value, Unclear> {
    let (kind, server, name) = target(&asked.target).ok_or(Unclear::Target)?;
    let arguments = asked.arguments.as_ref().map(|raw| raw.get().as_bytes());
    if arguments.is_some_and(|json| json.first() != Some(&b'{')) {
        return Err(Unclear::Arguments);
    }
    let role = match asked.role.as_str() {
        "owner" => Role::Owner,
        named => Role::Named(named.into()),
    };
    let principal = Principal {
        contexts: Contexts::new(asked.contexts.iter().map(String::as_str)),
        ..Principal::new(asked.principal.as_deref().unwrap_or_default(), role)
    };
    let scope = match &asked.profile {
        Some(profile) => Scope::Profile(profile.as_str().into()),
        None => Scope::All,
    };
    let thing = Thing {
        kind,
        server,
        name,
        arguments,
    };
    let ruling = policy.decide(&principal, &scope, thing);
    let (rule, pattern) = (ruling.rule(), pattern_of(&ruling));
    let place = pattern.and_then(|pattern| place_of(mentions, &rule, pattern));
    let conditions = policy
        .role(&principal)
        .map(|role| format!("roles.{role}.when"));
    let depends = |mention: &&Mention| {
        arguments.is_none()
            && Some(&*mention.rule) == conditions.as_deref()
            && mention.pattern.fits(server, name)
    };
    let depends = mentions.iter().filter(depends).count();
    Ok(json!({
        "v": 1,
        "role": asked.role,
        "kind": word(kind),
        "server": server,
        "name": name,
        "allowed": ruling.allows(),
        "rule": rule,
        "pattern": pattern.map(Pattern::as_str),
        "line": place.map(|mention| mention.place.line),
        "column": place.map(|mention| mention.place.column),
        "reason": ruling.to_string(),
        "conditions": if ruling.allows() { depends } else { 0 },
        "suggestion": suggestion(policy, asked),
    }))
}

/// Reads `[KIND:]SERVER.NAME`.
fn target(text: &str) -> Option<(Kind, &str, &str)> {
    let (kind, rest) = match text.split_once(':') {
        Some(("tool", rest)) => (Kind::Tool, rest),
        Some(("prompt", rest)) => (Kind::Prompt, rest),
        Some(("resource", rest)) => (Kind::Resource, rest),
        Some(_) | None => (Kind::Tool, text),
    };
    let (server, name) = rest.split_once('.')?;
    (!server.is_empty() && !name.is_empty()).then_some((kind, server, name))
}

const fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Tool => "tool",
        Kind::Prompt => "prompt",
        Kind::Resource => "resource",
        Kind::Task => "task",
    }
}

const fn pattern_of<'p>(ruling: &Ruling<'p>) -> Option<&'p Pattern> {
    match ruling {
        Ruling::Allowed { pattern, .. }
        | Ruling::Denied { pattern, .. }
        | Ruling::Hidden { pattern, .. } => Some(pattern),
        Ruling::Unmet { when, .. } | Ruling::Undecided { when, .. } => Some(&when.pattern),
        _ => None,
    }
}

/// A context has one list, which its rule does not name.
fn place_of<'m>(mentions: &'m [Mention], rule: &str, pattern: &Pattern) -> Option<&'m Mention> {
    mentions.iter().find(|mention| {
        let under = mention.rule.strip_prefix(rule);
        matches!(under, Some("" | ".hide")) && mention.pattern == *pattern
    })
}

/// The role that was perhaps meant.
fn suggestion(policy: &Policy, asked: &Asked) -> Option<String> {
    if asked.role == "owner" || policy.has_role(&asked.role) {
        return None;
    }
    let roles = policy.roles();
    nearest(&asked.role, roles.iter().map(AsRef::as_ref)).map(str::to_owned)
}
