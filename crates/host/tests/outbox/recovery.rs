//! Recovery under load: live responses return, no write is lost or duplicated.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::call::{CallReply, CallRequest, ReplyOrigin};
use bowline_core::error::CallError;
use bowline_core::lane::TURN_WAIT_MAX;
use bowline_core::time::MonotonicTime;
use bowline_host::spec::ServerSpec;
use bowline_link::LinkExit;
use bowline_testkit::{
    GenerationScript, RecordingClient, ReleaseGate, ServerScript, ToolBehaviour, advance_clock,
    run_until_idle, spawn_task, wait_for_state,
};
use tokio::task::JoinSet;

use crate::rig::{
    OutboxRig, expect_queued, healthy_server, number_argument, queued_server, server_doing,
    write_call,
};

/// Duration of a write at the server.
const WRITE_TIME: Duration = Duration::from_millis(20);

/// Writes per second.
const WRITES_PER_S: u64 = 95;

/// Duration of the outage: longer than a caller waits for a restart.
const OUTAGE: Duration = Duration::from_millis(1_500);

/// Maximum time from recovery to live responses.
const RECOVERY_MAX: Duration = Duration::from_secs(5);

/// A write of the load.
#[derive(Clone, Copy, Debug)]
struct Sample {
    session: u64,
    sent: MonotonicTime,
    answered: MonotonicTime,
    origin: ReplyOrigin,
}

