//! Cache of results with a server-defined TTL, with coalescing of identical calls in flight.

mod cache_hint;
mod cache_index;
mod result_key;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::RandomState;

use self::cache_index::{CacheIndex, SubjectKey};
use crate::call::FeatureKind;
use crate::era::Era;
use crate::policy::FeaturePattern;
use crate::time::MonotonicTime;

pub use cache_hint::{CacheHint, CacheScope};
pub use cache_index::SubjectSummary;
pub use result_key::{ResultKey, ResultKeyBase};

/// Size limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Entries in total.
    pub entries_max: usize,
    /// Total bytes of all results.
    pub bytes_max: usize,
    /// Entries of one tool, prompt or resource.
    pub per_tool_max: usize,
    /// Bytes of one result; longer results are not cached.
    pub result_bytes_max: usize,
    /// Upper bound of every TTL.
    pub ttl_max: Duration,
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self {
            entries_max: 4_096,
            bytes_max: 64 << 20,
            per_tool_max: 64,
            result_bytes_max: 1 << 20,
            ttl_max: Duration::from_secs(60 * 60),
        }
    }
}

/// Expired entries removed per insertion at most. Each insertion adds one entry, so expired entries
/// cannot accumulate.
const EXPIRED_PER_INSERT_MAX: usize = 64;

/// Longest name or URI with cached results.
pub const NAME_BYTES_MAX: usize = 1_024;

/// The tool, prompt or resource of a result.
#[derive(Clone, Copy, Debug)]
pub struct CacheSubject<'a> {
    /// The server.
    pub server: &'a Arc<str>,
    /// The feature kind.
    pub kind: FeatureKind,
    /// The upstream name or URI.
    pub name: &'a Arc<str>,
}

/// A result as received from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedResult {
    /// The result.
    pub result: Bytes,
    /// Position of the `ttlMs` number in `result`.
    pub ttl_at: Range<usize>,
    /// The era of the encoding.
    pub era: Era,
}

/// A fresh cached result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheHit {
    /// The cached result.
    pub cached: CachedResult,
    /// Remaining time to live.
    pub remaining_ttl: Duration,
}

/// Identifies a call in flight, whose result further calls may await.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlightId(u64);

/// The leader's handle of a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlightLead {
    /// The flight.
    pub id: FlightId,
    /// The requested key.
    pub key: ResultKey,
}

/// Outcome of a cache lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupOutcome {
    /// A fresh result is cached.
    Hit(CacheHit),
    /// The caller leads: send the request, further calls may await the result.
    Lead(FlightLead),
    /// A call with the same key is in flight.
    Follow(FlightId),
    /// Send the request; further calls cannot await the result.
    Bypass,
}

/// The keys of one call, as far as relevant by [`SubjectSummary`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ResultKeys {
    /// Key of results for all principals.
    pub public: Option<ResultKey>,
    /// Key of results for the calling principal only.
    pub private: Option<ResultKey>,
}

/// A result to insert.
#[derive(Clone, Debug)]
pub struct CacheInsertion {
    /// The key.
    pub key: ResultKey,
    /// The cache scope.
    pub scope: CacheScope,
    /// The purge epoch at the start of the call.
    pub purge_epoch: u64,
    /// Expiry time.
    pub expires_at: MonotonicTime,
    /// The result.
    pub cached: CachedResult,
}

/// The cached results to purge.
#[derive(Clone, Copy, Debug)]
pub enum PurgeScope<'a> {
    /// All results of the server.
    All,
    /// Results of one feature kind.
    Kind(FeatureKind),
    /// Results of one resource.
    Resource(&'a str),
    /// Results of features matching a pattern.
    Matching(&'a [FeaturePattern]),
}

/// Cache statistics of one server, or of all servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheView {
    /// Cached entries.
    pub entries: usize,
    /// Bytes of all entries.
    pub bytes: usize,
    /// Calls served from the cache.
    pub hits: u64,
    /// Calls sent to the server although cacheable.
    pub misses: u64,
    /// Entries evicted before expiry.
    pub evictions: u64,
}

/// The result cache.
#[derive(Debug)]
pub struct ResultCache {
    limits: CacheLimits,
    entries: HashMap<ResultKey, CacheEntry, RandomState>,
    index: CacheIndex,
    /// Expiry order; the number orders entries with equal expiry.
    by_expiry: BTreeSet<(MonotonicTime, u64, ResultKey)>,
    /// Insertion order.
    by_age: BTreeSet<(u64, ResultKey)>,
    /// Last number given to an entry or a flight.
    last_number: u64,
    bytes: usize,
    /// Leading calls in flight. The limit on calls in flight bounds this map.
    flights: HashMap<ResultKey, FlightEntry, RandomState>,
}

