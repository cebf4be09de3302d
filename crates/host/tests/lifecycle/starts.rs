//! How long a start may take, and how many there may be at once.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::Call;
use bowline_host::HostLimits;
use bowline_host::spec::{Isolation, ServerSpec};
use bowline_host::supervisor::Order;
use bowline_link::Exit;
use bowline_sim::{Gate, Hearer, Script, World, call, reaches, spec};
use tokio::task::JoinSet;

use super::{Kept, OddDial, WAIT, host, pass, settle, well};

#[tokio::test(start_paused = true)]
async fn an_installer_has_its_own_deadline_until_the_server_was_seen() {
    let kept = Arc::new(Kept::default());
    let world = World::new([("s", Script::always(well()))]);
    let installed = ServerSpec {
        install_timeout: Some(Duration::from_secs(300)),
        ..spec("s")
    };
    let (install, start) = (Duration::from_secs(300), Duration::from_secs(30));
    let dial = OddDial::new(&world, []);
    let first = host(dial.clone(), &kept, vec![installed.clone()]);
    assert!(reaches(&first, "s", "ready").await);
    assert!(world.kill("s", Exit::Status(1)));
    assert!(reaches(&first, "s", "backoff").await);
    assert!(reaches(&first, "s", "ready").await);
    first.order("s", Order::Reload, WAIT).await.unwrap();
    assert_eq!(*dial.allowed.lock().unwrap(), [install, start, start]);
    first.shutdown().await;

    let dial = OddDial::new(&world, []);
    let second = host(dial.clone(), &kept, vec![installed]);
    assert!(reaches(&second, "s", "ready").await);
    assert_eq!(*dial.allowed.lock().unwrap(), [start], "it was seen before");
}

#[tokio::test(start_paused = true)]
async fn only_so_many_servers_start_at_once_and_hanging_ones_hold_up_nobody_for_long() {
    let names = ["a", "b", "c", "d", "e"];
    let gate = Gate::closed();
    let world = World::new(names.map(|name| (name, Script::always(well().hangs(&gate)))));
    let limits = HostLimits {
        starts_max: 2,
        ..HostLimits::default()
    };
    let host = world.host(names.map(spec).to_vec(), limits);
    settle().await;
    assert_eq!(world.record().starts.len(), 2);
    pass(Duration::from_millis(1_900)).await;
    assert_eq!(world.record().starts.len(), 2);
    pass(Duration::from_millis(200)).await;
    assert_eq!(world.record().starts.len(), 4, "those that hang give way");
    gate.release();
    settle().await;
    assert_eq!(
        world.record().starts.len(),
        5,
        "those that are done as well"
    );
    for name in names {
        assert!(reaches(&host, name, "ready").await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_waits_for_its_place_can_be_stopped() {
    let world = World::new([
        ("a", Script::always(well().hangs(&Gate::closed()))),
        ("b", Script::always(well().hangs(&Gate::closed()))),
    ]);
    let limits = HostLimits {
        starts_max: 1,
        ..HostLimits::default()
    };
    let host = world.host(vec![spec("a"), spec("b")], limits);
    settle().await;
    assert_eq!(world.record().starts.len(), 1);
    let waits = if world.record().starts_of("a") == 1 {
        "b"
    } else {
        "a"
    };
    let status = host.order(waits, Order::Stop, WAIT).await.unwrap();
    assert_eq!(status.state, "stopped");
    pass(Duration::from_secs(5)).await;
    assert_eq!(world.record().starts_of(waits), 0);
}

#[tokio::test(start_paused = true)]
async fn links_of_single_sessions_are_paced_like_starts() {
    let gate = Gate::closed();
    let script = Script::always(well()).then(well().hangs(&gate));
    let world = World::new([("s", script)]);
    let limits = HostLimits {
        starts_max: 1,
        ..HostLimits::default()
    };
    let spec = ServerSpec {
        isolation: Isolation::Session,
        ..spec("s")
    };
    let host = world.host(vec![spec], limits);
    assert!(reaches(&host, "s", "ready").await);
    let mut calls = JoinSet::new();
    for session in [1, 2] {
        let own = Call {
            caller: Some(Hearer::of(session)),
            ..call("s__do", "{}")
        };
        let host = host.clone();
        calls.spawn(async move { host.call(own).await.is_ok() });
    }
    settle().await;
    assert_eq!(world.record().starts_of("s"), 2, "one of the two waits");
    pass(Duration::from_millis(2_100)).await;
    assert_eq!(world.record().starts_of("s"), 3);
    gate.release();
    assert_eq!(calls.join_all().await, [true, true]);
}
