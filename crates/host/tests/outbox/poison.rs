//! A write that fails alone: it is given up after some tries, and stands in nobody's way.

use std::time::Duration;

use bowline_core::call::{Call, Origin};
use bowline_core::lane::POISON_TRIES_MAX;
use bowline_host::outbox::LetterState;
use bowline_link::{Exit, LinkError};
use bowline_sim::{Act, Gate, Generation, Hearer, Script, call, reaches};

use crate::rig::{Rig, argument, doing, pass, queued, server, up, write};

fn fails_500() -> Act {
    Act::Fails(LinkError::Http {
        status: 500,
        preview: "no".into(),
    })
}

/// Queues a write of `do` in an outage, after which `do` acts so and `other` answers.
async fn queued_poison(act: Act) -> Rig {
    let mut spec = server("s");
    spec.call_timeout = Duration::from_secs(5);
    spec.tools.insert("other".to_owned(), queued(argument()));
    let script = Script::always(up())
        .then(Generation::fails("down"))
        .then(doing(act));
    let rig = Rig::of(vec![spec], [("s", script)]).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "backoff").await);
    rig.queue(r#"{"n":1}"#).await;
    assert!(reaches(&rig.host, "s", "ready").await);
    rig
}

#[tokio::test(start_paused = true)]
async fn poison_write_becomes_dead_letter_while_server_serves() {
    for act in [fails_500(), Act::Hangs(Gate::closed())] {
        let rig = queued_poison(act).await;
        let mut calls = 0;
        while rig.letters().await[0].state != LetterState::Dead {
            // Another session of the same principal writes meanwhile, and is never held up.
            let other = Call {
                caller: Some(Hearer::of(8)),
                ..write("owner", "s__other", r#"{"n":2}"#)
            };
            let reply = rig.host.call(other).await.unwrap();
            if calls > 10 {
                assert_eq!(reply.origin, Origin::Live, "{calls}");
            }
            pass(Duration::from_millis(500)).await;
            calls += 1;
            assert!(calls < 400, "never given up");
        }
        let letters = rig.letters().await;
        assert_eq!(letters.len(), 1, "{letters:?}");
        let reason = letters[0].last_error.as_deref().unwrap();
        let want = format!("failed {POISON_TRIES_MAX} times while the server served other calls");
        assert!(reason.contains(&want), "{reason}");
        let told = rig.ears.heard(1).await;
        let (_, told) = told.iter().find(|(session, _)| *session == 7).unwrap();
        assert!(
            told.contains(r#""level":"error""#) && told.contains(&want),
            "{told}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn failing_write_waits_while_server_serves_nobody() {
    let rig = queued_poison(fails_500()).await;
    pass(Duration::from_secs(60 * 60)).await;
    let letters = rig.letters().await;
    assert_ne!(letters[0].state, LetterState::Dead, "{letters:?}");
    assert!(letters[0].attempts > POISON_TRIES_MAX, "{letters:?}");
    // Time is no evidence; it is delivered when the server takes it.
    assert!(rig.world.change("s", up()));
    rig.drained().await;
    assert_eq!(rig.done(), [1]);
    assert!(rig.host.call(call("s__other", "{}")).await.is_ok());
}