#[derive(Debug)]
struct CacheEntry {
    subject: SubjectKey,
    scope: CacheScope,
    number: u64,
    expires_at: MonotonicTime,
    cached: CachedResult,
}

#[derive(Debug)]
struct FlightEntry {
    id: FlightId,
    server: Arc<str>,
    kind: FeatureKind,
}

impl ResultCache {
    /// Returns an empty cache.
    #[must_use]
    pub fn new(limits: CacheLimits) -> Self {
        Self {
            limits,
            entries: HashMap::default(),
            index: CacheIndex::default(),
            by_expiry: BTreeSet::new(),
            by_age: BTreeSet::new(),
            last_number: 0,
            bytes: 0,
            flights: HashMap::default(),
        }
    }

    /// Returns the current limits.
    #[must_use]
    pub const fn limits(&self) -> CacheLimits {
        self.limits
    }

    /// Changes the limits and evicts excess entries, oldest first.
    pub fn set_limits(&mut self, limits: CacheLimits, now: MonotonicTime) {
        self.limits = limits;
        self.remove_expired(usize::MAX, now);
        self.evict_until_fits(0, 0);
        for oldest in self.index.excess_keys(limits.per_tool_max) {
            self.evict_entry(oldest);
        }
    }

    /// Returns the purge epoch. Results of calls started in an earlier epoch are not stored if a
    /// later purge covers them.
    #[must_use]
    pub const fn purge_epoch(&self) -> u64 {
        self.index.purge_epoch()
    }

    /// Returns the number of subjects with cacheable results.
    #[must_use]
    pub const fn subject_count(&self) -> usize {
        self.index.subject_count()
    }

    /// Returns the cache state of a subject; `None` if no result was ever cacheable.
    #[must_use]
    pub fn subject_summary(&self, subject: CacheSubject<'_>) -> Option<SubjectSummary> {
        self.index.subject_summary(subject)
    }

    /// Looks up a result. On a miss, the outcome says whether to lead, follow or bypass a flight. A
    /// leader must call [`end_flight`](Self::end_flight).
    pub fn begin_lookup(
        &mut self,
        subject: CacheSubject<'_>,
        keys: ResultKeys,
        epoch: u64,
        now: MonotonicTime,
    ) -> LookupOutcome {
        for key in [keys.public, keys.private].into_iter().flatten() {
            if let Some(hit) = self.find_hit(key, now) {
                self.index.count_hit(subject.server);
                return LookupOutcome::Hit(hit);
            }
        }
        let sharing = self
            .subject_summary(subject)
            .and_then(|summary| summary.last_scope);
        let key = match sharing {
            Some(CacheScope::Public) => keys.public,
            Some(CacheScope::Private) => keys.private,
            None => None,
        };
        // Followers would wait in vain for a result that cannot be stored.
        let key = key.filter(|_| self.index.is_current_epoch(subject, epoch));
        let Some(key) = key else {
            self.index.count_miss(subject.server);
            return LookupOutcome::Bypass;
        };
        if let Some(flight) = self.flights.get(&key) {
            return LookupOutcome::Follow(flight.id);
        }
        self.index.count_miss(subject.server);
        let id = FlightId(self.next_number());
        let flight = FlightEntry {
            id,
            server: Arc::clone(subject.server),
            kind: subject.kind,
        };
        self.flights.insert(key, flight);
        LookupOutcome::Lead(FlightLead { id, key })
    }

    /// Ends a flight; the next lookup leads.
    pub fn end_flight(&mut self, lead: FlightLead) {
        let flight = self.flights.get(&lead.key);
        if flight.is_some_and(|flight| flight.id == lead.id) {
            self.flights.remove(&lead.key);
        }
    }

    /// Counts a follower that sends the request after an unsuccessful flight.
    pub fn count_miss(&mut self, server: &str) {
        self.index.count_miss(server);
    }

    /// Stores a result; returns `false` if not allowed or not needed.
    pub fn store_result(
        &mut self,
        subject: CacheSubject<'_>,
        insertion: CacheInsertion,
        now: MonotonicTime,
    ) -> bool {
        if !self.index.is_current_epoch(subject, insertion.purge_epoch) {
            self.index.mark_cacheable(subject, insertion.scope);
            return false;
        }
        let size = insertion.cached.result.len();
        let CacheLimits {
            entries_max,
            bytes_max,
            per_tool_max,
            result_bytes_max: answer_bytes_max,
            ..
        } = self.limits;
        let fits = size <= answer_bytes_max.min(bytes_max)
            && entries_max.min(per_tool_max) > 0
            && subject.name.len() <= NAME_BYTES_MAX;
        if !fits || insertion.expires_at <= now {
            self.mark_uncacheable(subject);
            return false;
        }
        self.remove_expired(EXPIRED_PER_INSERT_MAX, now);
        self.remove_entry(&insertion.key);
        while self.index.result_count(subject) >= per_tool_max
            && let Some(oldest) = self.index.oldest_key(subject)
        {
            self.evict_entry(oldest);
        }
        self.evict_until_fits(size, 1);
        self.insert_entry(subject, insertion);
        true
    }

