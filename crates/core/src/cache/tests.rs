//! The machine by itself, and beside a naive one that only makes lists.

use super::*;
use crate::era::Era;

mod model;

const SECOND: Duration = Duration::from_secs(1);

/// One thing, and calls of it with numbered arguments.
#[derive(Clone, Debug)]
struct Calls {
    server: Arc<str>,
    kind: Kind,
    name: Arc<str>,
}

impl Calls {
    fn of(server: &str, kind: Kind, name: &str) -> Self {
        Self {
            server: server.into(),
            kind,
            name: name.into(),
        }
    }

    fn tool(name: &str) -> Self {
        Self::of("s", Kind::Tool, name)
    }

    fn about(&self) -> About<'_> {
        About {
            server: &self.server,
            kind: self.kind,
            name: &self.name,
        }
    }

    fn keys(&self, nth: usize, principal: &str) -> Keys {
        let base = KeyBase::new(self.about(), &[0; 32], &nth.to_le_bytes());
        Keys {
            public: Some(base.public()),
            private: Some(base.private(principal)),
        }
    }

    fn landing(&self, nth: usize, expires: u64) -> Landing {
        Landing {
            key: self.keys(nth, "").public.unwrap(),
            sharing: Sharing::Public,
            era: 0,
            expires: Now(expires),
            answer: answer(nth),
        }
    }

    fn keep(&self, cache: &mut Cache, nth: usize, expires: u64, now: u64) -> bool {
        let landing = Landing {
            era: cache.era(),
            ..self.landing(nth, expires)
        };
        cache.keep(self.about(), landing, Now(now))
    }

    fn enter(&self, cache: &mut Cache, nth: usize, now: u64) -> Entered {
        let era = cache.era();
        cache.enter(self.about(), self.keys(nth, "ann"), era, Now(now))
    }

    fn hits(&self, cache: &mut Cache, nth: usize, now: u64) -> bool {
        matches!(self.enter(cache, nth, now), Entered::Hit(_))
    }
}

fn answer(nth: usize) -> Answer {
    let result = format!("{{\"nth\":{nth:03},\"ttlMs\":5}}");
    let end = result.len() - 1;
    Answer {
        ttl_at: end - 1..end,
        era: Era::Legacy,
        result: result.into(),
    }
}

fn cache(entries_max: usize, per_tool_max: usize) -> Cache {
    Cache::new(CacheLimits {
        entries_max,
        per_tool_max,
        ..CacheLimits::default()
    })
}

#[test]
fn a_kept_answer_is_a_hit_until_its_time_is_over() {
    let (mut cache, do_it) = (cache(8, 8), Calls::tool("do"));
    assert!(do_it.keep(&mut cache, 1, 1_000, 400));
    let Entered::Hit(hit) = do_it.enter(&mut cache, 1, 999) else {
        panic!("it is good for another millisecond");
    };
    assert_eq!(hit.answer, answer(1));
    assert_eq!(hit.left, Duration::from_millis(1));
    assert_eq!(cache.view(Now(999)).entries, 1);
    assert!(!do_it.hits(&mut cache, 1, 1_000));
    assert_eq!(cache.view(Now(0)).entries, 0, "it was removed on access");
    assert!(!do_it.hits(&mut cache, 2, 0));
}

#[test]
fn an_answer_that_took_longer_than_it_stays_good_is_not_kept() {
    let (mut cache, do_it) = (cache(8, 8), Calls::tool("do"));
    assert!(!do_it.keep(&mut cache, 1, 1_000, 1_000));
    assert!(!do_it.keep(&mut cache, 1, 1_000, 5_000));
    assert_eq!(cache.view(Now(0)), CacheView::default());
    assert_eq!(cache.knows(do_it.about()), None, "nobody waits for it");
}

#[test]
fn the_oldest_of_a_tool_goes_before_the_oldest_of_all() {
    let mut cache = cache(5, 3);
    let (first, second) = (Calls::tool("first"), Calls::tool("second"));
    assert!(first.keep(&mut cache, 0, 99, 0));
    for nth in 0..4 {
        assert!(second.keep(&mut cache, nth, 99, 0));
    }
    assert!(first.hits(&mut cache, 0, 1) && !second.hits(&mut cache, 0, 1));
    assert!(first.keep(&mut cache, 1, 99, 0));
    assert_eq!(cache.view(Now(1)).evictions, 1);
    assert!(first.keep(&mut cache, 2, 99, 0));
    assert!(
        !first.hits(&mut cache, 0, 1),
        "the oldest of all made room for the sixth"
    );
    let view = cache.view(Now(1));
    assert_eq!((view.entries, view.evictions), (5, 2));
    assert_eq!(view.bytes, 5 * answer(0).result.len());
}

