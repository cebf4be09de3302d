//! Unit tests of the cache, and a comparison with a naive model.

use super::*;
use crate::era::Era;

mod model;

const SECOND: Duration = Duration::from_secs(1);

/// A subject, and calls with numbered arguments.
#[derive(Clone, Debug)]
struct CacheFixture {
    server: Arc<str>,
    kind: FeatureKind,
    name: Arc<str>,
}

impl CacheFixture {
    fn new(server: &str, kind: FeatureKind, name: &str) -> Self {
        Self {
            server: server.into(),
            kind,
            name: name.into(),
        }
    }

    fn tool(name: &str) -> Self {
        Self::new("s", FeatureKind::Tool, name)
    }

    fn subject(&self) -> CacheSubject<'_> {
        CacheSubject {
            server: &self.server,
            kind: self.kind,
            name: &self.name,
        }
    }

    fn keys(&self, nth: usize, principal: &str) -> ResultKeys {
        let base = ResultKeyBase::new(self.subject(), &[0; 32], &nth.to_le_bytes());
        ResultKeys {
            public: Some(base.public_key()),
            private: Some(base.private_key(principal)),
        }
    }

    fn insertion(&self, nth: usize, expires: u64) -> CacheInsertion {
        CacheInsertion {
            key: self.keys(nth, "").public.unwrap(),
            scope: CacheScope::Public,
            purge_epoch: 0,
            expires_at: MonotonicTime(expires),
            cached: cached_result(nth),
        }
    }

    fn store(&self, cache: &mut ResultCache, nth: usize, expires: u64, now: u64) -> bool {
        let landing = CacheInsertion {
            purge_epoch: cache.purge_epoch(),
            ..self.insertion(nth, expires)
        };
        cache.store_result(self.subject(), landing, MonotonicTime(now))
    }

    fn lookup(&self, cache: &mut ResultCache, nth: usize, now: u64) -> LookupOutcome {
        let era = cache.purge_epoch();
        cache.begin_lookup(
            self.subject(),
            self.keys(nth, "ann"),
            era,
            MonotonicTime(now),
        )
    }

    fn is_hit(&self, cache: &mut ResultCache, nth: usize, now: u64) -> bool {
        matches!(self.lookup(cache, nth, now), LookupOutcome::Hit(_))
    }
}

fn cached_result(nth: usize) -> CachedResult {
    let result = format!("{{\"nth\":{nth:03},\"ttlMs\":5}}");
    let end = result.len() - 1;
    CachedResult {
        ttl_at: end - 1..end,
        era: Era::Legacy,
        result: result.into(),
    }
}

fn new_cache(entries_max: usize, per_tool_max: usize) -> ResultCache {
    ResultCache::new(CacheLimits {
        entries_max,
        per_tool_max,
        ..CacheLimits::default()
    })
}

#[test]
fn stored_result_is_hit_until_expiry() {
    let (mut cache, do_it) = (new_cache(8, 8), CacheFixture::tool("do"));
    assert!(do_it.store(&mut cache, 1, 1_000, 400));
    let LookupOutcome::Hit(hit) = do_it.lookup(&mut cache, 1, 999) else {
        panic!("it is good for another millisecond");
    };
    assert_eq!(hit.cached, cached_result(1));
    assert_eq!(hit.remaining_ttl, Duration::from_millis(1));
    assert_eq!(cache.total_view(MonotonicTime(999)).entries, 1);
    assert!(!do_it.is_hit(&mut cache, 1, 1_000));
    assert_eq!(
        cache.total_view(MonotonicTime(0)).entries,
        0,
        "it was removed on access"
    );
    assert!(!do_it.is_hit(&mut cache, 2, 0));
}

#[test]
fn expired_result_is_not_stored() {
    let (mut cache, do_it) = (new_cache(8, 8), CacheFixture::tool("do"));
    assert!(!do_it.store(&mut cache, 1, 1_000, 1_000));
    assert!(!do_it.store(&mut cache, 1, 1_000, 5_000));
    assert_eq!(cache.total_view(MonotonicTime(0)), CacheView::default());
    assert_eq!(
        cache.subject_summary(do_it.subject()),
        None,
        "nobody waits for it"
    );
}

#[test]
fn oldest_of_tool_is_evicted_first() {
    let mut cache = new_cache(5, 3);
    let (first, second) = (CacheFixture::tool("first"), CacheFixture::tool("second"));
    assert!(first.store(&mut cache, 0, 99, 0));
    for nth in 0..4 {
        assert!(second.store(&mut cache, nth, 99, 0));
    }
    assert!(first.is_hit(&mut cache, 0, 1) && !second.is_hit(&mut cache, 0, 1));
    assert!(first.store(&mut cache, 1, 99, 0));
    assert_eq!(cache.total_view(MonotonicTime(1)).evictions, 1);
    assert!(first.store(&mut cache, 2, 99, 0));
    assert!(
        !first.is_hit(&mut cache, 0, 1),
        "the oldest of all made room for the sixth"
    );
    let view = cache.total_view(MonotonicTime(1));
    assert_eq!((view.entries, view.evictions), (5, 2));
    assert_eq!(view.bytes, 5 * cached_result(0).result.len());
}

