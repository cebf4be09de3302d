//! Servers and gateways that go at random, and writes that must arrive once and in order.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::supervision::RestartPolicy;
use bowline_host::spec::ServerSpec;
use bowline_link::Exit;
use bowline_sim::{Act, Generation, Script, World};
use fastrand::Rng;

use crate::rig::{Rig, doing, key, n, pass, server, up, write};

/// Worlds that are tried.
const SEEDS: u64 = 20;

/// Writes in each.
const WRITES: u64 = 60;

const WHO: [&str; 3] = ["ann", "bob", "cyd"];

/// A server whose lives are long and short, and some of which never begin.
fn script(rng: &mut Rng) -> Script {
    let mut script = Script::always(up());
    for _ in 0..60 {
        let life = match rng.u8(..6) {
            0 | 1 => Generation::fails("down"),
            2 => doing(Act::Dies),
            3 => doing(Act::AnswersAfter(Duration::from_millis(rng.u64(1..400)))),
            4 => up().dies_after(Duration::from_millis(rng.u64(1..3_000))),
            _ => up(),
        };
        script = script.then(life);
    }
    script.then(up())
}

async fn world(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let world = World::new([("s", script(&mut rng))]);
    let spec = || {
        vec![ServerSpec {
            // However often it falls, it is started again.
            restart: RestartPolicy {
                restarts_max: 1_000,
                window: Duration::from_secs(300),
            },
            ..server("s")
        }]
    };
    let mut rig = Rig::on(
        world.clone(),
        spec(),
        Arc::new(bowline_journal::Memory::default()),
    )
    .await;
    let mut promised: BTreeMap<(String, u64), ()> = BTreeMap::new();
    for nth in 1..=WRITES {
        let who = WHO[rng.usize(..WHO.len())];
        let arguments = format!(r#"{{"n":{nth},"who":"{who}"}}"#);
        let call = rig.host.call(write(who, "s__do", &arguments));
        let harm = async {
            pass(Duration::from_millis(rng.u64(..500))).await;
            if rng.u8(..3) == 0 {
                world.kill("s", Exit::Signal(9));
            }
        };
        let (outcome, ()) = tokio::join!(call, harm);
        if outcome.is_ok() {
            promised.insert((who.to_owned(), nth), ());
        }
        if rng.u8(..12) == 0 {
            rig.host.shutdown().await;
            rig = rig.again(spec());
        }
    }
    let wait = Duration::from_secs(24 * 3_600);
    if tokio::time::timeout(wait, rig.drained()).await.is_err() {
        panic!("BOWLINE_SEED={seed}: {:#?}", rig.letters().await);
    }

    judge(seed, &world, &promised);
}

fn judge(seed: u64, world: &World, promised: &BTreeMap<(String, u64), ()>) {
    let record = world.record();
    let mut seen = HashSet::new();
    let mut done: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for deed in &record.executions {
        if seen.insert(key(&deed.arguments)) {
            let said: serde_json::Value = serde_json::from_str(&deed.arguments).unwrap();
            let who = said["who"].as_str().unwrap().to_owned();
            done.entry(who).or_default().push(n(&deed.arguments));
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
async fn whatever_is_killed_a_promised_write_arrives_once_and_in_order() {
    for seed in 0..SEEDS {
        world(seed).await;
    }
}
