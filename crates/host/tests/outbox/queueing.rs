//! What queues a write, and what is told.

use std::time::Duration;

use bowline_core::call::Origin;
use bowline_core::lane::KeyScope;
use bowline_core::supervision::RestartPolicy;
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::Order;
use bowline_link::Exit;
use bowline_sim::{Act, Generation, Script, body, call, reaches};

use crate::rig::{Rig, doing, key, pass, server, up};

#[tokio::test(start_paused = true)]
async fn a_write_that_succeeds_carries_its_key_on_the_first_attempt_and_leaves_nothing() {
    let rig = Rig::new(Script::always(up())).await;
    let reply = rig.write_as("owner", r#"{"n":1}"#).await.unwrap();
    assert_eq!(reply.origin, Origin::Live);
    let record = rig.world.record();
    let key = key(&record.executions[0].arguments);
    assert_eq!(key.len(), 32, "128 bits in hexadecimal: {key}");
    assert!(rig.letters().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_write_is_queued_while_its_server_is_away_and_delivered_when_it_is_back() {
    let script = Script::always(up())
        .then(Generation::fails("down"))
        .then(Generation::fails("down"))
        .then(up());
    let rig = Rig::new(script).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "backoff").await);

    let said = rig.queue(r#"{"n":1}"#).await;

    assert_eq!(
        (&said["tool"], &said["position"]),
        (&"do".into(), &1.into())
    );
    let id = said["id"].as_str().unwrap();
    let note = said["note"].as_str().unwrap();
    assert!(note.contains(&format!("bowline://outbox/{id}")), "{note}");
    rig.drained().await;
    assert_eq!(rig.done(), [1]);
    let record = rig.world.record();
    let told = said["idempotencyKey"].as_str().unwrap();
    let sent = KeyScope::default().scoped("owner", told);
    assert_eq!(key(&record.executions[0].arguments), *sent);
}

#[tokio::test(start_paused = true)]
async fn what_may_have_run_is_sent_again_under_the_same_key() {
    let script = Script::always(doing(Act::Dies))
        .then(doing(Act::Dies))
        .then(up());
    let rig = Rig::new(script).await;
    let said = rig.queue(r#"{"n":1}"#).await;
    rig.drained().await;
    assert_eq!(
        rig.ran(),
        [1, 1, 1],
        "live, once more at once, and replayed"
    );
    assert_eq!(rig.done(), [1], "one key: {said}");
}

#[tokio::test(start_paused = true)]
async fn an_ejected_server_has_its_writes_queued_until_a_person_starts_it() {
    let spec = ServerSpec {
        restart: RestartPolicy {
            restarts_max: 0,
            window: Duration::from_secs(300),
        },
        ..server("s")
    };
    let rig = Rig::of(vec![spec], [("s", Script::always(up()))]).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "ejected").await);
    rig.queue(r#"{"n":1}"#).await;
    pass(Duration::from_secs(600)).await;
    assert_eq!(rig.letters().await.len(), 1);
    rig.world.order(&rig.host, "s", Order::Start).await.unwrap();
    rig.drained().await;
    assert_eq!(rig.done(), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_write_is_answered_at_once_while_its_server_is_being_started_again() {
    let slow = up().start_takes(Duration::from_secs(20));
    let rig = Rig::new(Script::always(up()).then(slow)).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "starting").await);
    let before = rig.host.clock().now();
    rig.queue(r#"{"n":1}"#).await;
    let waited = before.until(rig.host.clock().now());
    assert!(waited <= Duration::from_millis(1_100), "{waited:?}");
    rig.drained().await;
    assert_eq!(rig.done(), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_is_not_queued_is_told_of_the_outage() {
    let script = Script::always(up()).then(Generation::fails("down"));
    let rig = Rig::new(script).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "backoff").await);
    let outcome = rig.host.call(call("s__other", "{}")).await;
    assert!(outcome.is_err(), "{}", body(&outcome.unwrap()));
    assert!(rig.letters().await.is_empty());
}
