//! Writes whose servers ask for something first, or speak of work that goes on.

use std::time::Duration;

use bowline_core::call::{Call, Origin};
use bowline_core::era::{Era, Stateless};
use bowline_link::{Exit, LinkError};
use bowline_sim::{Act, Gate, Generation, Script, body, reaches};

use crate::rig::{Rig, argument, doing, is_queued, pass, queued, server, up, write};

const ASKS: &str = r#"{"resultType":"input_required","requestState":"s"}"#;
const TASK: &str = r#"{"resultType":"task","taskId":"t","status":"working"}"#;

fn says(result: &str) -> Generation {
    doing(Act::Says(result.to_owned()))
}

fn modern(call: Call) -> Call {
    Call {
        stateless: Some(Box::new(Stateless::default())),
        ..call
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_answered_with_a_question_is_neither_done_nor_recorded() {
    let rig = Rig::new(Script::always(says(ASKS))).await;
    let asked = || modern(write("owner", "s__do", r#"{"n":1,"key":"k"}"#));
    for _ in 0..2 {
        let reply = rig.host.call(asked()).await.unwrap();
        assert_eq!((reply.origin, reply.era), (Origin::Live, Era::Modern));
        assert_eq!(body(&reply), ASKS);
        assert!(rig.letters().await.is_empty());
    }
    // Its key is as free as before, and holds once the server has done it.
    assert!(rig.world.change("s", up()));
    let done = rig.host.call(asked()).await.unwrap();
    assert_eq!(done.origin, Origin::Live);
    let again = rig.host.call(asked()).await.unwrap();
    assert_eq!(again.origin, Origin::Recorded);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_became_a_task_is_not_sent_again_under_its_key() {
    let rig = Rig::new(Script::always(says(TASK))).await;
    let asked = || modern(write("owner", "s__do", r#"{"n":1,"key":"k"}"#));
    for origin in [Origin::Live, Origin::Recorded] {
        let reply = rig.host.call(asked()).await.unwrap();
        assert_eq!((reply.origin, reply.era), (origin, Era::Modern));
        assert_eq!(body(&reply), TASK);
    }
    assert_eq!(rig.world.record().executions.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_queued_write_that_is_answered_with_a_question_is_a_dead_letter_that_says_so() {
    let script = Script::always(up())
        .then(Generation::fails("down"))
        .then(says(ASKS));
    let rig = Rig::new(script).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "backoff").await);
    is_queued(&rig.write_as("owner", r#"{"n":1,"key":"k"}"#).await.unwrap());
    rig.drained().await;
    let letters = rig.letters().await;
    let said = format!("{letters:?}");
    assert!(said.contains("nobody is there to answer"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_waits_for_a_person_is_sent_by_nobody_else_meanwhile() {
    let gate = Gate::closed();
    let away = LinkError::Http {
        status: 503,
        preview: "".into(),
    };
    let asks = doing(Act::Asks(gate.clone())).act("other", Act::Fails(away));
    let mut spec = server("s");
    spec.tools.insert("other".to_owned(), queued(argument()));
    let rig = Rig::of(vec![spec], [("s", Script::always(asks))]).await;
    let asked = rig.write_as("owner", r#"{"n":1,"key":"k"}"#);
    let others = async {
        rig.world.until(|record| record.executions.len() == 1).await;
        // It waits in the same lane, which is looked into again and again.
        let other = write("owner", "s__other", r#"{"n":2}"#);
        is_queued(&rig.host.call(other).await.unwrap());
        pass(Duration::from_secs(59 * 60)).await;
        assert_eq!(rig.ran(), [1], "the person has not said anything yet");
        assert!(rig.world.change("s", up()));
        gate.release();
    };
    let (asked, ()) = tokio::join!(asked, others);
    assert_eq!(asked.unwrap().origin, Origin::Live);
    rig.drained().await;
    assert_eq!(rig.ran(), [1, 2]);
}