    /// Marks a subject as uncacheable after a result without a usable hint: no call follows the
    /// next.
    pub fn mark_uncacheable(&mut self, subject: CacheSubject<'_>) {
        self.index.mark_uncacheable(subject);
    }

    /// Purges results of a server. Calls started earlier store nothing and cannot be followed.
    pub fn purge_server(&mut self, server: &Arc<str>, scope: PurgeScope<'_>) {
        for key in self.index.purge_server(server, scope) {
            self.remove_entry(&key);
        }
        self.flights
            .retain(|_, flight| *flight.server != **server || !scope.covers_kind(flight.kind));
    }

    /// Removes all state of a removed server.
    pub fn forget_server(&mut self, server: &Arc<str>) {
        self.purge_server(server, PurgeScope::All);
        self.index.forget_server(server);
    }

    /// Returns the statistics of one server.
    pub fn server_view(&mut self, server: &str, now: MonotonicTime) -> CacheView {
        self.remove_expired(usize::MAX, now);
        self.index.server_view(server)
    }

    /// Returns the statistics of all servers.
    pub fn total_view(&mut self, now: MonotonicTime) -> CacheView {
        self.remove_expired(usize::MAX, now);
        self.index.total_view()
    }

    fn find_hit(&mut self, key: ResultKey, now: MonotonicTime) -> Option<CacheHit> {
        let entry = self.entries.get(&key)?;
        if entry.expires_at <= now {
            self.remove_entry(&key);
            return None;
        }
        Some(CacheHit {
            cached: entry.cached.clone(),
            remaining_ttl: now.duration_until(entry.expires_at),
        })
    }

    fn insert_entry(&mut self, subject: CacheSubject<'_>, insertion: CacheInsertion) {
        let number = self.next_number();
        let CacheInsertion {
            key,
            scope: sharing,
            expires_at: expires,
            cached,
            ..
        } = insertion;
        self.index.mark_cacheable(subject, sharing);
        let size = cached.result.len();
        let subject_key = self.index.add_result(subject, number, key, sharing, size);
        self.by_expiry.insert((expires, number, key));
        self.by_age.insert((number, key));
        self.bytes += size;
        let entry = CacheEntry {
            subject: subject_key,
            scope: sharing,
            number,
            expires_at: expires,
            cached,
        };
        self.entries.insert(key, entry);
        debug_assert_eq!(self.entries.len(), self.by_age.len());
    }

    /// Evicts the oldest entries until the given bytes and entries fit.
    fn evict_until_fits(&mut self, bytes: usize, entries: usize) {
        while self.entries.len() + entries > self.limits.entries_max
            || self.bytes + bytes > self.limits.bytes_max
        {
            let Some((_, oldest)) = self.by_age.first().copied() else {
                return;
            };
            self.evict_entry(oldest);
        }
    }

    fn evict_entry(&mut self, key: ResultKey) {
        if let Some(server) = self.remove_entry(&key) {
            self.index.count_eviction(&server);
        }
    }

    /// Removes expired entries, at most `limit`.
    fn remove_expired(&mut self, limit: usize, now: MonotonicTime) {
        for _ in 0..limit {
            match self.by_expiry.first().copied() {
                Some((expires, _, key)) if expires <= now => drop(self.remove_entry(&key)),
                Some(_) | None => return,
            }
        }
    }

    /// Removes an entry and returns the server name.
    fn remove_entry(&mut self, key: &ResultKey) -> Option<Arc<str>> {
        let entry = self.entries.remove(key)?;
        let size = entry.cached.result.len();
        self.by_expiry
            .remove(&(entry.expires_at, entry.number, *key));
        self.by_age.remove(&(entry.number, *key));
        self.bytes -= size;
        self.index
            .remove_result(&entry.subject, entry.number, *key, entry.scope, size);
        Some(entry.subject.server)
    }

    const fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

impl PurgeScope<'_> {
    /// Whether the scope may include results of this kind.
    const fn covers_kind(self, kind: FeatureKind) -> bool {
        match self {
            Self::All | Self::Matching(_) => true,
            Self::Kind(only) => kind as u8 == only as u8,
            Self::Resource(_) => matches!(kind, FeatureKind::Resource),
        }
    }
}
