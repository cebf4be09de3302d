//! Single bit flips in the files of a journal: every read is correct or reports damage.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bowline_journal::{
    CompletedMessage, Journal, JournalError, LaneName, LaneStats, LeaseOrder, MessageFilter,
    MessageId, MessageStatus, MessageView, VersionedValue,
};
use bytes::Bytes;
use serde_json::json;

use crate::args::Args;
use crate::child::WriterProcess;
use crate::model::ExpectedState;
use crate::open::{self, Clock, FILE, WAL};
use crate::writer::LEASE_TIME;
use crate::{PartReport, kill, plan};

/// Rows per page.
const PAGE: usize = 1_000;

/// Bytes before the first WAL frame, and before the page of a frame.
const LOG_HEADER_BYTES: usize = 32;
const LOG_FRAME_BYTES: usize = 24;

/// Damage reports printed in full.
const TOLD_MAX: usize = 20;

/// How long the writer fills the journal.
const LIFE: Duration = Duration::from_millis(150);

/// Complete content of a journal.
#[derive(Debug)]
struct Contents {
    entries: Vec<MessageView>,
    results: Vec<(LaneName, Arc<str>, Option<CompletedMessage>)>,
    values: Vec<(Arc<str>, VersionedValue)>,
    lanes: Vec<LaneStats>,
}

/// Written journal with its files.
#[derive(Debug)]
struct Specimen {
    name: &'static str,
    files: JournalFiles,
    contents: Contents,
    /// Content without the last transaction.
    before: Contents,
    /// Offset of the last WAL transaction.
    last: usize,
}

/// Observations after a bit flip.
#[derive(Debug, Default)]
struct FlipResult {
    errors: u64,
    /// Errors other than `Damaged`.
    others: Vec<String>,
    wrong: Vec<String>,
    missing: Vec<String>,
    /// Rows with only a wrong position.
    shifted: u64,
    /// Whether the engine reports damage.
    reported: bool,
}

#[derive(Debug, Default)]
struct FlipTally {
    unaffected: u64,
    not_opened: u64,
    named: u64,
    reported: u64,
    unfinished: u64,
    silent: u64,
    by_file: HashMap<String, u64>,
    told: Vec<String>,
    others: Vec<String>,
}

/// Flips bits one at a time, each in a fresh copy.
pub(crate) fn run_flips(args: &Args) -> Result<PartReport> {
    let (flips, seed): (u64, u64) = (
        args.number_option("rounds", 1_000)?,
        args.number_option("seed", 1)?,
    );
    let specimens = [
        write_specimen("closed", seed)?,
        write_specimen("killed", seed)?,
    ];
    let mut tally = FlipTally::default();
    let only: Option<u64> = args
        .has_option("only")
        .then(|| args.number_option("only", 0))
        .transpose()?;
    for nth in 0..flips {
        if only.is_some_and(|only| only != nth) {
            continue;
        }
        let mut random = fastrand::Rng::with_seed(seed.wrapping_mul(1_000_003) + nth);
        let specimen = specimens
            .get(random.usize(..specimens.len()))
            .context("no specimen")?;
        flip_one_bit(specimen, nth, &mut random, &mut tally)?;
    }
    let told = json!({
        "part": "flips", "flips": flips, "seed": seed, "by_file": tally.by_file,
        "unaffected": tally.unaffected, "not_opened": tally.not_opened, "named": tally.named,
        "reported": tally.reported, "unfinished": tally.unfinished, "silent": tally.silent,
        "panics": args.panic_count(),
        "rows": specimens.iter().map(|one| one.contents.entries.len()).collect::<Vec<_>>(),
        "told": tally.told, "other_errors": tally.others,
    });
    Ok(PartReport {
        tally: told,
        is_passed: tally.silent == 0 && args.panic_count() == 0,
    })
}

