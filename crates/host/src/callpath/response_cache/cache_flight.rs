//! A call sent to its server on a cache miss: its response may be cached, and identical calls may
//! wait.

use bowline_core::cache::{
    CacheHint, CacheInsertion, CacheScope, CacheSubject, FlightLead, NAME_BYTES_MAX, ResultKeyBase,
};
use bowline_core::call::{BodyKind, CallDeadline, CallReply, CallSubject, Effect};
use bowline_core::era::Era;
use bowline_core::error::{CallError, ExecutionStatus};
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_wire::ByteSpan;
use bowline_wire::era::result_translation::result_kind;

use super::cached_result::{self, ResultHint};
use super::invalidation::configured_write_rule;
use super::lookup_keys::key_base;
use super::{CacheRequest, ResponseCache};
use crate::spec::{Isolation, ToolRule};

/// State of a flight, as seen by waiting calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlightPhase {
    /// In flight.
    InFlight,
    /// Finished: a response is cached, or a waiter must call the server.
    Retry,
    /// Finished with an uncacheable response: every waiter calls the server.
    Uncacheable,
}

/// A call on its way to the server. If dropped before the server responds, the next waiter takes
/// over.
#[derive(Debug)]
pub(crate) struct CacheFlight<'a> {
    cache: &'a ResponseCache,
    request: CacheRequest<'a>,
    policy: StorePolicy,
    /// Final phase for the waiters.
    final_phase: FlightPhase,
    /// The tool's write rule, if configured: such a call invalidates cached responses.
    write_rule: Option<&'a ToolRule>,
}

/// Whether and how the response is cached.
#[derive(Debug)]
pub(super) enum StorePolicy {
    /// Never cached.
    Never,
    /// Cached if the result has a hint; no earlier result of this item had.
    IfHinted,
    /// Looked up before, and counted as a miss.
    Missed(Box<CacheMiss>),
}

/// A lookup without a hit.
#[derive(Debug)]
pub(super) struct CacheMiss {
    pub(super) base: ResultKeyBase,
    /// Set if identical calls may wait for this call.
    pub(super) lead: Option<FlightLead>,
}

impl<'a> CacheRequest<'a> {
    pub(super) const fn cache_item(&self) -> CacheSubject<'a> {
        CacheSubject {
            server: &self.route.server,
            kind: self.call.subject.kind(),
            name: &self.route.name,
        }
    }

    /// True if the response may serve other calls, subject to its hint. Write tools are always
    /// called.
    pub(super) fn is_cacheable(&self) -> bool {
        let is_answer = matches!(
            self.call.subject,
            CallSubject::Tool(_) | CallSubject::Prompt(_) | CallSubject::Resource(_)
        );
        is_answer
            && self.route.effect != Effect::Write
            && !self.call.wants_task
            && !self.call.is_continuation()
            && self.route.name.len() <= NAME_BYTES_MAX
            && self.server.spec().cache
            && !self.server.is_isolated(self.call)
    }

    pub(super) fn to_timeout_error(self, deadline: CallDeadline) -> CallError {
        CallError::Timeout {
            server: self.route.server.clone(),
            after_ms: deadline.at.millis_since(self.start.at),
            execution: ExecutionStatus::NotStarted,
            limit: deadline.limit,
        }
    }

    /// Returns the sharing of a response: private if each principal has its own link, whatever the
    /// hint says.
    fn effective_sharing(&self, scope: CacheScope) -> CacheScope {
        match self.server.spec().isolation {
            Isolation::Principal | Isolation::Session => CacheScope::Private,
            Isolation::Auto | Isolation::Shared => scope,
        }
    }
}

impl<'a> CacheFlight<'a> {
    pub(super) fn new(
        cache: &'a ResponseCache,
        request: CacheRequest<'a>,
        policy: StorePolicy,
    ) -> Self {
        let write_rule = configured_write_rule(request.route, request.server.spec());
        if let Some(rule) = write_rule {
            cache.invalidate_on_write(&request.route.server, rule);
        }
        Self {
            cache,
            request,
            policy,
            final_phase: FlightPhase::Retry,
            write_rule,
        }
    }

    /// Records that the server is done: no waiter needs to take over.
    pub(crate) const fn mark_returned(&mut self) {
        self.final_phase = FlightPhase::Uncacheable;
    }

    /// Caches the response for the time of its hint.
    pub(crate) fn store_response(mut self, reply: &CallReply, now: MonotonicTime) {
        if matches!(self.policy, StorePolicy::Never) || reply.response.body != BodyKind::Result {
            return;
        }
        let body = reply.response.body_bytes();
        // An input request or a task says nothing about cacheability.
        if reply.response.era == Era::Modern && !result_kind(body).is_final() {
            return;
        }
        match cached_result::read_hint(body, &self.cache.ttl_finder) {
            ResultHint::Failure => {}
            ResultHint::Missing => self.mark_unhinted(),
            ResultHint::Ttl { ttl_ms, scope } => {
                let ttl_max = lock(&self.cache.state).cache.limits().ttl_max;
                let Some(hint) = cached_result::parse_hint(body, ttl_ms, scope, ttl_max) else {
                    return self.mark_unhinted();
                };
                if self.store_result(body, hint, ttl_ms, reply.response.era, now) == Some(true) {
                    self.final_phase = FlightPhase::Retry;
                }
            }
        }
    }

    fn mark_unhinted(&self) {
        if matches!(self.policy, StorePolicy::Missed(_)) {
            let item = self.request.cache_item();
            self.cache
                .update(|state| state.cache.mark_uncacheable(item));
        }
    }

    /// Stores a response, unless the cache is full or was purged since the start of the call.
    fn store_result(
        &self,
        body: &[u8],
        hint: CacheHint,
        ttl_at: ByteSpan,
        written_in: Era,
        now: MonotonicTime,
    ) -> Option<bool> {
        let request = self.request;
        let sharing = request.effective_sharing(hint.scope);
        let key = |base: &ResultKeyBase| match sharing {
            CacheScope::Public => base.public_key(),
            CacheScope::Private => base.private_key(&request.call.principal.name),
        };
        let (key, is_counted) = match &self.policy {
            StorePolicy::Missed(looked) => (key(&looked.base), true),
            StorePolicy::Never | StorePolicy::IfHinted => (key(&key_base(request)?), false),
        };
        let insertion = CacheInsertion {
            key,
            scope: sharing,
            purge_epoch: request.start.purge_epoch,
            expires_at: request.start.at.plus(hint.ttl),
            cached: cached_result::copy_result(body, ttl_at, written_in),
        };
        Some(self.cache.update(|state| {
            let is_kept = state
                .cache
                .store_result(request.cache_item(), insertion, now);
            if is_kept && !is_counted {
                state.cache.count_miss(&request.route.server);
            }
            is_kept
        }))
    }
}

impl Drop for CacheFlight<'_> {
    fn drop(&mut self) {
        if let Some(rule) = self.write_rule {
            self.cache
                .invalidate_on_write(&self.request.route.server, rule);
        }
        if let StorePolicy::Missed(looked) = &self.policy
            && let Some(lead) = looked.lead
        {
            self.cache.end_flight(lead, self.final_phase);
        }
    }
}