#[test]
fn an_answer_given_again_takes_the_place_of_the_one_before() {
    let (mut cache, do_it) = (cache(2, 2), Calls::tool("do"));
    for now in 0..5 {
        assert!(do_it.keep(&mut cache, 1, 100 + now, now));
    }
    let view = cache.view(Now(5));
    assert_eq!((view.entries, view.evictions), (1, 0));
    assert!(do_it.hits(&mut cache, 1, 103));
}

#[test]
fn bytes_are_bounded_and_one_answer_may_not_take_them_all() {
    let size = answer(0).result.len();
    let mut cache = Cache::new(CacheLimits {
        bytes_max: size * 3,
        answer_bytes_max: size,
        ..CacheLimits::default()
    });
    let do_it = Calls::tool("do");
    for nth in 0..10 {
        assert!(do_it.keep(&mut cache, nth, 99, 0));
        assert!(cache.view(Now(0)).bytes <= size * 3);
    }
    let view = cache.view(Now(0));
    assert_eq!((view.entries, view.evictions), (3, 7));
    let mut landing = do_it.landing(77, 99);
    landing.answer.result = Bytes::from(vec![b'x'; size + 1]);
    assert!(!cache.keep(do_it.about(), landing, Now(0)));
    assert_eq!(cache.view(Now(0)).entries, 3);
}

#[test]
fn expired_answers_do_not_linger() {
    let mut cache = cache(1_000, 64);
    for nth in 0..200 {
        assert!(Calls::tool(&format!("t{nth}")).keep(&mut cache, 0, 10, 0));
    }
    let late = Calls::tool("late");
    for nth in 0..4 {
        assert!(late.keep(&mut cache, nth, 99, 20));
    }
    assert_eq!(cache.entries.len(), 4, "swept by the insertions alone");
    assert_eq!(cache.view(Now(20)).evictions, 0, "their time was over");
}

#[test]
fn the_first_leads_the_others_follow_and_the_next_leads_when_it_is_gone() {
    let (mut cache, do_it) = (cache(8, 8), Calls::tool("do"));
    assert!(do_it.keep(&mut cache, 0, 10, 0));
    let Entered::Lead(first) = do_it.enter(&mut cache, 1, 1) else {
        panic!("nobody asks yet");
    };
    assert_eq!(do_it.enter(&mut cache, 1, 1), Entered::Follow(first.id));
    assert!(matches!(do_it.enter(&mut cache, 2, 1), Entered::Lead(_)));
    cache.end(first);
    let Entered::Lead(second) = do_it.enter(&mut cache, 1, 1) else {
        panic!("the first is gone");
    };
    cache.end(first);
    let follow = do_it.enter(&mut cache, 1, 1);
    assert_eq!(
        follow,
        Entered::Follow(second.id),
        "an old end ends nothing"
    );
}

#[test]
fn nobody_waits_for_a_tool_that_gave_no_hint() {
    let (mut cache, do_it) = (cache(8, 8), Calls::tool("do"));
    assert_eq!(cache.knows(do_it.about()), None);
    assert_eq!(do_it.enter(&mut cache, 1, 1), Entered::Alone);
    assert!(do_it.keep(&mut cache, 1, 10, 0));
    cache.unhinted(do_it.about());
    assert_eq!(do_it.enter(&mut cache, 2, 1), Entered::Alone);
    assert!(do_it.hits(&mut cache, 1, 1), "what is kept is good");
}

