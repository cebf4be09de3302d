//! Single bits that turn over in the files of a journal: every read is right, or says that
//! something is damaged.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bowline_journal::{
    Done, Entry, Filter, Journal, JournalError, Lane, LaneView, MessageId, Order, Standing, Value,
};
use bytes::Bytes;
use serde_json::json;

use crate::args::Args;
use crate::child::Suffering;
use crate::model::Truth;
use crate::open::{self, Clock, FILE, LOG};
use crate::writer::HOLD;
use crate::{Outcome, kill, plan};

/// Rows that are read at once.
const PAGE: usize = 1_000;

/// What stands before the first frame of a log, and what stands before the page of a frame.
const LOG_HEADER_BYTES: usize = 32;
const LOG_FRAME_BYTES: usize = 24;

/// Damage that is told word by word.
const TOLD_MAX: usize = 20;

/// How long the writer fills the journal that is damaged.
const LIFE: Duration = Duration::from_millis(150);

/// Everything a journal says.
#[derive(Debug)]
struct Contents {
    entries: Vec<Entry>,
    results: Vec<(Lane, Arc<str>, Option<Done>)>,
    values: Vec<(Arc<str>, Value)>,
    lanes: Vec<LaneView>,
}

/// A journal that was written, and the files it consists of.
#[derive(Debug)]
struct Specimen {
    name: &'static str,
    files: Files,
    contents: Contents,
    /// The same, without its last transaction.
    before: Contents,
    /// Where the last transaction of the log begins.
    last: usize,
}

/// What was seen of one flipped bit.
#[derive(Debug, Default)]
struct Seen {
    errors: u64,
    /// Errors that do not say `Damaged`.
    others: Vec<String>,
    wrong: Vec<String>,
    missing: Vec<String>,
    /// Rows that are right but for their place.
    shifted: u64,
    /// Whether the engine says that something is amiss.
    reported: bool,
}

#[derive(Debug, Default)]
struct Tally {
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

/// Flips so many bits, one at a time, each in a fresh copy.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let (flips, seed): (u64, u64) = (args.number("rounds", 1_000)?, args.number("seed", 1)?);
    let specimens = [specimen("closed", seed)?, specimen("killed", seed)?];
    let mut tally = Tally::default();
    let only: Option<u64> = args
        .has("only")
        .then(|| args.number("only", 0))
        .transpose()?;
    for nth in 0..flips {
        if only.is_some_and(|only| only != nth) {
            continue;
        }
        let mut random = fastrand::Rng::with_seed(seed.wrapping_mul(1_000_003) + nth);
        let specimen = specimens
            .get(random.usize(..specimens.len()))
            .context("no specimen")?;
        one(specimen, nth, &mut random, &mut tally)?;
    }
    let told = json!({
        "part": "flips", "flips": flips, "seed": seed, "by_file": tally.by_file,
        "unaffected": tally.unaffected, "not_opened": tally.not_opened, "named": tally.named,
        "reported": tally.reported, "unfinished": tally.unfinished, "silent": tally.silent,
        "panics": args.panics(),
        "rows": specimens.iter().map(|one| one.contents.entries.len()).collect::<Vec<_>>(),
        "told": tally.told, "other_errors": tally.others,
    });
    Ok(Outcome {
        tally: told,
        kept: tally.silent == 0 && args.panics() == 0,
    })
}

/// Writes a journal, either to its end or until it is killed, and reads what it says.
fn specimen(name: &'static str, seed: u64) -> Result<Specimen> {
    let dir = tempfile::tempdir()?;
    let mut truth = Truth::default();
    let mut options = kill::options(1, 8, seed);
    if name == "closed" {
        options.extend(["--messages", "60", "--close"].map(str::to_owned));
        let status = Suffering::start(dir.path(), &options, &[])?.end(&mut truth)?;
        ensure!(status.success(), "the writer failed ({status})");
    } else {
        let mut writer = Suffering::start(dir.path(), &options, &[])?;
        writer.first(&mut truth)?;
        writer.listen(&mut truth, LIFE)?;
        writer.kill(&mut truth)?;
    }
    let files = files(dir.path())?;
    let mut cut = files.clone();
    let log = cut.iter_mut().find(|(name, _)| name.as_os_str() == LOG);
    let last = log.map_or(usize::MAX, |(_, log)| {
        let last = last_transaction(log);
        log.truncate(last);
        last
    });
    Ok(Specimen {
        name,
        contents: contents_of(&files, &truth)?,
        before: contents_of(&cut, &truth)?,
        files,
        last,
    })
}