/// Writes a journal, closed or killed, and reads its content.
fn write_specimen(name: &'static str, seed: u64) -> Result<Specimen> {
    let dir = tempfile::tempdir()?;
    let mut expected = ExpectedState::default();
    let mut options = kill::writer_options(1, 8, seed);
    if name == "closed" {
        options.extend(["--messages", "60", "--close"].map(str::to_owned));
        let status = WriterProcess::start(dir.path(), &options, &[])?.wait_exit(&mut expected)?;
        ensure!(status.success(), "the writer failed ({status})");
    } else {
        let mut writer = WriterProcess::start(dir.path(), &options, &[])?;
        writer.wait_first_ack(&mut expected)?;
        writer.read_for(&mut expected, LIFE)?;
        writer.kill_writer(&mut expected)?;
    }
    let files = read_files(dir.path())?;
    let mut cut = files.clone();
    let log = cut.iter_mut().find(|(name, _)| name.as_os_str() == WAL);
    let last = log.map_or(usize::MAX, |(_, log)| {
        let last = last_transaction(log);
        log.truncate(last);
        last
    });
    Ok(Specimen {
        name,
        contents: read_contents_of(&files, &expected)?,
        before: read_contents_of(&cut, &expected)?,
        files,
        last,
    })
}

fn read_contents_of(files: &JournalFiles, expected: &ExpectedState) -> Result<Contents> {
    let dir = tempfile::tempdir()?;
    for (name, bytes) in files {
        open::write_private_file(&dir.path().join(name), bytes)?;
    }
    let journal = open::open_journal(dir.path())?;
    open::block_on(async {
        let contents = read_contents(journal.as_ref(), expected).await;
        journal.close().await;
        contents
    })?
}

/// Returns the offset of the last WAL transaction. A flipped bit in this transaction looks like a
/// transaction cut off by a crash.
fn last_transaction(log: &[u8]) -> usize {
    let word = |at: usize| log.get(at..).and_then(|rest| rest.first_chunk().copied());
    let number = |at: usize| word(at).map_or(0, u32::from_be_bytes);
    let page = usize::try_from(number(8)).unwrap_or(0);
    let (mut at, mut ends) = (LOG_HEADER_BYTES, vec![LOG_HEADER_BYTES]);
    while at < log.len() && (number(at + 8), number(at + 12)) == (number(16), number(20)) {
        let is_commit = number(at + 4) != 0;
        at += LOG_FRAME_BYTES + page;
        if is_commit {
            ends.push(at);
        }
    }
    ends.pop();
    ends.pop().unwrap_or(0)
}

/// Reads the files with rows.
fn read_files(dir: &Path) -> Result<JournalFiles> {
    let mut files = Vec::new();
    for file in fs::read_dir(dir)? {
        let file = file?;
        let name = PathBuf::from(file.file_name());
        // The WAL index is rebuilt after a crash, and the remaining files hold no rows.
        if matches!(name.to_str(), Some(FILE | WAL)) {
            files.push((name, fs::read(file.path())?));
        }
    }
    ensure!(!files.is_empty(), "the journal has no files");
    files.sort();
    Ok(files)
}

async fn read_contents(journal: &dyn Journal, expected: &ExpectedState) -> Result<Contents> {
    let at = Clock::new().timestamps();
    let entries = list_messages(journal).await?;
    let mut results = Vec::new();
    for number in expected.numbers() {
        let (lane, dedupe) = (plan::number_lane(number)?, plan::number_dedupe_id(number));
        let done = journal.get_result(&lane, &dedupe).await?;
        results.push((lane, dedupe, done));
    }
    let values = journal.list_values(plan::PREFIX, usize::MAX).await?;
    let lanes = journal.lane_stats(plan::PREFIX, at).await?;
    Ok(Contents {
        entries,
        results,
        values,
        lanes,
    })
}

async fn list_messages(journal: &dyn Journal) -> Result<Vec<MessageView>, JournalError> {
    let at = Clock::new().timestamps();
    let mut filter = MessageFilter {
        lanes: plan::PREFIX.to_owned(),
        limit: PAGE,
        ..MessageFilter::default()
    };
    let mut entries = Vec::new();
    loop {
        let page = journal.list_messages(filter.clone(), at).await?;
        let Some(last) = page.last() else {
            return Ok(entries);
        };
        filter.after = Some(last.id);
        entries.extend(page);
    }
}

