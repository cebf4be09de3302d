//! When a write is queued, and the response to its caller.

use std::time::Duration;

use bowline_core::call::ReplyOrigin;
use bowline_core::lane::KeyScope;
use bowline_core::restart_budget::RestartPolicy;
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::ServerAction;
use bowline_link::LinkExit;
use bowline_testkit::{
    GenerationScript, ServerScript, ToolBehaviour, advance_clock, reply_body, tool_call,
    wait_for_state,
};

use crate::rig::{OutboxRig, healthy_server, key_argument, queued_server, server_doing};

#[tokio::test(start_paused = true)]
async fn live_write_sends_key_and_leaves_nothing() {
    let rig = OutboxRig::new(ServerScript::always(healthy_server())).await;
    let reply = rig.write_as("owner", r#"{"n":1}"#).await.unwrap();
    assert_eq!(reply.origin, ReplyOrigin::Live);
    let record = rig.world.record();
    let key = key_argument(&record.executions[0].arguments);
    assert_eq!(key.len(), 32, "128 bits in hexadecimal: {key}");
    assert!(rig.queued_calls().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn write_is_queued_in_outage_and_delivered() {
    let script = ServerScript::always(healthy_server())
        .then(GenerationScript::failing_start("down"))
        .then(GenerationScript::failing_start("down"))
        .then(healthy_server());
    let rig = OutboxRig::new(script).await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "backoff").await);

    let said = rig.queue_write(r#"{"n":1}"#).await;

    assert_eq!(
        (&said["tool"], &said["position"]),
        (&"do".into(), &1.into())
    );
    let id = said["id"].as_str().unwrap();
    let note = said["note"].as_str().unwrap();
    assert!(note.contains(&format!("bowline://outbox/{id}")), "{note}");
    rig.wait_drained().await;
    assert_eq!(rig.deduplicated_numbers(), [1]);
    let record = rig.world.record();
    let told = said["idempotencyKey"].as_str().unwrap();
    let sent = KeyScope::default().scope_key("owner", told);
    assert_eq!(key_argument(&record.executions[0].arguments), *sent);
}

#[tokio::test(start_paused = true)]
async fn unknown_outcome_is_resent_with_same_key() {
    let script = ServerScript::always(server_doing(ToolBehaviour::Exit))
        .then(server_doing(ToolBehaviour::Exit))
        .then(healthy_server());
    let rig = OutboxRig::new(script).await;
    let said = rig.queue_write(r#"{"n":1}"#).await;
    rig.wait_drained().await;
    assert_eq!(
        rig.executed_numbers(),
        [1, 1, 1],
        "live, once more at once, and replayed"
    );
    assert_eq!(rig.deduplicated_numbers(), [1], "one key: {said}");
}

#[tokio::test(start_paused = true)]
async fn ejected_server_queues_writes_until_started() {
    let spec = ServerSpec {
        restart: RestartPolicy {
            restarts_max: 0,
            window: Duration::from_secs(300),
        },
        ..queued_server("s")
    };
    let rig =
        OutboxRig::with_servers(vec![spec], [("s", ServerScript::always(healthy_server()))]).await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "ejected").await);
    rig.queue_write(r#"{"n":1}"#).await;
    advance_clock(Duration::from_secs(600)).await;
    assert_eq!(rig.queued_calls().await.len(), 1);
    rig.world
        .give_order(&rig.host, "s", ServerAction::Start)
        .await
        .unwrap();
    rig.wait_drained().await;
    assert_eq!(rig.deduplicated_numbers(), [1]);
}

#[tokio::test(start_paused = true)]
async fn write_during_restart_is_queued_at_once() {
    let slow = healthy_server().with_start_delay(Duration::from_secs(20));
    let rig = OutboxRig::new(ServerScript::always(healthy_server()).then(slow)).await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "starting").await);
    let before = rig.host.clock().now();
    rig.queue_write(r#"{"n":1}"#).await;
    let waited = before.duration_until(rig.host.clock().now());
    assert!(waited <= Duration::from_millis(1_100), "{waited:?}");
    rig.wait_drained().await;
    assert_eq!(rig.deduplicated_numbers(), [1]);
}

#[tokio::test(start_paused = true)]
async fn unqueued_tool_fails_in_outage() {
    let script =
        ServerScript::always(healthy_server()).then(GenerationScript::failing_start("down"));
    let rig = OutboxRig::new(script).await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "backoff").await);
    let outcome = rig.host.call(tool_call("s__other", "{}")).await;
    assert!(outcome.is_err(), "{}", reply_body(&outcome.unwrap()));
    assert!(rig.queued_calls().await.is_empty());
}
