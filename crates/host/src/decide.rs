//! The one place that says who may see and use what: the policy in force, and then the guard.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use bowline_core::call::{Body, Principal, Reply, Role, Route, Scope};
use bowline_core::error::CallError;
use bowline_core::policy::{Credentials, Effort, Policy, Ruling, Thing};
use bowline_link::OnBehalf;
use tokio::sync::watch;

use crate::callpath::charge::Ceiling;
use crate::denials::Denials;
use crate::guard::{Guard, Verdict};

/// What the owner of this gateway is called elsewhere. No role here can be called so.
const OWNER: &str = "owner";

/// Holds the policy and the guard, both swapped whole.
#[derive(Debug)]
pub(crate) struct Decider {
    force: ArcSwap<InForce>,
    guard: ArcSwapOption<Box<dyn Guard>>,
    /// Grows whenever either is replaced; writers hold its lock.
    version: watch::Sender<u64>,
    pub(crate) denials: Denials,
}

/// Whether a queued call was answered by its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivered {
    Yes,
    No,
}

/// A policy and the number under which it came.
#[derive(Debug, Default)]
struct InForce {
    policy: Arc<Policy>,
    version: u64,
}

/// Why something is refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// Which sort of rule refuses, for those who count.
    pub(crate) source: &'static str,
    /// One clause.
    pub(crate) reason: Arc<str>,
}

/// The rules of one moment, for whoever decides about many things by the same ones.
#[derive(Debug)]
pub(crate) struct Sight {
    force: Arc<InForce>,
    guard: Option<Arc<Box<dyn Guard>>>,
}

impl Decider {
    pub(crate) fn new(denials: Denials) -> Self {
        Self {
            force: ArcSwap::default(),
            guard: ArcSwapOption::empty(),
            version: watch::Sender::new(0),
            denials,
        }
    }

    /// Decides about one thing. Where a condition is about it, `arguments` are looked up.
    /// `None` where that takes longer than the serving thread may: [`Sight::decide`] decides
    /// then, on another thread.
    pub(crate) fn decide<'a>(
        &self,
        principal: &Principal,
        scope: &Scope,
        thing: Thing<'_>,
        arguments: impl FnOnce() -> Option<&'a [u8]>,
    ) -> Option<Result<(), Refusal>> {
        let force = self.force.load();
        let policy = &force.policy;
        let ruling = policy.decide_with(principal, scope, thing, Effort::Quick, arguments);
        if ruling.takes_long() {
            return None;
        }
        let guard = self.guard.load();
        Some(judged(&ruling, guard.as_ref(), thing))
    }

    /// Whether `principal` may see and use something, arguments aside.
    pub(crate) fn allows(&self, principal: &Principal, scope: &Scope, thing: Thing<'_>) -> bool {
        let force = self.force.load();
        let guard = self.guard.load();
        force.policy.decide(principal, scope, thing).allows()
            && guarded(guard.as_ref(), thing.server, Some(thing.name)).is_ok()
    }

    /// Whether `principal` may hear what became of a queued call of its own. Contexts, profiles and
    /// guards hide it as they hide its tool; a role that lost the tool hides what the tool said,
    /// but not that the call will not be made.
    pub(crate) fn tells(
        &self,
        principal: &Principal,
        scope: &Scope,
        (thing, delivered): (Thing<'_>, Delivered),
    ) -> bool {
        let hides = || self.force.load().policy.hides(principal, scope, thing);
        let is_refused = || guarded(self.guard.load().as_ref(), thing.server, None).is_err();
        self.allows(principal, scope, thing)
            || (delivered == Delivered::No && !hides() && !is_refused())
    }

    /// Whether anything of a server may be seen; `false` is certain.
    pub(crate) fn reaches(&self, principal: &Principal, scope: &Scope, server: &str) -> bool {
        let guard = self.guard.load();
        self.force.load().policy.reaches(principal, scope, server)
            && guarded(guard.as_ref(), server, None).is_ok()
    }

    /// Asks the guard whether a server may be used at all.
    pub(crate) fn welcomes(&self, server: &str) -> Result<(), Refusal> {
        guarded(self.guard.load().as_ref(), server, None)
    }

    /// Returns the rules of this moment.
    pub(crate) fn sight(&self) -> Sight {
        Sight {
            force: self.force.load_full(),
            guard: self.guard.load_full(),
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
        let force = self.force.load();
        let policy = &force.policy;
        let allowance = policy.allowance(principal);
        let role = match allowance.is_unlimited() {
            true => None,
            false => policy.role(principal).cloned(),
        };
        Ceiling { role, allowance }
    }

    /// Returns who a principal is, in words that another gateway can decide by.
    pub(crate) fn stamp(&self, principal: &Principal) -> OnBehalf {
        let force = self.force.load();
        let role = match &principal.role {
            Role::Owner | Role::OwnersAgent => Some(OWNER.into()),
            Role::AnonymousLocal => force.policy.assigned(&principal.name).cloned(),
            Role::Named(_) | Role::None => force.policy.role(principal).cloned(),
        };
        OnBehalf {
            principal: Arc::clone(&principal.name),
            role,
            run: None,
        }
    }

    pub(crate) fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.force.load().policy)
    }

    /// Puts another policy in force. What credentials are narrowed by stays.
    pub(crate) fn set_policy(&self, policy: Policy) {
        self.replace(|now| policy.with_credentials(Arc::clone(now.credentials())));
    }

    /// Narrows these credentials and no others.
    pub(crate) fn narrow_credentials(&self, credentials: Credentials) {
        let credentials = Arc::new(credentials);
        self.replace(|now| now.clone().with_credentials(credentials));
    }

    fn replace(&self, next: impl FnOnce(&Policy) -> Policy) {
        self.version.send_modify(|version| {
            *version += 1;
            let version = *version;
            let policy = Arc::new(next(&self.force.load().policy));
            self.force.store(Arc::new(InForce { policy, version }));
        });
    }

    pub(crate) fn set_guard(&self, guard: Option<Box<dyn Guard>>) {
        let guard = guard.map(Arc::new);
        self.version.send_modify(|version| {
            *version += 1;
            self.guard.store(guard);
        });
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}

