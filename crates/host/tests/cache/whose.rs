//! Whose an answer is: private ones never cross principals, public ones are for all.

use std::collections::{BTreeMap, BTreeSet};

use bowline_host::spec::Isolation;
use bowline_sim::Hearer;

use super::*;

const WHO: [&str; 2] = ["ann", "bob"];

#[tokio::test(start_paused = true)]
async fn sec_34_private_answers_never_cross_principals_in_10000_interleaved_calls() {
    let (world, host) = ready().await;
    let mut rng = fastrand::Rng::with_seed(7);
    // Which principals saw which execution.
    let mut seen: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
    let mut hits = 0;
    for _ in 0..1_000 {
        let mut calls = JoinSet::new();
        for _ in 0..10 {
            let (who, nth) = (WHO[rng.usize(..2)], rng.usize(..8));
            let tool = if rng.bool() { "s__do" } else { "s__slow" };
            let scope = ["\"private\"", "\"tenant\"", "7"][rng.usize(..3)];
            let arguments = format!(r#"{{"ttlMs":9000,"cacheScope":{scope},"n":{nth}}}"#);
            let (host, asks) = (host.clone(), by(who, call(tool, &arguments)));
            calls.spawn(async move { (who, get(&host, asks).await) });
        }
        while let Some(came) = calls.join_next().await {
            let (who, (nth, origin)) = came.unwrap();
            hits += usize::from(origin == Origin::Cached);
            seen.entry(nth).or_default().insert(who);
        }
        pass(rng.u64(..500)).await;
    }
    let crossed = seen.values().filter(|who| who.len() > 1).count();
    assert_eq!(crossed, 0);
    assert!(hits > 3_000, "{hits} hits");
    assert_eq!(seen.len(), world.record().executions.len());
}

#[tokio::test(start_paused = true)]
async fn public_answers_are_shared_by_all_principals() {
    let (world, host) = ready().await;
    for who in ["ann", "bob", "cy"] {
        let (nth, _) = get(&host, by(who, call("s__do", MINUTE))).await;
        assert_eq!(nth, 0, "{who}");
    }
    assert_eq!(world.record().executions.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_turns_private_goes_to_no_other_who_waited_for_it() {
    let (world, host) = ready().await;
    // A thing that was public so far.
    get(&host, call("s__slow", MINUTE)).await;
    let asks = |who| by(who, call("s__slow", r#"{"ttlMs":60000,"n":1}"#));
    let (ann, bob) = (asks("ann"), asks("bob"));
    let (same, other) = tokio::join!(get(&host, ann), get(&host, bob));
    assert_eq!((same, other), (live(1), live(2)));
    assert_eq!(get(&host, asks("ann")).await, cached(1));
    assert_eq!(get(&host, asks("bob")).await, cached(2));
    assert_eq!(world.record().executions.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn where_principals_have_links_of_their_own_every_answer_is_private() {
    let own = ServerSpec {
        isolation: Isolation::Principal,
        ..spec("s")
    };
    let (_world, host) = ready_as(own, HostLimits::default()).await;
    let asks = |who, session| Call {
        caller: Some(Hearer::of(session)),
        ..by(who, call("s__do", MINUTE))
    };
    assert_eq!(get(&host, asks("ann", 1)).await, live(0));
    assert_eq!(get(&host, asks("ann", 2)).await, cached(0));
    assert_eq!(get(&host, asks("bob", 3)).await, live(1));
    assert_eq!(get(&host, asks("bob", 3)).await, cached(1));
}

#[tokio::test(start_paused = true)]
async fn where_sessions_have_links_of_their_own_nothing_is_kept() {
    let own = ServerSpec {
        isolation: Isolation::Session,
        ..spec("s")
    };
    let (_world, host) = ready_as(own, HostLimits::default()).await;
    let asks = || Call {
        caller: Some(Hearer::of(1)),
        ..call("s__do", MINUTE)
    };
    assert_eq!(get(&host, asks()).await, live(0));
    assert_eq!(get(&host, asks()).await, live(1));
}
