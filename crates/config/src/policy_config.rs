//! The policy as written in the file, separate from the compiled rules so that two files can be
//! compared.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use bowline_core::budget::CallAllowance;
use bowline_core::policy::{
    ConditionRule, DefaultAction, FeaturePattern, Policy, ProfileRules, RoleRules, ToolExposure,
};

use bowline_host::allowlist::Allowlist;

use super::broker_config::PeerConfig;
use super::config_problem::FilePosition;
use super::token_config::TokenLifetime;
use bowline_host::conditions::CelCondition;

/// The policy section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyConfig {
    /// Default action for principals without a defined role.
    pub default_action: DefaultAction,
    /// All roles, by name.
    pub roles: BTreeMap<Arc<str>, RoleConfig>,
    /// Roles of principals; replace the roles of credentials.
    pub principals: BTreeMap<Arc<str>, Arc<str>>,
    /// Rights of principals as broker peers.
    pub peers: BTreeMap<Arc<str>, PeerConfig>,
    /// Executor names permitted for principals, besides the principal's own name.
    pub executors: BTreeMap<Arc<str>, Vec<FeaturePattern>>,
    /// Executors referenced by `via` of some server.
    pub server_executors: BTreeSet<Arc<str>>,
    /// Default lifetime of tokens.
    pub token_lifetime: TokenLifetime,
    /// Patterns hidden by each context, by name.
    pub contexts: BTreeMap<Arc<str>, Vec<FeaturePattern>>,
    /// All profiles, by name.
    pub profiles: BTreeMap<Arc<str>, ProfileConfig>,
    /// Features enabled and disabled for all principals.
    pub allowlist: Option<Allowlist>,
    /// How much of the permitted features is listed.
    pub exposure: ToolExposure,
}

/// A role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleConfig {
    /// Features the role may see and use.
    pub allow: Vec<FeaturePattern>,
    /// Exceptions from `allow`.
    pub deny: Vec<FeaturePattern>,
    /// Conditions on the arguments of calls.
    pub when: Vec<WhenConfig>,
    /// Budget and rate of each principal with the role.
    pub allowance: CallAllowance,
}

/// A condition on the arguments of some calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhenConfig {
    /// The calls.
    pub on: FeaturePattern,
    /// The condition.
    pub condition: Arc<CelCondition>,
}

/// A profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProfileConfig {
    /// Included features.
    pub allow: Vec<FeaturePattern>,
    /// Exceptions from `allow`.
    pub deny: Vec<FeaturePattern>,
}

/// A pattern with a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternMention {
    /// The key of the pattern's list, such as `roles.reviewer.allow`.
    pub rule: Arc<str>,
    /// The pattern.
    pub pattern: FeaturePattern,
    /// Position in the file.
    pub position: FilePosition,
}

impl PolicyConfig {
    /// Returns whether an executor may join under the name of its principal: `executors` of the
    /// principal or `via` of a server must name it, since a token alone names no machine.
    pub fn has_executor(&self, principal: &str) -> bool {
        self.executors.contains_key(principal) || self.server_executors.contains(principal)
    }

    /// Compiles the policy.
    #[must_use]
    pub fn compile(&self) -> Policy {
        let mut policy = Policy::new(self.default_action).with_exposure(self.exposure.clone());
        for (name, role) in &self.roles {
            let when = role.when.iter().map(|when| ConditionRule {
                pattern: when.on.clone(),
                condition: Arc::<CelCondition>::clone(&when.condition),
            });
            let rules = RoleRules {
                allow: role.allow.clone(),
                deny: role.deny.clone(),
                conditions: when.collect(),
                allowance: role.allowance,
            };
            policy = policy.with_role(name, rules);
        }
        for (name, role) in &self.principals {
            policy = policy.with_principal(name, role);
        }
        for (name, hide) in &self.contexts {
            policy = policy.with_context(name, hide.clone());
        }
        for (name, profile) in &self.profiles {
            let rules = ProfileRules {
                allow: profile.allow.clone(),
                deny: profile.deny.clone(),
            };
            policy = policy.with_profile(name, rules);
        }
        match &self.allowlist {
            Some(list) => policy.with_enabled(list.into()),
            None => policy,
        }
    }
}

/// Converts offsets to positions in a single pass over the text, since offsets may be many.
pub(super) fn locate_mentions(
    mut unlocated: Vec<(Arc<str>, FeaturePattern, Range<usize>)>,
    text: &str,
) -> Vec<PatternMention> {
    unlocated.sort_by_key(|(_, _, span)| span.start);
    let mut lines = text.split_inclusive('\n');
    let (mut line, mut start, mut current_line) = (1, 0, lines.next().unwrap_or_default());
    let mut mentions = Vec::with_capacity(unlocated.len());
    for (rule, pattern, span) in unlocated {
        while span.start >= start + current_line.len() {
            let Some(next) = lines.next() else { break };
            start += current_line.len();
            line += 1;
            current_line = next;
        }
        let before = current_line.get(..span.start.saturating_sub(start));
        let column = before.unwrap_or(current_line).chars().count() + 1;
        let file_position = FilePosition { line, column };
        mentions.push(PatternMention {
            rule,
            pattern,
            position: file_position,
        });
    }
    mentions
}