fn contents_of(files: &Files, truth: &Truth) -> Result<Contents> {
    let dir = tempfile::tempdir()?;
    for (name, bytes) in files {
        open::write(&dir.path().join(name), bytes)?;
    }
    let journal = open::open(dir.path())?;
    open::wait(async {
        let contents = contents(journal.as_ref(), truth).await;
        journal.close().await;
        contents
    })?
}

/// Where the last transaction of a log begins. One bit flipped in it makes it a transaction that
/// was never finished, which nobody can tell from one that a crash cut off.
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

/// The files that hold rows, with their bytes.
fn files(dir: &Path) -> Result<Files> {
    let mut files = Vec::new();
    for file in fs::read_dir(dir)? {
        let file = file?;
        let name = PathBuf::from(file.file_name());
        // The index of the log is built anew after a crash, and the rest holds no rows.
        if matches!(name.to_str(), Some(FILE | LOG)) {
            files.push((name, fs::read(file.path())?));
        }
    }
    ensure!(!files.is_empty(), "the journal has no files");
    files.sort();
    Ok(files)
}

async fn contents(journal: &dyn Journal, truth: &Truth) -> Result<Contents> {
    let at = Clock::new().at();
    let entries = inspect(journal).await?;
    let mut results = Vec::new();
    for number in truth.numbers() {
        let (lane, dedupe) = (plan::lane(number)?, plan::dedupe(number));
        let done = journal.result(&lane, &dedupe).await?;
        results.push((lane, dedupe, done));
    }
    let values = journal.list(plan::PREFIX, usize::MAX).await?;
    let lanes = journal.lanes(plan::PREFIX, at).await?;
    Ok(Contents {
        entries,
        results,
        values,
        lanes,
    })
}

async fn inspect(journal: &dyn Journal) -> Result<Vec<Entry>, JournalError> {
    let at = Clock::new().at();
    let mut filter = Filter {
        lanes: plan::PREFIX.to_owned(),
        limit: PAGE,
        ..Filter::default()
    };
    let mut entries = Vec::new();
    loop {
        let page = journal.inspect(filter.clone(), at).await?;
        let Some(last) = page.last() else {
            return Ok(entries);
        };
        filter.after = Some(last.id);
        entries.extend(page);
    }
}

/// The files of a journal, by name.
type Files = Vec<(PathBuf, Vec<u8>)>;

/// Writes files into a new directory, opens the journal there and reads everything; the error is
/// that of opening.
fn read(files: &Files, right: &Contents) -> Result<Result<Seen>> {
    let dir = tempfile::tempdir()?;
    for (name, bytes) in files {
        open::write(&dir.path().join(name), bytes)?;
    }
    let journal = match open::open(dir.path()) {
        Ok(journal) => journal,
        Err(error) => return Ok(Err(error)),
    };
    open::wait(async {
        let mut seen = Seen::default();
        seen.read(journal.as_ref(), right).await;
        seen.reported = open::reported(journal.as_ref()).is_some();
        journal.close().await;
        Ok(Ok(seen))
    })?
}

/// Flips one bit in a copy and reads everything.
fn one(specimen: &Specimen, nth: u64, random: &mut fastrand::Rng, tally: &mut Tally) -> Result<()> {
    let mut files = specimen.files.clone();
    let which = random.usize(..files.len());
    let (name, bytes) = files.get_mut(which).context("no file")?;
    ensure!(!bytes.is_empty(), "{} is empty", name.display());
    let (at, bit) = (random.usize(..bytes.len()), random.u8(..8));
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << bit;
    }
    let in_last = name.as_os_str() == LOG && at >= specimen.last;
    let file = format!("{} {}", specimen.name, name.display());
    let place = format!("#{nth} {file}@{at}.{bit}");
    *tally.by_file.entry(file).or_default() += 1;
    let seen = match read(&files, &specimen.contents)? {
        Ok(seen) => seen,
        Err(error) => {
            tally.not_opened += 1;
            tally.other(format!("{place}: {error:#}"));
            return Ok(());
        }
    };
    if in_last && !seen.is_right() {
        let before = read(&files, &specimen.before)?;
        if before.is_ok_and(|seen| seen.is_right() && seen.errors == 0) {
            tally.unfinished += 1;
            return Ok(());
        }
    }
    tally.judge(&place, &seen);
    Ok(())
}

