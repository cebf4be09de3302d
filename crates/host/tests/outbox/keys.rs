//! Idempotency keys: transport and deduplication.

use bowline_core::call::{CallRequest, ReplyOrigin};
use bowline_core::error::CallError;
use bowline_core::lane::{KeyChannel, KeyScope};
use bowline_host::spec::{ServerSpec, ToolRule};
use bowline_link::LinkExit;
use bowline_testkit::{
    GenerationScript, ReleaseGate, ServerScript, ToolBehaviour, reply_body, wait_for_state,
};
use serde_json::Value;

use crate::rig::{
    OutboxRig, expect_queued, healthy_server, key_argument, queued_rule, queued_server,
    server_doing, write_call,
};

async fn rig_with_server_down() -> OutboxRig {
    let rig = OutboxRig::new(
        ServerScript::always(healthy_server()).then(GenerationScript::failing_start("down")),
    )
    .await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "backoff").await);
    rig
}

fn call_with_key(key: &str, arguments: &str) -> CallRequest {
    CallRequest {
        idempotency_key: Some(key.into()),
        ..write_call("owner", "s__do", arguments)
    }
}

#[tokio::test(start_paused = true)]
async fn caller_key_is_used_from_argument_or_meta() {
    let rig = OutboxRig::new(ServerScript::always(healthy_server())).await;
    rig.write_as("owner", r#"{"n":1,"key":"mine"}"#)
        .await
        .unwrap();
    rig.host
        .call(call_with_key("beside", r#"{"n":2}"#))
        .await
        .unwrap();
    let record = rig.world.record();
    let keys: Vec<_> = record
        .executions
        .iter()
        .map(|deed| key_argument(&deed.arguments))
        .collect();
    // The server sees keys bound to their principal.
    let scoped = |key| KeyScope::default().scope_key("owner", key).to_string();
    assert_eq!(keys, [scoped("mine"), scoped("beside")]);
}

#[tokio::test(start_paused = true)]
async fn lost_write_with_key_is_retried() {
    let rig = OutboxRig::new(
        ServerScript::always(server_doing(ToolBehaviour::Exit)).then(healthy_server()),
    )
    .await;
    let waits = ServerSpec {
        backoff: bowline_core::backoff::Backoff::default(),
        ..queued_server("s")
    };
    rig.host.apply_config(vec![waits]);
    assert!(wait_for_state(&rig.host, "s", "ready").await);
    assert!(
        rig.world
            .change_script("s", server_doing(ToolBehaviour::Exit))
    );
    let reply = rig.write_as("owner", r#"{"n":1}"#).await.unwrap();
    assert_eq!(reply.origin, ReplyOrigin::Live, "{}", reply_body(&reply));
    assert_eq!(rig.executed_numbers(), [1, 1]);
    assert_eq!(rig.deduplicated_numbers(), [1], "under one key");
    assert!(rig.queued_calls().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn key_is_sent_in_meta_if_configured() {
    let tools = [("do".to_owned(), queued_rule(KeyChannel::Meta))].into();
    let spec = ServerSpec {
        tools,
        ..queued_server("s")
    };
    let script = ServerScript::always(server_doing(ToolBehaviour::EchoArguments(
        std::time::Duration::ZERO,
    )));
    let rig = OutboxRig::with_servers(vec![spec], [("s", script)]).await;
    let first = rig
        .host
        .call(call_with_key("k", r#"{"n":1}"#))
        .await
        .unwrap();
    assert_eq!(first.origin, ReplyOrigin::Live);
    let said: Value = serde_json::from_str(&reply_body(&first)).unwrap();
    assert_eq!(
        (&said["n"], &said["key"]),
        (&1.into(), &Value::Null),
        "closed schemas take it"
    );
    let again = rig
        .host
        .call(call_with_key("k", r#"{"n":1}"#))
        .await
        .unwrap();
    assert_eq!(again.origin, ReplyOrigin::Recorded);
}

#[tokio::test(start_paused = true)]
async fn idempotent_tool_is_queued_without_key() {
    let rule = ToolRule {
        idempotent: Some(true),
        ..queued_rule(KeyChannel::None)
    };
    let spec = ServerSpec {
        tools: [("do".to_owned(), rule)].into(),
        ..queued_server("s")
    };
    let script = ServerScript::always(healthy_server())
        .then(GenerationScript::failing_start("down"))
        .then(healthy_server());
    let rig = OutboxRig::with_servers(vec![spec], [("s", script)]).await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "backoff").await);
    rig.queue_write(r#"{"n":1}"#).await;
    rig.wait_drained().await;
    let record = rig.world.record();
    assert_eq!(
        record.executions[0].arguments, r#"{"n":1}"#,
        "nothing is put in"
    );
}

#[tokio::test(start_paused = true)]
async fn completed_write_is_answered_from_record() {
    let rig = OutboxRig::new(ServerScript::always(healthy_server())).await;
    let first = rig
        .host
        .call(call_with_key("k", r#"{"n":1}"#))
        .await
        .unwrap();
    let mut again = call_with_key("k", r#"{"n": 1}"#);
    again.message.id = bytes::Bytes::from_static(b"99");

    let again = rig.host.call(again).await.unwrap();
    assert_eq!(again.origin, ReplyOrigin::Recorded);
    assert_eq!(reply_body(&again), reply_body(&first));
    let answer: Value = serde_json::from_slice(&again.response.bytes).unwrap();
    assert_eq!(answer["id"], 99);
    assert_eq!(rig.executed_numbers(), [1], "once");
}

#[tokio::test(start_paused = true)]
async fn repeated_key_of_queued_write_reports_queued() {
    let rig = rig_with_server_down().await;
    let first = expect_queued(
        &rig.host
            .call(call_with_key("k", r#"{"n":1}"#))
            .await
            .unwrap(),
    );
    let again = expect_queued(
        &rig.host
            .call(call_with_key("k", r#"{"n":1}"#))
            .await
            .unwrap(),
    );
    assert_eq!(first, again);
    assert_eq!(rig.queued_calls().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn sec_35_reused_key_with_other_arguments_conflicts() {
    for live in [true, false] {
        let rig = match live {
            true => OutboxRig::new(ServerScript::always(healthy_server())).await,
            false => rig_with_server_down().await,
        };
        rig.host
            .call(call_with_key("k", r#"{"n":1}"#))
            .await
            .unwrap();
        let other = rig.host.call(call_with_key("k", r#"{"n":2}"#)).await;
        let error = other.expect_err("a key stands for one call");
        assert!(matches!(error, CallError::KeyConflict { .. }), "{error:?}");
        assert!(!rig.executed_numbers().contains(&2));
        // Keys are separate per principal.
        let mut other = call_with_key("k", r#"{"n":2}"#);
        other.principal = write_call("bob", "s__do", "{}").principal;
        assert!(rig.host.call(other).await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn second_call_with_key_gets_first_outcome() {
    let gate = ReleaseGate::new_closed();
    let rig = OutboxRig::new(ServerScript::always(server_doing(ToolBehaviour::BlockOn(
        gate.clone(),
    ))))
    .await;
    let first = rig.host.call(call_with_key("k", r#"{"n":1}"#));
    let second = async {
        rig.world
            .wait_until(|record| record.executions.len() == 1)
            .await;
        let release = async { gate.release() };
        let call = rig.host.call(call_with_key("k", r#"{"n":1}"#));
        tokio::join!(call, release).0
    };
    let (first, second) = tokio::join!(first, second);
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(
        (first.origin, second.origin),
        (ReplyOrigin::Live, ReplyOrigin::Recorded)
    );
    assert_eq!(rig.executed_numbers(), [1]);
}

#[tokio::test(start_paused = true)]
async fn refused_write_unlocks_key() {
    for act in [ToolBehaviour::ToolError, ToolBehaviour::RpcError] {
        let rig = OutboxRig::new(ServerScript::always(server_doing(act))).await;
        for _ in 0..2 {
            let reply = rig
                .host
                .call(call_with_key("k", r#"{"n":1}"#))
                .await
                .unwrap();
            assert_eq!(reply.origin, ReplyOrigin::Live, "told as it is");
        }
        assert_eq!(rig.executed_numbers(), [1, 1]);
        assert!(rig.queued_calls().await.is_empty());
        // The key may then be used for a different call.
        assert!(
            rig.host
                .call(call_with_key("k", r#"{"n":2}"#))
                .await
                .is_ok()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn oversized_result_is_reported_completed() {
    let large = format!(
        r#"{{"content":[{{"type":"text","text":"{}"}}]}}"#,
        "x".repeat(300_000)
    );
    let rig = OutboxRig::new(ServerScript::always(server_doing(
        ToolBehaviour::RespondWith(large),
    )))
    .await;
    let first = rig
        .host
        .call(call_with_key("k", r#"{"n":1}"#))
        .await
        .unwrap();
    assert_eq!(first.origin, ReplyOrigin::Live);
    let again = rig
        .host
        .call(call_with_key("k", r#"{"n":1}"#))
        .await
        .unwrap();
    assert_eq!(again.origin, ReplyOrigin::Recorded);
    let said: Value = serde_json::from_str(&reply_body(&again)).unwrap();
    assert_eq!(said["structuredContent"]["queued"], false);
    assert_eq!(rig.executed_numbers(), [1]);
}

#[tokio::test(start_paused = true)]
async fn task_creating_call_is_not_queued() {
    let rig = rig_with_server_down().await;
    let task = CallRequest {
        wants_task: true,
        ..write_call("owner", "s__do", "{}")
    };
    assert!(rig.host.call(task).await.is_err());
    assert!(rig.queued_calls().await.is_empty());
}
