//! Outcomes of replayed writes.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::ReplyOrigin;
use bowline_core::error::CallError;
use bowline_core::pending_table::SendState;
use bowline_host::outbox::QueuedCallState;
use bowline_host::spec::ServerSpec;
use bowline_link::{LinkError, LinkExit};
use bowline_testkit::{
    GenerationScript, ReleaseGate, ServerScript, ToolBehaviour, advance_clock, tool_definition,
    wait_for_state,
};
use serde_json::{Value, json};

use crate::rig::{
    OutboxRig, expect_queued, healthy_server, queued_server, server_doing, write_call,
};

const ONE: &str = r#"{"n":1}"#;

/// Queues a write while the server is down; afterwards the server acts as `act`.
async fn rig_with_queued_write(act: ToolBehaviour) -> (OutboxRig, Value) {
    let script = ServerScript::always(healthy_server())
        .then(GenerationScript::failing_start("down"))
        .then(server_doing(act));
    let rig = OutboxRig::new(script).await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "backoff").await);
    let said = rig.queue_write(ONE).await;
    assert!(wait_for_state(&rig.host, "s", "ready").await);
    (rig, said)
}

fn http_error(status: u16) -> LinkError {
    LinkError::Http {
        status,
        preview: "".into(),
    }
}

fn unauthorized_error(status: u16) -> LinkError {
    LinkError::Unauthorized {
        status,
        challenge: None,
    }
}

