//! Servers come and go with their peers, and stay out of the way of those that are configured.

use std::sync::Arc;
use std::time::Duration;

use bowline_host::broker::{Federation, Following};
use bowline_host::spec::Side;
use bowline_host::{AdoptError, Host, HostLimits};
use bowline_sim::{Act, Generation, Script, World, call, reaches, spec};

use crate::peer::{Peer, pass};

fn names(servers: &[&str]) -> Vec<Arc<str>> {
    servers.iter().map(|name| Arc::from(*name)).collect()
}

fn world() -> World {
    let well = || Script::always(Generation::tools([("do", Act::Answers)]));
    World::new([("own", well()), ("far", well())])
}

fn follow(host: &Host, peer: &Arc<Peer>, keep: Option<Duration>) -> Following {
    let federation = Federation {
        host: host.clone(),
        side: Side::Worker,
        keep,
        own: None,
    };
    federation.follow(peer.remote())
}

/// Lets everything happen that is due.
async fn moment() {
    pass(Duration::from_millis(10)).await;
}

#[tokio::test(start_paused = true)]
async fn servers_come_and_go_with_the_manifest_of_their_peer() {
    let host = world().host(vec![spec("own")], HostLimits::default());
    let peer = Peer::new("p", &[("a", "x"), ("b", "x")]);
    let following = follow(&host, &peer, None);
    assert_eq!(host.servers(), names(&["a", "b", "own"]));
    assert!(reaches(&host, "a", "ready").await);
    peer.offer(&[("b", "x"), ("c", "x")]);
    moment().await;
    assert_eq!(host.servers(), names(&["b", "c", "own"]));
    assert!(host.catalog().offer("a").is_none());
    host.call(call("c__x", "{}")).await.unwrap();
    drop(following);
    moment().await;
    assert_eq!(host.servers(), names(&["own"]));
}

#[tokio::test(start_paused = true)]
async fn another_configuration_leaves_the_servers_of_peers_alone() {
    let host = world().host(vec![spec("own")], HostLimits::default());
    let peer = Peer::new("p", &[("a", "x")]);
    let _following = follow(&host, &peer, None);
    assert!(reaches(&host, "a", "ready").await);
    let applied = host.apply(Vec::new());
    assert_eq!((applied.removed, applied.kept), (names(&["own"]), vec![]));
    assert_eq!(host.servers(), names(&["a"]));
    assert_eq!(host.status_of("a").unwrap().generation, 1);
    host.call(call("a__x", "{}")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_configured_name_wins_and_is_given_back_when_it_is_free() {
    let host = world().host(vec![spec("own")], HostLimits::default());
    let peer = Peer::new("p", &[("far", "x"), ("own", "x")]);
    let following = follow(&host, &peer, None);
    assert_eq!(
        *following.refused().borrow(),
        [AdoptError::Own("own".into())]
    );
    assert!(reaches(&host, "far", "ready").await);

    let applied = host.apply(vec![spec("own"), spec("far")]);
    assert_eq!(applied.added, names(&["far"]));
    assert!(reaches(&host, "far", "ready").await);
    moment().await;
    assert_eq!(host.status_of("far").unwrap().transport, "stdio");
    assert!(
        host.catalog()
            .offer("far")
            .unwrap()
            .tools
            .route("do")
            .is_some()
    );
    assert_eq!(following.refused().borrow().len(), 2);

    host.apply(vec![spec("own")]);
    moment().await;
    assert_eq!(host.status_of("far").unwrap().transport, "peer");
    assert!(reaches(&host, "far", "ready").await);
    host.call(call("far__x", "{}")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_name_that_one_peer_brought_is_refused_to_another() {
    let host = world().host(Vec::new(), HostLimits::default());
    let first = Peer::new("one", &[("a", "x")]);
    let second = Peer::new("two", &[("a", "x"), ("Bad Name", "x")]);
    let one = follow(&host, &first, None);
    let two = follow(&host, &second, None);
    let brought = AdoptError::Brought {
        server: "a".into(),
        by: "worker one".into(),
    };
    let bad = AdoptError::BadName("Bad Name".into());
    assert_eq!(*two.refused().borrow(), [bad, brought]);
    drop(one);
    moment().await;
    assert_eq!(host.status_of("a").unwrap().command, "worker two");
}

#[tokio::test(start_paused = true)]
async fn servers_of_a_peer_that_is_gone_stay_as_last_known_for_a_while_and_come_back_at_once() {
    let host = world().host(Vec::new(), HostLimits::default());
    let peer = Peer::new("p", &[("a", "x"), ("b", "x")]);
    let keep = Some(Duration::from_secs(60));
    let following = follow(&host, &peer, keep);
    for server in ["a", "b"] {
        assert!(reaches(&host, server, "ready").await);
    }
    peer.connect(false);
    pass(Duration::from_secs(59)).await;
    assert_eq!(host.servers(), names(&["a", "b"]));
    assert!(host.status().iter().all(|server| server.stale));
    assert!(!following.is_over());
    pass(Duration::from_secs(2)).await;
    assert_eq!(host.servers(), names(&[]));
    assert_eq!(host.catalog().offers().count(), 0);
    assert!(following.is_over());
    peer.connect(true);
    let _following = follow(&host, &peer, keep);
    assert_eq!(host.servers(), names(&["a", "b"]));
    host.call(call("a__x", "{}")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_comes_back_is_used_without_waiting_for_the_next_try() {
    let host = world().host(Vec::new(), HostLimits::default());
    let peer = Peer::new("p", &[("a", "x")]);
    let _following = follow(&host, &peer, None);
    assert!(reaches(&host, "a", "ready").await);
    peer.connect(false);
    pass(Duration::from_secs(600)).await;
    assert_eq!(host.status()[0].state, "backoff");
    peer.connect(true);
    moment().await;
    assert_eq!(host.status()[0].state, "ready");
    assert_eq!(host.status()[0].manifest, "live");
}
