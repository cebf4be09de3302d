//! A disk that fails at the first call, at the second, and so on until the script comes through.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;

use anyhow::{Result, ensure};
use serde_json::json;

use crate::args::Args;
use crate::child::Suffering;
use crate::model::{Broken, Results, Truth};
use crate::shim::{CALLS, Fault, Shim};
use crate::{Outcome, open};

/// Call indexes of one script at most.
const CALLS_MAX: u64 = 20_000;

const KINDS: [&str; 3] = ["eio", "enospc", "short"];

/// The calls of which nothing is known once they failed.
const SYNCS: [&str; 2] = ["fsync", "fdatasync"];

#[derive(Debug, Default)]
struct Tally {
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
    broken: Broken,
}

/// Goes through every call index, for every kind of failure, once and from then on.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let home = tempfile::tempdir()?;
    let shim = Shim::build(home.path())?;
    let mut tally = Tally::default();
    let step: u64 = args.number("step", 1)?;
    let base = Base::new()?;
    for kind in KINDS {
        for (name, fault) in [
            (
                "once",
                Fault::Once as fn(&'static str, u64) -> Fault<'static>,
            ),
            ("on", Fault::From),
        ] {
            let mut at = 1;
            while one(&shim, &base, fault(kind, at), &mut tally)? {
                at += step;
                ensure!(at < CALLS_MAX, "the script has no end");
            }
            tally.indexes.insert(format!("{kind}, {name}"), at - step);
        }
    }
    let mut told = json!({
        "part": "faults", "runs": tally.runs, "indexes": tally.indexes, "hits": tally.hits,
        "acknowledged": tally.acknowledged, "false_acknowledgements": tally.false_acks,
        "panics": tally.panics + args.panics(), "reads_failed": tally.misread,
        "open_failures": tally.shut, "acknowledged_after_failed_sync": tally.after_sync,
        "not_acknowledged_after_a_passing_fault": tally.unheard,
    });
    crate::merge(&mut told, tally.broken.json());
    let bad = tally.false_acks + tally.panics + tally.misread + tally.shut + tally.after_sync;
    let bad = bad + tally.unheard;
    Ok(Outcome {
        tally: told,
        kept: bad == 0 && args.panics() == 0,
    })
}

/// One run of the script; whether the fault was met.
fn one(shim: &Shim, base: &Base, fault: Fault<'_>, tally: &mut Tally) -> Result<bool> {
    let dir = tempfile::tempdir()?;
    for (name, bytes) in &base.files {
        open::write(&dir.path().join(name), bytes)?;
    }
    let mut truth = base.truth.clone();
    let options = ["--script", "--run", "2"].map(str::to_owned);
    let mut writer = Suffering::start(dir.path(), &options, &shim.env(dir.path(), fault))?;
    let status = writer.end(&mut truth)?;
    let hits: Vec<&str> = truth
        .hits
        .iter()
        .filter_map(|call| CALLS.get(usize::from(*call)).copied())
        .collect();
    let acknowledged = truth.acknowledged;
    tally.runs += 1;
    tally.acknowledged += acknowledged;
    tally.panics += u64::from(!status.success());
    tally.misread += truth.misread;
    tally.false_acks += truth.after_poison;
    let Some(first) = hits.first().copied() else {
        return Ok(false);
    };
    *tally.hits.entry(first).or_default() += 1;
    let syncs = SYNCS.contains(&first);
    if syncs && truth.after_hit > 0 {
        tally.after_sync += truth.after_hit;
        tally
            .broken
            .told
            .push(format!("{fault:?}: {} after {first}", truth.after_hit));
    }
    // Where the disk had no room once, what is there can be ended afterwards.
    let passing = matches!(fault, Fault::Once("enospc" | "short", _)) && !syncs;
    if passing && truth.opened == 2 && truth.after_hit == 0 && truth.refused_after_hit > 1 {
        tally.unheard += 1;
        let (refused, poisoned) = (truth.refused, truth.poisoned);
        let words = format!("{fault:?} at {first}: {refused} refused, {poisoned} poisoned");
        tally.broken.told.push(words);
    }
    match open::open(dir.path()) {
        Err(error) => {
            tally.shut += 1;
            tally
                .broken
                .told
                .push(format!("{fault:?} at {first}: {error:#}"));
        }
        Ok(journal) => {
            let mut broken = open::wait(async {
                let found = truth.compare(journal.as_ref(), Results::All).await;
                journal.close().await;
                found
            })??;
            tally.false_acks += broken.count();
            for words in &mut broken.told {
                *words = format!("{fault:?} at {first}: {words}");
            }
            tally.broken.add(broken);
        }
    }
    if truth.misread + truth.after_poison > 0 || !status.success() {
        let words = format!("{fault:?} at {first}: {} misread, {status}", truth.misread);
        tally.broken.told.push(words);
    }
    tally.broken.told.truncate(20);
    Ok(true)
}

/// A journal with something in it, so that there is something to lose.
#[derive(Debug)]
struct Base {
    files: Vec<(OsString, Vec<u8>)>,
    truth: Truth,
}

impl Base {
    fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let options = ["--script", "--run", "1"].map(str::to_owned);
        let mut truth = Truth::default();
        let status = Suffering::start(dir.path(), &options, &[])?.end(&mut truth)?;
        let well = status.success() && truth.over == 1;
        ensure!(well, "the script fails on a good disk ({status})");
        let mut files = Vec::new();
        for file in fs::read_dir(dir.path())? {
            let file = file?;
            files.push((file.file_name(), fs::read(file.path())?));
        }
        Ok(Self { files, truth })
    }
}
