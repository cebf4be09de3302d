//! What was stored survives the gateway.

use std::sync::Arc;

use bowline_host::outbox::LetterState;
use bowline_journal::Sqlite;
use bowline_link::{Exit, LinkError};
use bowline_sim::{Act, Generation, Script, World, reaches};

use crate::rig::{Rig, doing, server, up};

#[tokio::test(start_paused = true)]
async fn what_was_queued_is_delivered_by_the_next_gateway_on_the_same_journal() {
    let down = Script::always(up()).then(Generation::fails("down"));
    let rig = Rig::new(down).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "backoff").await);
    for n in 1..=5 {
        rig.queue(&format!(r#"{{"n":{n}}}"#)).await;
    }
    rig.host.shutdown().await;
    assert_eq!(rig.letters().await.len(), 5);

    let world = World::new([("s", Script::always(up()))]);
    let next = Rig::on(world, vec![server("s")], Arc::clone(&rig.journal)).await;
    next.drained().await;
    assert_eq!(next.ran(), [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_journal_on_disk_keeps_what_was_queued_and_what_was_done() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("state.db");
    let open = || Arc::new(Sqlite::open(&path).unwrap());
    let away = LinkError::Http {
        status: 503,
        preview: "".into(),
    };
    let world = World::new([("s", Script::always(doing(Act::Fails(away))))]);
    let rig = Rig::on(world, vec![server("s")], open()).await;
    let mut ids = Vec::new();
    for n in 1..=20 {
        let said = rig.queue(&format!(r#"{{"n":{n}}}"#)).await;
        ids.push(said["id"].as_str().unwrap().to_owned());
    }
    rig.host.shutdown().await;
    rig.journal.close().await;
    drop(rig);

    let world = World::new([("s", Script::always(up()))]);
    let next = Rig::on(world, vec![server("s")], open()).await;
    next.drained().await;
    assert_eq!(next.ran(), (1..=20).collect::<Vec<_>>());
    next.host.shutdown().await;
    next.journal.close().await;
    drop(next);

    let world = World::new([("s", Script::always(up()))]);
    let last = Rig::on(world, vec![server("s")], open()).await;
    let shown = last.host.outbox().show(&ids[3]).await.unwrap();
    assert_eq!((shown.state, &*shown.tool), (LetterState::Delivered, "do"));
    assert!(shown.result.is_some());
    assert!(last.ran().is_empty(), "nothing is sent twice");
}
