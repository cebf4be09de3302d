//! Servers of a peer are listed and called like any other server.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bowline_core::call::{
    BodyKind, CallReply, CallRequest, EndpointScope, Principal, RequestMessage, Role,
};
use bowline_core::client_handle::ClientHandle;
use bowline_core::era::Era;
use bowline_core::error::{
    CallError, ExecutionStatus, FailureClass, FailureOrigin, FailureReport, RetryAdvice,
};
use bowline_host::broker::frames::{BrokerArguments, BrokerRequest, BrokerResponse};
use bowline_host::broker::{BrokerCall, BrokerCallError, ListDigests, OfferedServer};
use bowline_host::spec::PeerRole;
use bowline_host::{DefaultAction, Host, HostLimits, Policy};
use bowline_link::Revision;
use bowline_runtime::TaskTracker;
use bowline_testkit::{
    RecordingClient, SimWorld, advance_clock, reply_body, server_tool_call, tool_call,
    wait_for_state,
};
use bowline_wire::mcp::method;
use bowline_wire::object;
use bytes::Bytes;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::fake_peer::{FakePeer, output};

/// A host that adopted the server `far` of a peer.
async fn adopt_peer(tools: &[(&str, &str)], side: PeerRole) -> (Host, Arc<FakePeer>) {
    let peer = FakePeer::new("p", tools);
    let host = SimWorld::new([]).start_host(Vec::new(), HostLimits::default());
    let adopted = host.adopt_servers(&peer.remote(), side, &["far".into()]);
    assert_eq!(adopted.refused, []);
    assert!(wait_for_state(&host, "far", "ready").await);
    (host, peer)
}

/// A call in flight.
fn start_call(host: &Host) -> JoinSet<Result<CallReply, CallError>> {
    let (mut set, host) = (JoinSet::new(), host.clone());
    set.spawn(async move { host.call(tool_call("far__do", "{}")).await });
    set
}

fn failure(code: &str) -> FailureReport {
    FailureReport {
        class: FailureClass::Denied,
        execution: ExecutionStatus::NotStarted,
        retry: RetryAdvice::Never,
        origin: FailureOrigin::Gateway,
        code: code.into(),
        reason: "not for you".into(),
    }
}

#[tokio::test(start_paused = true)]
async fn peer_tools_are_listed_byte_for_byte() {
    let (host, _peer) = adopt_peer(
        &[("far", "do"), ("far", "see?"), ("other", "no")],
        PeerRole::Hub,
    )
    .await;
    let catalog = host.catalog();
    let offer = catalog.server("far").unwrap();
    let names: Vec<_> = offer
        .tools
        .iter()
        .map(|item| item.visible.to_string())
        .collect();
    assert_eq!(names, ["far__do", "far__see"]);
    let first = offer.tools.iter().next().unwrap();
    assert_eq!(
        &*first.definition,
        br#"{"name":"do","inputSchema":{"type":"object"},"x":1.50}"#
    );
    let status = &host.status()[0];
    assert_eq!((&*status.transport, &*status.command), ("peer", "hub p"));
}

