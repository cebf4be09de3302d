//! An outage that ends while writes keep coming: back to live answers, none lost, none twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::call::{Call, Origin, Reply};
use bowline_core::error::CallError;
use bowline_core::lane::TURN_WAIT_MAX;
use bowline_core::time::Now;
use bowline_host::spec::ServerSpec;
use bowline_link::Exit;
use bowline_sim::{Act, Gate, Generation, Hearer, Script, reaches};
use tokio::task::{JoinHandle, JoinSet};

use crate::rig::{Rig, doing, is_queued, n, pass, server, up, write};

/// How long the server takes for a write.
const WRITE_TIME: Duration = Duration::from_millis(20);

/// Writes in each second.
const WRITES_PER_S: u64 = 95;

/// How long the server is away: longer than a caller waits for a restart.
const OUTAGE: Duration = Duration::from_millis(1_500);

/// Live answers are back so long after the server is, at most.
const RECOVERY_MAX: Duration = Duration::from_secs(5);

/// One write of the load.
#[derive(Clone, Copy, Debug)]
struct Sample {
    session: u64,
    sent: Now,
    answered: Now,
    origin: Origin,
}

fn numbered(session: u64, number: u64) -> Call {
    Call {
        caller: Some(Hearer::of(session)),
        ..write("owner", "s__do", &format!(r#"{{"n":{number}}}"#))
    }
}

/// A server that is away for as long as an outage takes when it is killed.
fn breakable() -> ServerSpec {
    ServerSpec {
        backoff: Backoff {
            base: OUTAGE,
            cap: OUTAGE,
        },
        ..server("s")
    }
}

/// Sends writes at the pace of the load, without waiting for answers, and breaks the server after
/// one second. Returns what came of each, by number, and when the server was broken.
async fn load(rig: &Rig, sessions: u64, seconds: u64) -> (BTreeMap<u64, Sample>, Now) {
    let clock = Arc::clone(rig.host.clock());
    let mut calls = JoinSet::new();
    let mut broken = Now(0);
    for number in 1..=WRITES_PER_S * seconds {
        if number == WRITES_PER_S {
            assert!(rig.world.kill("s", Exit::Signal(9)));
            broken = clock.now();
        }
        let (host, clock) = (rig.host.clone(), Arc::clone(&clock));
        let session = 1 + number % sessions;
        calls.spawn(async move {
            let sent = clock.now();
            let reply = host.call(numbered(session, number)).await.unwrap();
            let sample = Sample {
                session,
                sent,
                answered: clock.now(),
                origin: reply.origin,
            };
            (number, sample)
        });
        pass(Duration::from_micros(1_000_000 / WRITES_PER_S)).await;
    }
    let mut samples = BTreeMap::new();
    while let Some(sample) = calls.join_next().await {
        let (number, sample) = sample.unwrap();
        samples.insert(number, sample);
    }
    (samples, broken)
}

async fn check_outage_ends(sessions: u64) {
    let slow = || doing(Act::AnswersAfter(WRITE_TIME));
    let script = Script::always(slow()).then(slow());
    let rig = Rig::of(vec![breakable()], [("s", script)]).await;
    let (samples, broken) = load(&rig, sessions, 12).await;
    rig.drained().await;
    let done = rig.done();
    assert_eq!(done.len(), samples.len(), "none is lost, none is twice");
    let live_from = broken.plus(OUTAGE + RECOVERY_MAX);
    let late = samples.iter().filter(|(_, one)| one.sent >= live_from);
    let late: Vec<_> = late.filter(|(_, one)| one.origin != Origin::Live).collect();
    assert!(late.is_empty(), "{} queued: {:?}", late.len(), late.first());
    let queued = samples.values().filter(|one| one.origin == Origin::Queued);
    assert!(queued.count() > 0, "there was an outage");
    let place: BTreeMap<u64, usize> = done.iter().copied().zip(0..).collect();
    for (number, one) in &samples {
        // Whatever its session sent after the answer comes after it.
        let after = samples.range(number + 1..);
        let mut after = after.filter(|(_, two)| two.session == one.session);
        let next = after.find(|(_, two)| two.sent > one.answered);
        if let Some((next, _)) = next {
            assert!(place[number] < place[next], "{next} overtook {number}");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "tests")]
fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(task)
}

#[tokio::test(start_paused = true)]
async fn outage_under_load_ends_for_many_sessions() {
    check_outage_ends(19).await;
}

#[tokio::test(start_paused = true)]
async fn outage_under_load_ends_for_one_session() {
    check_outage_ends(1).await;
}

/// A lane with one write in front that hangs, towards a server that is up.
async fn draining(gate: &Gate) -> Rig {
    let (hangs, first) = (doing(Act::Hangs(gate.clone())), Gate::closed());
    let script = Script::always(up())
        .then(Generation::fails("down"))
        .then(doing(Act::Hangs(first.clone())));
    let rig = Rig::new(script).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "backoff").await);
    for number in 1..=2 {
        is_queued(&rig.host.call(numbered(1, number)).await.unwrap());
    }
    rig.world.until(|record| record.executions.len() == 1).await;
    assert!(rig.world.change("s", hangs));
    first.release();
    rig.world.until(|record| record.executions.len() == 2).await;
    rig
}

