//! Stored writes survive a restart of the gateway.

use std::sync::Arc;

use bowline_host::outbox::QueuedCallState;
use bowline_journal::SqliteJournal;
use bowline_link::{LinkError, LinkExit};
use bowline_testkit::{GenerationScript, ServerScript, SimWorld, ToolBehaviour, wait_for_state};

use crate::rig::{OutboxRig, healthy_server, queued_server, server_doing};

#[tokio::test(start_paused = true)]
async fn next_gateway_delivers_queued_writes() {
    let down = ServerScript::always(healthy_server()).then(GenerationScript::failing_start("down"));
    let rig = OutboxRig::new(down).await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "backoff").await);
    for n in 1..=5 {
        rig.queue_write(&format!(r#"{{"n":{n}}}"#)).await;
    }
    rig.host.shutdown().await;
    assert_eq!(rig.queued_calls().await.len(), 5);

    let world = SimWorld::new([("s", ServerScript::always(healthy_server()))]);
    let next =
        OutboxRig::start_on_journal(world, vec![queued_server("s")], Arc::clone(&rig.journal))
            .await;
    next.wait_drained().await;
    assert_eq!(next.executed_numbers(), [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn disk_journal_keeps_queued_and_completed() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("state.db");
    let open = || Arc::new(SqliteJournal::open(&path).unwrap());
    let away = LinkError::Http {
        status: 503,
        preview: "".into(),
    };
    let world = SimWorld::new([(
        "s",
        ServerScript::always(server_doing(ToolBehaviour::FailWith(away))),
    )]);
    let rig = OutboxRig::start_on_journal(world, vec![queued_server("s")], open()).await;
    let mut ids = Vec::new();
    for n in 1..=20 {
        let said = rig.queue_write(&format!(r#"{{"n":{n}}}"#)).await;
        ids.push(said["id"].as_str().unwrap().to_owned());
    }
    rig.host.shutdown().await;
    rig.journal.close().await;
    drop(rig);

    let world = SimWorld::new([("s", ServerScript::always(healthy_server()))]);
    let next = OutboxRig::start_on_journal(world, vec![queued_server("s")], open()).await;
    next.wait_drained().await;
    assert_eq!(next.executed_numbers(), (1..=20).collect::<Vec<_>>());
    next.host.shutdown().await;
    next.journal.close().await;
    drop(next);

    let world = SimWorld::new([("s", ServerScript::always(healthy_server()))]);
    let last = OutboxRig::start_on_journal(world, vec![queued_server("s")], open()).await;
    let shown = last.host.outbox().show(&ids[3]).await.unwrap();
    assert_eq!(
        (shown.state, &*shown.tool),
        (QueuedCallState::Delivered, "do")
    );
    assert!(shown.result.is_some());
    assert!(last.executed_numbers().is_empty(), "nothing is sent twice");
}
