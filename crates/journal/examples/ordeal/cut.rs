//! Simulated power cuts: what had reached the device when everything stood still is mounted,
//! opened and compared.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use crate::args::Args;
use crate::child::Suffering;
use crate::disk::{self, Disk};
use crate::model::{Broken, Results, Truth};
use crate::shim::{Fault, Shim};
use crate::{Outcome, kill, open};

/// Bytes of the disk.
const DISK_BYTES: u64 = 256 * 1024 * 1024;

/// Milliseconds between the first acknowledgement of a writer and the cut.
const LIFE_MS: std::ops::Range<u64> = 20..700;

/// The log of the engine: a disk that lies about it shows whether this part sees losses at all.
const LOG: &str = "-wal";

/// Cuts the power so many times. With `--unsynced`, the disk lies about syncs of the log.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let cuts: u64 = args.number("rounds", 25)?;
    if let Some(why) = disk::missing() {
        let tally = json!({"part": "cut", "cuts": 0, "left_out": why});
        return Ok(Outcome { tally, kept: true });
    }
    let (producers, seed) = (args.number("producers", 32)?, args.number("seed", 1)?);
    let mut random = fastrand::Rng::with_seed(seed);
    let home = tempfile::tempdir()?;
    let disk = Disk::new(home.path(), "disk", DISK_BYTES)?;
    open::directory(&disk.state())?;
    let shim = match args.has("unsynced") {
        true => Shim::build(home.path())?.env(&disk.state(), Fault::Unsynced(LOG)),
        false => Vec::new(),
    };
    let mut truth = Truth::default();
    let (mut after_cut, mut after_kill) = (Broken::default(), Broken::default());
    let (mut shut, mut rounds_bad) = (0, 0);
    for round in 1..=cuts {
        let options = kill::options(round, producers, seed ^ round);
        let mut writer = Suffering::start(&disk.state(), &options, &shim)?;
        writer.first(&mut truth)?;
        writer.listen(&mut truth, Duration::from_millis(random.u64(LIFE_MS)))?;
        writer.stop()?;
        writer.drain(&mut truth)?;
        let copy = disk.cut(home.path())?;
        writer.kill(&mut truth)?;
        // What the copy shows must not become what is expected of the disk that went on.
        let found = look(&copy.state(), &mut truth.clone());
        drop(copy);
        rounds_bad += u64::from(found.as_ref().map_or(true, |broken| broken.count() > 0));
        match found {
            Ok(broken) => after_cut.add(broken),
            Err(error) => {
                shut += 1;
                after_cut.told.push(format!("cut {round}: {error:#}"));
            }
        }
        after_kill.add(look(&disk.state(), &mut truth)?);
    }
    let mut tally = json!({
        "part": "cut", "cuts": cuts, "producers": producers, "unsynced": args.has("unsynced"),
        "acknowledged": truth.acknowledged, "published": truth.published, "ended": truth.ended,
        "open_failures": shut + truth.shut, "rounds_bad": rounds_bad, "panics": args.panics(),
        "broken_after_kill": after_kill.json(),
    });
    crate::merge(&mut tally, after_cut.json());
    let bad = after_cut.count() + after_kill.count() + shut + truth.shut + args.panics();
    Ok(Outcome {
        tally,
        kept: bad == 0,
    })
}

fn look(dir: &Path, truth: &mut Truth) -> Result<Broken> {
    let journal = open::open(dir)?;
    open::wait(async {
        let found = truth.compare(journal.as_ref(), Results::Recent).await;
        journal.close().await;
        found
    })?
}