#[test]
fn repeated_result_replaces_previous_entry() {
    let (mut cache, do_it) = (new_cache(2, 2), CacheFixture::tool("do"));
    for now in 0..5 {
        assert!(do_it.store(&mut cache, 1, 100 + now, now));
    }
    let view = cache.total_view(MonotonicTime(5));
    assert_eq!((view.entries, view.evictions), (1, 0));
    assert!(do_it.is_hit(&mut cache, 1, 103));
}

#[test]
fn cache_bytes_are_bounded() {
    let size = cached_result(0).result.len();
    let mut cache = ResultCache::new(CacheLimits {
        bytes_max: size * 3,
        result_bytes_max: size,
        ..CacheLimits::default()
    });
    let do_it = CacheFixture::tool("do");
    for nth in 0..10 {
        assert!(do_it.store(&mut cache, nth, 99, 0));
        assert!(cache.total_view(MonotonicTime(0)).bytes <= size * 3);
    }
    let view = cache.total_view(MonotonicTime(0));
    assert_eq!((view.entries, view.evictions), (3, 7));
    let mut landing = do_it.insertion(77, 99);
    landing.cached.result = Bytes::from(vec![b'x'; size + 1]);
    assert!(!cache.store_result(do_it.subject(), landing, MonotonicTime(0)));
    assert_eq!(cache.total_view(MonotonicTime(0)).entries, 3);
}

#[test]
fn expired_results_are_swept_on_insert() {
    let mut cache = new_cache(1_000, 64);
    for nth in 0..200 {
        assert!(CacheFixture::tool(&format!("t{nth}")).store(&mut cache, 0, 10, 0));
    }
    let late = CacheFixture::tool("late");
    for nth in 0..4 {
        assert!(late.store(&mut cache, nth, 99, 20));
    }
    assert_eq!(cache.entries.len(), 4, "swept by the insertions alone");
    assert_eq!(
        cache.total_view(MonotonicTime(20)).evictions,
        0,
        "their time was over"
    );
}

#[test]
fn first_lookup_leads_and_others_follow() {
    let (mut cache, do_it) = (new_cache(8, 8), CacheFixture::tool("do"));
    assert!(do_it.store(&mut cache, 0, 10, 0));
    let LookupOutcome::Lead(first) = do_it.lookup(&mut cache, 1, 1) else {
        panic!("nobody asks yet");
    };
    assert_eq!(
        do_it.lookup(&mut cache, 1, 1),
        LookupOutcome::Follow(first.id)
    );
    assert!(matches!(
        do_it.lookup(&mut cache, 2, 1),
        LookupOutcome::Lead(_)
    ));
    cache.end_flight(first);
    let LookupOutcome::Lead(second) = do_it.lookup(&mut cache, 1, 1) else {
        panic!("the first is gone");
    };
    cache.end_flight(first);
    let follow = do_it.lookup(&mut cache, 1, 1);
    assert_eq!(
        follow,
        LookupOutcome::Follow(second.id),
        "an old end ends nothing"
    );
}

#[test]
fn lookup_without_hint_bypasses_cache() {
    let (mut cache, do_it) = (new_cache(8, 8), CacheFixture::tool("do"));
    assert_eq!(cache.subject_summary(do_it.subject()), None);
    assert_eq!(do_it.lookup(&mut cache, 1, 1), LookupOutcome::Bypass);
    assert!(do_it.store(&mut cache, 1, 10, 0));
    cache.mark_uncacheable(do_it.subject());
    assert_eq!(do_it.lookup(&mut cache, 2, 1), LookupOutcome::Bypass);
    assert!(do_it.is_hit(&mut cache, 1, 1), "what is kept is good");
}

#[test]
fn private_flight_is_followed_by_principal_only() {
    let (mut cache, do_it) = (new_cache(8, 8), CacheFixture::tool("do"));
    let landing = CacheInsertion {
        key: do_it.keys(0, "ann").private.unwrap(),
        scope: CacheScope::Private,
        ..do_it.insertion(0, 10)
    };
    assert!(cache.store_result(do_it.subject(), landing, MonotonicTime(0)));
    let mut enter = |principal, nth| {
        let keys = do_it.keys(nth, principal);
        cache.begin_lookup(do_it.subject(), keys, 0, MonotonicTime(1))
    };
    assert!(matches!(enter("ann", 0), LookupOutcome::Hit(_)));
    assert!(matches!(enter("bob", 0), LookupOutcome::Lead(_)));
    assert!(matches!(enter("ann", 1), LookupOutcome::Lead(_)));
    assert!(matches!(enter("bob", 1), LookupOutcome::Lead(_)));
    assert!(matches!(enter("bob", 1), LookupOutcome::Follow(_)));
}

