//! `/api/v1/roles`: who may do what by the file in force, and what it says of one thing.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use bowline_core::budget::{BudgetRule, RateRule};
use bowline_core::policy::{Condition as _, Otherwise, Pattern};
use bowline_core::time::millis;
use serde_json::{Value, json};

use super::{Failure, Shared, alive, read_body};
use crate::config::{PolicyConfig, RoleConfig};
use crate::trial::{self, Asked};

/// `GET /api/v1/roles`
pub(super) async fn list(State(edge): Shared) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    Ok(Json(edge.reloader.rules(|policy, _| shown(policy))))
}

/// `POST /api/v1/roles/test`: decides as for a call, and makes none.
pub(super) async fn test(State(edge): Shared, body: Bytes) -> Result<Json<Value>, Failure> {
    let edge = alive(&edge)?;
    let asked: Asked = read_body(&body)?;
    let policy = edge.host.policy();
    let tried = edge
        .reloader
        .rules(|_, mentions| trial::decide(&policy, mentions, &asked));
    tried.map(Json).map_err(|refused| {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Failure::plain(status, "invalid", &refused.to_string())
    })
}

fn shown(policy: &PolicyConfig) -> Value {
    let roles = policy.roles.iter().map(|(name, role)| {
        let given = policy.principals.iter().filter(|(_, given)| *given == name);
        let principals: Vec<_> = given.map(|(principal, _)| principal).collect();
        role_shown(name, role, &principals)
    });
    let contexts = policy.contexts.iter();
    let contexts = contexts.map(|(name, hide)| json!({"name": name, "hide": texts(hide)}));
    let profiles = policy.profiles.iter().map(|(name, profile)| {
        json!({"name": name, "allow": texts(&profile.allow), "deny": texts(&profile.deny)})
    });
    let default = match policy.otherwise {
        Otherwise::Allow => "allow",
        Otherwise::Deny => "deny",
    };
    json!({
        "v": 1,
        "default": default,
        "roles": roles.collect::<Vec<_>>(),
        "contexts": contexts.collect::<Vec<_>>(),
        "profiles": profiles.collect::<Vec<_>>(),
    })
}

fn role_shown(name: &str, role: &RoleConfig, principals: &[&Arc<str>]) -> Value {
    let when = role.when.iter().map(|when| {
        let condition = when.condition.text();
        json!({"on": when.on.as_str(), "if": condition})
    });
    let budget = role.allowance.budget;
    let budget =
        budget.map(|BudgetRule { calls, per }| json!({"calls": calls, "per_ms": millis(per)}));
    let rate = role.allowance.rate;
    let rate = rate.map(|RateRule { calls, per, burst }| {
        let per_ms = millis(per);
        json!({"calls": calls, "per_ms": per_ms, "burst": burst})
    });
    json!({
        "name": name,
        "allow": texts(&role.allow),
        "deny": texts(&role.deny),
        "when": when.collect::<Vec<_>>(),
        "budget": budget,
        "rate": rate,
        "principals": principals,
    })
}

fn texts(patterns: &[Pattern]) -> Vec<&str> {
    patterns.iter().map(Pattern::as_str).collect()
}
