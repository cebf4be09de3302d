//! Cache of responses with a `ttlMs` hint: looked up before a call, filled when the server
//! responds.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bowline_core::cache::{
    self, CacheHint, CacheInsertion, CacheLimits, CacheScope, CacheSubject, CacheView, FlightId,
    FlightLead, NAME_BYTES_MAX, ResultCache, ResultKeyBase,
};
use bowline_core::call::{BodyKind, CallReply, CallRequest, CallSubject, Effect, Route};
use bowline_core::era::Era;
use bowline_core::error::{CallError, ExecutionStatus};
use bowline_core::sync::lock;
use bowline_core::time::{CallDeadline, MonotonicTime};
use bowline_runtime::Clock;
use bowline_wire::ByteSpan;
use bowline_wire::era::result_translation::result_kind;
use memchr::memmem::Finder;
use tokio::sync::watch;

use self::cached_result::ResultHint;
use self::lookup_keys::{LookupKeys, key_base};
use crate::spec::{Isolation, ServerSpec, ToolRule};
use crate::supervisor::Supervisor;

mod cached_result;
mod invalidation;
mod lookup_keys;

/// The response cache.
pub(crate) struct ResponseCache {
    state: Mutex<ResponseCacheState>,
    clock: Arc<dyn Clock>,
    /// Copy of the cache's purge epoch, read without a lock at the start of every call.
    purge_epoch: AtomicU64,
    /// Number of items with cacheable responses, read without a lock: at zero, a call skips the
    /// lookup.
    cacheable_items: AtomicUsize,
    /// Finds the `ttlMs` member in a result.
    ttl_finder: Finder<'static>,
}

#[derive(Debug)]
struct ResponseCacheState {
    cache: ResultCache,
    /// Callers waiting for a flight, by flight.
    waiters: HashMap<FlightId, watch::Sender<FlightPhase>>,
}

/// Start of a call: time and purge epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallStart {
    pub(crate) at: MonotonicTime,
    pub(crate) purge_epoch: u64,
}

/// A call that may hit the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheRequest<'a> {
    pub(crate) call: &'a CallRequest,
    pub(crate) route: &'a Route,
    pub(crate) server: &'a Supervisor,
    pub(crate) start: CallStart,
}

/// Result of a cache lookup, after waiting for flights.
#[derive(Debug)]
pub(crate) enum CacheLookup<'a> {
    /// A cached response.
    Hit(CallReply),
    /// No response cached: the call goes to the server.
    Miss(CacheFlight<'a>),
}

/// Result of a single lookup, before waiting.
enum CacheProbe {
    Hit(CallReply),
    /// The call goes to the server; followers may wait for a leading call.
    Miss(Option<FlightLead>),
    Follow(watch::Receiver<FlightPhase>),
}

impl ResponseCache {
    pub(crate) fn new(limits: CacheLimits, clock: Arc<dyn Clock>) -> Self {
        Self {
            state: Mutex::new(ResponseCacheState {
                cache: ResultCache::new(limits),
                waiters: HashMap::new(),
            }),
            clock,
            purge_epoch: AtomicU64::new(0),
            cacheable_items: AtomicUsize::new(0),
            ttl_finder: Finder::new(cached_result::TTL_MEMBER),
        }
    }

    /// Records the start of a call.
    pub(crate) fn start_call(&self, at: MonotonicTime) -> CallStart {
        CallStart {
            at,
            purge_epoch: self.purge_epoch.load(Ordering::Acquire),
        }
    }