#[tokio::test(start_paused = true)]
async fn peer_call_keeps_params_and_result_bytes() {
    let (host, peer) = adopt_peer(&[("far", "do"), ("far", "see?")], PeerRole::Hub).await;
    let result = r#"{"content":[{"type":"image","data":"AA==","mimeType":"image/png"}],"isError":true,"structuredContent":{"n":1.0}}"#;
    peer.script(move |_| async move { Ok(output(result)) });

    let reply = host
        .call(tool_call("far__do", r#"{"a":1.0}"#))
        .await
        .unwrap();
    assert_eq!(reply_body(&reply), result);
    let seen = host.call(tool_call("far__see", "{}")).await.unwrap();
    assert_eq!(reply_body(&seen), result);

    let asked = peer.wait_calls(2).await;
    assert_eq!(
        asked[0].request,
        BrokerRequest::Call {
            tool: "do".into(),
            server: Some("far".into()),
            arguments: BrokerArguments::Params(r#"{"name":"do","arguments":{"a":1.0}}"#.into()),
        }
    );
    assert!(asked[0].stored, "what may not run twice is stored first");
    assert!(!asked[1].stored, "what may run twice goes live");
    assert_eq!(asked[0].sender, None, "the hub knows us by our credential");
}

#[tokio::test(start_paused = true)]
async fn worker_receives_the_calling_principal() {
    let (host, peer) = adopt_peer(&[("far", "do")], PeerRole::Worker).await;
    host.call(tool_call("far__do", "{}")).await.unwrap();
    let asked = peer.wait_calls(1).await;
    let caller = asked[0].sender.clone().unwrap();
    assert_eq!(&*caller.session_id, "hub");
    assert_eq!(caller.principal.as_deref(), Some("owner"));
    assert_eq!(caller.role.as_deref(), Some("owner"));

    host.set_policy(Policy::new(DefaultAction::Allow));
    let deployer = Principal::new("d", Role::Named("deployer".into()));
    let principal = Arc::new(deployer);
    let by_role = CallRequest {
        principal,
        ..tool_call("far__do", "{}")
    };
    host.call(by_role).await.unwrap();
    let asked = peer.wait_calls(2).await;
    let caller = asked[1].sender.clone().unwrap();
    assert_eq!(caller.role.as_deref(), Some("deployer"));
}

#[tokio::test(start_paused = true)]
async fn peer_errors_keep_their_meaning() {
    let (host, peer) = adopt_peer(&[("far", "do")], PeerRole::Hub).await;
    let error = r#"{"code":-32002,"message":"no such thing","data":{"n":1.0}}"#;
    peer.script(move |_| async move {
        Ok(BrokerResponse::RpcError {
            error: Bytes::from_static(error.as_bytes()),
            era: Era::Legacy,
        })
    });
    let reply = host.call(tool_call("far__do", "{}")).await.unwrap();
    assert_eq!(
        (reply.response.body, reply_body(&reply)),
        (BodyKind::Error, error.to_owned())
    );

    peer.script(|_| async { Ok(BrokerResponse::Failed(failure("denied"))) });
    let failed = host.call(tool_call("far__do", "{}")).await.unwrap_err();
    assert_eq!(failed.failure_class(), FailureClass::Denied);
    assert!(
        matches!(failed, CallError::RemoteFailure { .. }),
        "{failed}"
    );

    peer.script(|_| async { Err(BrokerCallError::Refused(failure("throttled"))) });
    let failed = host.call(tool_call("far__do", "{}")).await.unwrap_err();
    assert!(
        matches!(failed, CallError::RemoteFailure { .. }),
        "{failed}"
    );

    for (execution, said) in [
        (ExecutionStatus::NotStarted, ExecutionStatus::NotStarted),
        (ExecutionStatus::Unknown, ExecutionStatus::Unknown),
    ] {
        peer.script(move |_| async move { Err(BrokerCallError::Timeout(execution)) });
        let failed = host.call(tool_call("far__do", "{}")).await.unwrap_err();
        assert_eq!(
            (failed.failure_class(), failed.execution_status()),
            (FailureClass::Timeout, said)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn removed_tool_is_refused_locally() {
    let (host, peer) = adopt_peer(&[("far", "do")], PeerRole::Hub).await;
    let unknown = host
        .call(tool_call("far__nothing", "{}"))
        .await
        .unwrap_err();
    assert_eq!(unknown.failure_class(), FailureClass::NotFound);
    let unknown = host
        .call(server_tool_call("far", "nothing", "{}"))
        .await
        .unwrap_err();
    assert_eq!(unknown.failure_class(), FailureClass::NotFound);
    assert!(peer.calls.borrow().is_empty());
}

#[tokio::test(start_paused = true)]
async fn only_progress_of_the_call_is_forwarded() {
    let (host, peer) = adopt_peer(&[("far", "do")], PeerRole::Worker).await;
    peer.script(|errand| async move {
        let sink = errand.client.unwrap();
        for said in [
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"mine","progress":1}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"another's","progress":1}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}"#,
            "no JSON",
        ] {
            sink.notify(Bytes::from_static(said.as_bytes()));
        }
        Ok(output("{}"))
    });
    let hearer = RecordingClient::new(7);
    let plain = tool_call("far__do", "{}");
    let params = r#"{"_meta":{"progressToken":"mine"},"name":"far__do"}"#;
    let token = params.find("\"mine\"").unwrap();
    let name = params.find("\"far__do\"").unwrap();
    let asked = CallRequest {
        name_at: name..name + 9,
        message: RequestMessage {
            params: params.into(),
            progress_at: Some(token..token + 6),
            client: Some(hearer.clone()),
            ..plain.message
        },
        ..plain
    };
    host.call(asked).await.unwrap();
    let told: Vec<_> = hearer
        .notifications()
        .iter()
        .map(|said| String::from_utf8_lossy(said).into_owned())
        .collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains(r#""progressToken":"mine""#), "{told:?}");
    assert!(told[1].contains("notifications/message"), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn changed_peer_tools_relist_only_that_server() {
    let (host, peer) = adopt_peer(&[("far", "do")], PeerRole::Hub).await;
    let mut versions = host.catalog_changes();
    versions.mark_unchanged();
    peer.offer(&[("far", "do"), ("other", "x")]);
    peer.offer(&[("far", "do"), ("far", "more"), ("other", "x")]);
    let minute = Duration::from_secs(60);
    let told = tokio::time::timeout(minute, versions.changed()).await;
    assert!(told.is_ok(), "nobody was told");
    let catalog = host.catalog();
    assert_eq!(catalog.server("far").unwrap().tools.len(), 2);
    // A change of another server of the peer relists nothing.
    peer.offer(&[("far", "do"), ("far", "more"), ("other", "y")]);
    let waited = tokio::time::timeout(minute, versions.changed()).await;
    assert!(waited.is_err());
    assert_eq!(host.status()[0].generation, 1);
}

#[tokio::test(start_paused = true)]
async fn calls_wait_for_briefly_absent_peer() {
    let (host, peer) = adopt_peer(&[("far", "do")], PeerRole::Hub).await;
    let mut versions = host.catalog_changes();
    versions.mark_unchanged();
    peer.connect(false);
    assert!(wait_for_state(&host, "far", "starting").await);
    let status = &host.status()[0];
    assert!(status.stale && status.tools == 1, "{status:?}");
    let mut waiting = start_call(&host);
    advance_clock(Duration::from_secs(5)).await;
    assert!(waiting.try_join_next().is_none());
    peer.connect(true);
    waiting.join_next().await.unwrap().unwrap().unwrap();
    assert!(!host.status()[0].stale);
    assert!(
        !versions.has_changed().unwrap(),
        "what is offered did not change"
    );
}

#[tokio::test(start_paused = true)]
async fn calls_to_long_absent_peer_fail_fast() {
    let (host, peer) = adopt_peer(&[("far", "do")], PeerRole::Hub).await;
    peer.connect(false);
    advance_clock(Duration::from_secs(15)).await;
    // Later calls fail at once after the first wait was in vain.
    for _ in 0..20 {
        advance_clock(Duration::from_secs(3)).await;
        let before = host.clock().now();
        let refused = host.call(tool_call("far__do", "{}")).await.unwrap_err();
        assert_eq!(refused.execution_status(), ExecutionStatus::NotStarted);
        assert!(refused.to_string().contains("hub p is away"), "{refused}");
        let took_ms = host.clock().now().millis_since(before);
        assert!(took_ms < 2_000, "{took_ms}");
    }
    assert!(host.status()[0].stale);
}

#[tokio::test(start_paused = true)]
async fn stored_request_outlives_its_connection() {
    let (host, peer) = adopt_peer(&[("far", "do")], PeerRole::Hub).await;
    let done = Arc::new(Notify::new());
    let wait = Arc::clone(&done);
    peer.script(move |_| {
        let wait = Arc::clone(&wait);
        async move {
            wait.notified().await;
            Ok(output("{}"))
        }
    });
    let mut waiting = start_call(&host);
    peer.wait_calls(1).await;
    peer.connect(false);
    assert!(wait_for_state(&host, "far", "starting").await);
    peer.connect(true);
    assert!(wait_for_state(&host, "far", "ready").await);
    done.notify_one();
    waiting.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(peer.calls.borrow().len(), 1, "it was asked once");
}

#[tokio::test(start_paused = true)]
async fn lost_request_retries_only_if_repeatable() {
    let peer = FakePeer::new("p", &[("far", "do")]);
    let host = SimWorld::new([]).start_host(Vec::new(), HostLimits::default());
    host.adopt_servers(&peer.remote(), PeerRole::Hub, &["far".into()]);
    assert!(wait_for_state(&host, "far", "ready").await);
    peer.script(|_| async { Err(BrokerCallError::Lost("cut".into())) });
    let lost = host.call(tool_call("far__do", "{}")).await.unwrap_err();
    assert_eq!(
        (lost.failure_class(), lost.execution_status()),
        (FailureClass::ConnectionLost, ExecutionStatus::Unknown)
    );
    assert_eq!(peer.calls.borrow().len(), 1);

    // An unsent call goes over the next connection.
    let first = std::sync::atomic::AtomicBool::new(true);
    let shared = Arc::clone(&peer);
    peer.script(move |_| {
        let is_first = first.swap(false, Ordering::SeqCst);
        if is_first {
            shared.connect(false);
        }
        let again = Arc::clone(&shared);
        async move {
            if is_first {
                TaskTracker::default().spawn("back again", async move {
                    advance_clock(Duration::from_secs(1)).await;
                    again.connect(true);
                });
                return Err(BrokerCallError::NotSent("no connection".into()));
            }
            Ok(output("{}"))
        }
    });
    host.call(tool_call("far__do", "{}")).await.unwrap();
    assert_eq!(peer.calls.borrow().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn cancel_and_stop_cancel_broker_calls() {
    let (host, peer) = adopt_peer(&[("far", "do")], PeerRole::Hub).await;
    peer.script(|_| async { std::future::pending().await });
    let gives_up = tokio::time::timeout(
        Duration::from_secs(1),
        host.call(tool_call("far__do", "{}")),
    );
    assert!(gives_up.await.is_err());
    assert_eq!(peer.cancelled.load(Ordering::SeqCst), 1);

    let mut waiting = start_call(&host);
    peer.wait_calls(2).await;
    host.stop_server("far").await.unwrap();
    let ended = waiting.join_next().await.unwrap().unwrap().unwrap_err();
    assert_eq!(ended.execution_status(), ExecutionStatus::Unknown);
    assert_eq!(peer.cancelled.load(Ordering::SeqCst), 2);
}

/// Subscribed resources at the peer, without pure access checks.
fn subscribed(asked: &[BrokerCall]) -> Vec<String> {
    let of = |errand: &BrokerCall| match &errand.request {
        BrokerRequest::Mcp { method, params, .. } if **method == *method::RESOURCES_SUBSCRIBE => {
            let params = params.as_deref().unwrap_or_default();
            let uri = object::text_field(params, "uri").map(Into::into);
            uri.filter(|_| errand.sender.is_none())
        }
        _ => None,
    };
    asked.iter().filter_map(of).collect()
}

#[tokio::test(start_paused = true)]
async fn failed_resubscribe_keeps_other_subscriptions() {
    let peer = FakePeer::new("p", &[]);
    let whole = OfferedServer {
        name: "far".into(),
        revision: Revision::V2026_07_28,
        initialize: Bytes::from_static(br#"{"capabilities":{"resources":{"subscribe":true}}}"#),
        lists: ListDigests::default(),
    };
    peer.offer_server(&[("far", "do")], vec![whole]);
    let list = r#"{"resources":[{"uri":"x:1"},{"uri":"x:2"},{"uri":"x:3"}]}"#;
    peer.script(move |_| async move { Ok(output(list)) });
    let host = SimWorld::new([]).start_host(Vec::new(), HostLimits::default());
    let adopted = host.adopt_servers(&peer.remote(), PeerRole::Hub, &["far".into()]);
    assert_eq!(adopted.refused, []);
    assert!(wait_for_state(&host, "far", "ready").await);
    let (owner, scope) = (
        Principal::new("owner", Role::Owner),
        EndpointScope::Server("far".into()),
    );
    let caller: Arc<dyn ClientHandle> = RecordingClient::new(1);
    for uri in ["x:1", "x:2", "x:3"] {
        host.subscribe(&owner, &scope, &caller, uri).await.unwrap();
    }
    // The first resource fails from now on.
    peer.script(move |errand| async move {
        match subscribed(std::slice::from_ref(&errand))
            .iter()
            .any(|uri| uri == "x:1")
        {
            true => Err(BrokerCallError::Refused(failure("throttled"))),
            false => Ok(output(list)),
        }
    });
    let before = peer.wait_calls(0).await.len();
    peer.connect(false);
    advance_clock(Duration::from_secs(1)).await;
    peer.connect(true);
    let mut asked = peer.calls.subscribe();
    let all = asked.wait_for(|asked| subscribed(&asked[before..]).len() >= 3);
    let day = Duration::from_secs(24 * 3_600);
    let all = tokio::time::timeout(day, all)
        .await
        .expect("all are asked for");
    assert_eq!(subscribed(&all.unwrap()[before..]), ["x:1", "x:2", "x:3"]);
}