#[tokio::test(start_paused = true)]
async fn caller_behind_backlog_gets_live_answer() {
    let gate = Gate::closed();
    let rig = draining(&gate).await;
    let (host, open) = (rig.host.clone(), gate.clone());
    let third = spawn(async move { host.call(numbered(1, 3)).await });
    // Another session of the same principal has nothing before it.
    let other = {
        let host = rig.host.clone();
        spawn(async move { host.call(numbered(2, 4)).await })
    };
    rig.world.until(|record| record.executions.len() == 3).await;
    assert_eq!(rig.ran(), [1, 2, 4], "the third waits for the second");
    open.release();
    for reply in [third.await, other.await] {
        assert_eq!(reply.unwrap().unwrap().origin, Origin::Live);
    }
    assert_eq!(rig.done().len(), 4);
    assert!(rig.letters().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn caller_that_waits_too_long_is_queued_behind() {
    let gate = Gate::closed();
    let rig = draining(&gate).await;
    let before = rig.host.clock().now();
    let said = is_queued(&rig.host.call(numbered(1, 3)).await.unwrap());
    let waited = before.until(rig.host.clock().now());
    assert!(
        waited <= TURN_WAIT_MAX + Duration::from_secs(1),
        "{waited:?}"
    );
    let note = said["note"].as_str().unwrap();
    assert!(note.contains("queued before this one"), "{note}");
    gate.release();
    rig.drained().await;
    assert_eq!(rig.done(), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn caller_that_leaves_before_its_turn_is_withdrawn() {
    let gate = Gate::closed();
    let rig = draining(&gate).await;
    let keyed = || write("owner", "s__do", r#"{"n":3,"key":"mine"}"#);
    let host = rig.host.clone();
    let call = Call {
        caller: Some(Hearer::of(1)),
        ..keyed()
    };
    let waits = spawn(async move { host.call(call).await });
    while rig.letters().await.len() < 2 {
        tokio::task::yield_now().await;
    }
    waits.abort();
    assert!(waits.await.is_err());
    // The same key again, from another session: it is a new call, and runs once.
    let host = rig.host.clone();
    let again = spawn(async move { host.call(keyed()).await });
    rig.world.until(|record| record.executions.len() == 3).await;
    gate.release();
    let again: Result<Reply, CallError> = again.await.unwrap();
    assert_eq!(again.unwrap().origin, Origin::Live);
    rig.drained().await;
    assert_eq!(rig.ran(), [1, 2, 3], "once, by the caller that stayed");
    let record = rig.world.record();
    assert_eq!(n(&record.executions[2].arguments), 3);
}

#[tokio::test(start_paused = true)]
async fn flood_behind_backlog_is_shed_and_ends() {
    let slow = || doing(Act::AnswersAfter(Duration::from_millis(200)));
    let script = Script::always(slow())
        .then(Generation::fails("down"))
        .then(slow());
    let rig = Rig::new(script).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "backoff").await);
    let (backlog, flood) = (150, 1_800);
    for number in 1..=backlog {
        is_queued(&rig.host.call(numbered(1, number)).await.unwrap());
    }
    assert!(reaches(&rig.host, "s", "ready").await);
    // One session, four times as fast as its backlog is delivered.
    let mut calls = JoinSet::new();
    for number in backlog + 1..=backlog + flood {
        let host = rig.host.clone();
        calls.spawn(async move { (number, host.call(numbered(1, number)).await) });
        pass(Duration::from_millis(50)).await;
    }
    let mut promised: Vec<u64> = (1..=backlog).collect();
    let (mut shed, mut last_queued) = (0, 0);
    while let Some(outcome) = calls.join_next().await {
        let (number, outcome) = outcome.unwrap();
        match outcome {
            Ok(reply) => {
                promised.push(number);
                if reply.origin == Origin::Queued {
                    last_queued = last_queued.max(number);
                }
            }
            Err(CallError::OutboxFull { .. }) => shed += 1,
            Err(error) => panic!("{number}: {error}"),
        }
    }
    rig.drained().await;
    assert!(shed > 0, "more came than could be delivered");
    assert!(
        last_queued < backlog + flood - 100,
        "{last_queued}: never live"
    );
    let mut done = rig.done();
    done.sort_unstable();
    promised.sort_unstable();
    assert_eq!(done, promised, "what was refused did not run");
}