/// Files of a journal, by name.
type JournalFiles = Vec<(PathBuf, Vec<u8>)>;

/// Writes files into a new directory, opens the journal and reads everything; the inner error is
/// the error of opening.
fn read_flipped(files: &JournalFiles, right: &Contents) -> Result<Result<FlipResult>> {
    let dir = tempfile::tempdir()?;
    for (name, bytes) in files {
        open::write_private_file(&dir.path().join(name), bytes)?;
    }
    let journal = match open::open_journal(dir.path()) {
        Ok(journal) => journal,
        Err(error) => return Ok(Err(error)),
    };
    open::block_on(async {
        let mut seen = FlipResult::default();
        seen.read_journal(journal.as_ref(), right).await;
        seen.reported = open::reported_damage(journal.as_ref()).is_some();
        journal.close().await;
        Ok(Ok(seen))
    })?
}

/// Flips a bit in a copy and reads everything.
fn flip_one_bit(
    specimen: &Specimen,
    nth: u64,
    random: &mut fastrand::Rng,
    tally: &mut FlipTally,
) -> Result<()> {
    let mut files = specimen.files.clone();
    let which = random.usize(..files.len());
    let (name, bytes) = files.get_mut(which).context("no file")?;
    ensure!(!bytes.is_empty(), "{} is empty", name.display());
    let (at, bit) = (random.usize(..bytes.len()), random.u8(..8));
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << bit;
    }
    let in_last = name.as_os_str() == WAL && at >= specimen.last;
    let file = format!("{} {}", specimen.name, name.display());
    let place = format!("#{nth} {file}@{at}.{bit}");
    *tally.by_file.entry(file).or_default() += 1;
    let seen = match read_flipped(&files, &specimen.contents)? {
        Ok(seen) => seen,
        Err(error) => {
            tally.not_opened += 1;
            tally.note_other_error(format!("{place}: {error:#}"));
            return Ok(());
        }
    };
    if in_last && !seen.is_correct() {
        let before = read_flipped(&files, &specimen.before)?;
        if before.is_ok_and(|seen| seen.is_correct() && seen.errors == 0) {
            tally.unfinished += 1;
            return Ok(());
        }
    }
    tally.record_result(&place, &seen);
    Ok(())
}

impl FlipTally {
    fn note_other_error(&mut self, words: String) {
        if self.others.len() < TOLD_MAX {
            self.others.push(words);
        }
    }

    fn record_result(&mut self, place: &str, seen: &FlipResult) {
        for other in &seen.others {
            self.note_other_error(format!("{place}: {other}"));
        }
        let missing_unsaid = !seen.missing.is_empty() && seen.errors == 0 && !seen.reported;
        let shifted_unsaid = seen.shifted > 0 && seen.errors == 0;
        if !seen.wrong.is_empty() || missing_unsaid || shifted_unsaid {
            self.silent += 1;
            if self.told.len() < TOLD_MAX {
                let (wrong, missing) = (&seen.wrong, &seen.missing);
                let first: Vec<_> = wrong.iter().chain(missing).take(3).collect();
                let (wrong, missing) = (wrong.len(), missing.len());
                self.told.push(format!(
                    "{place}: {wrong} wrong, {missing} missing: {first:?}"
                ));
            }
        } else if seen.errors > 0 {
            self.named += 1;
        } else if seen.reported {
            self.reported += 1;
        } else {
            self.unaffected += 1;
        }
    }
}

impl FlipResult {
    const fn is_correct(&self) -> bool {
        self.wrong.is_empty() && self.missing.is_empty() && self.shifted == 0
    }

