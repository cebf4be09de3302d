//! Cached entries, TTLs and hits.

use bowline_core::breaker::BreakerPolicy;
use bowline_core::cache::CacheLimits;
use bowline_core::call::{BodyKind, CallSubject};
use bowline_core::policy::{DefaultAction, Policy};
use bowline_host::access_guard::{AccessGuard, GuardDecision};
use bowline_testkit::{RecordingClient, server_tool_call, subject_call};
use bytes::Bytes;

use super::*;

const HOUR: &str = r#"{"ttlMs":3600000,"cacheScope":"public"}"#;

#[tokio::test(start_paused = true)]
async fn entry_hits_until_ttl_ends() {
    let (world, host) = ready_host().await;
    let asks = || tool_call("s__do", r#"{"ttlMs":5000,"cacheScope":"public","x":1}"#);
    assert_eq!(call_ok(&host, asks()).await, live_outcome(0));
    advance_ms(4_999).await;
    assert_eq!(call_ok(&host, asks()).await, cached_outcome(0));
    advance_ms(1).await;
    assert_eq!(call_ok(&host, asks()).await, live_outcome(1));
    assert_eq!(world.record().executions.len(), 2);
    let stats = host.cache_stats();
    assert_eq!((stats.hits, stats.misses, stats.entries), (1, 2, 1));
    let status = host.server_status("s").unwrap();
    assert_eq!((status.cache.hits, status.cache.misses), (1, 2));
    assert_eq!((status.cache.entries, status.cache.evictions), (1, 0));
    assert!(status.cache.bytes > 0);
    assert_eq!(
        status.calls, 2,
        "the load of the server is that of live calls"
    );
}

#[tokio::test(start_paused = true)]
async fn response_without_hint_is_not_cached() {
    let (world, host) = ready_host().await;
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
            let (_, origin) = call_ok(&host, tool_call("s__do", arguments)).await;
            assert_eq!(origin, ReplyOrigin::Live, "{arguments}");
        }
    }
    for tool in ["s__fails", "s__refuses"] {
        for _ in 0..2 {
            let reply = host.call(tool_call(tool, MINUTE)).await.unwrap();
            assert_eq!(reply.origin, ReplyOrigin::Live);
        }
    }
    assert_eq!(world.record().executions.len(), arguments.len() * 2 + 4);
    assert_eq!(host.cache_stats().entries, 0);
}

