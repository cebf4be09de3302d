//! Idempotency keys: how they travel, and what a known one means.

use bowline_core::call::{Call, Origin};
use bowline_core::error::CallError;
use bowline_core::lane::{Channel, KeyScope};
use bowline_host::spec::{ServerSpec, ToolRule};
use bowline_link::Exit;
use bowline_sim::{Act, Gate, Generation, Script, body, reaches};
use serde_json::Value;

use crate::rig::{Rig, doing, is_queued, key, queued, server, up, write};

async fn down() -> Rig {
    let rig = Rig::new(Script::always(up()).then(Generation::fails("down"))).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "backoff").await);
    rig
}

fn chosen(key: &str, arguments: &str) -> Call {
    Call {
        key: Some(key.into()),
        ..write("owner", "s__do", arguments)
    }
}

#[tokio::test(start_paused = true)]
async fn the_callers_own_key_is_taken_be_it_an_argument_or_beside_them() {
    let rig = Rig::new(Script::always(up())).await;
    rig.write_as("owner", r#"{"n":1,"key":"mine"}"#)
        .await
        .unwrap();
    rig.host.call(chosen("beside", r#"{"n":2}"#)).await.unwrap();
    let record = rig.world.record();
    let keys: Vec<_> = record
        .executions
        .iter()
        .map(|deed| key(&deed.arguments))
        .collect();
    // The server sees them bound to their principal.
    let scoped = |key| KeyScope::default().scoped("owner", key).to_string();
    assert_eq!(keys, [scoped("mine"), scoped("beside")]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_write_that_its_server_knows_again_is_repeated_at_once() {
    let rig = Rig::new(Script::always(doing(Act::Dies)).then(up())).await;
    let waits = ServerSpec {
        backoff: bowline_core::backoff::Backoff::default(),
        ..server("s")
    };
    rig.host.apply(vec![waits]);
    assert!(reaches(&rig.host, "s", "ready").await);
    assert!(rig.world.change("s", doing(Act::Dies)));
    let reply = rig.write_as("owner", r#"{"n":1}"#).await.unwrap();
    assert_eq!(reply.origin, Origin::Live, "{}", body(&reply));
    assert_eq!(rig.ran(), [1, 1]);
    assert_eq!(rig.done(), [1], "under one key");
    assert!(rig.letters().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_key_travels_in_meta_where_the_tool_says_so() {
    let tools = [("do".to_owned(), queued(Channel::Meta))].into();
    let spec = ServerSpec {
        tools,
        ..server("s")
    };
    let script = Script::always(doing(Act::Repeats(std::time::Duration::ZERO)));
    let rig = Rig::of(vec![spec], [("s", script)]).await;
    let first = rig.host.call(chosen("k", r#"{"n":1}"#)).await.unwrap();
    assert_eq!(first.origin, Origin::Live);
    let said: Value = serde_json::from_str(&body(&first)).unwrap();
    assert_eq!(
        (&said["n"], &said["key"]),
        (&1.into(), &Value::Null),
        "closed schemas take it"
    );
    let again = rig.host.call(chosen("k", r#"{"n":1}"#)).await.unwrap();
    assert_eq!(again.origin, Origin::Recorded);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_is_idempotent_by_itself_is_queued_without_a_channel() {
    let rule = ToolRule {
        idempotent: Some(true),
        ..queued(Channel::None)
    };
    let spec = ServerSpec {
        tools: [("do".to_owned(), rule)].into(),
        ..server("s")
    };
    let script = Script::always(up())
        .then(Generation::fails("down"))
        .then(up());
    let rig = Rig::of(vec![spec], [("s", script)]).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "backoff").await);
    rig.queue(r#"{"n":1}"#).await;
    rig.drained().await;
    let record = rig.world.record();
    assert_eq!(
        record.executions[0].arguments, r#"{"n":1}"#,
        "nothing is put in"
    );
}

#[tokio::test(start_paused = true)]
async fn a_write_that_was_done_is_answered_from_the_record_under_the_new_id() {
    let rig = Rig::new(Script::always(up())).await;
    let first = rig.host.call(chosen("k", r#"{"n":1}"#)).await.unwrap();
    let again = Call {
        id: bytes::Bytes::from_static(b"99"),
        ..chosen("k", r#"{"n": 1}"#)
    };
    let again = rig.host.call(again).await.unwrap();
    assert_eq!(again.origin, Origin::Recorded);
    assert_eq!(body(&again), body(&first));
    let answer: Value = serde_json::from_slice(&again.answer).unwrap();
    assert_eq!(answer["id"], 99);
    assert_eq!(rig.ran(), [1], "once");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_waits_is_told_again_that_it_waits() {
    let rig = down().await;
    let first = is_queued(&rig.host.call(chosen("k", r#"{"n":1}"#)).await.unwrap());
    let again = is_queued(&rig.host.call(chosen("k", r#"{"n":1}"#)).await.unwrap());
    assert_eq!(first, again);
    assert_eq!(rig.letters().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn sec_35_the_same_key_with_other_arguments_is_a_conflict() {
    for live in [true, false] {
        let rig = match live {
            true => Rig::new(Script::always(up())).await,
            false => down().await,
        };
        rig.host.call(chosen("k", r#"{"n":1}"#)).await.unwrap();
        let other = rig.host.call(chosen("k", r#"{"n":2}"#)).await;
        let error = other.expect_err("a key stands for one call");
        assert!(matches!(error, CallError::KeyConflict { .. }), "{error:?}");
        assert!(!rig.ran().contains(&2));
        // Keys are each principal's own.
        let mut other = chosen("k", r#"{"n":2}"#);
        other.principal = write("bob", "s__do", "{}").principal;
        assert!(rig.host.call(other).await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_calls_with_one_key_the_second_learns_what_became_of_the_first() {
    let gate = Gate::closed();
    let rig = Rig::new(Script::always(doing(Act::Hangs(gate.clone())))).await;
    let first = rig.host.call(chosen("k", r#"{"n":1}"#));
    let second = async {
        rig.world.until(|record| record.executions.len() == 1).await;
        let release = async { gate.release() };
        let call = rig.host.call(chosen("k", r#"{"n":1}"#));
        tokio::join!(call, release).0
    };
    let (first, second) = tokio::join!(first, second);
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(
        (first.origin, second.origin),
        (Origin::Live, Origin::Recorded)
    );
    assert_eq!(rig.ran(), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_its_server_refused_leaves_its_key_free() {
    for act in [Act::ToolError, Act::RpcError] {
        let rig = Rig::new(Script::always(doing(act))).await;
        for _ in 0..2 {
            let reply = rig.host.call(chosen("k", r#"{"n":1}"#)).await.unwrap();
            assert_eq!(reply.origin, Origin::Live, "told as it is");
        }
        assert_eq!(rig.ran(), [1, 1]);
        assert!(rig.letters().await.is_empty());
        // The same key may stand for another call then.
        assert!(rig.host.call(chosen("k", r#"{"n":2}"#)).await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_too_large_to_keep_is_told_as_done() {
    let large = format!(
        r#"{{"content":[{{"type":"text","text":"{}"}}]}}"#,
        "x".repeat(300_000)
    );
    let rig = Rig::new(Script::always(doing(Act::Says(large)))).await;
    let first = rig.host.call(chosen("k", r#"{"n":1}"#)).await.unwrap();
    assert_eq!(first.origin, Origin::Live);
    let again = rig.host.call(chosen("k", r#"{"n":1}"#)).await.unwrap();
    assert_eq!(again.origin, Origin::Recorded);
    let said: Value = serde_json::from_str(&body(&again)).unwrap();
    assert_eq!(said["structuredContent"]["queued"], false);
    assert_eq!(rig.ran(), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_call_for_a_task_is_not_queued() {
    let rig = down().await;
    let task = Call {
        makes_task: true,
        ..write("owner", "s__do", "{}")
    };
    assert!(rig.host.call(task).await.is_err());
    assert!(rig.letters().await.is_empty());
}
