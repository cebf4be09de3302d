//! Random crashes of servers and gateways; writes must arrive once and in order.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::restart_budget::RestartPolicy;
use bowline_host::spec::ServerSpec;
use bowline_link::LinkExit;
use bowline_testkit::{GenerationScript, ServerScript, SimWorld, ToolBehaviour, advance_clock};
use fastrand::Rng;

use crate::rig::{
    OutboxRig, healthy_server, key_argument, number_argument, queued_server, server_doing,
    write_call,
};

/// Number of worlds.
const SEEDS: u64 = 20;

/// Writes per world.
const WRITES: u64 = 60;

const WHO: [&str; 3] = ["ann", "bob", "cyd"];

/// A server with random lifetimes, some of which fail to start.
fn random_script(rng: &mut Rng) -> ServerScript {
    let mut script = ServerScript::always(healthy_server());
    for _ in 0..60 {
        let life = match rng.u8(..6) {
            0 | 1 => GenerationScript::failing_start("down"),
            2 => server_doing(ToolBehaviour::Exit),
            3 => server_doing(ToolBehaviour::RespondAfter(Duration::from_millis(
                rng.u64(1..400),
            ))),
            4 => healthy_server().exit_after(Duration::from_millis(rng.u64(1..3_000))),
            _ => healthy_server(),
        };
        script = script.then(life);
    }
    script.then(healthy_server())
}

async fn run_world(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let world = SimWorld::new([("s", random_script(&mut rng))]);
    let spec = || {
        vec![ServerSpec {
            // Unlimited restarts.
            restart: RestartPolicy {
                restarts_max: 1_000,
                window: Duration::from_secs(300),
            },
            ..queued_server("s")
        }]
    };
    let mut rig = OutboxRig::start_on_journal(
        world.clone(),
        spec(),
        Arc::new(bowline_journal::MemoryJournal::default()),
    )
    .await;
    let mut promised: BTreeMap<(String, u64), ()> = BTreeMap::new();
    for nth in 1..=WRITES {
        let who = WHO[rng.usize(..WHO.len())];
        let arguments = format!(r#"{{"n":{nth},"who":"{who}"}}"#);
        let call = rig.host.call(write_call(who, "s__do", &arguments));
        let harm = async {
            advance_clock(Duration::from_millis(rng.u64(..500))).await;
            if rng.u8(..3) == 0 {
                world.kill("s", LinkExit::Signal(9));
            }
        };
        let (outcome, ()) = tokio::join!(call, harm);
        if outcome.is_ok() {
            promised.insert((who.to_owned(), nth), ());
        }
        if rng.u8(..12) == 0 {
            rig.host.shutdown().await;
            rig = rig.restart(spec());
        }
    }
    let wait = Duration::from_secs(24 * 3_600);
    if tokio::time::timeout(wait, rig.wait_drained())
        .await
        .is_err()
    {
        panic!("BOWLINE_SEED={seed}: {:#?}", rig.queued_calls().await);
    }

    assert_delivered_once_in_order(seed, &world, &promised);
}

fn assert_delivered_once_in_order(
    seed: u64,
    world: &SimWorld,
    promised: &BTreeMap<(String, u64), ()>,
) {
    let record = world.record();
    let mut seen = HashSet::new();
    let mut done: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for deed in &record.executions {
        if seen.insert(key_argument(&deed.arguments)) {
            let said: serde_json::Value = serde_json::from_str(&deed.arguments).unwrap();
            let who = said["who"].as_str().unwrap().to_owned();
            done.entry(who)
                .or_default()
                .push(number_argument(&deed.arguments));
        }
    }
    for (who, done) in &done {
        assert!(
            done.is_sorted(),
            "BOWLINE_SEED={seed}: {who} out of order: {done:?}"
        );
        let mut once = done.clone();
        once.dedup();
        assert_eq!(
            once, *done,
            "BOWLINE_SEED={seed}: {who} twice under two keys"
        );
    }
    for (who, nth) in promised.keys() {
        let of = done.get(who);
        let arrived = of.is_some_and(|all| all.contains(nth));
        assert!(arrived, "BOWLINE_SEED={seed}: {nth} of {who} was lost");
    }
    assert!(
        promised.len() as u64 > WRITES / 6,
        "BOWLINE_SEED={seed}: {}",
        promised.len()
    );
}

#[tokio::test(start_paused = true)]
async fn queued_writes_survive_random_crashes() {
    for seed in 0..SEEDS {
        run_world(seed).await;
    }
}