#[test]
fn call_begun_before_purge_stores_nothing() {
    let (mut cache, do_it) = (new_cache(8, 8), CacheFixture::tool("do"));
    assert!(do_it.store(&mut cache, 0, 99, 0));
    let begun = cache.purge_epoch();
    let LookupOutcome::Lead(lead) = do_it.lookup(&mut cache, 1, 1) else {
        panic!("nobody asks yet");
    };
    cache.purge_server(&do_it.server, PurgeScope::All);
    assert!(!do_it.is_hit(&mut cache, 0, 1));
    let again = do_it.lookup(&mut cache, 1, 1);
    assert!(
        matches!(again, LookupOutcome::Lead(_)),
        "nobody follows the old"
    );
    cache.end_flight(lead);
    let late = CacheInsertion {
        purge_epoch: begun,
        ..do_it.insertion(1, 99)
    };
    assert!(!cache.store_result(do_it.subject(), late.clone(), MonotonicTime(1)));
    let old = cache.begin_lookup(do_it.subject(), do_it.keys(7, ""), begun, MonotonicTime(1));
    assert_eq!(old, LookupOutcome::Bypass, "nobody may wait for it either");
    cache.forget_server(&do_it.server);
    assert!(!cache.store_result(do_it.subject(), late, MonotonicTime(1)));
    assert!(do_it.store(&mut cache, 1, 99, 1));
}

#[test]
fn purge_removes_only_its_scope() {
    let things = [
        CacheFixture::tool("get_a"),
        CacheFixture::tool("list_a"),
        CacheFixture::new("s", FeatureKind::Prompt, "get_a"),
        CacheFixture::new("s", FeatureKind::Resource, "file:///a"),
        CacheFixture::new("s", FeatureKind::Resource, "file:///b"),
        CacheFixture::new("other", FeatureKind::Tool, "get_a"),
    ];
    let globs = [FeaturePattern::parse("*.get_*").unwrap()];
    for (stale, left) in [
        (PurgeScope::All, "00000y"),
        (PurgeScope::Kind(FeatureKind::Tool), "00yyyy"),
        (PurgeScope::Kind(FeatureKind::Resource), "yyy00y"),
        (PurgeScope::Resource("file:///a"), "yyy0yy"),
        (PurgeScope::Matching(&globs), "0y0yyy"),
        (PurgeScope::Matching(&[]), "yyyyyy"),
    ] {
        let mut cache = new_cache(99, 9);
        for thing in &things {
            assert!(thing.store(&mut cache, 0, 99, 0));
        }
        cache.purge_server(&"s".into(), stale);
        let hit = things.iter().map(|thing| thing.is_hit(&mut cache, 0, 1));
        let found: String = hit.map(|hit| if hit { 'y' } else { '0' }).collect();
        assert_eq!(found, left, "{stale:?}");
    }
}

#[test]
fn idle_subjects_are_bounded() {
    let mut cache = new_cache(8, 8);
    for nth in 0..10_000 {
        let thing = CacheFixture::new("s", FeatureKind::Resource, &format!("r{nth}"));
        assert!(thing.store(&mut cache, 0, 99, 0));
    }
    assert!(
        cache.subject_count() <= 4_096 + 8,
        "{}",
        cache.subject_count()
    );
    cache.forget_server(&"s".into());
    assert_eq!(cache.subject_count(), 0);
    assert_eq!(cache.index.total_view(), CacheView::default());
}

#[test]
fn tighter_limits_apply_at_once() {
    let mut cache = new_cache(100, 50);
    for nth in 0..40 {
        assert!(CacheFixture::tool("a").store(&mut cache, nth, 99, 0));
        assert!(CacheFixture::tool("b").store(&mut cache, nth, 99, 0));
    }
    let limits = CacheLimits {
        entries_max: 30,
        per_tool_max: 10,
        ttl_max: SECOND,
        ..CacheLimits::default()
    };
    cache.set_limits(limits, MonotonicTime(0));
    assert_eq!(cache.total_view(MonotonicTime(0)).entries, 20);
    assert!(CacheFixture::tool("a").is_hit(&mut cache, 39, 1));
    assert!(!CacheFixture::tool("a").is_hit(&mut cache, 29, 1));
}
