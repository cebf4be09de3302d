//! Repeated `kill -9` in a directory, which is opened and compared after each kill.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use crate::PartReport;
use crate::args::Args;
use crate::child::WriterProcess;
use crate::model::{BrokenPromises, ExpectedState, ResultLookup};
use crate::open::{self, instant};

/// Lifetime of a writer in milliseconds after its first acknowledgement.
const LIFE_MS: std::ops::Range<u64> = 1..250;

/// Kills and completed messages per directory, below the limits of kept results.
const KILLS_PER_DIR: u64 = 25;
const ENDED_PER_DIR: u64 = 30_000;

/// Runs the kills.
pub(crate) fn run_kills(args: &Args) -> Result<PartReport> {
    let (kills, producers): (u64, u64) = (
        args.number_option("rounds", 200)?,
        args.number_option("producers", 32)?,
    );
    let seed = args.number_option("seed", 1)?;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut broken = BrokenPromises::default();
    let (mut acknowledged, mut published, mut ended) = (0, 0, 0);
    let (mut shut, mut refused, mut open_us) = (0, 0, Vec::new());
    let mut done = 0;
    while done < kills {
        let dir = tempfile::tempdir()?;
        let mut expected = ExpectedState::default();
        for round in 1..=KILLS_PER_DIR.min(kills - done) {
            done += 1;
            let options = writer_options(round, producers, seed ^ done);
            let mut writer = WriterProcess::start(dir.path(), &options, &[])?;
            writer.wait_first_ack(&mut expected)?;
            writer.read_for(&mut expected, Duration::from_millis(random.u64(LIFE_MS)))?;
            writer.kill_writer(&mut expected)?;
            let start = instant();
            let journal = match open::open_journal(dir.path()) {
                Ok(journal) => journal,
                Err(error) => {
                    shut += 1;
                    broken.told.push(format!("{error:#}"));
                    break;
                }
            };
            open_us.push(start.elapsed().as_micros());
            let is_last = round == KILLS_PER_DIR || done == kills || expected.ended > ENDED_PER_DIR;
            let results = if is_last {
                ResultLookup::All
            } else {
                ResultLookup::Recent
            };
            broken.merge(open::block_on(async {
                let found = expected.compare_journal(journal.as_ref(), results).await;
                journal.close().await;
                found
            })??);
            if is_last {
                break;
            }
        }
        acknowledged += expected.acknowledged;
        published += expected.published;
        ended += expected.ended;
        shut += expected.shut;
        refused += expected.refused + expected.poisoned;
    }
    open_us.sort_unstable();
    let middle = open_us.get(open_us.len() / 2);
    let mut tally = json!({
        "part": "kill", "kills": kills, "producers": producers,
        "acknowledged": acknowledged, "published": published, "ended": ended,
        "refused": refused, "open_failures": shut, "panics": args.panic_count(),
        "open_us_p50": middle, "open_us_max": open_us.last(),
    });
    crate::merge_objects(&mut tally, broken.to_json());
    let kept = broken.total() == 0 && shut == 0 && refused == 0 && args.panic_count() == 0;
    Ok(PartReport {
        tally,
        is_passed: kept,
    })
}

/// Returns the options of a writer that runs until killed.
pub(crate) fn writer_options(run: u64, producers: u64, seed: u64) -> Vec<String> {
    let options = [("--run", run), ("--producers", producers), ("--seed", seed)];
    let words = options
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value.to_string()]);
    words.collect()
}
