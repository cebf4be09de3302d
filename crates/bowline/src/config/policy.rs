//! Who may do what, as the file says it: kept apart from the rules in force, so that two files can
//! be told apart.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use bowline_core::budget::Allowance;
use bowline_core::policy::{Exposure, Otherwise, Pattern, Policy, ProfileRules, RoleRules, When};

use bowline_host::allowlist::Allowlist;

use super::broker::PeerConfig;
use super::frame::Place;
use super::tokens::TokenLifetime;
use crate::conditions::Cel;

/// Who may do what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyConfig {
    /// What those may do who have no role that is defined.
    pub otherwise: Otherwise,
    /// Every role, by name.
    pub roles: BTreeMap<Arc<str>, RoleConfig>,
    /// Roles of principals, which count instead of those of their credentials.
    pub principals: BTreeMap<Arc<str>, Arc<str>>,
    /// What principals may do as peers of the broker.
    pub peers: BTreeMap<Arc<str>, PeerConfig>,
    /// Names under which principals may join as executors, beside their own.
    pub executors: BTreeMap<Arc<str>, Vec<Pattern>>,
    /// Executors that `via` of some server refers to.
    pub server_executors: BTreeSet<Arc<str>>,
    /// How long a token lives whose maker does not say so.
    pub token_lifetime: TokenLifetime,
    /// What each context hides, by its name.
    pub contexts: BTreeMap<Arc<str>, Vec<Pattern>>,
    /// Every profile, by name.
    pub profiles: BTreeMap<Arc<str>, ProfileConfig>,
    /// What is switched on and off for everybody.
    pub allowlist: Option<Allowlist>,
    /// How much of what may be used is listed.
    pub exposure: Exposure,
}

/// One role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleConfig {
    /// What it may see and use.
    pub allow: Vec<Pattern>,
    /// What it may not, whatever `allow` says.
    pub deny: Vec<Pattern>,
    /// What must hold of the arguments of its calls.
    pub when: Vec<WhenConfig>,
    /// What each of its principals may spend.
    pub allowance: Allowance,
}

/// What must hold of the arguments of some calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhenConfig {
    /// Which calls.
    pub on: Pattern,
    /// What must hold.
    pub condition: Arc<Cel>,
}

/// One profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProfileConfig {
    /// What is in it.
    pub allow: Vec<Pattern>,
    /// What is not, whatever `allow` says.
    pub deny: Vec<Pattern>,
}

/// A pattern and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mention {
    /// The key it stands under, such as `roles.reviewer.allow`.
    pub rule: Arc<str>,
    /// The pattern.
    pub pattern: Pattern,
    /// Where in the file.
    pub place: Place,
}

impl PolicyConfig {
    /// Returns whether an executor may join under the name of its own principal: `executors` of
    /// the principal or `via` of a server must say so, since a token alone names no machine.
    pub(crate) fn has_executor(&self, principal: &str) -> bool {
        self.executors.contains_key(principal) || self.server_executors.contains(principal)
    }

    /// Returns the rules in force, made of all this.
    #[must_use]
    pub fn policy(&self) -> Policy {
        let mut policy = Policy::new(self.otherwise).with_exposure(self.exposure.clone());
        for (name, role) in &self.roles {
            let when = role.when.iter().map(|when| When {
                pattern: when.on.clone(),
                condition: Arc::<Cel>::clone(&when.condition),
            });
            let rules = RoleRules {
                allow: role.allow.clone(),
                deny: role.deny.clone(),
                when: when.collect(),
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

/// Turns offsets into places in one pass over the text: there may be many.
pub(super) fn mentions(
    mut written: Vec<(Arc<str>, Pattern, Range<usize>)>,
    text: &str,
) -> Vec<Mention> {
    written.sort_by_key(|(_, _, span)| span.start);
    let mut lines = text.split_inclusive('\n');
    let (mut line, mut start, mut this) = (1, 0, lines.next().unwrap_or_default());
    let mut mentions = Vec::with_capacity(written.len());
    for (rule, pattern, span) in written {
        while span.start >= start + this.len() {
            let Some(next) = lines.next() else { break };
            start += this.len();
            line += 1;
            this = next;
        }
        let before = this.get(..span.start.saturating_sub(start));
        let column = before.unwrap_or(this).chars().count() + 1;
        let place = Place { line, column };
        mentions.push(Mention {
            rule,
            pattern,
            place,
        });
    }
    mentions
}
