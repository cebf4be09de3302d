//! Cache of responses with a `ttlMs` hint: looked up before a call, filled when the server
//! responds.

mod cache_flight;
mod cached_result;
mod invalidation;
mod lookup_keys;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bowline_core::cache::{self, CacheLimits, CacheView, FlightId, FlightLead, ResultCache};
use bowline_core::call::{CallDeadline, CallReply, CallRequest, Route};
use bowline_core::error::CallError;
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_runtime::Clock;
use memchr::memmem::Finder;
use tokio::sync::watch;

use self::cache_flight::{FlightPhase, StorePolicy};
use self::lookup_keys::LookupKeys;
use crate::supervisor::Supervisor;

pub(crate) use self::cache_flight::CacheFlight;

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
                CacheProbe::Hit(cached_result::to_reply(&hit, &request.call.id))
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
