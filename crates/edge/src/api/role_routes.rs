//! `/api/v1/roles`: the active policy, and policy decisions for a single request.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use bowline_api::VERSION;
use bowline_api::roles::{
    ContextEntry, PolicyTestRequest, PolicyTestResponse, ProfileEntry, RoleBudget, RoleCondition,
    RoleEntry, RoleRate, RolesResponse,
};
use bowline_core::budget::{BudgetRule, RateRule};
use bowline_core::policy::{Condition as _, DefaultAction, FeaturePattern};
use bowline_core::time::to_millis;

use super::{ApiError, EdgeState, parse_body, upgrade_edge};
use bowline_config::policy_check;
use bowline_config::{PolicyConfig, RoleConfig};

/// `GET /api/v1/roles`
pub(super) async fn list_roles(State(edge): EdgeState) -> Result<Json<RolesResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    Ok(Json(
        edge.reloader
            .with_policy(|policy, _| policy_response(policy)),
    ))
}

/// `POST /api/v1/roles/test`: returns the policy decision without calling.
pub(super) async fn test_policy(
    State(edge): EdgeState,
    body: Bytes,
) -> Result<Json<PolicyTestResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let query: PolicyTestRequest = parse_body(&body)?;
    let policy = edge.host.policy();
    let tried = edge
        .reloader
        .with_policy(|_, mentions| policy_check::evaluate_query(&policy, mentions, &query));
    tried.map(Json).map_err(|refused| {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        ApiError::new(status, "invalid", &refused.to_string())
    })
}

fn policy_response(policy: &PolicyConfig) -> RolesResponse {
    let roles = policy.roles.iter().map(|(name, role)| {
        let assigned = policy
            .principals
            .iter()
            .filter(|(_, assigned)| *assigned == name);
        let principals = assigned.map(|(principal, _)| Arc::clone(principal));
        role_entry(name, role, principals.collect())
    });
    let contexts = policy.contexts.iter().map(|(name, hide)| ContextEntry {
        name: Arc::clone(name),
        hide: pattern_texts(hide),
    });
    let profiles = policy.profiles.iter().map(|(name, profile)| ProfileEntry {
        name: Arc::clone(name),
        allow: pattern_texts(&profile.allow),
        deny: pattern_texts(&profile.deny),
    });
    let default = match policy.default_action {
        DefaultAction::Allow => "allow",
        DefaultAction::Deny => "deny",
    };
    RolesResponse {
        v: VERSION,
        default: default.into(),
        roles: roles.collect(),
        contexts: contexts.collect(),
        profiles: profiles.collect(),
    }
}

fn role_entry(name: &Arc<str>, role: &RoleConfig, principals: Vec<Arc<str>>) -> RoleEntry {
    let when = role.when.iter().map(|when| RoleCondition {
        on: when.on.as_str().to_owned(),
        condition: when.condition.source_text().to_owned(),
    });
    let budget = role.allowance.budget;
    let budget = budget.map(|BudgetRule { calls, per }| RoleBudget {
        calls,
        per_ms: to_millis(per),
    });
    let rate = role.allowance.rate;
    let rate = rate.map(|RateRule { calls, per, burst }| RoleRate {
        calls: calls.into(),
        per_ms: to_millis(per),
        burst: burst.into(),
    });
    RoleEntry {
        name: Arc::clone(name),
        allow: pattern_texts(&role.allow),
        deny: pattern_texts(&role.deny),
        when: when.collect(),
        budget,
        rate,
        principals,
    }
}

fn pattern_texts(patterns: &[FeaturePattern]) -> Vec<String> {
    let texts = patterns.iter().map(FeaturePattern::as_str);
    texts.map(str::to_owned).collect()
}
