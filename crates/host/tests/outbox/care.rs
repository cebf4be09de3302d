//! What people do with queued writes, and what rules do to them.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Call, Principal, Role};
use bowline_host::outbox::{LetterState, OutboxError};
use bowline_host::spec::ServerSpec;
use bowline_host::{Pattern, Policy, RoleRules};
use bowline_link::Exit;
use bowline_sim::{Act, Gate, Generation, Script, World, reaches};
use serde_json::Value;

use crate::rig::{Rig, doing, is_queued, pass, server, up, write};

const ONE: &str = r#"{"n":1}"#;

async fn down(next: Generation) -> Rig {
    let script = Script::always(up())
        .then(Generation::fails("down"))
        .then(next);
    let rig = Rig::new(script).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "backoff").await);
    rig
}

fn allowing(patterns: &[&str]) -> Policy {
    let allow = patterns.iter().map(|text| Pattern::parse(text).unwrap());
    let rules = RoleRules {
        allow: allow.collect(),
        ..RoleRules::default()
    };
    Policy::default().with_role("r", rules)
}

#[tokio::test(start_paused = true)]
async fn sec_35_a_replay_after_the_permission_was_taken_away_is_dropped_and_told() {
    let rig = down(up()).await;
    rig.host.set_policy(allowing(&["s.*"]));
    let mut call = write("ann", "s__do", ONE);
    call.principal = Arc::new(Principal::new("ann", Role::Named("r".into())));
    is_queued(&rig.host.call(call).await.unwrap());
    rig.host.set_policy(allowing(&["s.other"]));
    rig.drained().await;
    assert!(rig.ran().is_empty(), "it must not run");
    let letters = rig.letters().await;
    assert_eq!(letters[0].state, LetterState::Dead);
    let heard = rig.ears.heard(1).await;
    assert_eq!(heard[0].0, 7);
    assert!(heard[0].1.contains("may not use"), "{}", heard[0].1);
}

#[tokio::test(start_paused = true)]
async fn the_writes_of_a_revoked_credential_are_dead_and_those_of_others_are_not() {
    let rig = down(up()).await;
    let by = |credential: &str, n: u64| {
        let mut principal = Principal::new("ann", Role::Owner);
        principal.credential = credential.into();
        Call {
            principal: Arc::new(principal),
            ..write("ann", "s__do", &format!(r#"{{"n":{n}}}"#))
        }
    };
    for (credential, n) in [("c1", 1), ("c2", 2), ("c1", 3), ("c2", 4)] {
        is_queued(&rig.host.call(by(credential, n)).await.unwrap());
    }
    let outbox = rig.host.outbox();
    assert_eq!(outbox.withdraw_of_credential("c1").await, Ok(2));
    assert_eq!(outbox.withdraw_of_credential("").await, Ok(0));
    rig.drained().await;
    assert_eq!(rig.ran(), [2, 4], "in order");
    let dead = rig.letters().await;
    assert_eq!(dead.len(), 2);
    assert!(dead.iter().all(|one| one.state == LetterState::Dead));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_under_way_when_its_credential_is_revoked_is_not_sent_again() {
    let spec = ServerSpec {
        call_timeout: Duration::from_secs(5),
        ..server("s")
    };
    let hangs = doing(Act::Hangs(Gate::closed()));
    let rig = Rig::of(vec![spec], [("s", Script::always(hangs))]).await;
    let mut call = write("ann", "s__do", ONE);
    let mut principal = Principal::new("ann", Role::Owner);
    principal.credential = "c1".into();
    call.principal = Arc::new(principal);
    is_queued(&rig.host.call(call).await.unwrap());
    rig.world.until(|record| record.executions.len() == 2).await;
    let outbox = rig.host.outbox();
    assert_eq!(
        outbox.withdraw_of_credential("c1").await,
        Ok(0),
        "it is held"
    );
    rig.drained().await;
    assert_eq!(rig.ran(), [1, 1], "no third time");
    assert_eq!(rig.letters().await[0].state, LetterState::Dead);
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_can_be_tried_again_and_dropped() {
    let rig = down(doing(Act::ToolError)).await;
    let said = rig.queue(ONE).await;
    rig.queue(r#"{"n":2}"#).await;
    rig.drained().await;
    let outbox = rig.host.outbox();
    let id = said["id"].as_str().unwrap();
    assert!(rig.world.change("s", up()));
    outbox.retry(id).await.unwrap();
    rig.drained().await;
    assert_eq!(rig.ran(), [1, 2, 1]);
    let shown = outbox.show(id).await.unwrap();
    assert_eq!(shown.state, LetterState::Delivered);
    let result: Value = serde_json::from_str(shown.result.unwrap().get()).unwrap();
    assert_eq!(result["content"][0]["text"], "s#3");
    let other = rig.letters().await[0].id.clone();
    outbox.drop_letter(&other).await.unwrap();
    assert!(rig.letters().await.is_empty());
    let gone = outbox.show(&other).await.map(|letter| letter.id);
    assert!(matches!(gone, Err(OutboxError::Unknown { .. })));
    assert!(outbox.retry("junk").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_waiting_write_can_be_looked_at_tried_at_once_and_dropped() {
    let script = Script::always(up()).then(Generation::fails("down"));
    let rig = Rig::new(script).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "backoff").await);
    let said = rig.queue(ONE).await;
    pass(Duration::from_secs(1_000)).await;
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
    pass(Duration::from_millis(10)).await;
    assert_eq!(outbox.show(id).await.unwrap().attempts, before + 1);
    let stats = outbox.stats().await.unwrap();
    assert_eq!((stats["s"].queued, stats["s"].dead), (1, 0));
    outbox.drop_letter(id).await.unwrap();
    let heard = rig.ears.heard(1).await;
    assert!(heard[0].1.contains("dropped by a person"), "{}", heard[0].1);
    assert_eq!(outbox.stats().await.unwrap().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_writes_of_a_server_that_is_not_configured_wait_and_are_shown() {
    let rig = down(up()).await;
    rig.queue(ONE).await;
    rig.host.shutdown().await;
    let world = World::new([("s", Script::always(up())), ("t", Script::always(up()))]);
    let next = Rig::on(world, vec![server("t")], Arc::clone(&rig.journal)).await;
    pass(Duration::from_secs(600)).await;
    let lanes = next.host.outbox().lanes().await.unwrap();
    assert_eq!(
        (&*lanes[0].server, lanes[0].configured, lanes[0].queued),
        ("s", false, 1)
    );
    next.host.apply(vec![server("s"), server("t")]);
    next.drained().await;
    assert_eq!(next.done(), [1]);
}
