//! Evaluates the policy for a role and a target, and names the deciding rule. The gateway
//! evaluates the rules in force; the command line evaluates a file not yet in force.

use bowline_api::VERSION;
use bowline_api::roles::{PolicyTestRequest, PolicyTestResponse};
use bowline_core::call::{ContextSet, EndpointScope, FeatureKind, Principal, Role};
use bowline_core::policy::{FeaturePattern, Policy, PolicyDecision, PolicyTarget};
use thiserror::Error;

use crate::PatternMention;
use bowline_core::suggest::nearest_match;

/// Reason why a query is invalid.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PolicyQueryError {
    /// The target does not name a single feature.
    #[error("the target must be SERVER.NAME, `prompt:SERVER.NAME` or `resource:SERVER.URI`")]
    Target,
    /// The arguments are no JSON object.
    #[error("the arguments must be a JSON object")]
    Arguments,
}

/// Evaluates a query and returns the decision in the API format.
pub fn evaluate_query(
    policy: &Policy,
    mentions: &[PatternMention],
    query: &PolicyTestRequest,
) -> Result<PolicyTestResponse, PolicyQueryError> {
    let (kind, server, name) = parse_target(&query.target).ok_or(PolicyQueryError::Target)?;
    let arguments = query.arguments.as_ref().map(|raw| raw.get().as_bytes());
    if arguments.is_some_and(|json| json.first() != Some(&b'{')) {
        return Err(PolicyQueryError::Arguments);
    }
    let role = match query.role.as_str() {
        "owner" => Role::Owner,
        named => Role::Named(named.into()),
    };
    let principal = Principal {
        contexts: ContextSet::new(query.contexts.iter().map(String::as_str)),
        ..Principal::new(query.principal.as_deref().unwrap_or_default(), role)
    };
    let scope = match &query.profile {
        Some(profile) => EndpointScope::Profile(profile.as_str().into()),
        None => EndpointScope::All,
    };
    let target = PolicyTarget {
        kind,
        server,
        name,
        arguments,
    };
    let decision = policy.decide(&principal, &scope, target);
    let (rule, pattern) = (decision.rule_path(), deciding_pattern(&decision));
    let mention = pattern.and_then(|pattern| find_mention(mentions, &rule, pattern));
    let conditions = policy
        .role_name(&principal)
        .map(|role| format!("roles.{role}.when"));
    let conditions_pending = |mention: &&PatternMention| {
        arguments.is_none()
            && Some(&*mention.rule) == conditions.as_deref()
            && mention.pattern.matches_feature(server, name)
    };
    let conditions_pending = mentions.iter().filter(conditions_pending).count();
    let allowed = decision.is_allowed();
    Ok(PolicyTestResponse {
        v: VERSION,
        role: query.role.clone(),
        kind: kind_word(kind).into(),
        server: server.to_owned(),
        name: name.to_owned(),
        allowed,
        pattern: pattern.map(|pattern| pattern.as_str().to_owned()),
        line: mention.map(|mention| mention.position.line),
        column: mention.map(|mention| mention.position.column),
        rule,
        reason: decision.to_string(),
        conditions: if allowed { conditions_pending } else { 0 },
        suggestion: suggest_role(policy, query),
    })
}

/// Parses `[KIND:]SERVER.NAME`.
fn parse_target(text: &str) -> Option<(FeatureKind, &str, &str)> {
    let (kind, rest) = match text.split_once(':') {
        Some(("tool", rest)) => (FeatureKind::Tool, rest),
        Some(("prompt", rest)) => (FeatureKind::Prompt, rest),
        Some(("resource", rest)) => (FeatureKind::Resource, rest),
        Some(_) | None => (FeatureKind::Tool, text),
    };
    let (server, name) = rest.split_once('.')?;
    (!server.is_empty() && !name.is_empty()).then_some((kind, server, name))
}

const fn kind_word(kind: FeatureKind) -> &'static str {
    match kind {
        FeatureKind::Tool => "tool",
        FeatureKind::Prompt => "prompt",
        FeatureKind::Resource => "resource",
        FeatureKind::Task => "task",
    }
}

const fn deciding_pattern<'p>(decision: &PolicyDecision<'p>) -> Option<&'p FeaturePattern> {
    match decision {
        PolicyDecision::Allowed { pattern, .. }
        | PolicyDecision::Denied { pattern, .. }
        | PolicyDecision::Hidden { pattern, .. } => Some(pattern),
        PolicyDecision::ConditionFailed { rule, .. }
        | PolicyDecision::ConditionUndecided { rule, .. } => Some(&rule.pattern),
        _ => None,
    }
}

/// Finds the position of a pattern. A context has a single list, `hide`, absent from the rule name.
fn find_mention<'m>(
    mentions: &'m [PatternMention],
    rule: &str,
    pattern: &FeaturePattern,
) -> Option<&'m PatternMention> {
    mentions.iter().find(|mention| {
        let suffix = mention.rule.strip_prefix(rule);
        matches!(suffix, Some("" | ".hide")) && mention.pattern == *pattern
    })
}

/// Suggests a defined role similar to the queried role.
fn suggest_role(policy: &Policy, query: &PolicyTestRequest) -> Option<String> {
    if query.role == "owner" || policy.has_role(&query.role) {
        return None;
    }
    let roles = policy.role_names();
    nearest_match(&query.role, roles.iter().map(AsRef::as_ref)).map(str::to_owned)
}