    /// Looks up a response, and waits until `deadline` while an identical call is in flight.
    ///
    /// Keys are hashed only for items known to have cacheable responses.
    pub(crate) async fn lookup_or_wait<'a>(
        &'a self,
        request: CacheRequest<'a>,
        deadline: CallDeadline,
    ) -> Result<CacheLookup<'a>, CallError> {
        let live = |policy| Ok(CacheLookup::Miss(CacheFlight::new(self, request, policy)));
        if !request.is_cacheable() {
            return live(StorePolicy::Never);
        }
        if self.cacheable_items.load(Ordering::Relaxed) == 0 {
            return live(StorePolicy::IfHinted);
        }
        let summary = lock(&self.state)
            .cache
            .subject_summary(request.cache_item());
        let Some(summary) = summary else {
            return live(StorePolicy::IfHinted);
        };
        let Some(keys) = LookupKeys::from_request(request, summary) else {
            return live(StorePolicy::Never);
        };
        match self.lookup_once(request, &keys, request.start.at) {
            CacheProbe::Hit(reply) => Ok(CacheLookup::Hit(reply)),
            CacheProbe::Miss(lead) => live(keys.into_missed(lead)),
            // Boxed because it is rare: keeps the future of an ordinary call small.
            CacheProbe::Follow(phase) => {
                Box::pin(self.follow_flight(request, keys, phase, deadline)).await
            }
        }
    }

    /// Performs a single lookup.
    fn lookup_once(
        &self,
        request: CacheRequest<'_>,
        keys: &LookupKeys,
        now: MonotonicTime,
    ) -> CacheProbe {
        let mut state = lock(&self.state);
        let item = request.cache_item();
        match state
            .cache
            .begin_lookup(item, keys.keys, request.start.purge_epoch, now)
        {
            cache::LookupOutcome::Hit(hit) => {
                drop(state);
                CacheProbe::Hit(cached_result::to_reply(&hit, &request.call.message.id))
            }
            cache::LookupOutcome::Lead(lead) => CacheProbe::Miss(Some(lead)),
            cache::LookupOutcome::Bypass => CacheProbe::Miss(None),
            cache::LookupOutcome::Follow(id) => {
                let flying = || watch::Sender::new(FlightPhase::InFlight);
                let sender = state.waiters.entry(id).or_insert_with(flying);
                CacheProbe::Follow(sender.subscribe())
            }
        }
    }

    /// Waits for the identical call in flight. If that call is dropped, the first waiter takes
    /// over; if its response is not cacheable, every waiter calls the server.
    async fn follow_flight<'a>(
        &'a self,
        request: CacheRequest<'a>,
        mut keys: LookupKeys,
        mut phase: watch::Receiver<FlightPhase>,
        deadline: CallDeadline,
    ) -> Result<CacheLookup<'a>, CallError> {
        let live = |policy| Ok(CacheLookup::Miss(CacheFlight::new(self, request, policy)));
        let until = self.clock.instant(deadline.at);
        loop {
            let phase_after = phase.wait_for(|phase| *phase != FlightPhase::InFlight);
            let phase_after = match tokio::time::timeout_at(until, phase_after).await {
                Ok(Ok(phase_after)) => *phase_after,
                // The leader was dropped without a final phase.
                Ok(Err(_)) => FlightPhase::Retry,
                Err(_) => return Err(request.to_timeout_error(deadline)),
            };
            if phase_after == FlightPhase::Uncacheable {
                lock(&self.state).cache.count_miss(&request.route.server);
                return live(keys.into_missed(None));
            }
            // The sharing of these responses may be known by now.
            let summary = lock(&self.state)
                .cache
                .subject_summary(request.cache_item());
            keys.add_missing_keys(request, summary);
            match self.lookup_once(request, &keys, self.clock.now()) {
                CacheProbe::Hit(reply) => return Ok(CacheLookup::Hit(reply)),
                CacheProbe::Miss(lead) => return live(keys.into_missed(lead)),
                CacheProbe::Follow(next) => phase = next,
            }
        }
    }

    /// Ends a flight and wakes its waiters.
    fn end_flight(&self, lead: FlightLead, phase: FlightPhase) {
        let waiting = self.update(|state| {
            state.cache.end_flight(lead);
            state.waiters.remove(&lead.id)
        });
        if let Some(waiting) = waiting {
            waiting.send_replace(phase);
        }
    }

    /// Returns statistics over all servers.
    pub(crate) fn stats(&self) -> CacheView {
        lock(&self.state).cache.total_view(self.clock.now())
    }

    /// Returns statistics of a server.
    pub(crate) fn server_stats(&self, server: &str) -> CacheView {
        lock(&self.state)
            .cache
            .server_view(server, self.clock.now())
    }

    /// Applies changed limits.
    pub(crate) fn set_limits(&self, limits: CacheLimits) {
        self.update(|state| state.cache.set_limits(limits, self.clock.now()));
    }

    /// Changes the cache, then updates the lock-free copies.
    fn update<T>(&self, change: impl FnOnce(&mut ResponseCacheState) -> T) -> T {
        let mut state = lock(&self.state);
        let changed = change(&mut state);
        self.purge_epoch
            .store(state.cache.purge_epoch(), Ordering::Release);
        self.cacheable_items
            .store(state.cache.subject_count(), Ordering::Relaxed);
        changed
    }
}

impl fmt::Debug for ResponseCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseCache")
            .field("era", &self.purge_epoch)
            .field("known", &self.cacheable_items)
            .finish_non_exhaustive()
    }
}

/// State of a flight, as seen by waiting calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlightPhase {
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
enum StorePolicy {
    /// Never cached.
    Never,
    /// Cached if the result has a hint; no earlier result of this item had.
    IfHinted,
    /// Looked up before, and counted as a miss.
    Missed(Box<CacheMiss>),
}

/// A lookup without a hit.
#[derive(Debug)]
struct CacheMiss {
    base: ResultKeyBase,
    /// Set if identical calls may wait for this call.
    lead: Option<FlightLead>,
}

impl<'a> CacheRequest<'a> {
    const fn cache_item(&self) -> CacheSubject<'a> {
        CacheSubject {
            server: &self.route.server,
            kind: self.call.subject.kind(),
            name: &self.route.name,
        }
    }

    /// True if the response may serve other calls, subject to its hint. Write tools are always
    /// called.
    fn is_cacheable(&self) -> bool {
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

    fn to_timeout_error(self, deadline: CallDeadline) -> CallError {
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
    fn new(cache: &'a ResponseCache, request: CacheRequest<'a>, policy: StorePolicy) -> Self {
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
        // Most results have no hint and are not parsed.
        if self.cache.ttl_finder.find(body).is_none() {
            return self.mark_unhinted();
        }
        match cached_result::read_hint(body) {
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

/// Returns the rule of a tool configured as a write tool. A server's own annotation does not
/// suffice: most servers annotate all tools as writing.
fn configured_write_rule<'a>(route: &Route, spec: &'a ServerSpec) -> Option<&'a ToolRule> {
    if route.effect != Effect::Write {
        return None;
    }
    let rule = spec.tools.get(route.name.as_ref())?;
    (rule.effect == Some(Effect::Write)).then_some(rule)
}
