//! `/api/v1/roles`: the active policy, and policy decisions for a single request.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use bowline_core::budget::{BudgetRule, RateRule};
use bowline_core::policy::{Condition as _, DefaultAction, FeaturePattern};
use bowline_core::time::to_millis;
use serde_json::{Value, json};

use super::{ApiError, EdgeState, parse_body, upgrade_edge};
use bowline_config::policy_check::{self, PolicyQuery};
use bowline_config::{PolicyConfig, RoleConfig};

/// `GET /api/v1/roles`
pub(super) async fn list_roles(State(edge): EdgeState) -> Result<Json<Value>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    Ok(Json(
        edge.reloader.with_policy(|policy, _| policy_json(policy)),
    ))
}

/// `POST /api/v1/roles/test`: returns the policy decision without calling.
pub(super) async fn test_policy(
    State(edge): EdgeState,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let query: PolicyQuery = parse_body(&body)?;
    let policy = edge.host.policy();
    let tried = edge
        .reloader
        .with_policy(|_, mentions| policy_check::evaluate_query(&policy, mentions, &query));
    tried.map(Json).map_err(|refused| {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        ApiError::new(status, "invalid", &refused.to_string())
    })
}

fn policy_json(policy: &PolicyConfig) -> Value {
    let roles = policy.roles.iter().map(|(name, role)| {
        let assigned = policy
            .principals
            .iter()
            .filter(|(_, assigned)| *assigned == name);
        let principals: Vec<_> = assigned.map(|(principal, _)| principal).collect();
        role_json(name, role, &principals)
    });
    let contexts = policy.contexts.iter();
    let contexts = contexts.map(|(name, hide)| json!({"name": name, "hide": pattern_texts(hide)}));
    let profiles = policy.profiles.iter().map(|(name, profile)| {
        json!({
            "name": name,
            "allow": pattern_texts(&profile.allow),
            "deny": pattern_texts(&profile.deny),
        })
    });
    let default = match policy.default_action {
        DefaultAction::Allow => "allow",
        DefaultAction::Deny => "deny",
    };
    json!({
        "v": 1,
        "default": default,
        "roles": roles.collect::<Vec<_>>(),
        "contexts": contexts.collect::<Vec<_>>(),
        "profiles": profiles.collect::<Vec<_>>(),
    })
}

fn role_json(name: &str, role: &RoleConfig, principals: &[&Arc<str>]) -> Value {
    let when = role.when.iter().map(|when| {
        let condition = when.condition.source_text();
        json!({"on": when.on.as_str(), "if": condition})
    });
    let budget = role.allowance.budget;
    let budget =
        budget.map(|BudgetRule { calls, per }| json!({"calls": calls, "per_ms": to_millis(per)}));
    let rate = role.allowance.rate;
    let rate = rate.map(|RateRule { calls, per, burst }| {
        let per_ms = to_millis(per);
        json!({"calls": calls, "per_ms": per_ms, "burst": burst})
    });
    json!({
        "name": name,
        "allow": pattern_texts(&role.allow),
        "deny": pattern_texts(&role.deny),
        "when": when.collect::<Vec<_>>(),
        "budget": budget,
        "rate": rate,
        "principals": principals,
    })
}

fn pattern_texts(patterns: &[FeaturePattern]) -> Vec<&str> {
    patterns.iter().map(FeaturePattern::as_str).collect()
}
