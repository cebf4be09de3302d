//! Responses of modern servers, and continued requests.

use bowline_core::era::{Era, StatelessContext};

use super::*;

/// Arguments for a complete modern response, public, with a TTL of a minute.
const WHOLE: &str = r#"{"ttlMs":60000,"cacheScope":"public","resultType":"complete"}"#;

fn to_modern(call: CallRequest, retried: bool) -> CallRequest {
    let stateless = StatelessContext {
        header_claims: None,
        is_continuation: retried,
        task_id: None,
    };
    let mut call = call;
    call.stateless = Some(Box::new(stateless));
    call.message.era = Era::Modern;
    call
}

#[tokio::test(start_paused = true)]
async fn cached_response_keeps_its_era() {
    let (_world, host) = ready_host().await;
    for origin in [ReplyOrigin::Live, ReplyOrigin::Cached] {
        let reply = host.call(tool_call("s__do", WHOLE)).await.unwrap();
        assert_eq!((reply.origin, reply.response.era), (origin, Era::Modern));
    }
    for origin in [ReplyOrigin::Live, ReplyOrigin::Cached] {
        let reply = host.call(tool_call("s__do", MINUTE)).await.unwrap();
        assert_eq!((reply.origin, reply.response.era), (origin, Era::Legacy));
    }
    // The era of the caller does not affect the cache key.
    let reply = host.call(to_modern(tool_call("s__do", WHOLE), false)).await;
    assert_eq!(reply.unwrap().origin, ReplyOrigin::Cached);
}

#[tokio::test(start_paused = true)]
async fn input_requests_and_tasks_are_not_cached() {
    let (_world, host) = ready_host().await;
    assert_eq!(
        call_ok(&host, tool_call("s__do", WHOLE)).await,
        live_outcome(0)
    );
    for kind in ["input_required", "input_required", "task", "task"] {
        for hint in ["\"x\":1", "\"ttlMs\":60000"] {
            let arguments = format!(r#"{{{hint},"resultType":"{kind}"}}"#);
            let (_, origin) = call_ok(&host, tool_call("s__do", &arguments)).await;
            assert_eq!(origin, ReplyOrigin::Live, "{arguments}");
        }
    }
    assert_eq!(
        call_ok(&host, tool_call("s__do", WHOLE)).await,
        cached_outcome(0)
    );
    assert_eq!(host.cache_stats().entries, 1);
}

#[tokio::test(start_paused = true)]
async fn continued_request_bypasses_cache() {
    let (_world, host) = ready_host().await;
    assert_eq!(
        call_ok(&host, to_modern(tool_call("s__do", WHOLE), true)).await,
        live_outcome(0)
    );
    assert_eq!(host.cache_stats().entries, 0);
    assert_eq!(
        call_ok(&host, tool_call("s__do", WHOLE)).await,
        live_outcome(1)
    );
    assert_eq!(
        call_ok(&host, to_modern(tool_call("s__do", WHOLE), true)).await,
        live_outcome(2)
    );
    assert_eq!(
        call_ok(&host, tool_call("s__do", WHOLE)).await,
        cached_outcome(1)
    );
}
