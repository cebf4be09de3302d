//! `/api/v1/roles`: the policy in force, and its decision on one request.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Word;

/// Response of `GET /api/v1/roles`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RolesResponse {
    /// API version.
    pub v: u8,
    /// Decision for principals without a role: `allow` or `deny`.
    pub default: Word,
    /// Roles.
    pub roles: Vec<RoleEntry>,
    /// Contexts.
    pub contexts: Vec<ContextEntry>,
    /// Profiles.
    pub profiles: Vec<ProfileEntry>,
}

/// A role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoleEntry {
    /// The name.
    pub name: Arc<str>,
    /// Patterns of allowed features.
    pub allow: Vec<String>,
    /// Patterns of denied features, which win over `allow`.
    pub deny: Vec<String>,
    /// Conditions on the arguments of calls.
    pub when: Vec<RoleCondition>,
    /// Budget of each principal.
    pub budget: Option<RoleBudget>,
    /// Rate of each principal.
    pub rate: Option<RoleRate>,
    /// Principals to whom the config gives the role.
    pub principals: Vec<Arc<str>>,
}

/// A condition of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoleCondition {
    /// Pattern of the features concerned.
    pub on: String,
    /// Source text in CEL.
    #[serde(rename = "if")]
    pub condition: String,
}

/// A budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoleBudget {
    /// Number of calls...
    pub calls: u64,
    /// ...within this window.
    pub per_ms: u64,
}

/// A rate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoleRate {
    /// Number of calls...
    pub calls: u64,
    /// ...within this window, spread evenly.
    pub per_ms: u64,
    /// Number of calls at once.
    pub burst: u64,
}

/// A context.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContextEntry {
    /// The name.
    pub name: Arc<str>,
    /// Patterns of hidden features.
    pub hide: Vec<String>,
}

/// A profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProfileEntry {
    /// The name; the endpoint is `/mcp/NAME`.
    pub name: Arc<str>,
    /// Patterns of shown features.
    pub allow: Vec<String>,
    /// Patterns of hidden features, which win over `allow`.
    pub deny: Vec<String>,
}

/// Body of `POST /api/v1/roles/test`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyTestRequest {
    /// The role, or `owner`.
    pub role: String,
    /// `SERVER.NAME`, with a `prompt:` or `resource:` prefix for anything but a tool.
    pub target: String,
    /// Contexts that narrow the principal.
    #[serde(default)]
    pub contexts: Vec<String>,
    /// The principal seen by conditions; the principal's role in the file replaces `role`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// The profile of the endpoint in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The arguments of a call; without arguments the request is about visibility.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Box<RawValue>>,
}

/// Response of `POST /api/v1/roles/test`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyTestResponse {
    /// API version.
    pub v: u8,
    /// The role of the request.
    pub role: String,
    /// Kind of the target: `tool`, `prompt` or `resource`.
    pub kind: Word,
    /// Server of the target.
    pub server: String,
    /// Name or URI of the target.
    pub name: String,
    /// The decision.
    pub allowed: bool,
    /// Rule that decided.
    pub rule: String,
    /// Pattern of the rule.
    pub pattern: Option<String>,
    /// Line of the pattern in the config file.
    pub line: Option<usize>,
    /// Column of the pattern in the config file.
    pub column: Option<usize>,
    /// The decision as text.
    pub reason: String,
    /// Number of conditions that could not decide because the request has no arguments.
    pub conditions: usize,
    /// Defined role with a similar name, if the role is not defined.
    pub suggestion: Option<String>,
}
