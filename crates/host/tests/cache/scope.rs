//! Scope of cached responses: private per principal, or public.

use std::collections::{BTreeMap, BTreeSet};

use bowline_host::spec::Isolation;
use bowline_testkit::RecordingClient;

use super::*;

const WHO: [&str; 2] = ["ann", "bob"];

#[tokio::test(start_paused = true)]
async fn sec_34_private_responses_never_cross_principals() {
    let (world, host) = ready_host().await;
    let mut rng = fastrand::Rng::with_seed(7);
    // Principals per execution.
    let mut seen: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
    let mut hits = 0;
    for _ in 0..1_000 {
        let mut calls = JoinSet::new();
        for _ in 0..10 {
            let (who, nth) = (WHO[rng.usize(..2)], rng.usize(..8));
            let tool = if rng.bool() { "s__do" } else { "s__slow" };
            let scope = ["\"private\"", "\"tenant\"", "7"][rng.usize(..3)];
            let arguments = format!(r#"{{"ttlMs":9000,"cacheScope":{scope},"n":{nth}}}"#);
            let (host, asks) = (host.clone(), as_principal(who, tool_call(tool, &arguments)));
            calls.spawn(async move { (who, call_ok(&host, asks).await) });
        }
        while let Some(came) = calls.join_next().await {
            let (who, (nth, origin)) = came.unwrap();
            hits += usize::from(origin == ReplyOrigin::Cached);
            seen.entry(nth).or_default().insert(who);
        }
        advance_ms(rng.u64(..500)).await;
    }
    let crossed = seen.values().filter(|who| who.len() > 1).count();
    assert_eq!(crossed, 0);
    assert!(hits > 3_000, "{hits} hits");
    assert_eq!(seen.len(), world.record().executions.len());
}

#[tokio::test(start_paused = true)]
async fn public_responses_are_shared() {
    let (world, host) = ready_host().await;
    for who in ["ann", "bob", "cy"] {
        let (nth, _) = call_ok(&host, as_principal(who, tool_call("s__do", MINUTE))).await;
        assert_eq!(nth, 0, "{who}");
    }
    assert_eq!(world.record().executions.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn response_turned_private_skips_followers() {
    let (world, host) = ready_host().await;
    // The item was public so far.
    call_ok(&host, tool_call("s__slow", MINUTE)).await;
    let asks = |who| as_principal(who, tool_call("s__slow", r#"{"ttlMs":60000,"n":1}"#));
    let (ann, bob) = (asks("ann"), asks("bob"));
    let (same, other) = tokio::join!(call_ok(&host, ann), call_ok(&host, bob));
    assert_eq!((same, other), (live_outcome(1), live_outcome(2)));
    assert_eq!(call_ok(&host, asks("ann")).await, cached_outcome(1));
    assert_eq!(call_ok(&host, asks("bob")).await, cached_outcome(2));
    assert_eq!(world.record().executions.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn principal_isolation_makes_responses_private() {
    let own = ServerSpec {
        isolation: Isolation::Principal,
        ..server_spec("s")
    };
    let (_world, host) = ready_with(own, HostLimits::default()).await;
    let asks = |who, session| {
        let mut call = as_principal(who, tool_call("s__do", MINUTE));
        call.message.client = Some(RecordingClient::new(session));
        call
    };
    assert_eq!(call_ok(&host, asks("ann", 1)).await, live_outcome(0));
    assert_eq!(call_ok(&host, asks("ann", 2)).await, cached_outcome(0));
    assert_eq!(call_ok(&host, asks("bob", 3)).await, live_outcome(1));
    assert_eq!(call_ok(&host, asks("bob", 3)).await, cached_outcome(1));
}

#[tokio::test(start_paused = true)]
async fn session_isolation_disables_cache() {
    let own = ServerSpec {
        isolation: Isolation::Session,
        ..server_spec("s")
    };
    let (_world, host) = ready_with(own, HostLimits::default()).await;
    let asks = || {
        let mut call = tool_call("s__do", MINUTE);
        call.message.client = Some(RecordingClient::new(1));
        call
    };
    assert_eq!(call_ok(&host, asks()).await, live_outcome(0));
    assert_eq!(call_ok(&host, asks()).await, live_outcome(1));
}
