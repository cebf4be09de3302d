//! Queued tools of servers never ready so far.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{CallRequest, EndpointScope, Principal, Role};
use bowline_core::error::CallError;
use bowline_journal::MemoryJournal;
use bowline_testkit::{GenerationScript, ServerScript, SimWorld, advance_clock, server_tool_call};

use crate::rig::{OutboxRig, expect_queued, healthy_server, queued_server, write_call};

fn rig_never_ready() -> OutboxRig {
    let script = ServerScript::always(GenerationScript::failing_start("down"))
        .then(GenerationScript::failing_start("down"))
        .then(GenerationScript::failing_start("down"))
        .then(healthy_server());
    let world = SimWorld::new([("s", script)]);
    OutboxRig::start_without_waiting(
        world,
        vec![queued_server("s")],
        Arc::new(MemoryJournal::default()),
    )
}

#[tokio::test(start_paused = true)]
async fn write_to_unlisted_server_is_delivered() {
    let rig = rig_never_ready();
    let before = rig.host.clock().now();
    rig.queue_write(r#"{"n":1}"#).await;
    let of_server = CallRequest {
        scope: EndpointScope::Server("s".into()),
        ..server_tool_call("s", "do", r#"{"n":2}"#)
    };
    expect_queued(&rig.host.call(of_server).await.unwrap());
    let waited = before.duration_until(rig.host.clock().now());
    assert!(waited <= Duration::from_secs(3), "{waited:?}");
    rig.wait_drained().await;
    let mut done = rig.deduplicated_numbers();
    done.sort_unstable();
    assert_eq!(done, [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn unlisted_server_queues_only_permitted_tools() {
    let rig = rig_never_ready();
    let unnamed = rig.host.call(write_call("owner", "s__other", "{}")).await;
    assert!(unnamed.is_err(), "{unnamed:?}");
    let stranger = CallRequest {
        principal: Arc::new(Principal::new("eve", Role::None)),
        ..write_call("eve", "s__do", r#"{"n":1}"#)
    };
    let refused = rig.host.call(stranger).await;
    assert!(
        matches!(refused, Err(CallError::Denied { .. })),
        "{refused:?}"
    );
    assert!(rig.queued_calls().await.is_empty());
    advance_clock(Duration::from_secs(60)).await;
    assert!(rig.executed_numbers().is_empty());
}
