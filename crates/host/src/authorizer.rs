//! Authorization: the policy in force, then the guard.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use bowline_core::call::{BodyKind, CallReply, CallRequest, EndpointScope, Principal, Role, Route};
use bowline_core::error::CallError;
use bowline_core::policy::{
    CredentialContexts, EvaluationEffort, Policy, PolicyDecision, PolicyTarget,
};
use bowline_link::CallerIdentity;
use tokio::sync::watch;

use crate::access_guard::{AccessGuard, GuardDecision};
use crate::callpath::budget::BudgetLimits;
use crate::denials::DenialReporter;
use crate::spec::{PeerRole, ServerTransport};

/// Role name of this gateway's owner at peers. Not a valid role name here.
const OWNER_ROLE: &str = "owner";

/// Holds policy and guard, each replaced as a whole.
#[derive(Debug)]
pub(crate) struct Authorizer {
    active: ArcSwap<ActivePolicy>,
    guard: ArcSwapOption<Box<dyn AccessGuard>>,
    /// Grows with each replacement; writers hold its lock.
    version: watch::Sender<u64>,
    pub(crate) denials: DenialReporter,
}

/// Whether the server responded to a queued call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeliveryStatus {
    Yes,
    No,
}

/// A policy with its version.
#[derive(Debug, Default)]
struct ActivePolicy {
    policy: Arc<Policy>,
    version: u64,
}

/// Why an access is refused.
#[derive(Debug)]
pub(crate) struct PolicyRefusal {
    /// Rule source, for counters.
    pub(crate) source: &'static str,
    /// The reason, a single clause.
    pub(crate) reason: Arc<str>,
}

/// Snapshot of the rules, for several decisions under the same rules.
#[derive(Debug)]
pub(crate) struct PolicySnapshot {
    active: Arc<ActivePolicy>,
    guard: Option<Arc<Box<dyn AccessGuard>>>,
}

impl Authorizer {
    pub(crate) fn new(denials: DenialReporter) -> Self {
        Self {
            active: ArcSwap::default(),
            guard: ArcSwapOption::empty(),
            version: watch::Sender::new(0),
            denials,
        }
    }

    /// Decides about a target. `arguments` are evaluated only for conditions. `None` if the
    /// evaluation would block the serving thread: then [`PolicySnapshot::decide`] decides on a
    /// worker thread.
    pub(crate) fn decide<'a>(
        &self,
        principal: &Principal,
        scope: &EndpointScope,
        thing: PolicyTarget<'_>,
        arguments: impl FnOnce() -> Option<&'a [u8]>,
    ) -> Option<Result<(), PolicyRefusal>> {
        let force = self.active.load();
        let policy = &force.policy;
        let ruling =
            policy.decide_lazily(principal, scope, thing, EvaluationEffort::Quick, arguments);
        if ruling.needs_full_effort() {
            return None;
        }
        let guard = self.guard.load();
        Some(apply_guard(&ruling, guard.as_ref(), thing))
    }

    /// True if `principal` may see and use a target, ignoring arguments.
    pub(crate) fn allows(
        &self,
        principal: &Principal,
        scope: &EndpointScope,
        thing: PolicyTarget<'_>,
    ) -> bool {
        let force = self.active.load();
        let guard = self.guard.load();
        force.policy.decide(principal, scope, thing).is_allowed()
            && check_guard(guard.as_ref(), thing.server, Some(thing.name)).is_ok()
    }

    /// True if `principal` may learn the outcome of its own queued call. Contexts, profiles and
    /// guards hide it like the tool; a role that lost the tool hides the tool's result, but not the
    /// fact that the call will not run.
    pub(crate) fn can_learn_outcome(
        &self,
        principal: &Principal,
        scope: &EndpointScope,
        thing: PolicyTarget<'_>,
        delivered: DeliveryStatus,
    ) -> bool {
        let hides = || self.active.load().policy.is_hidden(principal, scope, thing);
        let is_refused = || check_guard(self.guard.load().as_ref(), thing.server, None).is_err();
        self.allows(principal, scope, thing)
            || (delivered == DeliveryStatus::No && !hides() && !is_refused())
    }

    /// True if any item of a server may be visible; `false` is certain.
    pub(crate) fn can_reach(
        &self,
        principal: &Principal,
        scope: &EndpointScope,
        server: &str,
    ) -> bool {
        let guard = self.guard.load();
        self.active
            .load()
            .policy
            .may_reach_server(principal, scope, server)
            && check_guard(guard.as_ref(), server, None).is_ok()
    }

    /// Asks the guard whether a server may be used at all.
    pub(crate) fn check_server(&self, server: &str) -> Result<(), PolicyRefusal> {
        check_guard(self.guard.load().as_ref(), server, None)
    }

    /// Returns a snapshot of the rules.
    pub(crate) fn snapshot(&self) -> PolicySnapshot {
        PolicySnapshot {
            active: self.active.load_full(),
            guard: self.guard.load_full(),
        }
    }

    /// Asks the guard about a result before it is returned.
    pub(crate) fn check_result(&self, route: &Route, reply: &CallReply) -> Result<(), CallError> {
        let guard = self.guard.load();
        let Some(guard) = guard
            .as_ref()
            .filter(|_| reply.response.body == BodyKind::Result)
        else {
            return Ok(());
        };
        let result = reply.response.body_bytes();
        match guard.check_result(route, result) {
            GuardDecision::Allow => Ok(()),
            GuardDecision::Deny { reason } => Err(CallError::BadOutput {
                server: Arc::clone(&route.server),
                tool: Arc::clone(&route.name),
                reason,
            }),
        }
    }

    /// Returns the spending limits of a principal; `None` without limits.
    pub(crate) fn budget_limits(&self, principal: &Principal) -> Option<BudgetLimits> {
        let force = self.active.load();
        let (role, allowance) = force.policy.allowance(principal)?;
        let role = Arc::clone(role);
        Some(BudgetLimits { role, allowance })
    }

    /// Returns the identity of a principal, for the policy of a peer.
    pub(crate) fn peer_identity(&self, principal: &Principal) -> CallerIdentity {
        let force = self.active.load();
        let role = match &principal.role {
            Role::Owner | Role::OwnersAgent => Some(OWNER_ROLE.into()),
            Role::AnonymousLocal => force.policy.assigned_role(&principal.name).cloned(),
            Role::Named(_) | Role::None => force.policy.role_name(principal).cloned(),
        };
        CallerIdentity {
            principal: Arc::clone(&principal.name),
            role,
            run: None,
        }
    }

    /// Returns principal and run of a call, for a peer; `None` for other servers.
    pub(crate) fn call_identity(
        &self,
        call: &CallRequest,
        transport: &ServerTransport,
    ) -> Option<CallerIdentity> {
        let ServerTransport::Peer(_) = transport else {
            return None;
        };
        Some(CallerIdentity {
            run: call.run.as_ref().map(|run| Arc::clone(&run.id)),
            ..self.peer_identity(&call.principal)
        })
    }

    /// Returns the principal of a request, for a worker: workers apply their own policy.
    pub(crate) fn principal_identity(
        &self,
        principal: &Principal,
        transport: &ServerTransport,
    ) -> Option<CallerIdentity> {
        match transport {
            ServerTransport::Peer(peer) if peer.role == PeerRole::Worker => {
                Some(self.peer_identity(principal))
            }
            ServerTransport::Child(_)
            | ServerTransport::Executor(_)
            | ServerTransport::Remote(_)
            | ServerTransport::InProcess(_)
            | ServerTransport::Peer(_) => None,
        }
    }

    pub(crate) fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.active.load().policy)
    }

    /// Replaces the policy. Restrictions of credentials stay.
    pub(crate) fn set_policy(&self, policy: Policy) {
        self.replace_policy(|now| {
            policy.with_credential_contexts(Arc::clone(now.credential_contexts()))
        });
    }

    /// Replaces the restrictions of credentials.
    pub(crate) fn restrict_credentials(&self, credentials: CredentialContexts) {
        let credentials = Arc::new(credentials);
        self.replace_policy(|now| now.clone().with_credential_contexts(credentials));
    }

    fn replace_policy(&self, next: impl FnOnce(&Policy) -> Policy) {
        self.version.send_modify(|version| {
            *version += 1;
            let version = *version;
            let policy = Arc::new(next(&self.active.load().policy));
            self.active
                .store(Arc::new(ActivePolicy { policy, version }));
        });
    }

    pub(crate) fn set_guard(&self, guard: Option<Box<dyn AccessGuard>>) {
        let guard = guard.map(Arc::new);
        self.version.send_modify(|version| {
            *version += 1;
            self.guard.store(guard);
        });
    }

    pub(crate) fn subscribe_version(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}

