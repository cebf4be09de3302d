//! A log that ends too early, at every byte of its end: what is left is what was acknowledged up
//! to some moment, whole.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::hash::{DefaultHasher, Hasher as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use crate::Outcome;
use crate::args::Args;
use crate::child::Suffering;
use crate::model::{self, Broken, State, Truth};
use crate::record::{Op, Record};
use crate::{kill, open};

/// How much of the end of the log is cut away, byte by byte.
const TAIL_BYTES: usize = 64 * 1024;

/// The last bytes are all tried, whatever the step.
const LAST_BYTES: usize = 64;

const FILES: [&str; 2] = [open::FILE, open::LOG];

/// Cuts the log at every `--step`-th byte of its end.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let (step, seed): (usize, u64) = (args.number("step", 1)?, args.number("seed", 1)?);
    let home = tempfile::tempdir()?;
    let mut truth = Truth::default();
    truth.history = Some(Vec::new());
    let mut options = kill::options(1, 1, seed);
    options.extend(["--messages", "40", "--linger"].map(str::to_owned));
    let mut writer = Suffering::start(home.path(), &options, &[])?;
    writer.over(&mut truth, Duration::from_secs(60))?;
    writer.kill(&mut truth)?;
    let [file, log] = FILES.map(|name| fs::read(home.path().join(name)).unwrap_or_default());
    let history = truth.history.take().unwrap_or_default();
    let (moments, last) = moments(&history);
    let from = log.len().saturating_sub(TAIL_BYTES);
    let every = |at: &usize| (log.len() - at).is_multiple_of(step) || log.len() - at < LAST_BYTES;
    let (mut cuts, mut broken, mut shut, mut told) = (0_u64, 0_u64, 0_u64, Vec::new());
    let mut seen = HashSet::new();
    for at in (from..=log.len()).filter(every) {
        cuts += 1;
        let kept = log.get(..at).context("the log is shorter than it is")?;
        match found(&file, kept, &truth) {
            Ok((moment, wrong)) => {
                seen.insert(moment);
                let whole = at < log.len() || moment == last;
                if wrong.count() > 0 || !moments.contains(&moment) || !whole {
                    broken += 1;
                    told.push(format!("cut at {at} of {}: {:?}", log.len(), wrong.told));
                }
            }
            Err(error) => {
                shut += 1;
                told.push(format!("cut at {at} of {}: {error:#}", log.len()));
            }
        }
        told.truncate(10);
    }
    let tally = json!({
        "part": "tail", "cuts": cuts, "step": step, "log_bytes": log.len(),
        "acknowledged": history.len(), "moments_seen": seen.len(), "open_failures": shut,
        "broken": broken, "panics": args.panics(), "told": told,
    });
    Ok(Outcome {
        tally,
        kept: broken + shut + args.panics() == 0 && cuts > 0,
    })
}

/// What a state is known by: the sum of what is known of each message and value.
fn mark(of: impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

fn mark_of(number: u64, state: State) -> u64 {
    match state {
        State::Gone => 0,
        state => mark((number, state as u8)),
    }
}

/// The marks of all states that there were, and of the last one.
fn moments(history: &[Record]) -> (HashSet<u64>, u64) {
    let (mut states, mut values) = (HashMap::new(), HashMap::new());
    let mut sum = 0_u64;
    let mut moments = HashSet::from([sum]);
    for record in history {
        let (before, now) = match model::after(record.op) {
            Some(state) => {
                let before = states.insert(record.number, state).unwrap_or(State::Gone);
                (
                    mark_of(record.number, before),
                    mark_of(record.number, state),
                )
            }
            None => {
                let key = u64::from(record.detail);
                let before = values.insert(key, record.number);
                let before = before.map_or(0, |nth| mark((Op::Put as u8, key, nth)));
                (before, mark((Op::Put as u8, key, record.number)))
            }
        };
        sum = sum.wrapping_sub(before).wrapping_add(now);
        moments.insert(sum);
    }
    (moments, sum)
}

/// Opens a journal with so much of its log, and returns the mark of what is there.
fn found(file: &[u8], log: &[u8], truth: &Truth) -> Result<(u64, Broken)> {
    let dir = tempfile::tempdir()?;
    let [file_name, log_name] = FILES.map(|name| dir.path().join(name));
    open::write(&file_name, file)?;
    open::write(&log_name, log)?;
    opened(dir.path(), truth)
}

fn opened(dir: &Path, truth: &Truth) -> Result<(u64, Broken)> {
    let journal = open::open(dir)?;
    open::wait(async {
        let mut broken = Broken::default();
        let found = model::look(journal.as_ref(), &mut broken).await?;
        let mut sum = 0_u64;
        for (key, nth) in &found.values {
            sum = sum.wrapping_add(mark((Op::Put as u8, *key, *nth)));
        }
        for number in truth.numbers() {
            let state = match found.live.get(&number) {
                Some(state) => *state,
                None => model::ended(journal.as_ref(), number, &mut broken).await?,
            };
            sum = sum.wrapping_add(mark_of(number, state));
        }
        journal.close().await;
        Ok((sum, broken))
    })?
}
