//! Disk faults at the first call, at the second, and so on until the script completes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::json;

use crate::args::Args;
use crate::child::WriterProcess;
use crate::model::{BrokenPromises, ExpectedState, ResultLookup};
use crate::shim::{CALLS, Shim, ShimFault};
use crate::{PartReport, open};

/// Call indexes per script at most.
const CALLS_MAX: u64 = 20_000;

const KINDS: [&str; 3] = ["eio", "enospc", "short"];

/// Calls with unknown effect after a failure.
const SYNCS: [&str; 2] = ["fsync", "fdatasync"];

#[derive(Debug, Default)]
struct FaultTally {
    runs: u64,
    hits: BTreeMap<&'static str, u64>,
    false_acks: u64,
    panics: u64,
    misread: u64,
    shut: u64,
    after_sync: u64,
    unheard: u64,
    acknowledged: u64,
    indexes: BTreeMap<String, u64>,
    broken: BrokenPromises,
}

/// Runs every call index for every kind of failure, once and sticky.
pub(crate) fn run_faults(args: &Args) -> Result<PartReport> {
    let home = tempfile::tempdir()?;
    let shim = Shim::compile(home.path())?;
    let mut tally = FaultTally::default();
    let step: u64 = args.number_option("step", 1)?;
    let base = BaseJournal::new()?;
    for kind in KINDS {
        for (name, fault) in [
            (
                "once",
                ShimFault::Once as fn(&'static str, u64) -> ShimFault<'static>,
            ),
            ("on", ShimFault::From),
        ] {
            let mut at = 1;
            while run_one_fault(&shim, &base, fault(kind, at), &mut tally)? {
                at += step;
                ensure!(at < CALLS_MAX, "the script has no end");
            }
            tally.indexes.insert(format!("{kind}, {name}"), at - step);
        }
    }
    let mut told = json!({
        "part": "faults", "runs": tally.runs, "indexes": tally.indexes, "hits": tally.hits,
        "acknowledged": tally.acknowledged, "false_acknowledgements": tally.false_acks,
        "panics": tally.panics + args.panic_count(), "reads_failed": tally.misread,
        "open_failures": tally.shut, "acknowledged_after_failed_sync": tally.after_sync,
        "not_acknowledged_after_a_passing_fault": tally.unheard,
    });
    crate::merge_objects(&mut told, tally.broken.to_json());
    let bad = tally.false_acks + tally.panics + tally.misread + tally.shut + tally.after_sync;
    let bad = bad + tally.unheard;
    Ok(PartReport {
        tally: told,
        is_passed: bad == 0 && args.panic_count() == 0,
    })
}

/// Runs the script once; returns whether the fault was hit.
fn run_one_fault(
    shim: &Shim,
    base: &BaseJournal,
    fault: ShimFault<'_>,
    tally: &mut FaultTally,
) -> Result<bool> {
    let dir = tempfile::tempdir()?;
    for (name, bytes) in &base.files {
        open::write_private_file(&dir.path().join(name), bytes)?;
    }
    let mut expected = base.truth.clone();
    let options = ["--script", "--run", "2"].map(str::to_owned);
    let mut writer =
        WriterProcess::start(dir.path(), &options, &shim.environment(dir.path(), fault))?;
    let status = writer.wait_exit(&mut expected)?;
    let hits: Vec<&str> = expected
        .hits
        .iter()
        .filter_map(|call| CALLS.get(usize::from(*call)).copied())
        .collect();
    let acknowledged = expected.acknowledged;
    tally.runs += 1;
    tally.acknowledged += acknowledged;
    tally.panics += u64::from(!status.success());
    tally.misread += expected.misread;
    tally.false_acks += expected.after_poison;
    let Some(first) = hits.first().copied() else {
        return Ok(false);
    };
    *tally.hits.entry(first).or_default() += 1;
    let syncs = SYNCS.contains(&first);
    if syncs && expected.after_hit > 0 {
        tally.after_sync += expected.after_hit;
        tally
            .broken
            .told
            .push(format!("{fault:?}: {} after {first}", expected.after_hit));
    }
    // After a transient full disk, existing messages can be settled.
    let passing = matches!(fault, ShimFault::Once("enospc" | "short", _)) && !syncs;
    if passing && expected.opened == 2 && expected.after_hit == 0 && expected.refused_after_hit > 1
    {
        tally.unheard += 1;
        let (refused, poisoned) = (expected.refused, expected.poisoned);
        let words = format!("{fault:?} at {first}: {refused} refused, {poisoned} poisoned");
        tally.broken.told.push(words);
    }
    check_reopened(
        dir.path(),
        &mut expected,
        &format!("{fault:?} at {first}"),
        tally,
    )?;
    if expected.misread + expected.after_poison > 0 || !status.success() {
        let words = format!(
            "{fault:?} at {first}: {} misread, {status}",
            expected.misread
        );
        tally.broken.told.push(words);
    }
    tally.broken.told.truncate(20);
    Ok(true)
}

/// Opens the journal after the fault and compares the content with the acknowledged state.
fn check_reopened(
    dir: &Path,
    expected: &mut ExpectedState,
    fault: &str,
    tally: &mut FaultTally,
) -> Result<()> {
    let journal = match open::open_journal(dir) {
        Ok(journal) => journal,
        Err(error) => {
            tally.shut += 1;
            tally.broken.told.push(format!("{fault}: {error:#}"));
            return Ok(());
        }
    };
    let mut broken = open::block_on(async {
        let found = expected
            .compare_journal(journal.as_ref(), ResultLookup::All)
            .await;
        journal.close().await;
        found
    })??;
    tally.false_acks += broken.total();
    for words in &mut broken.told {
        *words = format!("{fault}: {words}");
    }
    tally.broken.merge(broken);
    Ok(())
}

/// Journal with initial content.
#[derive(Debug)]
struct BaseJournal {
    files: Vec<(OsString, Vec<u8>)>,
    truth: ExpectedState,
}

impl BaseJournal {
    fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let options = ["--script", "--run", "1"].map(str::to_owned);
        let mut expected = ExpectedState::default();
        let status = WriterProcess::start(dir.path(), &options, &[])?.wait_exit(&mut expected)?;
        let well = status.success() && expected.over == 1;
        ensure!(well, "the script fails on a good disk ({status})");
        let mut files = Vec::new();
        for file in fs::read_dir(dir.path())? {
            let file = file?;
            files.push((file.file_name(), fs::read(file.path())?));
        }
        Ok(Self {
            files,
            truth: expected,
        })
    }
}
