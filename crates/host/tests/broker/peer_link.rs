//! Servers of a peer are listed and called like any others.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bowline_core::call::{Body, Call, Principal, Reply, Role, Scope};
use bowline_core::caller::CallerEnd;
use bowline_core::era::Era;
use bowline_core::error::{CallError, Class, Execution, Failure, Origin, Retry};
use bowline_host::broker::{Errand, ErrandError, Lists, Ware};
use bowline_host::spec::Side;
use bowline_host::tasks::Tasks;
use bowline_host::{Host, HostLimits, Otherwise, Policy};
use bowline_link::Revision;
use bowline_sim::{Hearer, World, body, call, call_of, reaches};
use bowline_wire::broker::{Answer, Arguments, Ask};
use bowline_wire::mcp::method;
use bowline_wire::object;
use bytes::Bytes;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::peer::{Peer, output, pass};

/// A host that has the server `far` of a peer.
async fn joined(tools: &[(&str, &str)], side: Side) -> (Host, Arc<Peer>) {
    let peer = Peer::new("p", tools);
    let host = World::new([]).host(Vec::new(), HostLimits::default());
    let adopted = host.adopt(&peer.remote(), side, &["far".into()]);
    assert_eq!(adopted.refused, []);
    assert!(reaches(&host, "far", "ready").await);
    (host, peer)
}

/// A call that is under way.
fn calling(host: &Host) -> JoinSet<Result<Reply, CallError>> {
    let (mut set, host) = (JoinSet::new(), host.clone());
    set.spawn(async move { host.call(call("far__do", "{}")).await });
    set
}

fn failure(code: &str) -> Failure {
    Failure {
        class: Class::Denied,
        execution: Execution::NotStarted,
        retry: Retry::Never,
        origin: Origin::Gateway,
        code: code.into(),
        reason: "not for you".into(),
    }
}

#[tokio::test(start_paused = true)]
async fn the_tools_of_a_peer_are_listed_by_their_own_names_and_every_other_byte_as_it_came() {
    let (host, _peer) = joined(
        &[("far", "do"), ("far", "see?"), ("other", "no")],
        Side::Hub,
    )
    .await;
    let catalog = host.catalog();
    let offer = catalog.offer("far").unwrap();
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
    assert_eq!((status.transport, &*status.command), ("peer", "hub p"));
}

