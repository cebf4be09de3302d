//! What is kept, for how long, and what a hit is.

use bowline_core::breaker::BreakerPolicy;
use bowline_core::cache::CacheLimits;
use bowline_core::call::{Body, Subject};
use bowline_core::policy::{Otherwise, Policy};
use bowline_host::guard::{Guard, Verdict};
use bowline_sim::{Hearer, ask, call_of};
use bytes::Bytes;

use super::*;

const HOUR: &str = r#"{"ttlMs":3600000,"cacheScope":"public"}"#;

#[tokio::test(start_paused = true)]
async fn a_cached_entry_hits_before_its_ttl_and_misses_after() {
    let (world, host) = ready().await;
    let asks = || call("s__do", r#"{"ttlMs":5000,"cacheScope":"public","x":1}"#);
    assert_eq!(get(&host, asks()).await, live(0));
    pass(4_999).await;
    assert_eq!(get(&host, asks()).await, cached(0));
    pass(1).await;
    assert_eq!(get(&host, asks()).await, live(1));
    assert_eq!(world.record().executions.len(), 2);
    let stats = host.cache_stats();
    assert_eq!((stats.hits, stats.misses, stats.entries), (1, 2, 1));
    let status = host.status_of("s").unwrap();
    assert_eq!((status.cache.hits, status.cache.misses), (1, 2));
    assert_eq!((status.cache.entries, status.cache.evictions), (1, 0));
    assert!(status.cache.bytes > 0);
    assert_eq!(
        status.calls, 2,
        "the load of the server is that of live calls"
    );
}

#[tokio::test(start_paused = true)]
async fn without_a_hint_nothing_is_cached() {
    let (world, host) = ready().await;
    let arguments = [
        "{}",
        r#"{"cacheScope":"public"}"#,
        r#"{"ttlMs":0,"cacheScope":"public"}"#,
        r#"{"ttlMs":-5}"#,
        r#"{"ttlMs":2.5}"#,
        r#"{"ttlMs":"5000"}"#,
        r#"{"ttlMs":5000,"isError":true}"#,
        r#"{"ttlMs":5000,"resultType":"input_required"}"#,
    ];
    for arguments in arguments {
        for _ in 0..2 {
            let (_, origin) = get(&host, call("s__do", arguments)).await;
            assert_eq!(origin, Origin::Live, "{arguments}");
        }
    }
    for tool in ["s__fails", "s__refuses"] {
        for _ in 0..2 {
            let reply = host.call(call(tool, MINUTE)).await.unwrap();
            assert_eq!(reply.origin, Origin::Live);
        }
    }
    assert_eq!(world.record().executions.len(), arguments.len() * 2 + 4);
    assert_eq!(host.cache_stats().entries, 0);
}

#[tokio::test(start_paused = true)]
async fn sec_34_a_lifetime_of_an_age_is_cut_to_the_longest_allowed() {
    let (_world, host) = ready().await;
    let asks = || call("s__do", r#"{"ttlMs":1e18,"cacheScope":"public"}"#);
    assert_eq!(get(&host, asks()).await, live(0));
    pass(3_599_999).await;
    assert_eq!(get(&host, asks()).await, cached(0));
    pass(1).await;
    assert_eq!(get(&host, asks()).await, live(1));
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_is_counted_from_the_start_of_the_call() {
    let (_world, host) = ready().await;
    let asks = |ttl| {
        call(
            "s__slow",
            &format!(r#"{{"ttlMs":{ttl},"cacheScope":"public"}}"#),
        )
    };
    get(&host, asks(1_000)).await;
    assert_eq!(
        host.cache_stats().entries,
        0,
        "it came when its time was over"
    );
    assert_eq!(get(&host, asks(1_500)).await, live(1));
    pass(499).await;
    assert_eq!(get(&host, asks(1_500)).await, cached(1));
    pass(1).await;
    assert_eq!(get(&host, asks(1_500)).await, live(2));
}

#[tokio::test(start_paused = true)]
async fn a_hit_has_the_callers_id_and_says_how_long_it_is_good() {
    let (_world, host) = ready().await;
    let asks = || call("s__do", r#"{"ttlMs":60000,"cacheScope":"public","n": 1.0}"#);
    get(&host, asks()).await;
    pass(20_000).await;
    let other = Call {
        id: Bytes::from_static(b"42"),
        ..asks()
    };
    let reply = host.call(other).await.unwrap();
    assert_eq!((reply.origin, reply.body), (Origin::Cached, Body::Result));
    let text = std::str::from_utf8(&reply.answer).unwrap();
    let result = r#"{"content":[],"before":0,"ttlMs":40000,"cacheScope":"public","n": 1.0}"#;
    let want = format!(r#"{{"jsonrpc":"2.0","id":42,"result":{result}}}"#);
    assert_eq!(text, want);
    assert_eq!(body(&reply), result);
}

#[tokio::test(start_paused = true)]
async fn sec_34_arguments_count_by_what_they_mean_but_numbers_as_they_are_written() {
    let (_world, host) = ready().await;
    let hint = r#""ttlMs":60000,"cacheScope":"public""#;
    let asks = |rest: &str| call("s__do", &format!("{{{hint},{rest}}}"));
    for (first, same) in [
        (r#""a":1,"b":2"#, r#""b":2 , "a":1"#),
        (
            r#""a":{"x":[1,2],"y":null}"#,
            r#""a": {"y":null,"x":[1, 2]}"#,
        ),
        (r#""a":"é""#, r#""a":"\u00e9""#),
    ] {
        let (nth, _) = get(&host, asks(first)).await;
        assert_eq!(get(&host, asks(same)).await, cached(nth), "{same}");
    }
    let all = [
        r#""a":1"#,
        r#""a":1.0"#,
        r#""a":1e0"#,
        r#""a":"1""#,
        r#""a":[1,2]"#,
        r#""a":[2,1]"#,
        r#""a":"e\u0301""#,
        r#""a":9007199254740993"#,
        r#""a":9007199254740992"#,
        r#""b":1"#,
    ];
    for one in all {
        let (_, origin) = get(&host, asks(one)).await;
        assert_eq!(origin, Origin::Live, "{one}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_call_says_beside_its_arguments_counts_where_a_server_may_heed_it() {
    let (_world, host) = ready().await;
    let with = |more: &str| {
        let plain = call("s__do", MINUTE);
        let params = std::str::from_utf8(&plain.params).unwrap();
        let params = params.strip_suffix('}').unwrap();
        Call {
            params: format!("{params},\"_meta\":{more}}}").into(),
            ..plain
        }
    };
    assert_eq!(get(&host, call("s__do", MINUTE)).await, live(0));
    for same in [
        r#"{}"#,
        r#"{"progressToken":7,"traceparent":"00-1"}"#,
        r#"{"dev.bowline/run":{"id":"x","calls":9}}"#,
    ] {
        assert_eq!(get(&host, with(same)).await, cached(0), "{same}");
    }
    let tenant = r#"{"example.com/tenant":"a"}"#;
    assert_eq!(get(&host, with(tenant)).await, live(1));
    assert_eq!(get(&host, with(tenant)).await, cached(1));
    for (nth, half) in [r#"{},"requestState":"x""#, r#"{},"inputResponses":{}"#]
        .into_iter()
        .enumerate()
    {
        let first = 2 + 2 * nth as u64;
        assert_eq!(get(&host, with(half)).await, live(first));
        assert_eq!(get(&host, with(half)).await, live(first + 1), "{half}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_and_a_server_that_may_not_be_cached_are_asked_each_time() {
    let (_world, host) = ready().await;
    let task = || Call {
        makes_task: true,
        ..call("s__do", MINUTE)
    };
    assert_eq!(get(&host, task()).await, live(0));
    assert_eq!(get(&host, task()).await, live(1));
    let never = ServerSpec {
        cache: false,
        ..spec("s")
    };
    let (_world, host) = ready_as(never, HostLimits::default()).await;
    assert_eq!(get(&host, call("s__do", MINUTE)).await, live(0));
    assert_eq!(get(&host, call("s__do", MINUTE)).await, live(1));
}

#[tokio::test(start_paused = true)]
async fn a_hit_is_served_with_the_breaker_open() {
    let touchy = ServerSpec {
        breaker: BreakerPolicy {
            failures_max: 1,
            rest: Duration::from_secs(3_600),
        },
        call_timeout: SLOW / 2,
        ..spec("s")
    };
    let (_world, host) = ready_as(touchy, HostLimits::default()).await;
    assert_eq!(get(&host, call("s__do", MINUTE)).await, live(0));
    try_it(&host, call("s__slow", "{}")).await.unwrap_err();
    assert_eq!(host.status_of("s").unwrap().circuit, "open");
    let refused = try_it(&host, call("s__do", "{}")).await.unwrap_err();
    assert!(matches!(refused, CallError::Resting { .. }), "{refused}");
    assert_eq!(get(&host, call("s__do", MINUTE)).await, cached(0));
}

#[tokio::test(start_paused = true)]
async fn a_hit_is_served_while_its_server_is_ejected() {
    let short = repeats().dies_after(Duration::from_millis(100));
    let world = World::new([("s", Script::always(short))]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    let asks = || call("s__do", HOUR);
    assert_eq!(get(&host, asks()).await, live(0));
    assert!(reaches(&host, "s", "ejected").await);
    let refused = try_it(&host, call("s__do", "{}")).await.unwrap_err();
    assert!(matches!(refused, CallError::Ejected { .. }), "{refused}");
    assert_eq!(get(&host, call_of("s", "do", HOUR)).await, cached(0));
    assert_eq!(get(&host, asks()).await, cached(0));
}

#[tokio::test(start_paused = true)]
async fn limits_of_the_configuration_are_kept_and_can_be_changed() {
    let cache = CacheLimits {
        per_tool_max: 2,
        ..CacheLimits::default()
    };
    let limits = HostLimits {
        cache,
        ..HostLimits::default()
    };
    let (_world, host) = ready_as(spec("s"), limits).await;
    let asks = |nth: u64| {
        let arguments = format!(r#"{{"ttlMs":60000,"cacheScope":"public","n":{nth}}}"#);
        call("s__do", &arguments)
    };
    for nth in 0..3 {
        get(&host, asks(nth)).await;
    }
    assert_eq!(get(&host, asks(2)).await, cached(2));
    assert_eq!(get(&host, asks(0)).await, live(3));
    assert_eq!(host.status_of("s").unwrap().cache.evictions, 2);
    host.relimit(HostLimits {
        cache: CacheLimits {
            entries_max: 0,
            ..cache
        },
        ..limits
    });
    assert_eq!(host.cache_stats().entries, 0);
    assert_eq!(get(&host, asks(0)).await, live(4));
    assert_eq!(get(&host, asks(0)).await, live(5));
}

#[derive(Debug)]
struct Censor;

impl Guard for Censor {
    fn check(&self, _: &str, _: Option<&str>) -> Verdict {
        Verdict::Allow
    }

    fn answer(&self, _: &bowline_core::call::Route, _: &[u8]) -> Verdict {
        Verdict::Deny {
            reason: "not today".into(),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn sec_34_who_lost_the_right_gets_no_cached_answer() {
    let (_world, host) = ready().await;
    let named = |call: Call| Call {
        principal: Arc::new(Principal::new("ann", Role::Named("reader".into()))),
        ..call
    };
    host.set_policy(Policy::new(Otherwise::Allow));
    assert_eq!(get(&host, named(call("s__do", MINUTE))).await, live(0));
    assert_eq!(get(&host, named(call("s__do", MINUTE))).await, cached(0));
    host.set_policy(Policy::new(Otherwise::Deny));
    let error = try_it(&host, named(call("s__do", MINUTE)))
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::Denied { .. }), "{error}");
    host.set_policy(Policy::new(Otherwise::Allow));
    host.set_guard(Some(Box::new(Censor)));
    let error = try_it(&host, named(call("s__do", MINUTE)))
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::BadOutput { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn resources_and_prompts_are_kept_like_tools() {
    let result = r#"{"contents":[],"messages":[],"ttlMs":60000,"cacheScope":"public"}"#;
    let initialize = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{},"prompts":{},
        "resources":{}},"serverInfo":{"name":"x","version":"1"}}"#;
    let script = repeats()
        .introduces(initialize)
        .answers(
            "resources/list",
            "",
            r#"{"resources":[{"uri":"x://a","name":"a"}]}"#,
        )
        .answers(
            "resources/templates/list",
            "",
            r#"{"resourceTemplates":[]}"#,
        )
        .answers("prompts/list", "", r#"{"prompts":[{"name":"p"}]}"#)
        .answers("resources/read", "", result)
        .answers("prompts/get", "", result);
    let world = World::new([("s", Script::always(script))]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    for (subject, key, method) in [
        (Subject::Resource("x://a".into()), "uri", "resources/read"),
        (Subject::Prompt("s__p".into()), "name", "prompts/get"),
    ] {
        let came = || async { host.call(ask(subject.clone(), key)).await.unwrap().origin };
        assert_eq!(came().await, Origin::Live, "{method}");
        assert_eq!(came().await, Origin::Cached, "{method}");
        let record = world.record();
        let asked = record.requests_of("s").into_iter();
        assert_eq!(asked.filter(|asked| asked.starts_with(method)).count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_hit_links_to_can_be_read_by_the_session_that_got_it() {
    let link = r#"[{"type":"resource_link","uri":"x://hidden","name":"h"}]"#;
    let says = format!(r#"{{"content":{link},"ttlMs":60000,"cacheScope":"public"}}"#);
    let read = r#"{"contents":[]}"#;
    let script = Generation::tools([("do", Act::Says(says))]).answers("resources/read", "", read);
    let world = World::new([("s", Script::always(script))]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    let of = |session: u64, call: Call| Call {
        caller: Some(Hearer::of(session)),
        ..call
    };
    host.call(of(1, call("s__do", "{}"))).await.unwrap();
    let reads = || ask(Subject::Resource("x://hidden".into()), "uri");
    host.call(of(2, reads())).await.unwrap_err();
    let hit = host.call(of(2, call("s__do", "{}"))).await.unwrap();
    assert_eq!(hit.origin, Origin::Cached);
    host.call(of(2, reads())).await.unwrap();
}
