//! Lanes: ordered individually, independent of each other.

use std::time::Duration;

use bowline_core::call::ReplyOrigin;
use bowline_link::LinkExit;
use bowline_testkit::{
    GenerationScript, ReleaseGate, ServerScript, ToolBehaviour, advance_clock, tool_call,
    wait_for_state,
};

use crate::rig::{
    OutboxRig, expect_queued, healthy_server, number_argument, queued_server, server_doing,
    write_call,
};

fn numbered_arguments(n: u64) -> String {
    format!(r#"{{"n":{n}}}"#)
}

async fn rig_with_server_down(script: ServerScript) -> OutboxRig {
    let rig = OutboxRig::new(script).await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "backoff").await);
    rig
}

#[tokio::test(start_paused = true)]
async fn new_write_never_overtakes_queued_write() {
    let script = ServerScript::always(healthy_server())
        .then(GenerationScript::failing_start("down"))
        .then(server_doing(ToolBehaviour::RespondAfter(
            Duration::from_millis(50),
        )));
    let rig = rig_with_server_down(script).await;
    for n in 1..=3 {
        rig.queue_write(&numbered_arguments(n)).await;
    }
    // The server is back and the first write is in delivery: later writes come last.
    rig.world
        .wait_until(|record| !record.executions.is_empty())
        .await;
    for n in 4..=6 {
        let reply = rig.write_as("owner", &numbered_arguments(n)).await.unwrap();
        let said = expect_queued(&reply);
        assert!(said["position"].as_u64() >= Some(2), "{said}");
    }
    rig.wait_drained().await;
    assert_eq!(rig.executed_numbers(), [1, 2, 3, 4, 5, 6]);
    let reply = rig.write_as("owner", &numbered_arguments(7)).await.unwrap();
    assert_eq!(reply.origin, ReplyOrigin::Live, "nothing waits any more");
}

#[tokio::test(start_paused = true)]
async fn new_write_waits_for_write_in_delivery() {
    let gate = ReleaseGate::new_closed();
    let script = ServerScript::always(healthy_server())
        .then(GenerationScript::failing_start("down"))
        .then(server_doing(ToolBehaviour::BlockOn(gate.clone())));
    let rig = rig_with_server_down(script).await;
    rig.queue_write(&numbered_arguments(1)).await;
    rig.world
        .wait_until(|record| record.executions.len() == 1)
        .await;
    rig.queue_write(&numbered_arguments(2)).await;
    assert_eq!(
        rig.executed_numbers(),
        [1],
        "the second waits for the first"
    );
    gate.release();
    rig.wait_drained().await;
    assert_eq!(rig.executed_numbers(), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn blocked_lane_does_not_delay_others() {
    let stuck =
        ServerScript::always(healthy_server()).then(GenerationScript::failing_start("down"));
    let specs = vec![queued_server("s"), queued_server("t")];
    let rig = OutboxRig::with_servers(
        specs,
        [("s", stuck), ("t", ServerScript::always(healthy_server()))],
    )
    .await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "backoff").await);
    rig.queue_write(&numbered_arguments(1)).await;
    let reply = rig
        .host
        .call(write_call("owner", "t__do", &numbered_arguments(2)))
        .await
        .unwrap();
    assert_eq!(reply.origin, ReplyOrigin::Live, "another server");
    assert_eq!(rig.executed_numbers(), [2]);
}

#[tokio::test(start_paused = true)]
async fn recovered_server_is_probed_by_one_write() {
    let gate = ReleaseGate::new_closed();
    let script = ServerScript::always(healthy_server())
        .then(GenerationScript::failing_start("down"))
        .then(server_doing(ToolBehaviour::BlockOn(gate.clone())));
    let rig = rig_with_server_down(script).await;
    for who in ["a", "b", "c", "d"] {
        let reply = rig
            .host
            .call(write_call(who, "s__do", &numbered_arguments(1)))
            .await
            .unwrap();
        expect_queued(&reply);
    }
    assert!(wait_for_state(&rig.host, "s", "ready").await);
    rig.world
        .wait_until(|record| !record.executions.is_empty())
        .await;
    advance_clock(Duration::from_secs(30)).await;
    assert_eq!(rig.executed_numbers().len(), 1, "one probe");
    gate.release();
    rig.wait_drained().await;
    assert_eq!(rig.executed_numbers().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn unqueued_calls_bypass_the_lane() {
    let gate = ReleaseGate::new_closed();
    let script = ServerScript::always(healthy_server())
        .then(GenerationScript::failing_start("down"))
        .then(server_doing(ToolBehaviour::BlockOn(gate.clone())));
    let rig = rig_with_server_down(script).await;
    rig.queue_write(&numbered_arguments(1)).await;
    assert!(wait_for_state(&rig.host, "s", "ready").await);
    rig.world
        .wait_until(|record| !record.executions.is_empty())
        .await;
    let reply = rig
        .host
        .call(tool_call("s__other", &numbered_arguments(2)))
        .await
        .unwrap();
    assert_eq!(reply.origin, ReplyOrigin::Live);
    gate.release();
    rig.wait_drained().await;
}

#[tokio::test(start_paused = true)]
async fn many_writes_arrive_once_in_order() {
    let mut script = ServerScript::always(healthy_server());
    for _ in 0..40 {
        script = script
            .then(GenerationScript::failing_start("down"))
            .then(healthy_server().exit_after(Duration::from_millis(700)));
    }
    let rig = OutboxRig::new(script.then(healthy_server())).await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    let mut sent = 0;
    for nth in 1..=100 {
        for who in ["a", "b", "c"] {
            let reply = rig
                .host
                .call(write_call(who, "s__do", &numbered_arguments(nth)))
                .await;
            assert!(reply.is_ok(), "{reply:?}");
            sent += 1;
        }
        advance_clock(Duration::from_millis(90)).await;
    }
    rig.wait_drained().await;
    let record = rig.world.record();
    let mut seen = std::collections::HashSet::new();
    let first = record.executions.iter();
    let first: Vec<_> = first
        .filter(|deed| seen.insert(crate::rig::key_argument(&deed.arguments)))
        .map(|deed| number_argument(&deed.arguments))
        .collect();
    assert_eq!(first.len(), sent);
    for nth in 1..=100 {
        assert_eq!(first.iter().filter(|n| **n == nth).count(), 3, "{nth}");
    }
}
