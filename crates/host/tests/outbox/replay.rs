//! What becomes of a queued write when it is sent again.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::Origin;
use bowline_core::error::CallError;
use bowline_core::pending::Sent;
use bowline_host::outbox::LetterState;
use bowline_host::spec::ServerSpec;
use bowline_link::{Exit, LinkError};
use bowline_sim::{Act, Gate, Generation, Script, definition, reaches};
use serde_json::{Value, json};

use crate::rig::{Rig, doing, is_queued, pass, server, up, write};

const ONE: &str = r#"{"n":1}"#;

/// Queues one write while the server is down, which then is up and does as `act` says.
async fn queued(act: Act) -> (Rig, Value) {
    let script = Script::always(up())
        .then(Generation::fails("down"))
        .then(doing(act));
    let rig = Rig::new(script).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "backoff").await);
    let said = rig.queue(ONE).await;
    assert!(reaches(&rig.host, "s", "ready").await);
    (rig, said)
}

fn http(status: u16) -> LinkError {
    LinkError::Http {
        status,
        preview: "".into(),
    }
}

fn unauthorized(status: u16) -> LinkError {
    LinkError::Unauthorized {
        status,
        challenge: None,
    }
}

#[tokio::test(start_paused = true)]
async fn what_may_pass_is_waited_for_and_sent_again() {
    let late = LinkError::Timeout {
        sent: Sent::Perhaps,
    };
    for error in [
        http(408),
        http(500),
        http(502),
        unauthorized(401),
        unauthorized(403),
        late,
        LinkError::Unreachable("no route".into()),
    ] {
        let (rig, _) = queued(Act::Fails(error.clone())).await;
        pass(Duration::from_secs(60)).await;
        let letters = rig.letters().await;
        assert_eq!(letters.len(), 1, "{error}");
        let letter = &letters[0];
        assert_eq!((letter.state, letter.position), (LetterState::Queued, 1));
        assert!(letter.attempts >= 3, "{error}: {}", letter.attempts);
        assert!(letter.last_error.is_some() && letter.next_try_ms.is_some());
        assert!(rig.world.change("s", up()));
        rig.drained().await;
        assert_eq!(rig.done(), [1], "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_when_to_come_again_is_not_asked_before() {
    let after = Some(Duration::from_secs(120));
    let error = LinkError::Throttled { status: 429, after };
    let (rig, _) = queued(Act::Fails(error)).await;
    pass(Duration::from_secs(5)).await;
    let tries = rig.letters().await[0].attempts;
    pass(Duration::from_secs(95)).await;
    assert_eq!(rig.letters().await[0].attempts, tries, "it waits");
    assert!(rig.world.change("s", up()));
    pass(Duration::from_secs(10)).await;
    assert!(rig.ran().is_empty(), "not yet");
    rig.drained().await;
    assert_eq!(rig.done(), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_final_refusal_makes_a_dead_letter_of_which_the_agent_is_told() {
    for (act, part) in [
        (Act::Fails(http(400)), "status 400"),
        (Act::Fails(http(409)), "status 409"),
        (Act::RpcError, "-32000"),
        (Act::ToolError, "isError"),
        (Act::Garbles, "garbled"),
    ] {
        let (rig, said) = queued(act).await;
        rig.drained().await;
        let letters = rig.letters().await;
        assert_eq!(letters.len(), 1, "{part}: it is kept");
        assert_eq!(letters[0].state, LetterState::Dead);
        let why = letters[0].last_error.as_ref().unwrap();
        assert!(why.contains(part), "{part}: {why}");
        let heard = rig.ears.heard(1).await;
        let heard: Value = serde_json::from_str(&heard[0].1).unwrap();
        assert_eq!(heard["params"]["level"], "error");
        let data = &heard["params"]["data"];
        assert_eq!((&data["id"], &data["state"]), (&said["id"], &json!("dead")));
        assert!(data["error"].as_str().unwrap().contains(part));
        // It stands in nobody's way.
        assert!(rig.world.change("s", up()));
        let reply = rig.write_as("owner", r#"{"n":2}"#).await.unwrap();
        assert_eq!(reply.origin, Origin::Live);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_key_is_told_to_be_dead() {
    let (rig, said) = queued(Act::ToolError).await;
    rig.drained().await;
    let mut again = write("owner", "s__do", ONE);
    again.key = said["idempotencyKey"].as_str().map(Into::into);
    let error = rig.host.call(again).await.unwrap_err();
    let CallError::NotStored { reason, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(reason.contains("bowline://outbox/"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_is_gone_makes_a_dead_letter() {
    let script = Script::always(up())
        .then(Generation::fails("down"))
        .then(Generation::definitions(&[definition("else")]));
    let rig = Rig::new(script).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "backoff").await);
    rig.queue(ONE).await;
    rig.drained().await;
    assert_eq!(rig.letters().await[0].state, LetterState::Dead);
}

#[tokio::test(start_paused = true)]
async fn a_hung_server_queues_a_live_write_and_does_not_stop_the_drain() {
    let script = Script::always(doing(Act::Hangs(Gate::closed())));
    let spec = ServerSpec {
        call_timeout: Duration::from_secs(5),
        ..server("s")
    };
    let rig = Rig::of(
        vec![spec, server("t")],
        [("s", script), ("t", Script::always(up()))],
    )
    .await;
    let reply = rig.write_as("owner", ONE).await.unwrap();
    is_queued(&reply);
    assert_eq!(rig.host.clock().now().0, 5_000, "not for ever");
    pass(Duration::from_secs(60)).await;
    let letter = &rig.letters().await[0];
    assert!(
        letter.attempts >= 3,
        "each try has its own end: {}",
        letter.attempts
    );
    assert!(rig.world.change("s", up()));
    rig.drained().await;
    assert_eq!(rig.done(), [1]);
}

#[tokio::test(start_paused = true)]
async fn only_an_outage_queues_a_live_write() {
    for (error, waits) in [
        (http(502), true),
        (http(503), true),
        (http(504), true),
        (http(500), false),
        (http(408), false),
        (http(400), false),
        (unauthorized(401), false),
        (unauthorized(403), false),
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
        let rig = Rig::new(Script::always(doing(Act::Fails(error.clone())))).await;
        let outcome = rig.write_as("owner", ONE).await;
        match waits {
            true => drop(is_queued(&outcome.unwrap())),
            false => {
                assert!(outcome.is_err(), "{error}");
                assert!(rig.letters().await.is_empty(), "{error}: nothing is left");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_past_its_time_is_dead_and_told() {
    let script = Script::always(up()).then(Generation::fails("down"));
    let rig = Rig::new(script).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "backoff").await);
    rig.queue(ONE).await;
    pass(crate::rig::KEEP + Duration::from_secs(600)).await;
    let letters = rig.letters().await;
    assert_eq!(letters[0].state, LetterState::Dead);
    assert_eq!(letters[0].last_error, Some(Arc::from("expired")));
    let heard = rig.ears.heard(1).await;
    assert!(heard[0].1.contains("expired"), "{}", heard[0].1);
    assert!(rig.ran().is_empty());
}