impl PolicySnapshot {
    /// True if no item needs an individual decision.
    pub(crate) fn can_see_all(&self, principal: &Principal, scope: &EndpointScope) -> bool {
        self.guard.is_none() && self.active.policy.can_see_all(principal, scope)
    }

    /// True if no principal sees less than `principal` at the endpoint of `scope`.
    pub(crate) fn is_unrestricted(&self, principal: &Principal, scope: &EndpointScope) -> bool {
        self.can_see_all(principal, scope) && self.active.policy.is_unrestricted()
    }

    /// True if `principal` may see a target.
    pub(crate) fn can_see(
        &self,
        principal: &Principal,
        scope: &EndpointScope,
        thing: PolicyTarget<'_>,
    ) -> bool {
        self.policy().decide(principal, scope, thing).is_allowed()
            && check_guard(self.guard.as_ref(), thing.server, Some(thing.name)).is_ok()
    }

    /// Decides about a target and its arguments, without a time limit.
    pub(crate) fn decide(
        &self,
        principal: &Principal,
        scope: &EndpointScope,
        thing: PolicyTarget<'_>,
    ) -> Result<(), PolicyRefusal> {
        let ruling = self.policy().decide(principal, scope, thing);
        apply_guard(&ruling, self.guard.as_ref(), thing)
    }

    /// Returns the policy.
    pub(crate) fn policy(&self) -> &Policy {
        &self.active.policy
    }

    /// Returns the policy version; `None` with a guard, whose decisions may change at any time.
    pub(crate) fn version(&self) -> Option<u64> {
        self.guard.is_none().then_some(self.active.version)
    }
}

/// Combines the policy's decision with the guard's.
fn apply_guard(
    ruling: &PolicyDecision<'_>,
    guard: Option<&Arc<Box<dyn AccessGuard>>>,
    thing: PolicyTarget<'_>,
) -> Result<(), PolicyRefusal> {
    if !ruling.is_allowed() {
        return Err(PolicyRefusal {
            source: ruling.metric_source(),
            reason: ruling.to_string().into(),
        });
    }
    check_guard(guard, thing.server, Some(thing.name))
}

/// Asks the guard about a server and, if named, about an item.
fn check_guard(
    guard: Option<&Arc<Box<dyn AccessGuard>>>,
    server: &str,
    name: Option<&str>,
) -> Result<(), PolicyRefusal> {
    let Some(guard) = guard else {
        return Ok(());
    };
    for checked_name in [None, name].into_iter().skip(usize::from(name.is_none())) {
        if let GuardDecision::Deny { reason } = guard.check_access(server, checked_name) {
            return Err(PolicyRefusal {
                source: "guard",
                reason,
            });
        }
    }
    Ok(())
}
