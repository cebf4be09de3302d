//! Ten thousand random steps against a model with a plain list.

use super::*;

const STEPS: usize = 10_000;
const SEEDS: u64 = 8;
const WHO: [&str; 3] = ["ann", "bob", "cy"];
const KINDS: [FeatureKind; 3] = [
    FeatureKind::Tool,
    FeatureKind::Prompt,
    FeatureKind::Resource,
];

/// All results, oldest first, searched linearly.
struct ModelCache {
    limits: CacheLimits,
    entries: Vec<ModelEntry>,
    evictions: u64,
}

#[derive(Clone, Debug)]
struct ModelEntry {
    subject: usize,
    nth: usize,
    /// The owner; `None` for public results.
    owner: Option<usize>,
    expires: u64,
    result: Bytes,
}

impl ModelCache {
    fn sweep(&mut self, now: u64) {
        self.entries.retain(|row| row.expires > now);
    }

    fn bytes(&self) -> usize {
        self.entries.iter().map(|row| row.result.len()).sum()
    }

    fn evict(&mut self, at: Option<usize>) {
        if let Some(at) = at {
            self.entries.remove(at);
            self.evictions += 1;
        }
    }

    fn store(&mut self, row: ModelEntry, now: u64) -> bool {
        if row.expires <= now || row.result.len() > self.limits.result_bytes_max {
            return false;
        }
        self.sweep(now);
        let name = |row: &ModelEntry| (row.subject, row.nth, row.owner);
        self.entries.retain(|other| name(other) != name(&row));
        let of_tool = |other: &ModelEntry| other.subject == row.subject;
        while self.entries.iter().filter(|other| of_tool(other)).count() >= self.limits.per_tool_max
        {
            self.evict(self.entries.iter().position(of_tool));
        }
        while self.entries.len() >= self.limits.entries_max
            || self.bytes() + row.result.len() > self.limits.bytes_max
        {
            self.evict(Some(0));
        }
        self.entries.push(row);
        true
    }

    fn find(&self, thing: usize, nth: usize, who: usize, now: u64) -> Option<&ModelEntry> {
        let find = |owner: Option<usize>| {
            let mut rows = self.entries.iter();
            rows.find(|row| {
                (row.subject, row.nth, row.owner) == (thing, nth, owner) && row.expires > now
            })
        };
        find(None).or_else(|| find(Some(who)))
    }
}

fn subjects() -> Vec<CacheFixture> {
    let mut all = Vec::new();
    for server in ["s", "t"] {
        for kind in KINDS {
            all.extend(["a", "b"].map(|name| CacheFixture::new(server, kind, name)));
        }
    }
    all
}

fn random_entry(rng: &mut fastrand::Rng, now: u64) -> ModelEntry {
    ModelEntry {
        subject: rng.usize(..12),
        nth: rng.usize(..6),
        owner: [None, Some(0), Some(1), Some(2)][rng.usize(..4)],
        expires: now + rng.u64(..300),
        result: vec![b'x'; rng.usize(..60)].into(),
    }
}

fn to_insertion(things: &[CacheFixture], row: &ModelEntry, era: u64) -> CacheInsertion {
    let keys = things[row.subject].keys(row.nth, row.owner.map_or("", |who| WHO[who]));
    let (key, sharing) = match row.owner {
        None => (keys.public.unwrap(), CacheScope::Public),
        Some(_) => (keys.private.unwrap(), CacheScope::Private),
    };
    CacheInsertion {
        key,
        scope: sharing,
        purge_epoch: era,
        expires_at: MonotonicTime(row.expires),
        cached: CachedResult {
            result: row.result.clone(),
            ttl_at: 0..0,
            era: Era::Legacy,
        },
    }
}

fn compare_with_model(seed: u64) {
    let limits = CacheLimits {
        entries_max: 14,
        bytes_max: 400,
        per_tool_max: 3,
        result_bytes_max: 50,
        ttl_max: SECOND,
    };
    let (mut cache, things) = (ResultCache::new(limits), subjects());
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut naive = ModelCache {
        limits,
        entries: Vec::new(),
        evictions: 0,
    };
    let (mut now, mut hits) = (0, 0);
    for step in 0..STEPS {
        now += rng.u64(..4);
        match rng.usize(..20) {
            0 => {
                let (server, kind) = (["s", "t"][rng.usize(..2)], KINDS[rng.usize(..3)]);
                cache.purge_server(&server.into(), PurgeScope::Kind(kind));
                let goes = |thing: &CacheFixture| *thing.server == *server && thing.kind == kind;
                naive.entries.retain(|row| !goes(&things[row.subject]));
            }
            1..10 => {
                let row = random_entry(&mut rng, now);
                let landing = to_insertion(&things, &row, cache.purge_epoch());
                let kept =
                    cache.store_result(things[row.subject].subject(), landing, MonotonicTime(now));
                assert_eq!(kept, naive.store(row, now), "seed {seed} step {step}");
            }
            _ => {
                let (thing, nth, who) = (rng.usize(..12), rng.usize(..6), rng.usize(..3));
                let (about, keys) = (things[thing].subject(), things[thing].keys(nth, WHO[who]));
                let found = match cache.begin_lookup(
                    about,
                    keys,
                    cache.purge_epoch(),
                    MonotonicTime(now),
                ) {
                    LookupOutcome::Hit(hit) => Some(hit.cached.result),
                    LookupOutcome::Lead(_) | LookupOutcome::Follow(_) | LookupOutcome::Bypass => {
                        None
                    }
                };
                hits += usize::from(found.is_some());
                let want = naive.find(thing, nth, who, now).map(|row| &row.result);
                assert_eq!(found.as_ref(), want, "seed {seed} step {step}");
            }
        }
        if step % 16 == 0 {
            naive.sweep(now);
            let view = cache.total_view(MonotonicTime(now));
            let seen = (view.entries, view.bytes, view.evictions);
            let want = (naive.entries.len(), naive.bytes(), naive.evictions);
            assert_eq!(seen, want, "seed {seed} step {step}");
        }
    }
    assert!(hits > 100 && naive.evictions > 100, "nothing was tried");
}

#[test]
fn random_steps_match_model_cache() {
    for seed in 0..SEEDS {
        compare_with_model(seed);
    }
}
