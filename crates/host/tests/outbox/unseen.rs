//! Queued tools of servers that have never been up.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Call, Principal, Role, Scope};
use bowline_core::error::CallError;
use bowline_journal::Memory;
use bowline_sim::{Generation, Script, World, call_of};

use crate::rig::{Rig, is_queued, pass, server, up, write};

fn never_up() -> Rig {
    let script = Script::always(Generation::fails("down"))
        .then(Generation::fails("down"))
        .then(Generation::fails("down"))
        .then(up());
    let world = World::new([("s", script)]);
    Rig::started(world, vec![server("s")], Arc::new(Memory::default()))
}

#[tokio::test(start_paused = true)]
async fn write_to_unseen_server_is_stored_and_delivered() {
    let rig = never_up();
    let before = rig.host.clock().now();
    rig.queue(r#"{"n":1}"#).await;
    let of_server = Call {
        scope: Scope::Server("s".into()),
        ..call_of("s", "do", r#"{"n":2}"#)
    };
    is_queued(&rig.host.call(of_server).await.unwrap());
    let waited = before.until(rig.host.clock().now());
    assert!(waited <= Duration::from_secs(3), "{waited:?}");
    rig.drained().await;
    let mut done = rig.done();
    done.sort_unstable();
    assert_eq!(done, [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn unseen_server_stores_only_what_config_queues_and_policy_allows() {
    let rig = never_up();
    let unnamed = rig.host.call(write("owner", "s__other", "{}")).await;
    assert!(unnamed.is_err(), "{unnamed:?}");
    let stranger = Call {
        principal: Arc::new(Principal::new("eve", Role::None)),
        ..write("eve", "s__do", r#"{"n":1}"#)
    };
    let refused = rig.host.call(stranger).await;
    assert!(
        matches!(refused, Err(CallError::Denied { .. })),
        "{refused:?}"
    );
    assert!(rig.letters().await.is_empty());
    pass(Duration::from_secs(60)).await;
    assert!(rig.ran().is_empty());
}