#[test]
fn private_answers_are_waited_for_by_their_principal_alone() {
    let (mut cache, do_it) = (cache(8, 8), Calls::tool("do"));
    let landing = Landing {
        key: do_it.keys(0, "ann").private.unwrap(),
        sharing: Sharing::Private,
        ..do_it.landing(0, 10)
    };
    assert!(cache.keep(do_it.about(), landing, Now(0)));
    let mut enter = |principal, nth| {
        let keys = do_it.keys(nth, principal);
        cache.enter(do_it.about(), keys, 0, Now(1))
    };
    assert!(matches!(enter("ann", 0), Entered::Hit(_)));
    assert!(matches!(enter("bob", 0), Entered::Lead(_)));
    assert!(matches!(enter("ann", 1), Entered::Lead(_)));
    assert!(matches!(enter("bob", 1), Entered::Lead(_)));
    assert!(matches!(enter("bob", 1), Entered::Follow(_)));
}

#[test]
fn a_call_that_began_before_a_purge_leaves_nothing_after_it() {
    let (mut cache, do_it) = (cache(8, 8), Calls::tool("do"));
    assert!(do_it.keep(&mut cache, 0, 99, 0));
    let begun = cache.era();
    let Entered::Lead(lead) = do_it.enter(&mut cache, 1, 1) else {
        panic!("nobody asks yet");
    };
    cache.purge(&do_it.server, Stale::All);
    assert!(!do_it.hits(&mut cache, 0, 1));
    let again = do_it.enter(&mut cache, 1, 1);
    assert!(matches!(again, Entered::Lead(_)), "nobody follows the old");
    cache.end(lead);
    let late = Landing {
        era: begun,
        ..do_it.landing(1, 99)
    };
    assert!(!cache.keep(do_it.about(), late.clone(), Now(1)));
    let old = cache.enter(do_it.about(), do_it.keys(7, ""), begun, Now(1));
    assert_eq!(old, Entered::Alone, "nobody may wait for it either");
    cache.forget(&do_it.server);
    assert!(!cache.keep(do_it.about(), late, Now(1)));
    assert!(do_it.keep(&mut cache, 1, 99, 1));
}

#[test]
fn a_purge_takes_what_it_names_and_nothing_else() {
    let things = [
        Calls::tool("get_a"),
        Calls::tool("list_a"),
        Calls::of("s", Kind::Prompt, "get_a"),
        Calls::of("s", Kind::Resource, "file:///a"),
        Calls::of("s", Kind::Resource, "file:///b"),
        Calls::of("other", Kind::Tool, "get_a"),
    ];
    let globs = [Pattern::parse("*.get_*").unwrap()];
    for (stale, left) in [
        (Stale::All, "00000y"),
        (Stale::Of(Kind::Tool), "00yyyy"),
        (Stale::Of(Kind::Resource), "yyy00y"),
        (Stale::Resource("file:///a"), "yyy0yy"),
        (Stale::Named(&globs), "0y0yyy"),
        (Stale::Named(&[]), "yyyyyy"),
    ] {
        let mut cache = cache(99, 9);
        for thing in &things {
            assert!(thing.keep(&mut cache, 0, 99, 0));
        }
        cache.purge(&"s".into(), stale);
        let hit = things.iter().map(|thing| thing.hits(&mut cache, 0, 1));
        let found: String = hit.map(|hit| if hit { 'y' } else { '0' }).collect();
        assert_eq!(found, left, "{stale:?}");
    }
}

#[test]
fn what_is_remembered_of_things_without_answers_is_bounded() {
    let mut cache = cache(8, 8);
    for nth in 0..10_000 {
        let thing = Calls::of("s", Kind::Resource, &format!("r{nth}"));
        assert!(thing.keep(&mut cache, 0, 99, 0));
    }
    assert!(cache.known() <= 4_096 + 8, "{}", cache.known());
    cache.forget(&"s".into());
    assert_eq!(cache.known(), 0);
    assert_eq!(cache.shelves.view(), CacheView::default());
}

#[test]
fn tighter_limits_hold_at_once() {
    let mut cache = cache(100, 50);
    for nth in 0..40 {
        assert!(Calls::tool("a").keep(&mut cache, nth, 99, 0));
        assert!(Calls::tool("b").keep(&mut cache, nth, 99, 0));
    }
    let limits = CacheLimits {
        entries_max: 30,
        per_tool_max: 10,
        ttl_max: SECOND,
        ..CacheLimits::default()
    };
    cache.relimit(limits, Now(0));
    assert_eq!(cache.view(Now(0)).entries, 20);
    assert!(Calls::tool("a").hits(&mut cache, 39, 1));
    assert!(!Calls::tool("a").hits(&mut cache, 29, 1));
}
