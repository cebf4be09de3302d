//! `kill -9` again and again in one directory, which is opened and compared after each.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use crate::Outcome;
use crate::args::Args;
use crate::child::Suffering;
use crate::model::{Broken, Results, Truth};
use crate::open::{self, instant};

/// Milliseconds that a writer lives after its first acknowledgement.
const LIFE_MS: std::ops::Range<u64> = 1..250;

/// A new directory after so many kills, or ended messages: no limit of kept results is reached.
const KILLS_PER_DIR: u64 = 25;
const ENDED_PER_DIR: u64 = 30_000;

/// Kills a writer so many times.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let (kills, producers): (u64, u64) =
        (args.number("rounds", 200)?, args.number("producers", 32)?);
    let seed = args.number("seed", 1)?;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut broken = Broken::default();
    let (mut acknowledged, mut published, mut ended) = (0, 0, 0);
    let (mut shut, mut refused, mut open_us) = (0, 0, Vec::new());
    let mut done = 0;
    while done < kills {
        let dir = tempfile::tempdir()?;
        let mut truth = Truth::default();
        for round in 1..=KILLS_PER_DIR.min(kills - done) {
            done += 1;
            let options = options(round, producers, seed ^ done);
            let mut writer = Suffering::start(dir.path(), &options, &[])?;
            writer.first(&mut truth)?;
            writer.listen(&mut truth, Duration::from_millis(random.u64(LIFE_MS)))?;
            writer.kill(&mut truth)?;
            let start = instant();
            let journal = match open::open(dir.path()) {
                Ok(journal) => journal,
                Err(error) => {
                    shut += 1;
                    broken.told.push(format!("{error:#}"));
                    break;
                }
            };
            open_us.push(start.elapsed().as_micros());
            let is_last = round == KILLS_PER_DIR || done == kills || truth.ended > ENDED_PER_DIR;
            let results = if is_last {
                Results::All
            } else {
                Results::Recent
            };
            broken.add(open::wait(async {
                let found = truth.compare(journal.as_ref(), results).await;
                journal.close().await;
                found
            })??);
            if is_last {
                break;
            }
        }
        acknowledged += truth.acknowledged;
        published += truth.published;
        ended += truth.ended;
        shut += truth.shut;
        refused += truth.refused + truth.poisoned;
    }
    open_us.sort_unstable();
    let middle = open_us.get(open_us.len() / 2);
    let mut tally = json!({
        "part": "kill", "kills": kills, "producers": producers,
        "acknowledged": acknowledged, "published": published, "ended": ended,
        "refused": refused, "open_failures": shut, "panics": args.panics(),
        "open_us_p50": middle, "open_us_max": open_us.last(),
    });
    crate::merge(&mut tally, broken.json());
    let kept = broken.count() == 0 && shut == 0 && refused == 0 && args.panics() == 0;
    Ok(Outcome { tally, kept })
}

/// The options of a writer that runs until it is killed.
pub(crate) fn options(run: u64, producers: u64, seed: u64) -> Vec<String> {
    let options = [("--run", run), ("--producers", producers), ("--seed", seed)];
    let words = options
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value.to_string()]);
    words.collect()
}
