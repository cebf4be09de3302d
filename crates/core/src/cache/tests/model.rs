//! Ten thousand random steps against a machine that keeps one list and looks through it.

use super::*;

const STEPS: usize = 10_000;
const SEEDS: u64 = 8;
const WHO: [&str; 3] = ["ann", "bob", "cy"];
const KINDS: [Kind; 3] = [Kind::Tool, Kind::Prompt, Kind::Resource];

/// All answers, the oldest first; looked through from end to end each time.
struct Naive {
    limits: CacheLimits,
    list: Vec<Row>,
    evictions: u64,
}

#[derive(Clone, Debug)]
struct Row {
    thing: usize,
    nth: usize,
    /// Whose it is; nobody's where it is for all.
    owner: Option<usize>,
    expires: u64,
    result: Bytes,
}

impl Naive {
    fn sweep(&mut self, now: u64) {
        self.list.retain(|row| row.expires > now);
    }

    fn bytes(&self) -> usize {
        self.list.iter().map(|row| row.result.len()).sum()
    }

    fn evict(&mut self, at: Option<usize>) {
        if let Some(at) = at {
            self.list.remove(at);
            self.evictions += 1;
        }
    }

    fn keep(&mut self, row: Row, now: u64) -> bool {
        if row.expires <= now || row.result.len() > self.limits.answer_bytes_max {
            return false;
        }
        self.sweep(now);
        let name = |row: &Row| (row.thing, row.nth, row.owner);
        self.list.retain(|other| name(other) != name(&row));
        let of_tool = |other: &Row| other.thing == row.thing;
        while self.list.iter().filter(|other| of_tool(other)).count() >= self.limits.per_tool_max {
            self.evict(self.list.iter().position(of_tool));
        }
        while self.list.len() >= self.limits.entries_max
            || self.bytes() + row.result.len() > self.limits.bytes_max
        {
            self.evict(Some(0));
        }
        self.list.push(row);
        true
    }

    fn find(&self, thing: usize, nth: usize, who: usize, now: u64) -> Option<&Row> {
        let find = |owner: Option<usize>| {
            let mut rows = self.list.iter();
            rows.find(|row| {
                (row.thing, row.nth, row.owner) == (thing, nth, owner) && row.expires > now
            })
        };
        find(None).or_else(|| find(Some(who)))
    }
}

fn things() -> Vec<Calls> {
    let mut all = Vec::new();
    for server in ["s", "t"] {
        for kind in KINDS {
            all.extend(["a", "b"].map(|name| Calls::of(server, kind, name)));
        }
    }
    all
}

fn row(rng: &mut fastrand::Rng, now: u64) -> Row {
    Row {
        thing: rng.usize(..12),
        nth: rng.usize(..6),
        owner: [None, Some(0), Some(1), Some(2)][rng.usize(..4)],
        expires: now + rng.u64(..300),
        result: vec![b'x'; rng.usize(..60)].into(),
    }
}

fn landing(things: &[Calls], row: &Row, era: u64) -> Landing {
    let keys = things[row.thing].keys(row.nth, row.owner.map_or("", |who| WHO[who]));
    let (key, sharing) = match row.owner {
        None => (keys.public.unwrap(), Sharing::Public),
        Some(_) => (keys.private.unwrap(), Sharing::Private),
    };
    Landing {
        key,
        sharing,
        era,
        expires: Now(row.expires),
        answer: Answer {
            result: row.result.clone(),
            ttl_at: 0..0,
            era: Era::Legacy,
        },
    }
}

fn play(seed: u64) {
    let limits = CacheLimits {
        entries_max: 14,
        bytes_max: 400,
        per_tool_max: 3,
        answer_bytes_max: 50,
        ttl_max: SECOND,
    };
    let (mut cache, things) = (Cache::new(limits), things());
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut naive = Naive {
        limits,
        list: Vec::new(),
        evictions: 0,
    };
    let (mut now, mut hits) = (0, 0);
    for step in 0..STEPS {
        now += rng.u64(..4);
        match rng.usize(..20) {
            0 => {
                let (server, kind) = (["s", "t"][rng.usize(..2)], KINDS[rng.usize(..3)]);
                cache.purge(&server.into(), Stale::Of(kind));
                let goes = |thing: &Calls| *thing.server == *server && thing.kind == kind;
                naive.list.retain(|row| !goes(&things[row.thing]));
            }
            1..10 => {
                let row = row(&mut rng, now);
                let landing = landing(&things, &row, cache.era());
                let kept = cache.keep(things[row.thing].about(), landing, Now(now));
                assert_eq!(kept, naive.keep(row, now), "seed {seed} step {step}");
            }
            _ => {
                let (thing, nth, who) = (rng.usize(..12), rng.usize(..6), rng.usize(..3));
                let (about, keys) = (things[thing].about(), things[thing].keys(nth, WHO[who]));
                let found = match cache.enter(about, keys, cache.era(), Now(now)) {
                    Entered::Hit(hit) => Some(hit.answer.result),
                    Entered::Lead(_) | Entered::Follow(_) | Entered::Alone => None,
                };
                hits += usize::from(found.is_some());
                let want = naive.find(thing, nth, who, now).map(|row| &row.result);
                assert_eq!(found.as_ref(), want, "seed {seed} step {step}");
            }
        }
        if step % 16 == 0 {
            naive.sweep(now);
            let view = cache.view(Now(now));
            let seen = (view.entries, view.bytes, view.evictions);
            let want = (naive.list.len(), naive.bytes(), naive.evictions);
            assert_eq!(seen, want, "seed {seed} step {step}");
        }
    }
    assert!(hits > 100 && naive.evictions > 100, "nothing was tried");
}

#[test]
fn random_steps_end_as_those_of_a_naive_machine() {
    for seed in 0..SEEDS {
        play(seed);
    }
}
