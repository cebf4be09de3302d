//! The one place that says who may see and use what: the policy in force, and then the guard.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use bowline_core::call::{Body, Principal, Reply, Route, Scope};
use bowline_core::error::CallError;
use bowline_core::policy::{Policy, Thing};
use tokio::sync::watch;

use crate::callpath::charge::Ceiling;
use crate::guard::{Guard, Verdict};

/// Holds the policy and the guard, both swapped whole.
#[derive(Debug)]
pub(crate) struct Decider {
    policy: ArcSwap<Policy>,
    guard: ArcSwapOption<Box<dyn Guard>>,
    /// Grows whenever either is replaced.
    version: watch::Sender<u64>,
}

impl Default for Decider {
    fn default() -> Self {
        Self {
            policy: ArcSwap::default(),
            guard: ArcSwapOption::empty(),
            version: watch::Sender::new(0),
        }
    }
}

impl Decider {
    /// Decides about one thing; the reason where it is refused.
    pub(crate) fn decide(
        &self,
        principal: &Principal,
        scope: &Scope,
        thing: Thing<'_>,
    ) -> Result<(), Arc<str>> {
        let policy = self.policy.load();
        let ruling = policy.decide(principal, scope, thing);
        if !ruling.allows() {
            return Err(ruling.to_string().into());
        }
        self.guarded(thing.server, Some(thing.name))
    }

    /// Whether nothing need be looked at one by one.
    pub(crate) fn sees_all(&self, principal: &Principal, scope: &Scope) -> bool {
        self.guard.load().is_none() && self.policy.load().sees_all(principal, scope)
    }

    /// Asks the guard alone.
    pub(crate) fn guarded(&self, server: &str, tool: Option<&str>) -> Result<(), Arc<str>> {
        let guard = self.guard.load();
        match guard.as_ref().map(|guard| guard.check(server, tool)) {
            None | Some(Verdict::Allow) => Ok(()),
            Some(Verdict::Deny { reason }) => Err(reason),
        }
    }

    /// Lets the guard look at a result before it is passed on.
    pub(crate) fn accept(&self, route: &Route, reply: &Reply) -> Result<(), CallError> {
        let guard = self.guard.load();
        let Some(guard) = guard.as_ref().filter(|_| reply.body == Body::Result) else {
            return Ok(());
        };
        let result = reply.answer.get(reply.body_at.clone()).unwrap_or_default();
        match guard.answer(route, result) {
            Verdict::Allow => Ok(()),
            Verdict::Deny { reason } => Err(CallError::BadOutput {
                server: Arc::clone(&route.server),
                tool: Arc::clone(&route.name),
                reason,
            }),
        }
    }

    /// Returns what a principal may spend, and in which role.
    pub(crate) fn ceiling(&self, principal: &Principal) -> Ceiling {
        let policy = self.policy.load();
        let allowance = policy.allowance(principal);
        let role = match allowance.is_unlimited() {
            true => None,
            false => policy.role(principal).cloned(),
        };
        Ceiling { role, allowance }
    }

    pub(crate) fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        self.policy.store(Arc::new(policy));
        self.version.send_modify(|version| *version += 1);
    }

    pub(crate) fn set_guard(&self, guard: Option<Box<dyn Guard>>) {
        self.guard.store(guard.map(Arc::new));
        self.version.send_modify(|version| *version += 1);
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}
