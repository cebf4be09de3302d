//! Adopted servers follow their peer, and configured servers win name conflicts.

use std::sync::Arc;
use std::time::Duration;

use bowline_host::broker::{FederatedPeer, Federation};
use bowline_host::spec::PeerRole;
use bowline_host::{AdoptError, Host, HostLimits};
use bowline_testkit::{
    GenerationScript, ServerScript, SimWorld, ToolBehaviour, advance_clock, server_spec, tool_call,
    wait_for_state,
};

use crate::fake_peer::FakePeer;

fn names(servers: &[&str]) -> Vec<Arc<str>> {
    servers.iter().map(|name| Arc::from(*name)).collect()
}

fn world() -> SimWorld {
    let well = || {
        ServerScript::always(GenerationScript::with_tools([(
            "do",
            ToolBehaviour::Respond,
        )]))
    };
    SimWorld::new([("own", well()), ("far", well())])
}

fn follow(host: &Host, peer: &Arc<FakePeer>, keep: Option<Duration>) -> FederatedPeer {
    let federation = Federation {
        host: host.clone(),
        side: PeerRole::Worker,
        retention: keep,
        own_offer: None,
    };
    federation.follow_peer(peer.remote())
}

/// Runs everything that is due.
async fn moment() {
    advance_clock(Duration::from_millis(10)).await;
}

#[tokio::test(start_paused = true)]
async fn adopted_servers_follow_the_peer_manifest() {
    let host = world().start_host(vec![server_spec("own")], HostLimits::default());
    let peer = FakePeer::new("p", &[("a", "x"), ("b", "x")]);
    let following = follow(&host, &peer, None);
    assert_eq!(host.servers(), names(&["a", "b", "own"]));
    assert!(wait_for_state(&host, "a", "ready").await);
    peer.offer(&[("b", "x"), ("c", "x")]);
    moment().await;
    assert_eq!(host.servers(), names(&["b", "c", "own"]));
    assert!(host.catalog().server("a").is_none());
    host.call(tool_call("c__x", "{}")).await.unwrap();
    drop(following);
    moment().await;
    assert_eq!(host.servers(), names(&["own"]));
}

#[tokio::test(start_paused = true)]
async fn config_change_keeps_adopted_servers() {
    let host = world().start_host(vec![server_spec("own")], HostLimits::default());
    let peer = FakePeer::new("p", &[("a", "x")]);
    let _following = follow(&host, &peer, None);
    assert!(wait_for_state(&host, "a", "ready").await);
    let applied = host.apply_config(Vec::new());
    assert_eq!((applied.removed, applied.kept), (names(&["own"]), vec![]));
    assert_eq!(host.servers(), names(&["a"]));
    assert_eq!(host.server_status("a").unwrap().generation, 1);
    host.call(tool_call("a__x", "{}")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn configured_name_wins_until_removed() {
    let host = world().start_host(vec![server_spec("own")], HostLimits::default());
    let peer = FakePeer::new("p", &[("far", "x"), ("own", "x")]);
    let following = follow(&host, &peer, None);
    assert_eq!(
        *following.watch_refusals().borrow(),
        [AdoptError::Own("own".into())]
    );
    assert!(wait_for_state(&host, "far", "ready").await);

    let applied = host.apply_config(vec![server_spec("own"), server_spec("far")]);
    assert_eq!(applied.added, names(&["far"]));
    assert!(wait_for_state(&host, "far", "ready").await);
    moment().await;
    assert_eq!(host.server_status("far").unwrap().transport, "stdio");
    assert!(
        host.catalog()
            .server("far")
            .unwrap()
            .tools
            .route("do")
            .is_some()
    );
    assert_eq!(following.watch_refusals().borrow().len(), 2);

    host.apply_config(vec![server_spec("own")]);
    moment().await;
    assert_eq!(host.server_status("far").unwrap().transport, "peer");
    assert!(wait_for_state(&host, "far", "ready").await);
    host.call(tool_call("far__x", "{}")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn adopted_name_is_refused_to_second_peer() {
    let host = world().start_host(Vec::new(), HostLimits::default());
    let first = FakePeer::new("one", &[("a", "x")]);
    let second = FakePeer::new("two", &[("a", "x"), ("Bad Name", "x")]);
    let one = follow(&host, &first, None);
    let two = follow(&host, &second, None);
    let brought = AdoptError::Brought {
        server: "a".into(),
        by: "worker one".into(),
    };
    let bad = AdoptError::BadName("Bad Name".into());
    assert_eq!(*two.watch_refusals().borrow(), [bad, brought]);
    drop(one);
    moment().await;
    assert_eq!(host.server_status("a").unwrap().command, "worker two");
}

#[tokio::test(start_paused = true)]
async fn absent_peer_servers_stay_for_retention_time() {
    let host = world().start_host(Vec::new(), HostLimits::default());
    let peer = FakePeer::new("p", &[("a", "x"), ("b", "x")]);
    let keep = Some(Duration::from_secs(60));
    let following = follow(&host, &peer, keep);
    for server in ["a", "b"] {
        assert!(wait_for_state(&host, server, "ready").await);
    }
    peer.connect(false);
    advance_clock(Duration::from_secs(59)).await;
    assert_eq!(host.servers(), names(&["a", "b"]));
    assert!(host.status().iter().all(|server| server.stale));
    assert!(!following.is_finished());
    advance_clock(Duration::from_secs(2)).await;
    assert_eq!(host.servers(), names(&[]));
    assert_eq!(host.catalog().servers().count(), 0);
    assert!(following.is_finished());
    peer.connect(true);
    let _following = follow(&host, &peer, keep);
    assert_eq!(host.servers(), names(&["a", "b"]));
    host.call(tool_call("a__x", "{}")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn returning_peer_is_used_at_once() {
    let host = world().start_host(Vec::new(), HostLimits::default());
    let peer = FakePeer::new("p", &[("a", "x")]);
    let _following = follow(&host, &peer, None);
    assert!(wait_for_state(&host, "a", "ready").await);
    peer.connect(false);
    advance_clock(Duration::from_secs(600)).await;
    assert_eq!(host.status()[0].state, "backoff");
    peer.connect(true);
    moment().await;
    assert_eq!(host.status()[0].state, "ready");
    assert_eq!(host.status()[0].manifest, "live");
}
