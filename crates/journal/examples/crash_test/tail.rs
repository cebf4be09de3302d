//! Truncated WAL, at every byte of its end: the remaining state equals an acknowledged earlier
//! state.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::hash::{DefaultHasher, Hasher as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use crate::PartReport;
use crate::args::Args;
use crate::child::WriterProcess;
use crate::model::{self, BrokenPromises, DiskState, ExpectedState};
use crate::record::{Op, OpRecord};
use crate::{kill, open};

/// Bytes of the WAL end that are cut, byte by byte.
const TAIL_BYTES: usize = 64 * 1024;

/// Last bytes, cut at every byte regardless of the step.
const LAST_BYTES: usize = 64;

const FILES: [&str; 2] = [open::FILE, open::WAL];

/// Cuts the WAL at every `--step`-th byte of its end.
pub(crate) fn run_truncations(args: &Args) -> Result<PartReport> {
    let (step, seed): (usize, u64) = (
        args.number_option("step", 1)?,
        args.number_option("seed", 1)?,
    );
    let home = tempfile::tempdir()?;
    let mut expected = ExpectedState::default();
    expected.history = Some(Vec::new());
    let mut options = kill::writer_options(1, 1, seed);
    options.extend(["--messages", "40", "--linger"].map(str::to_owned));
    let mut writer = WriterProcess::start(home.path(), &options, &[])?;
    writer.wait_finished(&mut expected, Duration::from_secs(60))?;
    writer.kill_writer(&mut expected)?;
    let [file, log] = FILES.map(|name| fs::read(home.path().join(name)).unwrap_or_default());
    let history = expected.history.take().unwrap_or_default();
    let (moments, last) = history_hashes(&history);
    let from = log.len().saturating_sub(TAIL_BYTES);
    let every = |at: &usize| (log.len() - at).is_multiple_of(step) || log.len() - at < LAST_BYTES;
    let (mut cuts, mut broken, mut shut, mut told) = (0_u64, 0_u64, 0_u64, Vec::new());
    let mut seen = HashSet::new();
    for at in (from..=log.len()).filter(every) {
        cuts += 1;
        let kept = log.get(..at).context("the log is shorter than it is")?;
        match open_truncated(&file, kept, &expected) {
            Ok((moment, wrong)) => {
                seen.insert(moment);
                let whole = at < log.len() || moment == last;
                if wrong.total() > 0 || !moments.contains(&moment) || !whole {
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
        "broken": broken, "panics": args.panic_count(), "told": told,
    });
    Ok(PartReport {
        tally,
        is_passed: broken + shut + args.panic_count() == 0 && cuts > 0,
    })
}

/// Hashes an item; the sum over all messages and values identifies a state.
fn hash_value(of: impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

fn hash_state(number: u64, state: DiskState) -> u64 {
    match state {
        DiskState::Gone => 0,
        state => hash_value((number, state as u8)),
    }
}

/// Returns the hashes of all states in the history, and of the last state.
fn history_hashes(history: &[OpRecord]) -> (HashSet<u64>, u64) {
    let (mut states, mut values) = (HashMap::new(), HashMap::new());
    let mut sum = 0_u64;
    let mut moments = HashSet::from([sum]);
    for record in history {
        let (before, now) = match model::state_after(record.op) {
            Some(state) => {
                let before = states
                    .insert(record.number, state)
                    .unwrap_or(DiskState::Gone);
                (
                    hash_state(record.number, before),
                    hash_state(record.number, state),
                )
            }
            None => {
                let key = u64::from(record.detail);
                let before = values.insert(key, record.number);
                let before = before.map_or(0, |nth| hash_value((Op::Put as u8, key, nth)));
                (before, hash_value((Op::Put as u8, key, record.number)))
            }
        };
        sum = sum.wrapping_sub(before).wrapping_add(now);
        moments.insert(sum);
    }
    (moments, sum)
}

/// Opens a journal with a truncated WAL and returns the hash of its state.
fn open_truncated(
    file: &[u8],
    log: &[u8],
    expected: &ExpectedState,
) -> Result<(u64, BrokenPromises)> {
    let dir = tempfile::tempdir()?;
    let [file_name, log_name] = FILES.map(|name| dir.path().join(name));
    open::write_private_file(&file_name, file)?;
    open::write_private_file(&log_name, log)?;
    hash_journal(dir.path(), expected)
}

fn hash_journal(dir: &Path, expected: &ExpectedState) -> Result<(u64, BrokenPromises)> {
    let journal = open::open_journal(dir)?;
    open::block_on(async {
        let mut broken = BrokenPromises::default();
        let found = model::read_state(journal.as_ref(), &mut broken).await?;
        let mut sum = 0_u64;
        for (key, nth) in &found.values {
            sum = sum.wrapping_add(hash_value((Op::Put as u8, *key, *nth)));
        }
        for number in expected.numbers() {
            let state = match found.live.get(&number) {
                Some(state) => *state,
                None => model::completed_state(journal.as_ref(), number, &mut broken).await?,
            };
            sum = sum.wrapping_add(hash_state(number, state));
        }
        journal.close().await;
        Ok((sum, broken))
    })?
}