    async fn read_journal(&mut self, journal: &dyn Journal, right: &Contents) {
        let at = Clock::new().timestamps();
        if let Some(entries) = self.take_ok("inspect", list_messages(journal).await) {
            let by_id: HashMap<MessageId, &MessageView> =
                entries.iter().map(|one| (one.id, one)).collect();
            for entry in &right.entries {
                self.compare_view("inspect", by_id.get(&entry.id).copied(), entry);
            }
            // A row reported as damaged may stand for a row that never existed.
            let whole = |entry: &&MessageView| entry.status != MessageStatus::Damaged;
            if entries.iter().filter(whole).count() > right.entries.len() {
                self.wrong
                    .push(format!("{} rows of {}", entries.len(), right.entries.len()));
            }
        }
        for entry in &right.entries {
            if let Some(found) = self.take_ok("entry", journal.get_message(entry.id, at).await) {
                self.compare_view("entry", found.as_ref(), entry);
            }
        }
        for (lane, dedupe, done) in &right.results {
            let Some(found) = self.take_ok("result", journal.get_result(lane, dedupe).await) else {
                continue;
            };
            match (&found, &done) {
                (None, Some(_)) => self.missing.push(format!("result {dedupe}")),
                (found, done) if *found != **done => self.wrong.push(format!("result {dedupe}")),
                _ => {}
            }
        }
        for (key, value) in &right.values {
            match self.take_ok("get", journal.get_value(key).await) {
                Some(None) => self.missing.push(format!("value {key}")),
                Some(Some(found)) if found != *value => self.wrong.push(format!("value {key}")),
                _ => {}
            }
        }
        if let Some(list) =
            self.take_ok("list", journal.list_values(plan::PREFIX, usize::MAX).await)
        {
            if list.len() < right.values.len() {
                self.missing.push("values of a list".to_owned());
            } else if list != right.values {
                self.wrong.push("list".to_owned());
            }
        }
        let lanes = self.take_ok("lanes", journal.lane_stats(plan::PREFIX, at).await);
        if lanes.is_some_and(|lanes| lanes != right.lanes) {
            self.missing.push("lanes".to_owned());
        }
        self.lease_all(journal, right).await;
    }

    /// Leases every queued message, as a drain would.
    async fn lease_all(&mut self, journal: &dyn Journal, right: &Contents) {
        let at = Clock::new().timestamps();
        let by_id: HashMap<MessageId, &MessageView> = right
            .entries
            .iter()
            .map(|entry| (entry.id, entry))
            .collect();
        for view in &right.lanes {
            let leased = journal
                .lease(&view.lane, LeaseOrder::Any, usize::MAX, LEASE_TIME, at)
                .await;
            let Some(given) = self.take_ok("lease", leased) else {
                continue;
            };
            let count = u64::try_from(given.len()).unwrap_or(u64::MAX);
            if count < view.queued {
                self.missing
                    .push(format!("{count} of {} leased", view.queued));
            }
            for delivery in given {
                let entry = by_id.get(&delivery.receipt.id);
                let same = entry.is_some_and(|entry| {
                    (&entry.dedupe, &entry.body) == (&delivery.dedupe, &delivery.body)
                        && entry.lane == view.lane
                });
                if !same {
                    self.wrong.push(format!("leased {:?}", delivery.receipt.id));
                }
            }
        }
    }

    fn compare_view(&mut self, what: &str, found: Option<&MessageView>, right: &MessageView) {
        match found {
            None => self.missing.push(format!("{what} {}", right.dedupe)),
            Some(found) if found.status == MessageStatus::Damaged => self.errors += 1,
            // Positions behind a damaged row do not count the damaged row.
            Some(found)
                if (MessageView {
                    position: right.position,
                    ..found.clone()
                }) == *right =>
            {
                self.shifted += u64::from(found.position != right.position);
            }
            Some(found) => {
                let found = MessageView {
                    body: Bytes::new(),
                    ..found.clone()
                };
                self.wrong.push(format!("{what}: {found:?}"));
            }
        }
    }

    fn take_ok<T>(&mut self, what: &str, outcome: Result<T, JournalError>) -> Option<T> {
        match outcome {
            Ok(given) => Some(given),
            Err(error) => {
                self.errors += 1;
                if !matches!(error, JournalError::Damaged { .. }) && self.others.is_empty() {
                    self.others.push(format!("{what}: {error}"));
                }
                None
            }
        }
    }
}
