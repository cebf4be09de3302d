//! Lanes: in order each, and in nobody's way.

use std::time::Duration;

use bowline_core::call::Origin;
use bowline_link::Exit;
use bowline_sim::{Act, Gate, Generation, Script, call, reaches};

use crate::rig::{Rig, doing, is_queued, n, server, up, write};

fn args(n: u64) -> String {
    format!(r#"{{"n":{n}}}"#)
}

async fn down(script: Script) -> Rig {
    let rig = Rig::new(script).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "backoff").await);
    rig
}

#[tokio::test(start_paused = true)]
async fn a_new_write_never_overtakes_one_that_waits() {
    let script = Script::always(up())
        .then(Generation::fails("down"))
        .then(doing(Act::AnswersAfter(Duration::from_millis(50))));
    let rig = down(script).await;
    for n in 1..=3 {
        rig.queue(&args(n)).await;
    }
    // It is back, and the first is being delivered: whatever comes now comes last.
    rig.world
        .until(|record| !record.executions.is_empty())
        .await;
    for n in 4..=6 {
        let reply = rig.write_as("owner", &args(n)).await.unwrap();
        let said = is_queued(&reply);
        assert!(said["position"].as_u64() >= Some(2), "{said}");
    }
    rig.drained().await;
    assert_eq!(rig.ran(), [1, 2, 3, 4, 5, 6]);
    let reply = rig.write_as("owner", &args(7)).await.unwrap();
    assert_eq!(reply.origin, Origin::Live, "nothing waits any more");
}

#[tokio::test(start_paused = true)]
async fn a_new_write_does_not_overtake_the_only_one_which_is_just_being_delivered() {
    let gate = Gate::closed();
    let script = Script::always(up())
        .then(Generation::fails("down"))
        .then(doing(Act::Hangs(gate.clone())));
    let rig = down(script).await;
    rig.queue(&args(1)).await;
    rig.world.until(|record| record.executions.len() == 1).await;
    rig.queue(&args(2)).await;
    assert_eq!(rig.ran(), [1], "the second waits for the first");
    gate.release();
    rig.drained().await;
    assert_eq!(rig.ran(), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn lanes_of_other_principals_and_servers_are_not_held_up() {
    let stuck = Script::always(up()).then(Generation::fails("down"));
    let specs = vec![server("s"), server("t")];
    let rig = Rig::of(specs, [("s", stuck), ("t", Script::always(up()))]).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "backoff").await);
    rig.queue(&args(1)).await;
    let reply = rig
        .host
        .call(write("owner", "t__do", &args(2)))
        .await
        .unwrap();
    assert_eq!(reply.origin, Origin::Live, "another server");
    assert_eq!(rig.ran(), [2]);
}

#[tokio::test(start_paused = true)]
async fn one_write_probes_a_server_that_comes_back_and_then_all_lanes_go() {
    let gate = Gate::closed();
    let script = Script::always(up())
        .then(Generation::fails("down"))
        .then(doing(Act::Hangs(gate.clone())));
    let rig = down(script).await;
    for who in ["a", "b", "c", "d"] {
        let reply = rig.host.call(write(who, "s__do", &args(1))).await.unwrap();
        is_queued(&reply);
    }
    assert!(reaches(&rig.host, "s", "ready").await);
    rig.world
        .until(|record| !record.executions.is_empty())
        .await;
    crate::rig::pass(Duration::from_secs(30)).await;
    assert_eq!(rig.ran().len(), 1, "one probe");
    gate.release();
    rig.drained().await;
    assert_eq!(rig.ran().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_not_queued_pass_by_those_that_wait() {
    let gate = Gate::closed();
    let script = Script::always(up())
        .then(Generation::fails("down"))
        .then(doing(Act::Hangs(gate.clone())));
    let rig = down(script).await;
    rig.queue(&args(1)).await;
    assert!(reaches(&rig.host, "s", "ready").await);
    rig.world
        .until(|record| !record.executions.is_empty())
        .await;
    let reply = rig.host.call(call("s__other", &args(2))).await.unwrap();
    assert_eq!(reply.origin, Origin::Live);
    gate.release();
    rig.drained().await;
}

#[tokio::test(start_paused = true)]
async fn thousands_of_writes_of_many_principals_arrive_once_and_in_order() {
    let mut script = Script::always(up());
    for _ in 0..40 {
        script = script
            .then(Generation::fails("down"))
            .then(up().dies_after(Duration::from_millis(700)));
    }
    let rig = Rig::new(script.then(up())).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    let mut sent = 0;
    for nth in 1..=100 {
        for who in ["a", "b", "c"] {
            let reply = rig.host.call(write(who, "s__do", &args(nth))).await;
            assert!(reply.is_ok(), "{reply:?}");
            sent += 1;
        }
        crate::rig::pass(Duration::from_millis(90)).await;
    }
    rig.drained().await;
    let record = rig.world.record();
    let mut seen = std::collections::HashSet::new();
    let first = record.executions.iter();
    let first: Vec<_> = first
        .filter(|deed| seen.insert(crate::rig::key(&deed.arguments)))
        .map(|deed| n(&deed.arguments))
        .collect();
    assert_eq!(first.len(), sent);
    for nth in 1..=100 {
        assert_eq!(first.iter().filter(|n| **n == nth).count(), 3, "{nth}");
    }
}
