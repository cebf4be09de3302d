//! Writes answered with an input request or a task.

use std::time::Duration;

use bowline_core::call::{CallRequest, ReplyOrigin};
use bowline_core::era::Era;
use bowline_link::{LinkError, LinkExit};
use bowline_testkit::{
    GenerationScript, ReleaseGate, ServerScript, ToolBehaviour, advance_clock, reply_body,
    wait_for_state,
};

use crate::rig::{
    OutboxRig, argument_channel, expect_queued, healthy_server, queued_rule, queued_server,
    server_doing, write_call,
};

const ASKS: &str = r#"{"resultType":"input_required","requestState":"s"}"#;
const TASK: &str = r#"{"resultType":"task","taskId":"t","status":"working"}"#;

fn server_saying(result: &str) -> GenerationScript {
    server_doing(ToolBehaviour::RespondWith(result.to_owned()))
}

fn to_modern(mut call: CallRequest) -> CallRequest {
    call.stateless = Some(Box::default());
    call.message.era = Era::Modern;
    call
}

#[tokio::test(start_paused = true)]
async fn input_request_does_not_complete_write() {
    let rig = OutboxRig::new(ServerScript::always(server_saying(ASKS))).await;
    let asked = || to_modern(write_call("owner", "s__do", r#"{"n":1,"key":"k"}"#));
    for _ in 0..2 {
        let reply = rig.host.call(asked()).await.unwrap();
        assert_eq!(
            (reply.origin, reply.response.era),
            (ReplyOrigin::Live, Era::Modern)
        );
        assert_eq!(reply_body(&reply), ASKS);
        assert!(rig.queued_calls().await.is_empty());
    }
    // The key is free again, and locked once the server completed the write.
    assert!(rig.world.change_script("s", healthy_server()));
    let done = rig.host.call(asked()).await.unwrap();
    assert_eq!(done.origin, ReplyOrigin::Live);
    let again = rig.host.call(asked()).await.unwrap();
    assert_eq!(again.origin, ReplyOrigin::Recorded);
}

#[tokio::test(start_paused = true)]
async fn write_that_became_task_is_not_resent() {
    let rig = OutboxRig::new(ServerScript::always(server_saying(TASK))).await;
    let asked = || to_modern(write_call("owner", "s__do", r#"{"n":1,"key":"k"}"#));
    for origin in [ReplyOrigin::Live, ReplyOrigin::Recorded] {
        let reply = rig.host.call(asked()).await.unwrap();
        assert_eq!((reply.origin, reply.response.era), (origin, Era::Modern));
        assert_eq!(reply_body(&reply), TASK);
    }
    assert_eq!(rig.world.record().executions.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn queued_write_requiring_input_is_dead_lettered() {
    let script = ServerScript::always(healthy_server())
        .then(GenerationScript::failing_start("down"))
        .then(server_saying(ASKS));
    let rig = OutboxRig::new(script).await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "backoff").await);
    expect_queued(&rig.write_as("owner", r#"{"n":1,"key":"k"}"#).await.unwrap());
    rig.wait_drained().await;
    let letters = rig.queued_calls().await;
    let said = format!("{letters:?}");
    assert!(said.contains("nobody is there to answer"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn write_in_elicitation_stays_leased() {
    let gate = ReleaseGate::new_closed();
    let away = LinkError::Http {
        status: 503,
        preview: "".into(),
    };
    let asks = server_doing(ToolBehaviour::AskClient(gate.clone()))
        .with_behaviour("other", ToolBehaviour::FailWith(away));
    let mut spec = queued_server("s");
    spec.tools
        .insert("other".to_owned(), queued_rule(argument_channel()));
    let rig = OutboxRig::with_servers(vec![spec], [("s", ServerScript::always(asks))]).await;
    let asked = rig.write_as("owner", r#"{"n":1,"key":"k"}"#);
    let others = async {
        rig.world
            .wait_until(|record| record.executions.len() == 1)
            .await;
        // A queued write in the same lane, drained repeatedly.
        let other = write_call("owner", "s__other", r#"{"n":2}"#);
        expect_queued(&rig.host.call(other).await.unwrap());
        advance_clock(Duration::from_secs(59 * 60)).await;
        assert_eq!(
            rig.executed_numbers(),
            [1],
            "the person has not said anything yet"
        );
        assert!(rig.world.change_script("s", healthy_server()));
        gate.release();
    };
    let (asked, ()) = tokio::join!(asked, others);
    assert_eq!(asked.unwrap().origin, ReplyOrigin::Live);
    rig.wait_drained().await;
    assert_eq!(rig.executed_numbers(), [1, 2]);
}
