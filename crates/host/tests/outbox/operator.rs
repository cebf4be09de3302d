//! Operator actions and policy on queued writes.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{CallRequest, Principal, Role};
use bowline_host::outbox::{OutboxError, QueuedCallState};
use bowline_host::spec::ServerSpec;
use bowline_host::{FeaturePattern, Policy, RoleRules};
use bowline_link::LinkExit;
use bowline_testkit::{
    GenerationScript, ReleaseGate, ServerScript, SimWorld, ToolBehaviour, advance_clock,
    wait_for_state,
};
use serde_json::Value;

use crate::rig::{
    OutboxRig, expect_queued, healthy_server, queued_server, server_doing, write_call,
};

const ONE: &str = r#"{"n":1}"#;

async fn rig_with_server_down(next: GenerationScript) -> OutboxRig {
    let script = ServerScript::always(healthy_server())
        .then(GenerationScript::failing_start("down"))
        .then(next);
    let rig = OutboxRig::new(script).await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "backoff").await);
    rig
}

fn policy_allowing(patterns: &[&str]) -> Policy {
    let allow = patterns
        .iter()
        .map(|text| FeaturePattern::parse(text).unwrap());
    let rules = RoleRules {
        allow: allow.collect(),
        ..RoleRules::default()
    };
    Policy::default().with_role("r", rules)
}

#[tokio::test(start_paused = true)]
async fn sec_35_replay_without_permission_is_dead_lettered() {
    let rig = rig_with_server_down(healthy_server()).await;
    rig.host.set_policy(policy_allowing(&["s.*"]));
    let mut call = write_call("ann", "s__do", ONE);
    call.principal = Arc::new(Principal::new("ann", Role::Named("r".into())));
    expect_queued(&rig.host.call(call).await.unwrap());
    rig.host.set_policy(policy_allowing(&["s.other"]));
    rig.wait_drained().await;
    assert!(rig.executed_numbers().is_empty(), "it must not run");
    let letters = rig.queued_calls().await;
    assert_eq!(letters[0].state, QueuedCallState::Dead);
    let heard = rig.ears.wait_for_notifications(1).await;
    assert_eq!(heard[0].0, 7);
    assert!(heard[0].1.contains("may not use"), "{}", heard[0].1);
}