#[tokio::test(start_paused = true)]
async fn a_call_goes_whole_under_the_own_name_and_its_result_comes_back_byte_for_byte() {
    let (host, peer) = joined(&[("far", "do"), ("far", "see?")], Side::Hub).await;
    let result = r#"{"content":[{"type":"image","data":"AA==","mimeType":"image/png"}],"isError":true,"structuredContent":{"n":1.0}}"#;
    peer.script(move |_| async move { Ok(output(result)) });

    let reply = host.call(call("far__do", r#"{"a":1.0}"#)).await.unwrap();
    assert_eq!(body(&reply), result);
    let seen = host.call(call("far__see", "{}")).await.unwrap();
    assert_eq!(body(&seen), result);

    let asked = peer.asked(2).await;
    assert_eq!(
        asked[0].ask,
        Ask::Call {
            tool: "do".into(),
            server: Some("far".into()),
            arguments: Arguments::Params(r#"{"name":"do","arguments":{"a":1.0}}"#.into()),
        }
    );
    assert!(asked[0].stored, "what may not run twice is stored first");
    assert!(!asked[1].stored, "what may run twice goes live");
    assert_eq!(asked[0].caller, None, "the hub knows us by our credential");
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_told_on_whose_behalf_it_is_asked() {
    let (host, peer) = joined(&[("far", "do")], Side::Worker).await;
    host.call(call("far__do", "{}")).await.unwrap();
    let asked = peer.asked(1).await;
    let caller = asked[0].caller.clone().unwrap();
    assert_eq!(&*caller.session_id, "hub");
    assert_eq!(caller.principal.as_deref(), Some("owner"));
    assert_eq!(caller.role.as_deref(), Some("owner"));

    host.set_policy(Policy::new(Otherwise::Allow));
    let deployer = Principal::new("d", Role::Named("deployer".into()));
    let principal = Arc::new(deployer);
    let by_role = Call {
        principal,
        ..call("far__do", "{}")
    };
    host.call(by_role).await.unwrap();
    let asked = peer.asked(2).await;
    let caller = asked[1].caller.clone().unwrap();
    assert_eq!(caller.role.as_deref(), Some("deployer"));
}

#[tokio::test(start_paused = true)]
async fn what_a_peer_answers_in_place_of_a_result_keeps_its_meaning() {
    let (host, peer) = joined(&[("far", "do")], Side::Hub).await;
    let error = r#"{"code":-32002,"message":"no such thing","data":{"n":1.0}}"#;
    peer.script(move |_| async move {
        Ok(Answer::Rpc {
            error: Bytes::from_static(error.as_bytes()),
            era: Era::Legacy,
        })
    });
    let reply = host.call(call("far__do", "{}")).await.unwrap();
    assert_eq!((reply.body, body(&reply)), (Body::Error, error.to_owned()));

    peer.script(|_| async { Ok(Answer::Failed(failure("denied"))) });
    let failed = host.call(call("far__do", "{}")).await.unwrap_err();
    assert_eq!(failed.class(), Class::Denied);
    assert!(matches!(failed, CallError::Elsewhere { .. }), "{failed}");

    peer.script(|_| async { Err(ErrandError::Refused(failure("throttled"))) });
    let failed = host.call(call("far__do", "{}")).await.unwrap_err();
    assert!(matches!(failed, CallError::Elsewhere { .. }), "{failed}");

    for (execution, said) in [
        (Execution::NotStarted, Execution::NotStarted),
        (Execution::Unknown, Execution::Unknown),
    ] {
        peer.script(move |_| async move { Err(ErrandError::Timeout(execution)) });
        let failed = host.call(call("far__do", "{}")).await.unwrap_err();
        assert_eq!((failed.class(), failed.execution()), (Class::Timeout, said));
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_the_peer_has_no_more_is_refused_without_asking_it() {
    let (host, peer) = joined(&[("far", "do")], Side::Hub).await;
    let unknown = host.call(call("far__nothing", "{}")).await.unwrap_err();
    assert_eq!(unknown.class(), Class::NotFound);
    let unknown = host
        .call(call_of("far", "nothing", "{}"))
        .await
        .unwrap_err();
    assert_eq!(unknown.class(), Class::NotFound);
    assert!(peer.asked.borrow().is_empty());
}

#[tokio::test(start_paused = true)]
async fn progress_of_the_very_call_is_heard_and_nothing_else_that_a_peer_may_say() {
    let (host, peer) = joined(&[("far", "do")], Side::Worker).await;
    peer.script(|errand| async move {
        let sink = errand.sink.unwrap();
        for said in [
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"mine","progress":1}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"another's","progress":1}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}"#,
            "no JSON",
        ] {
            sink.push(Bytes::from_static(said.as_bytes()));
        }
        Ok(output("{}"))
    });
    let hearer = Hearer::of(7);
    let plain = call("far__do", "{}");
    let params = r#"{"_meta":{"progressToken":"mine"},"name":"far__do"}"#;
    let token = params.find("\"mine\"").unwrap();
    let name = params.find("\"far__do\"").unwrap();
    let asked = Call {
        params: params.into(),
        progress_at: Some(token..token + 6),
        name_at: name..name + 9,
        caller: Some(hearer.clone()),
        ..plain
    };
    host.call(asked).await.unwrap();
    let told: Vec<_> = hearer
        .told()
        .iter()
        .map(|said| String::from_utf8_lossy(said).into_owned())
        .collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains(r#""progressToken":"mine""#), "{told:?}");
    assert!(told[1].contains("notifications/message"), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn changed_tools_of_a_peer_are_listed_again_and_those_of_others_disturb_nobody() {
    let (host, peer) = joined(&[("far", "do")], Side::Hub).await;
    let mut versions = host.catalog_changes();
    versions.mark_unchanged();
    peer.offer(&[("far", "do"), ("other", "x")]);
    peer.offer(&[("far", "do"), ("far", "more"), ("other", "x")]);
    let minute = Duration::from_secs(60);
    let told = tokio::time::timeout(minute, versions.changed()).await;
    assert!(told.is_ok(), "nobody was told");
    let catalog = host.catalog();
    assert_eq!(catalog.offer("far").unwrap().tools.len(), 2);
    // Nothing is listed anew for what another server of the peer has.
    peer.offer(&[("far", "do"), ("far", "more"), ("other", "y")]);
    let waited = tokio::time::timeout(minute, versions.changed()).await;
    assert!(waited.is_err());
    assert_eq!(host.status()[0].generation, 1);
}

#[tokio::test(start_paused = true)]
async fn calls_wait_for_a_peer_that_is_away_for_a_moment_and_its_menu_is_marked_meanwhile() {
    let (host, peer) = joined(&[("far", "do")], Side::Hub).await;
    let mut versions = host.catalog_changes();
    versions.mark_unchanged();
    peer.connect(false);
    assert!(reaches(&host, "far", "starting").await);
    let status = &host.status()[0];
    assert!(status.stale && status.tools == 1, "{status:?}");
    let mut waiting = calling(&host);
    pass(Duration::from_secs(5)).await;
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
async fn calls_to_a_peer_that_is_away_for_long_are_refused_at_once() {
    let (host, peer) = joined(&[("far", "do")], Side::Hub).await;
    peer.connect(false);
    pass(Duration::from_secs(15)).await;
    // Whenever one comes: nobody waits for a peer that was waited for in vain.
    for _ in 0..20 {
        pass(Duration::from_secs(3)).await;
        let before = host.clock().now();
        let refused = host.call(call("far__do", "{}")).await.unwrap_err();
        assert_eq!(refused.execution(), Execution::NotStarted);
        assert!(refused.to_string().contains("hub p is away"), "{refused}");
        let took_ms = host.clock().now().millis_since(before);
        assert!(took_ms < 2_000, "{took_ms}");
    }
    assert!(host.status()[0].stale);
}

#[tokio::test(start_paused = true)]
async fn a_stored_request_outlives_the_connection_it_left_by() {
    let (host, peer) = joined(&[("far", "do")], Side::Hub).await;
    let done = Arc::new(Notify::new());
    let wait = Arc::clone(&done);
    peer.script(move |_| {
        let wait = Arc::clone(&wait);
        async move {
            wait.notified().await;
            Ok(output("{}"))
        }
    });
    let mut waiting = calling(&host);
    peer.asked(1).await;
    peer.connect(false);
    assert!(reaches(&host, "far", "starting").await);
    peer.connect(true);
    assert!(reaches(&host, "far", "ready").await);
    done.notify_one();
    waiting.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(peer.asked.borrow().len(), 1, "it was asked once");
}

#[tokio::test(start_paused = true)]
async fn a_lost_request_is_repeated_once_where_that_is_safe_and_told_where_it_is_not() {
    let peer = Peer::new("p", &[("far", "do")]);
    let host = World::new([]).host(Vec::new(), HostLimits::default());
    host.adopt(&peer.remote(), Side::Hub, &["far".into()]);
    assert!(reaches(&host, "far", "ready").await);
    peer.script(|_| async { Err(ErrandError::Lost("cut".into())) });
    let lost = host.call(call("far__do", "{}")).await.unwrap_err();
    assert_eq!(
        (lost.class(), lost.execution()),
        (Class::ConnectionLost, Execution::Unknown)
    );
    assert_eq!(peer.asked.borrow().len(), 1);

    // What never left goes again, over the next connection.
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
                Tasks::default().spawn("back again", async move {
                    pass(Duration::from_secs(1)).await;
                    again.connect(true);
                });
                return Err(ErrandError::NotSent("no connection".into()));
            }
            Ok(output("{}"))
        }
    });
    host.call(call("far__do", "{}")).await.unwrap();
    assert_eq!(peer.asked.borrow().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_taken_back_and_a_server_that_is_stopped_take_their_errands_back() {
    let (host, peer) = joined(&[("far", "do")], Side::Hub).await;
    peer.script(|_| async { std::future::pending().await });
    let gives_up = tokio::time::timeout(Duration::from_secs(1), host.call(call("far__do", "{}")));
    assert!(gives_up.await.is_err());
    assert_eq!(peer.taken_back.load(Ordering::SeqCst), 1);

    let mut waiting = calling(&host);
    peer.asked(2).await;
    host.stop("far").await.unwrap();
    let ended = waiting.join_next().await.unwrap().unwrap().unwrap_err();
    assert_eq!(ended.execution(), Execution::Unknown);
    assert_eq!(peer.taken_back.load(Ordering::SeqCst), 2);
}

/// Of which resources the peer was asked to tell, without those who were only judged.
fn subscribed(asked: &[Errand]) -> Vec<String> {
    let of = |errand: &Errand| match &errand.ask {
        Ask::Mcp { method, params, .. } if **method == *method::RESOURCES_SUBSCRIBE => {
            let params = params.as_deref().unwrap_or_default();
            let uri = object::text(params, "uri").map(Into::into);
            uri.filter(|_| errand.caller.is_none())
        }
        _ => None,
    };
    asked.iter().filter_map(of).collect()
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_cannot_be_subscribed_to_again_costs_no_other_subscription() {
    let peer = Peer::new("p", &[]);
    let whole = Ware {
        name: "far".into(),
        revision: Revision::V2026_07_28,
        initialize: Bytes::from_static(br#"{"capabilities":{"resources":{"subscribe":true}}}"#),
        lists: Lists::default(),
    };
    peer.offer_whole(&[("far", "do")], vec![whole]);
    let list = r#"{"resources":[{"uri":"x:1"},{"uri":"x:2"},{"uri":"x:3"}]}"#;
    peer.script(move |_| async move { Ok(output(list)) });
    let host = World::new([]).host(Vec::new(), HostLimits::default());
    let adopted = host.adopt(&peer.remote(), Side::Hub, &["far".into()]);
    assert_eq!(adopted.refused, []);
    assert!(reaches(&host, "far", "ready").await);
    let (owner, scope) = (
        Principal::new("owner", Role::Owner),
        Scope::Server("far".into()),
    );
    let caller: Arc<dyn CallerEnd> = Hearer::of(1);
    for uri in ["x:1", "x:2", "x:3"] {
        host.subscribe(&owner, &scope, &caller, uri).await.unwrap();
    }
    // The first of them fails from now on.
    peer.script(move |errand| async move {
        match subscribed(std::slice::from_ref(&errand))
            .iter()
            .any(|uri| uri == "x:1")
        {
            true => Err(ErrandError::Refused(failure("throttled"))),
            false => Ok(output(list)),
        }
    });
    let before = peer.asked(0).await.len();
    peer.connect(false);
    pass(Duration::from_secs(1)).await;
    peer.connect(true);
    let mut asked = peer.asked.subscribe();
    let all = asked.wait_for(|asked| subscribed(&asked[before..]).len() >= 3);
    let day = Duration::from_secs(24 * 3_600);
    let all = tokio::time::timeout(day, all)
        .await
        .expect("all are asked for");
    assert_eq!(subscribed(&all.unwrap()[before..]), ["x:1", "x:2", "x:3"]);
}
