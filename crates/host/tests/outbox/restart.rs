//! What was stored survives the gateway.

use std::sync::Arc;

use bowline_link::Exit;
use bowline_sim::{Generation, Script, World, reaches};

use crate::rig::{Rig, server, up};

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
