//! Simulated power cuts: the device content at a stop of all threads is mounted, opened and
//! compared.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use crate::args::Args;
use crate::child::WriterProcess;
use crate::disk::{self, Disk};
use crate::model::{BrokenPromises, ExpectedState, ResultLookup};
use crate::shim::{Shim, ShimFault};
use crate::{PartReport, kill, open};

/// Size of the disk in bytes.
const DISK_BYTES: u64 = 256 * 1024 * 1024;

/// Milliseconds between the writer's first acknowledgement and the cut.
const LIFE_MS: std::ops::Range<u64> = 20..700;

/// WAL suffix: a disk that drops WAL syncs shows whether this part detects losses.
const WAL_SUFFIX: &str = "-wal";

/// Runs the power cuts. With `--unsynced`, the disk drops syncs of the WAL.
pub(crate) fn run_power_cuts(args: &Args) -> Result<PartReport> {
    let cuts: u64 = args.number_option("rounds", 25)?;
    if let Some(why) = disk::unavailable_reason() {
        let tally = json!({"part": "cut", "cuts": 0, "left_out": why});
        return Ok(PartReport {
            tally,
            is_passed: true,
        });
    }
    let (producers, seed) = (
        args.number_option("producers", 32)?,
        args.number_option("seed", 1)?,
    );
    let mut random = fastrand::Rng::with_seed(seed);
    let home = tempfile::tempdir()?;
    let disk = Disk::new(home.path(), "disk", DISK_BYTES)?;
    open::create_private_dir(&disk.state_dir())?;
    let shim = match args.has_option("unsynced") {
        true => Shim::compile(home.path())?
            .environment(&disk.state_dir(), ShimFault::Unsynced(WAL_SUFFIX)),
        false => Vec::new(),
    };
    let mut expected = ExpectedState::default();
    let (mut after_cut, mut after_kill) = (BrokenPromises::default(), BrokenPromises::default());
    let (mut shut, mut rounds_bad) = (0, 0);
    for round in 1..=cuts {
        let options = kill::writer_options(round, producers, seed ^ round);
        let mut writer = WriterProcess::start(&disk.state_dir(), &options, &shim)?;
        writer.wait_first_ack(&mut expected)?;
        writer.read_for(&mut expected, Duration::from_millis(random.u64(LIFE_MS)))?;
        writer.stop_threads()?;
        writer.drain_pipe(&mut expected)?;
        let copy = disk.copy_as_cut(home.path())?;
        writer.kill_writer(&mut expected)?;
        // The state found in the copy must not become the expectation for the original disk.
        let found = compare_journal(&copy.state_dir(), &mut expected.clone());
        drop(copy);
        rounds_bad += u64::from(found.as_ref().map_or(true, |broken| broken.total() > 0));
        match found {
            Ok(broken) => after_cut.merge(broken),
            Err(error) => {
                shut += 1;
                after_cut.told.push(format!("cut {round}: {error:#}"));
            }
        }
        after_kill.merge(compare_journal(&disk.state_dir(), &mut expected)?);
    }
    let mut tally = json!({
        "part": "cut", "cuts": cuts, "producers": producers,
        "unsynced": args.has_option("unsynced"), "acknowledged": expected.acknowledged,
        "published": expected.published, "ended": expected.ended,
        "open_failures": shut + expected.shut, "rounds_bad": rounds_bad,
        "panics": args.panic_count(), "broken_after_kill": after_kill.to_json(),
    });
    crate::merge_objects(&mut tally, after_cut.to_json());
    let bad = after_cut.total() + after_kill.total() + shut + expected.shut + args.panic_count();
    Ok(PartReport {
        tally,
        is_passed: bad == 0,
    })
}

fn compare_journal(dir: &Path, expected: &mut ExpectedState) -> Result<BrokenPromises> {
    let journal = open::open_journal(dir)?;
    open::block_on(async {
        let found = expected
            .compare_journal(journal.as_ref(), ResultLookup::Recent)
            .await;
        journal.close().await;
        found
    })?
}