#[tokio::test(start_paused = true)]
async fn sec_34_ttl_is_capped() {
    let (_world, host) = ready_host().await;
    let asks = || tool_call("s__do", r#"{"ttlMs":1e18,"cacheScope":"public"}"#);
    assert_eq!(call_ok(&host, asks()).await, live_outcome(0));
    advance_ms(3_599_999).await;
    assert_eq!(call_ok(&host, asks()).await, cached_outcome(0));
    advance_ms(1).await;
    assert_eq!(call_ok(&host, asks()).await, live_outcome(1));
}

#[tokio::test(start_paused = true)]
async fn ttl_starts_with_the_call() {
    let (_world, host) = ready_host().await;
    let asks = |ttl| {
        tool_call(
            "s__slow",
            &format!(r#"{{"ttlMs":{ttl},"cacheScope":"public"}}"#),
        )
    };
    call_ok(&host, asks(1_000)).await;
    assert_eq!(
        host.cache_stats().entries,
        0,
        "it came when its time was over"
    );
    assert_eq!(call_ok(&host, asks(1_500)).await, live_outcome(1));
    advance_ms(499).await;
    assert_eq!(call_ok(&host, asks(1_500)).await, cached_outcome(1));
    advance_ms(1).await;
    assert_eq!(call_ok(&host, asks(1_500)).await, live_outcome(2));
}

#[tokio::test(start_paused = true)]
async fn hit_has_caller_id_and_remaining_ttl() {
    let (_world, host) = ready_host().await;
    let asks = || tool_call("s__do", r#"{"ttlMs":60000,"cacheScope":"public","n": 1.0}"#);
    call_ok(&host, asks()).await;
    advance_ms(20_000).await;
    let mut other = asks();
    other.message.id = Bytes::from_static(b"42");

    let reply = host.call(other).await.unwrap();
    assert_eq!(
        (reply.origin, reply.response.body),
        (ReplyOrigin::Cached, BodyKind::Result)
    );
    let text = std::str::from_utf8(&reply.response.bytes).unwrap();
    let result = r#"{"content":[],"before":0,"ttlMs":40000,"cacheScope":"public","n": 1.0}"#;
    let want = format!(r#"{{"jsonrpc":"2.0","id":42,"result":{result}}}"#);
    assert_eq!(text, want);
    assert_eq!(reply_body(&reply), result);
}

#[tokio::test(start_paused = true)]
async fn sec_34_arguments_are_canonical_but_numbers_literal() {
    let (_world, host) = ready_host().await;
    let hint = r#""ttlMs":60000,"cacheScope":"public""#;
    let asks = |rest: &str| tool_call("s__do", &format!("{{{hint},{rest}}}"));
    for (first, same) in [
        (r#""a":1,"b":2"#, r#""b":2 , "a":1"#),
        (
            r#""a":{"x":[1,2],"y":null}"#,
            r#""a": {"y":null,"x":[1, 2]}"#,
        ),
        (r#""a":"é""#, r#""a":"\u00e9""#),
    ] {
        let (nth, _) = call_ok(&host, asks(first)).await;
        assert_eq!(
            call_ok(&host, asks(same)).await,
            cached_outcome(nth),
            "{same}"
        );
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
        let (_, origin) = call_ok(&host, asks(one)).await;
        assert_eq!(origin, ReplyOrigin::Live, "{one}");
    }
}

#[tokio::test(start_paused = true)]
async fn relevant_meta_is_part_of_key() {
    let (_world, host) = ready_host().await;
    let with = |more: &str| {
        let mut call = tool_call("s__do", MINUTE);
        let params = std::str::from_utf8(&call.message.params).unwrap();
        let params = params.strip_suffix('}').unwrap();
        call.message.params = format!("{params},\"_meta\":{more}}}").into();
        call
    };
    assert_eq!(
        call_ok(&host, tool_call("s__do", MINUTE)).await,
        live_outcome(0)
    );
    for same in [
        r#"{}"#,
        r#"{"progressToken":7,"traceparent":"00-1"}"#,
        r#"{"dev.bowline/run":{"id":"x","calls":9}}"#,
    ] {
        assert_eq!(
            call_ok(&host, with(same)).await,
            cached_outcome(0),
            "{same}"
        );
    }
    let tenant = r#"{"example.com/tenant":"a"}"#;
    assert_eq!(call_ok(&host, with(tenant)).await, live_outcome(1));
    assert_eq!(call_ok(&host, with(tenant)).await, cached_outcome(1));
    for (nth, half) in [r#"{},"requestState":"x""#, r#"{},"inputResponses":{}"#]
        .into_iter()
        .enumerate()
    {
        let first = 2 + 2 * nth as u64;
        assert_eq!(call_ok(&host, with(half)).await, live_outcome(first));
        assert_eq!(
            call_ok(&host, with(half)).await,
            live_outcome(first + 1),
            "{half}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_and_uncached_servers_never_hit() {
    let (_world, host) = ready_host().await;
    let task = || CallRequest {
        wants_task: true,
        ..tool_call("s__do", MINUTE)
    };
    assert_eq!(call_ok(&host, task()).await, live_outcome(0));
    assert_eq!(call_ok(&host, task()).await, live_outcome(1));
    let never = ServerSpec {
        cache: false,
        ..server_spec("s")
    };
    let (_world, host) = ready_with(never, HostLimits::default()).await;
    assert_eq!(
        call_ok(&host, tool_call("s__do", MINUTE)).await,
        live_outcome(0)
    );
    assert_eq!(
        call_ok(&host, tool_call("s__do", MINUTE)).await,
        live_outcome(1)
    );
}

#[tokio::test(start_paused = true)]
async fn hit_is_served_with_open_breaker() {
    let touchy = ServerSpec {
        breaker: BreakerPolicy {
            failures_max: 1,
            cooldown: Duration::from_secs(3_600),
        },
        call_timeout: SLOW / 2,
        ..server_spec("s")
    };
    let (_world, host) = ready_with(touchy, HostLimits::default()).await;
    assert_eq!(
        call_ok(&host, tool_call("s__do", MINUTE)).await,
        live_outcome(0)
    );
    try_call(&host, tool_call("s__slow", "{}"))
        .await
        .unwrap_err();
    assert_eq!(host.server_status("s").unwrap().circuit, "open");
    let refused = try_call(&host, tool_call("s__do", "{}")).await.unwrap_err();
    assert!(
        matches!(refused, CallError::CircuitOpen { .. }),
        "{refused}"
    );
    assert_eq!(
        call_ok(&host, tool_call("s__do", MINUTE)).await,
        cached_outcome(0)
    );
}

#[tokio::test(start_paused = true)]
async fn hit_is_served_for_ejected_server() {
    let short = echo_server().exit_after(Duration::from_millis(100));
    let world = SimWorld::new([("s", ServerScript::always(short))]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    let asks = || tool_call("s__do", HOUR);
    assert_eq!(call_ok(&host, asks()).await, live_outcome(0));
    assert!(wait_for_state(&host, "s", "ejected").await);
    let refused = try_call(&host, tool_call("s__do", "{}")).await.unwrap_err();
    assert!(matches!(refused, CallError::Ejected { .. }), "{refused}");
    assert_eq!(
        call_ok(&host, server_tool_call("s", "do", HOUR)).await,
        cached_outcome(0)
    );
    assert_eq!(call_ok(&host, asks()).await, cached_outcome(0));
}

#[tokio::test(start_paused = true)]
async fn cache_limits_apply_and_can_change() {
    let cache = CacheLimits {
        per_tool_max: 2,
        ..CacheLimits::default()
    };
    let limits = HostLimits {
        cache,
        ..HostLimits::default()
    };
    let (_world, host) = ready_with(server_spec("s"), limits).await;
    let asks = |nth: u64| {
        let arguments = format!(r#"{{"ttlMs":60000,"cacheScope":"public","n":{nth}}}"#);
        tool_call("s__do", &arguments)
    };
    for nth in 0..3 {
        call_ok(&host, asks(nth)).await;
    }
    assert_eq!(call_ok(&host, asks(2)).await, cached_outcome(2));
    assert_eq!(call_ok(&host, asks(0)).await, live_outcome(3));
    assert_eq!(host.server_status("s").unwrap().cache.evictions, 2);
    host.set_limits(HostLimits {
        cache: CacheLimits {
            entries_max: 0,
            ..cache
        },
        ..limits
    });
    assert_eq!(host.cache_stats().entries, 0);
    assert_eq!(call_ok(&host, asks(0)).await, live_outcome(4));
    assert_eq!(call_ok(&host, asks(0)).await, live_outcome(5));
}

#[derive(Debug)]
struct Censor;

impl AccessGuard for Censor {
    fn check_access(&self, _: &str, _: Option<&str>) -> GuardDecision {
        GuardDecision::Allow
    }

    fn check_result(&self, _: &bowline_core::call::Route, _: &[u8]) -> GuardDecision {
        GuardDecision::Deny {
            reason: "not today".into(),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn sec_34_lost_access_gets_no_cached_response() {
    let (_world, host) = ready_host().await;
    let named = |call: CallRequest| CallRequest {
        principal: Arc::new(Principal::new("ann", Role::Named("reader".into()))),
        ..call
    };
    host.set_policy(Policy::new(DefaultAction::Allow));
    assert_eq!(
        call_ok(&host, named(tool_call("s__do", MINUTE))).await,
        live_outcome(0)
    );
    assert_eq!(
        call_ok(&host, named(tool_call("s__do", MINUTE))).await,
        cached_outcome(0)
    );
    host.set_policy(Policy::new(DefaultAction::Deny));
    let error = try_call(&host, named(tool_call("s__do", MINUTE)))
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::Denied { .. }), "{error}");
    host.set_policy(Policy::new(DefaultAction::Allow));
    host.set_guard(Some(Box::new(Censor)));
    let error = try_call(&host, named(tool_call("s__do", MINUTE)))
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::BadOutput { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn resources_and_prompts_are_cached() {
    let result = r#"{"contents":[],"messages":[],"ttlMs":60000,"cacheScope":"public"}"#;
    let initialize = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{},"prompts":{},
        "resources":{}},"serverInfo":{"name":"x","version":"1"}}"#;
    let script = echo_server()
        .with_initialize_result(initialize)
        .respond_with(
            "resources/list",
            "",
            r#"{"resources":[{"uri":"x://a","name":"a"}]}"#,
        )
        .respond_with(
            "resources/templates/list",
            "",
            r#"{"resourceTemplates":[]}"#,
        )
        .respond_with("prompts/list", "", r#"{"prompts":[{"name":"p"}]}"#)
        .respond_with("resources/read", "", result)
        .respond_with("prompts/get", "", result);
    let world = SimWorld::new([("s", ServerScript::always(script))]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    for (subject, key, method) in [
        (
            CallSubject::Resource("x://a".into()),
            "uri",
            "resources/read",
        ),
        (CallSubject::Prompt("s__p".into()), "name", "prompts/get"),
    ] {
        let came = || async {
            host.call(subject_call(subject.clone(), key))
                .await
                .unwrap()
                .origin
        };
        assert_eq!(came().await, ReplyOrigin::Live, "{method}");
        assert_eq!(came().await, ReplyOrigin::Cached, "{method}");
        let record = world.record();
        let asked = record.server_requests("s").into_iter();
        assert_eq!(asked.filter(|asked| asked.starts_with(method)).count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn links_in_cache_hit_are_readable() {
    let link = r#"[{"type":"resource_link","uri":"x://hidden","name":"h"}]"#;
    let says = format!(r#"{{"content":{link},"ttlMs":60000,"cacheScope":"public"}}"#);
    let read = r#"{"contents":[]}"#;
    let script = GenerationScript::with_tools([("do", ToolBehaviour::RespondWith(says))])
        .respond_with("resources/read", "", read);
    let world = SimWorld::new([("s", ServerScript::always(script))]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    let of = |session: u64, call: CallRequest| {
        let mut call = call;
        call.message.client = Some(RecordingClient::new(session));
        call
    };
    host.call(of(1, tool_call("s__do", "{}"))).await.unwrap();
    let reads = || subject_call(CallSubject::Resource("x://hidden".into()), "uri");
    host.call(of(2, reads())).await.unwrap_err();
    let hit = host.call(of(2, tool_call("s__do", "{}"))).await.unwrap();
    assert_eq!(hit.origin, ReplyOrigin::Cached);
    host.call(of(2, reads())).await.unwrap();
}
