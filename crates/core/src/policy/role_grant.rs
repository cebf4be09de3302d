//! What a role grants under a policy: features, conditions and allowance.

use std::sync::Arc;

use super::pattern_index::AccessFilter;
use super::{ConditionInput, ConditionRule, EvaluationEffort, PolicyDecision, PolicyTarget};
use crate::budget::CallAllowance;
use crate::call::Principal;

#[derive(Clone, Debug, Default)]
pub(super) struct RoleGrant {
    pub(super) filter: AccessFilter,
    pub(super) conditions: Vec<ConditionRule>,
    pub(super) allowance: CallAllowance,
}

impl RoleGrant {
    /// Returns the decision for the first failed condition.
    pub(super) fn failed_condition<'p, 'a>(
        &'p self,
        principal: &Principal,
        role: &'p Arc<str>,
        target: PolicyTarget<'_>,
        effort: EvaluationEffort,
        arguments: impl FnOnce() -> Option<&'a [u8]>,
    ) -> Option<PolicyDecision<'p>> {
        let applies = |rule: &&ConditionRule| {
            let kind = rule.pattern.kind.is_none_or(|kind| kind == target.kind);
            kind && rule.pattern.matches_feature(target.server, target.name)
        };
        let mut due = self.conditions.iter().filter(applies).peekable();
        due.peek()?;
        let arguments = arguments()?;
        let facts = ConditionInput {
            principal: &principal.name,
            role: Some(role),
            server: target.server,
            name: target.name,
            arguments,
        };
        due.find_map(|rule| match rule.condition.evaluate(&facts, effort) {
            Ok(true) => None,
            Ok(false) => Some(PolicyDecision::ConditionFailed { role, rule }),
            Err(error) => Some(PolicyDecision::ConditionUndecided { role, rule, error }),
        })
    }
}

/// The role of a principal under this policy.
pub(super) enum ResolvedRole<'p> {
    /// Full access.
    All,
    /// A defined role.
    Role(&'p Arc<str>, &'p RoleGrant),
    /// No role, or an undefined role.
    Undefined(Option<&'p Arc<str>>),
}