#[tokio::test(start_paused = true)]
async fn revoked_credential_dead_letters_its_writes() {
    let rig = rig_with_server_down(healthy_server()).await;
    let by = |credential: &str, n: u64| {
        let mut principal = Principal::new("ann", Role::Owner);
        principal.credential = credential.into();
        CallRequest {
            principal: Arc::new(principal),
            ..write_call("ann", "s__do", &format!(r#"{{"n":{n}}}"#))
        }
    };
    for (credential, n) in [("c1", 1), ("c2", 2), ("c1", 3), ("c2", 4)] {
        expect_queued(&rig.host.call(by(credential, n)).await.unwrap());
    }
    let outbox = rig.host.outbox();
    assert_eq!(outbox.revoke_credential("c1").await, Ok(2));
    assert_eq!(outbox.revoke_credential("").await, Ok(0));
    rig.wait_drained().await;
    assert_eq!(rig.executed_numbers(), [2, 4], "in order");
    let dead = rig.queued_calls().await;
    assert_eq!(dead.len(), 2);
    assert!(dead.iter().all(|one| one.state == QueuedCallState::Dead));
}

#[tokio::test(start_paused = true)]
async fn write_in_flight_at_revocation_is_not_resent() {
    let spec = ServerSpec {
        call_timeout: Duration::from_secs(5),
        ..queued_server("s")
    };
    let hangs = server_doing(ToolBehaviour::BlockOn(ReleaseGate::new_closed()));
    let rig = OutboxRig::with_servers(vec![spec], [("s", ServerScript::always(hangs))]).await;
    let mut call = write_call("ann", "s__do", ONE);
    let mut principal = Principal::new("ann", Role::Owner);
    principal.credential = "c1".into();
    call.principal = Arc::new(principal);
    expect_queued(&rig.host.call(call).await.unwrap());
    rig.world
        .wait_until(|record| record.executions.len() == 2)
        .await;
    let outbox = rig.host.outbox();
    assert_eq!(outbox.revoke_credential("c1").await, Ok(0), "it is held");
    rig.wait_drained().await;
    assert_eq!(rig.executed_numbers(), [1, 1], "no third time");
    assert_eq!(rig.queued_calls().await[0].state, QueuedCallState::Dead);
}

#[tokio::test(start_paused = true)]
async fn dead_letter_can_be_retried_and_dropped() {
    let rig = rig_with_server_down(server_doing(ToolBehaviour::ToolError)).await;
    let said = rig.queue_write(ONE).await;
    rig.queue_write(r#"{"n":2}"#).await;
    rig.wait_drained().await;
    let outbox = rig.host.outbox();
    let id = said["id"].as_str().unwrap();
    assert!(rig.world.change_script("s", healthy_server()));
    outbox.retry(id).await.unwrap();
    rig.wait_drained().await;
    assert_eq!(rig.executed_numbers(), [1, 2, 1]);
    let shown = outbox.show(id).await.unwrap();
    assert_eq!(shown.state, QueuedCallState::Delivered);
    let result: Value = serde_json::from_str(shown.result.unwrap().get()).unwrap();
    assert_eq!(result["content"][0]["text"], "s#3");
    let other = rig.queued_calls().await[0].id.clone();
    outbox.drop_write(&other).await.unwrap();
    assert!(rig.queued_calls().await.is_empty());
    let gone = outbox.show(&other).await.map(|letter| letter.id);
    assert!(matches!(gone, Err(OutboxError::Unknown { .. })));
    assert!(outbox.retry("junk").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn queued_write_can_be_shown_retried_dropped() {
    let script =
        ServerScript::always(healthy_server()).then(GenerationScript::failing_start("down"));
    let rig = OutboxRig::new(script).await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "backoff").await);
    let said = rig.queue_write(ONE).await;
    advance_clock(Duration::from_secs(1_000)).await;
    let outbox = rig.host.outbox();
    let id = said["id"].as_str().unwrap();
    let shown = outbox.show(id).await.unwrap();
    assert_eq!(
        (&*shown.principal, &*shown.server, &*shown.tool),
        ("owner", "s", "do")
    );
    let params: Value = serde_json::from_str(shown.params.unwrap().get()).unwrap();
    assert_eq!(params["arguments"]["key"], said["idempotencyKey"]);
    assert!(shown.next_try_ms > Some(0) && shown.age_ms >= Some(1_000_000));
    let before = shown.attempts;
    outbox.retry(id).await.unwrap();
    advance_clock(Duration::from_millis(10)).await;
    assert_eq!(outbox.show(id).await.unwrap().attempts, before + 1);
    let stats = outbox.stats().await.unwrap();
    assert_eq!((stats["s"].queued, stats["s"].dead), (1, 0));
    outbox.drop_write(id).await.unwrap();
    let heard = rig.ears.wait_for_notifications(1).await;
    assert!(heard[0].1.contains("dropped by a person"), "{}", heard[0].1);
    assert_eq!(outbox.stats().await.unwrap().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn writes_of_unconfigured_server_stay_queued() {
    let rig = rig_with_server_down(healthy_server()).await;
    rig.queue_write(ONE).await;
    rig.host.shutdown().await;
    let world = SimWorld::new([
        ("s", ServerScript::always(healthy_server())),
        ("t", ServerScript::always(healthy_server())),
    ]);
    let next =
        OutboxRig::start_on_journal(world, vec![queued_server("t")], Arc::clone(&rig.journal))
            .await;
    advance_clock(Duration::from_secs(600)).await;
    let lanes = next.host.outbox().lanes().await.unwrap();
    assert_eq!(
        (&*lanes[0].server, lanes[0].configured, lanes[0].queued),
        ("s", false, 1)
    );
    next.host
        .apply_config(vec![queued_server("s"), queued_server("t")]);
    next.wait_drained().await;
    assert_eq!(next.deduplicated_numbers(), [1]);
}