impl Tally {
    fn other(&mut self, words: String) {
        if self.others.len() < TOLD_MAX {
            self.others.push(words);
        }
    }

    fn judge(&mut self, place: &str, seen: &Seen) {
        for other in &seen.others {
            self.other(format!("{place}: {other}"));
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

impl Seen {
    const fn is_right(&self) -> bool {
        self.wrong.is_empty() && self.missing.is_empty() && self.shifted == 0
    }

    async fn read(&mut self, journal: &dyn Journal, right: &Contents) {
        let at = Clock::new().at();
        if let Some(entries) = self.given("inspect", inspect(journal).await) {
            let by_id: HashMap<MessageId, &Entry> =
                entries.iter().map(|one| (one.id, one)).collect();
            for entry in &right.entries {
                self.same("inspect", by_id.get(&entry.id).copied(), entry);
            }
            // A row that is named as damaged may stand for one that never was.
            let whole = |entry: &&Entry| entry.standing != Standing::Damaged;
            if entries.iter().filter(whole).count() > right.entries.len() {
                self.wrong
                    .push(format!("{} rows of {}", entries.len(), right.entries.len()));
            }
        }
        for entry in &right.entries {
            if let Some(found) = self.given("entry", journal.entry(entry.id, at).await) {
                self.same("entry", found.as_ref(), entry);
            }
        }
        for (lane, dedupe, done) in &right.results {
            let Some(found) = self.given("result", journal.result(lane, dedupe).await) else {
                continue;
            };
            match (&found, &done) {
                (None, Some(_)) => self.missing.push(format!("result {dedupe}")),
                (found, done) if *found != **done => self.wrong.push(format!("result {dedupe}")),
                _ => {}
            }
        }
        for (key, value) in &right.values {
            match self.given("get", journal.get(key).await) {
                Some(None) => self.missing.push(format!("value {key}")),
                Some(Some(found)) if found != *value => self.wrong.push(format!("value {key}")),
                _ => {}
            }
        }
        if let Some(list) = self.given("list", journal.list(plan::PREFIX, usize::MAX).await) {
            if list.len() < right.values.len() {
                self.missing.push("values of a list".to_owned());
            } else if list != right.values {
                self.wrong.push("list".to_owned());
            }
        }
        let lanes = self.given("lanes", journal.lanes(plan::PREFIX, at).await);
        if lanes.is_some_and(|lanes| lanes != right.lanes) {
            self.missing.push("lanes".to_owned());
        }
        self.lease(journal, right).await;
    }

    /// Hands out everything that waits, as a drain would.
    async fn lease(&mut self, journal: &dyn Journal, right: &Contents) {
        let at = Clock::new().at();
        let by_id: HashMap<MessageId, &Entry> = right
            .entries
            .iter()
            .map(|entry| (entry.id, entry))
            .collect();
        for view in &right.lanes {
            let leased = journal
                .lease(&view.lane, Order::Any, usize::MAX, HOLD, at)
                .await;
            let Some(given) = self.given("lease", leased) else {
                continue;
            };
            let count = u64::try_from(given.len()).unwrap_or(u64::MAX);
            if count < view.waiting {
                self.missing
                    .push(format!("{count} of {} leased", view.waiting));
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

    fn same(&mut self, what: &str, found: Option<&Entry>, right: &Entry) {
        match found {
            None => self.missing.push(format!("{what} {}", right.dedupe)),
            Some(found) if found.standing == Standing::Damaged => self.errors += 1,
            // Behind a row that is named as damaged, places are counted without it.
            Some(found)
                if (Entry {
                    position: right.position,
                    ..found.clone()
                }) == *right =>
            {
                self.shifted += u64::from(found.position != right.position);
            }
            Some(found) => {
                let found = Entry {
                    body: Bytes::new(),
                    ..found.clone()
                };
                self.wrong.push(format!("{what}: {found:?}"));
            }
        }
    }

    fn given<T>(&mut self, what: &str, outcome: Result<T, JournalError>) -> Option<T> {
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