fn numbered_write(session: u64, number: u64) -> CallRequest {
    let mut call = write_call("owner", "s__do", &format!(r#"{{"n":{number}}}"#));
    call.message.client = Some(RecordingClient::new(session));
    call
}

/// A server that stays down for the outage when killed.
fn outage_spec() -> ServerSpec {
    ServerSpec {
        backoff: Backoff {
            base: OUTAGE,
            cap: OUTAGE,
        },
        ..queued_server("s")
    }
}

/// Sends writes at a fixed rate without waiting, and kills the server after a second. Returns the
/// samples by number, and the time of the kill.
async fn run_load(
    rig: &OutboxRig,
    sessions: u64,
    seconds: u64,
) -> (BTreeMap<u64, Sample>, MonotonicTime) {
    let clock = Arc::clone(rig.host.clock());
    let mut calls = JoinSet::new();
    let mut broken = MonotonicTime(0);
    for number in 1..=WRITES_PER_S * seconds {
        if number == WRITES_PER_S {
            assert!(rig.world.kill("s", LinkExit::Signal(9)));
            broken = clock.now();
        }
        let (host, clock) = (rig.host.clone(), Arc::clone(&clock));
        let session = 1 + number % sessions;
        calls.spawn(async move {
            let sent = clock.now();
            let reply = host.call(numbered_write(session, number)).await.unwrap();
            let sample = Sample {
                session,
                sent,
                answered: clock.now(),
                origin: reply.origin,
            };
            (number, sample)
        });
        advance_clock(Duration::from_micros(1_000_000 / WRITES_PER_S)).await;
    }
    let mut samples = BTreeMap::new();
    while let Some(sample) = calls.join_next().await {
        let (number, sample) = sample.unwrap();
        samples.insert(number, sample);
    }
    (samples, broken)
}

async fn assert_outage_ends(sessions: u64) {
    let slow = || server_doing(ToolBehaviour::RespondAfter(WRITE_TIME));
    let script = ServerScript::always(slow()).then(slow());
    let rig = OutboxRig::with_servers(vec![outage_spec()], [("s", script)]).await;
    let (samples, broken) = run_load(&rig, sessions, 12).await;
    rig.wait_drained().await;
    let done = rig.deduplicated_numbers();
    assert_eq!(done.len(), samples.len(), "none is lost, none is twice");
    let live_from = broken.plus(OUTAGE + RECOVERY_MAX);
    let late = samples.iter().filter(|(_, one)| one.sent >= live_from);
    let late: Vec<_> = late
        .filter(|(_, one)| one.origin != ReplyOrigin::Live)
        .collect();
    assert!(late.is_empty(), "{} queued: {:?}", late.len(), late.first());
    let queued = samples
        .values()
        .filter(|one| one.origin == ReplyOrigin::Queued);
    assert!(queued.count() > 0, "there was an outage");
    let place: BTreeMap<u64, usize> = done.iter().copied().zip(0..).collect();
    for (number, one) in &samples {
        // Writes sent by a session after a response are executed later.
        let after = samples.range(number + 1..);
        let mut after = after.filter(|(_, two)| two.session == one.session);
        let next = after.find(|(_, two)| two.sent > one.answered);
        if let Some((next, _)) = next {
            assert!(place[number] < place[next], "{next} overtook {number}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn outage_under_load_ends_for_many_sessions() {
    assert_outage_ends(19).await;
}

#[tokio::test(start_paused = true)]
async fn outage_under_load_ends_for_one_session() {
    assert_outage_ends(1).await;
}

/// A lane with a hanging write in front, and the server up.
async fn draining_rig(gate: &ReleaseGate) -> OutboxRig {
    let (hangs, first) = (
        server_doing(ToolBehaviour::BlockOn(gate.clone())),
        ReleaseGate::new_closed(),
    );
    let script = ServerScript::always(healthy_server())
        .then(GenerationScript::failing_start("down"))
        .then(server_doing(ToolBehaviour::BlockOn(first.clone())));
    let rig = OutboxRig::new(script).await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "backoff").await);
    for number in 1..=2 {
        expect_queued(&rig.host.call(numbered_write(1, number)).await.unwrap());
    }
    rig.world
        .wait_until(|record| record.executions.len() == 1)
        .await;
    assert!(rig.world.change_script("s", hangs));
    first.release();
    rig.world
        .wait_until(|record| record.executions.len() == 2)
        .await;
    rig
}

#[tokio::test(start_paused = true)]
async fn caller_behind_backlog_gets_live_answer() {
    let gate = ReleaseGate::new_closed();
    let rig = draining_rig(&gate).await;
    let (host, open) = (rig.host.clone(), gate.clone());
    let third = spawn_task(async move { host.call(numbered_write(1, 3)).await });
    // Another session of the same principal has no backlog.
    let other = {
        let host = rig.host.clone();
        spawn_task(async move { host.call(numbered_write(2, 4)).await })
    };
    rig.world
        .wait_until(|record| record.executions.len() == 3)
        .await;
    assert_eq!(
        rig.executed_numbers(),
        [1, 2, 4],
        "the third waits for the second"
    );
    open.release();
    for reply in [third.await, other.await] {
        assert_eq!(reply.unwrap().unwrap().origin, ReplyOrigin::Live);
    }
    assert_eq!(rig.deduplicated_numbers().len(), 4);
    assert!(rig.queued_calls().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn caller_that_waits_too_long_is_queued_behind() {
    let gate = ReleaseGate::new_closed();
    let rig = draining_rig(&gate).await;
    let before = rig.host.clock().now();
    let said = expect_queued(&rig.host.call(numbered_write(1, 3)).await.unwrap());
    let waited = before.duration_until(rig.host.clock().now());
    assert!(
        waited <= TURN_WAIT_MAX + Duration::from_secs(1),
        "{waited:?}"
    );
    let note = said["note"].as_str().unwrap();
    assert!(note.contains("queued before this one"), "{note}");
    gate.release();
    rig.wait_drained().await;
    assert_eq!(rig.deduplicated_numbers(), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn caller_that_leaves_before_its_turn_is_withdrawn() {
    let gate = ReleaseGate::new_closed();
    let rig = draining_rig(&gate).await;
    let keyed = || write_call("owner", "s__do", r#"{"n":3,"key":"mine"}"#);
    let host = rig.host.clone();
    let mut call = keyed();
    call.message.client = Some(RecordingClient::new(1));
    let waits = spawn_task(async move { host.call(call).await });
    run_until_idle().await;
    assert_eq!(rig.queued_calls().await.len(), 2);
    waits.abort();
    assert!(waits.await.is_err());
    // The same key from another session is a new call, executed once.
    let host = rig.host.clone();
    let again = spawn_task(async move { host.call(keyed()).await });
    rig.world
        .wait_until(|record| record.executions.len() == 3)
        .await;
    gate.release();
    let again: Result<CallReply, CallError> = again.await.unwrap();
    assert_eq!(again.unwrap().origin, ReplyOrigin::Live);
    rig.wait_drained().await;
    assert_eq!(
        rig.executed_numbers(),
        [1, 2, 3],
        "once, by the caller that stayed"
    );
    let record = rig.world.record();
    assert_eq!(number_argument(&record.executions[2].arguments), 3);
}

#[tokio::test(start_paused = true)]
async fn flood_behind_backlog_is_shed_and_ends() {
    let slow = || server_doing(ToolBehaviour::RespondAfter(Duration::from_millis(200)));
    let script = ServerScript::always(slow())
        .then(GenerationScript::failing_start("down"))
        .then(slow());
    let rig = OutboxRig::new(script).await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "backoff").await);
    let (backlog, flood) = (150, 1_800);
    for number in 1..=backlog {
        expect_queued(&rig.host.call(numbered_write(1, number)).await.unwrap());
    }
    assert!(wait_for_state(&rig.host, "s", "ready").await);
    // A single session, four times faster than its backlog drains.
    let mut calls = JoinSet::new();
    for number in backlog + 1..=backlog + flood {
        let host = rig.host.clone();
        calls.spawn(async move { (number, host.call(numbered_write(1, number)).await) });
        advance_clock(Duration::from_millis(50)).await;
    }
    let mut promised: Vec<u64> = (1..=backlog).collect();
    let (mut shed, mut last_queued) = (0, 0);
    while let Some(outcome) = calls.join_next().await {
        let (number, outcome) = outcome.unwrap();
        match outcome {
            Ok(reply) => {
                promised.push(number);
                if reply.origin == ReplyOrigin::Queued {
                    last_queued = last_queued.max(number);
                }
            }
            Err(CallError::OutboxFull { .. }) => shed += 1,
            Err(error) => panic!("{number}: {error}"),
        }
    }
    rig.wait_drained().await;
    assert!(shed > 0, "more came than could be delivered");
    assert!(
        last_queued < backlog + flood - 100,
        "{last_queued}: never live"
    );
    let mut done = rig.deduplicated_numbers();
    done.sort_unstable();
    promised.sort_unstable();
    assert_eq!(done, promised, "what was refused did not run");
}