impl Sight {
    /// Whether nothing need be looked at one by one.
    pub(crate) fn all(&self, principal: &Principal, scope: &Scope) -> bool {
        self.guard.is_none() && self.force.policy.sees_all(principal, scope)
    }

    /// Whether nobody sees less than `principal` at the endpoint of `scope`.
    pub(crate) fn is_open(&self, principal: &Principal, scope: &Scope) -> bool {
        self.all(principal, scope) && self.force.policy.is_open()
    }

    /// Whether `principal` sees something.
    pub(crate) fn of(&self, principal: &Principal, scope: &Scope, thing: Thing<'_>) -> bool {
        self.policy().decide(principal, scope, thing).allows()
            && guarded(self.guard.as_ref(), thing.server, Some(thing.name)).is_ok()
    }

    /// Decides about one thing and its arguments, however long that takes.
    pub(crate) fn decide(
        &self,
        principal: &Principal,
        scope: &Scope,
        thing: Thing<'_>,
    ) -> Result<(), Refusal> {
        let ruling = self.policy().decide(principal, scope, thing);
        judged(&ruling, self.guard.as_ref(), thing)
    }

    /// Returns the policy.
    pub(crate) fn policy(&self) -> &Policy {
        &self.force.policy
    }

    /// Returns the number of the policy where nothing else has a word: what a guard says may
    /// change from one moment to the next.
    pub(crate) fn version(&self) -> Option<u64> {
        self.guard.is_none().then_some(self.force.version)
    }
}

/// Turns a ruling into a decision, with the word of the guard where the policy allows.
fn judged(
    ruling: &Ruling<'_>,
    guard: Option<&Arc<Box<dyn Guard>>>,
    thing: Thing<'_>,
) -> Result<(), Refusal> {
    if !ruling.allows() {
        return Err(Refusal {
            source: ruling.source(),
            reason: ruling.to_string().into(),
        });
    }
    guarded(guard, thing.server, Some(thing.name))
}

/// Asks the guard about a server and, where one is named, about a thing of it.
fn guarded(
    guard: Option<&Arc<Box<dyn Guard>>>,
    server: &str,
    name: Option<&str>,
) -> Result<(), Refusal> {
    let Some(guard) = guard else {
        return Ok(());
    };
    for asked in [None, name].into_iter().skip(usize::from(name.is_none())) {
        if let Verdict::Deny { reason } = guard.check(server, asked) {
            return Err(Refusal {
                source: "guard",
                reason,
            });
        }
    }
    Ok(())
}
