//! A poison write: dead-lettered after several attempts, without blocking others.

use std::time::Duration;

use bowline_core::call::ReplyOrigin;
use bowline_core::lane::POISON_TRIES_MAX;
use bowline_host::outbox::QueuedCallState;
use bowline_link::{LinkError, LinkExit};
use bowline_testkit::{
    GenerationScript, RecordingClient, ReleaseGate, ServerScript, ToolBehaviour, advance_clock,
    tool_call, wait_for_state,
};

use crate::rig::{
    OutboxRig, argument_channel, healthy_server, queued_rule, queued_server, server_doing,
    write_call,
};

fn failing_act() -> ToolBehaviour {
    ToolBehaviour::FailWith(LinkError::Http {
        status: 500,
        preview: "no".into(),
    })
}

/// Queues a write of `do` in an outage; afterwards `do` acts so and `other` succeeds.
async fn queued_poison(act: ToolBehaviour) -> OutboxRig {
    let mut spec = queued_server("s");
    spec.call_timeout = Duration::from_secs(5);
    spec.tools
        .insert("other".to_owned(), queued_rule(argument_channel()));
    let script = ServerScript::always(healthy_server())
        .then(GenerationScript::failing_start("down"))
        .then(server_doing(act));
    let rig = OutboxRig::with_servers(vec![spec], [("s", script)]).await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "backoff").await);
    rig.queue_write(r#"{"n":1}"#).await;
    assert!(wait_for_state(&rig.host, "s", "ready").await);
    rig
}

#[tokio::test(start_paused = true)]
async fn poison_write_becomes_dead_letter_while_server_serves() {
    for act in [
        failing_act(),
        ToolBehaviour::BlockOn(ReleaseGate::new_closed()),
    ] {
        let rig = queued_poison(act).await;
        let mut calls = 0;
        while rig.queued_calls().await[0].state != QueuedCallState::Dead {
            // Another session of the same principal writes meanwhile, without delay.
            let mut other = write_call("owner", "s__other", r#"{"n":2}"#);
            other.message.client = Some(RecordingClient::new(8));

            let reply = rig.host.call(other).await.unwrap();
            if calls > 10 {
                assert_eq!(reply.origin, ReplyOrigin::Live, "{calls}");
            }
            advance_clock(Duration::from_millis(500)).await;
            calls += 1;
            assert!(calls < 400, "never given up");
        }
        let letters = rig.queued_calls().await;
        assert_eq!(letters.len(), 1, "{letters:?}");
        let reason = letters[0].last_error.as_deref().unwrap();
        let want = format!("failed {POISON_TRIES_MAX} times while the server served other calls");
        assert!(reason.contains(&want), "{reason}");
        let told = rig.ears.wait_for_notifications(1).await;
        let (_, told) = told.iter().find(|(session, _)| *session == 7).unwrap();
        assert!(
            told.contains(r#""level":"error""#) && told.contains(&want),
            "{told}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn failing_write_waits_while_server_serves_nobody() {
    let rig = queued_poison(failing_act()).await;
    advance_clock(Duration::from_secs(60 * 60)).await;
    let letters = rig.queued_calls().await;
    assert_ne!(letters[0].state, QueuedCallState::Dead, "{letters:?}");
    assert!(letters[0].attempts > POISON_TRIES_MAX, "{letters:?}");
    // Time is no evidence; the write is delivered once the server accepts it.
    assert!(rig.world.change_script("s", healthy_server()));
    rig.wait_drained().await;
    assert_eq!(rig.deduplicated_numbers(), [1]);
    assert!(rig.host.call(tool_call("s__other", "{}")).await.is_ok());
}