#[tokio::test(start_paused = true)]
async fn transient_error_is_retried() {
    let late = LinkError::Timeout {
        sent: SendState::MaybeSent,
    };
    for error in [
        http_error(408),
        http_error(500),
        http_error(502),
        unauthorized_error(401),
        unauthorized_error(403),
        late,
        LinkError::Unreachable("no route".into()),
    ] {
        let (rig, _) = rig_with_queued_write(ToolBehaviour::FailWith(error.clone())).await;
        advance_clock(Duration::from_secs(60)).await;
        let letters = rig.queued_calls().await;
        assert_eq!(letters.len(), 1, "{error}");
        let letter = &letters[0];
        assert_eq!(
            (letter.state.clone(), letter.position),
            (QueuedCallState::Queued, 1)
        );
        assert!(letter.attempts >= 3, "{error}: {}", letter.attempts);
        assert!(letter.last_error.is_some() && letter.next_try_ms.is_some());
        assert!(rig.world.change_script("s", healthy_server()));
        rig.wait_drained().await;
        assert_eq!(rig.deduplicated_numbers(), [1], "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_respected() {
    let after = Some(Duration::from_secs(120));
    let error = LinkError::Throttled { status: 429, after };
    let (rig, _) = rig_with_queued_write(ToolBehaviour::FailWith(error)).await;
    advance_clock(Duration::from_secs(5)).await;
    let tries = rig.queued_calls().await[0].attempts;
    advance_clock(Duration::from_secs(95)).await;
    assert_eq!(rig.queued_calls().await[0].attempts, tries, "it waits");
    assert!(rig.world.change_script("s", healthy_server()));
    advance_clock(Duration::from_secs(10)).await;
    assert!(rig.executed_numbers().is_empty(), "not yet");
    rig.wait_drained().await;
    assert_eq!(rig.deduplicated_numbers(), [1]);
}

#[tokio::test(start_paused = true)]
async fn final_refusal_is_dead_lettered_with_notification() {
    for (act, part) in [
        (ToolBehaviour::FailWith(http_error(400)), "status 400"),
        (ToolBehaviour::FailWith(http_error(409)), "status 409"),
        (ToolBehaviour::RpcError, "-32000"),
        (ToolBehaviour::ToolError, "isError"),
        (ToolBehaviour::RespondGarbage, "garbled"),
    ] {
        let (rig, said) = rig_with_queued_write(act).await;
        rig.wait_drained().await;
        let letters = rig.queued_calls().await;
        assert_eq!(letters.len(), 1, "{part}: it is kept");
        assert_eq!(letters[0].state, QueuedCallState::Dead);
        let why = letters[0].last_error.as_ref().unwrap();
        assert!(why.contains(part), "{part}: {why}");
        let heard = rig.ears.wait_for_notifications(1).await;
        let heard: Value = serde_json::from_str(&heard[0].1).unwrap();
        assert_eq!(heard["params"]["level"], "error");
        let data = &heard["params"]["data"];
        assert_eq!((&data["id"], &data["state"]), (&said["id"], &json!("dead")));
        assert!(data["error"].as_str().unwrap().contains(part));
        // It does not block the lane.
        assert!(rig.world.change_script("s", healthy_server()));
        let reply = rig.write_as("owner", r#"{"n":2}"#).await.unwrap();
        assert_eq!(reply.origin, ReplyOrigin::Live);
    }
}

#[tokio::test(start_paused = true)]
async fn key_of_dead_letter_is_refused() {
    let (rig, said) = rig_with_queued_write(ToolBehaviour::ToolError).await;
    rig.wait_drained().await;
    let mut again = write_call("owner", "s__do", ONE);
    again.idempotency_key = said["idempotencyKey"].as_str().map(Into::into);
    let error = rig.host.call(again).await.unwrap_err();
    let CallError::NotStored { reason, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(reason.contains("bowline://outbox/"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn removed_tool_dead_letters_write() {
    let script = ServerScript::always(healthy_server())
        .then(GenerationScript::failing_start("down"))
        .then(GenerationScript::with_definitions(&[tool_definition(
            "else",
        )]));
    let rig = OutboxRig::new(script).await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "backoff").await);
    rig.queue_write(ONE).await;
    rig.wait_drained().await;
    assert_eq!(rig.queued_calls().await[0].state, QueuedCallState::Dead);
}

#[tokio::test(start_paused = true)]
async fn hung_server_queues_write_and_keeps_draining() {
    let script = ServerScript::always(server_doing(ToolBehaviour::BlockOn(
        ReleaseGate::new_closed(),
    )));
    let spec = ServerSpec {
        call_timeout: Duration::from_secs(5),
        ..queued_server("s")
    };
    let rig = OutboxRig::with_servers(
        vec![spec, queued_server("t")],
        [("s", script), ("t", ServerScript::always(healthy_server()))],
    )
    .await;
    let reply = rig.write_as("owner", ONE).await.unwrap();
    expect_queued(&reply);
    assert_eq!(rig.host.clock().now().0, 5_000, "not for ever");
    advance_clock(Duration::from_secs(60)).await;
    let letter = &rig.queued_calls().await[0];
    assert!(
        letter.attempts >= 3,
        "each try has its own end: {}",
        letter.attempts
    );
    assert!(rig.world.change_script("s", healthy_server()));
    rig.wait_drained().await;
    assert_eq!(rig.deduplicated_numbers(), [1]);
}

#[tokio::test(start_paused = true)]
async fn only_outage_queues_live_write() {
    for (error, waits) in [
        (http_error(502), true),
        (http_error(503), true),
        (http_error(504), true),
        (http_error(500), false),
        (http_error(408), false),
        (http_error(400), false),
        (unauthorized_error(401), false),
        (unauthorized_error(403), false),
        (LinkError::Unreachable("no route".into()), true),
        (LinkError::Busy { in_flight_max: 1 }, true),
        (
            LinkError::Throttled {
                status: 429,
                after: None,
            },
            true,
        ),
    ] {
        let rig = OutboxRig::new(ServerScript::always(server_doing(ToolBehaviour::FailWith(
            error.clone(),
        ))))
        .await;
        let outcome = rig.write_as("owner", ONE).await;
        match waits {
            true => drop(expect_queued(&outcome.unwrap())),
            false => {
                assert!(outcome.is_err(), "{error}");
                assert!(
                    rig.queued_calls().await.is_empty(),
                    "{error}: nothing is left"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn expired_write_is_dead_lettered() {
    let script =
        ServerScript::always(healthy_server()).then(GenerationScript::failing_start("down"));
    let rig = OutboxRig::new(script).await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "backoff").await);
    rig.queue_write(ONE).await;
    advance_clock(crate::rig::KEEP + Duration::from_secs(600)).await;
    let letters = rig.queued_calls().await;
    assert_eq!(letters[0].state, QueuedCallState::Dead);
    assert_eq!(letters[0].last_error, Some(Arc::from("expired")));
    let heard = rig.ears.wait_for_notifications(1).await;
    assert!(heard[0].1.contains("expired"), "{}", heard[0].1);
    assert!(rig.executed_numbers().is_empty());
}
