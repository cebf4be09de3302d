//! The one thread that writes: it takes what waits, writes it in one transaction, and answers
//! when that is durable.

use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use tokio::sync::{mpsc, oneshot};

use super::book::Book;
use super::check::Check;
use super::fault::{Fault, Meaning, meaning, replaced, told};
use super::files::Lock;
use super::identity::OpenFiles;
use super::room::{BALLAST_BYTES, Ballast};
use crate::engine::{Health, JournalError, StoppedLane};
use crate::watches::Watches;

/// Operations of one transaction at most.
const BATCH_MAX: usize = 256;

/// Pages of the log from which on it is moved into the file.
const LOG_PAGES_MAX: u64 = 1000;

/// What an operation does to the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It brings something new; refused where there is no room.
    New,
    /// It works on what is there.
    Work,
    /// It changes nothing.
    Read,
}

/// An operation and who waits for it.
pub(super) trait Job: Send {
    fn kind(&self) -> Kind;
    /// Does it, within the open transaction. It may be done again when that was taken back.
    fn run(&mut self, book: &mut Book) -> Result<(), rusqlite::Error>;
    /// Answers with what was done, or with why it was not.
    fn settle(self: Box<Self>, failure: Option<JournalError>);
}

/// An operation as a function.
pub(super) struct Task<T, F> {
    kind: Kind,
    act: F,
    outcome: Option<Result<T, JournalError>>,
    reply: oneshot::Sender<Result<T, JournalError>>,
}

impl<T, F> Task<T, F>
where
    T: Send,
    F: FnMut(&mut Book) -> Result<T, Fault> + Send,
{
    pub(super) const fn new(
        kind: Kind,
        act: F,
        reply: oneshot::Sender<Result<T, JournalError>>,
    ) -> Self {
        Self {
            kind,
            act,
            outcome: None,
            reply,
        }
    }
}

impl<T, F> Job for Task<T, F>
where
    T: Send,
    F: FnMut(&mut Book) -> Result<T, Fault> + Send,
{
    fn kind(&self) -> Kind {
        self.kind
    }

    fn run(&mut self, book: &mut Book) -> Result<(), rusqlite::Error> {
        self.outcome = None;
        self.outcome = Some(match (self.act)(book) {
            Ok(done) => Ok(done),
            Err(Fault::Refused(error)) => Err(error),
            Err(Fault::Disk(error)) => return Err(error),
        });
        Ok(())
    }

    fn settle(self: Box<Self>, failure: Option<JournalError>) {
        let outcome = match (failure, self.outcome) {
            (Some(error), _) => Err(error),
            (None, Some(outcome)) => outcome,
            (None, None) => Err(JournalError::Closed),
        };
        // Whoever waited may have gone; what was done is done.
        let _gone = self.reply.send(outcome);
    }
}

/// What the writer and the handles share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) health: Mutex<Health>,
    pub(super) watches: Mutex<Watches>,
    /// The files as they were opened.
    pub(super) files: OpenFiles,
    /// Lanes that are stopped by damage.
    pub(super) stopped: Mutex<Vec<StoppedLane>>,
}

impl Shared {
    /// Looks whether the files are where they were opened, and returns what can be done. That they
    /// are not is final, also where they come back: another gateway may have written to them
    /// meanwhile. It takes precedence over any other failure: what was acknowledged before is in
    /// doubt as well.
    pub(super) fn check_health(&self) -> Health {
        let mut health = lock(&self.health);
        if *health != Health::Replaced
            && let Some(path) = self.files.find_replaced()
        {
            let path = path.display();
            let what = "journal file was deleted, moved or replaced; writes are refused";
            tracing::error!(%path, "{what}");
            *health = Health::Replaced;
        }
        health.clone()
    }
}

/// The thread's own.
pub(super) struct Writer {
    pub(super) inbox: mpsc::Receiver<Box<dyn Job>>,
    pub(super) book: Book,
    pub(super) shared: Arc<Shared>,
    pub(super) ballast: Ballast,
    /// Where a check of the file is going on.
    pub(super) check: Option<Check>,
    /// Given up last, when the file is closed.
    pub(super) lock: Lock,
}

impl Writer {
    /// Works until nobody can send any more, then closes the file.
    pub(super) fn run(mut self) {
        while let Some(first) = self.inbox.blocking_recv() {
            let mut batch = vec![first];
            while batch.len() < BATCH_MAX
                && let Ok(next) = self.inbox.try_recv()
            {
                batch.push(next);
            }
            self.serve(batch);
            self.checkpoint();
        }
        self.close();
    }

    fn health(&self) -> Health {
        lock(&self.shared.health).clone()
    }

    /// Returns why an operation cannot even be tried.
    fn refusal(&self, kind: Kind) -> Option<JournalError> {
        match (self.health(), kind) {
            (_, Kind::Read) | (Health::Good, _) | (Health::Full, Kind::Work) => None,
            (Health::Full, Kind::New) => Some(JournalError::Full),
            (Health::Poisoned(reason), _) => Some(JournalError::Poisoned { reason }),
            (Health::Replaced, _) => Some(JournalError::Replaced),
        }
    }

    /// Does all operations in one transaction.
    fn serve(&mut self, batch: Vec<Box<dyn Job>>) {
        // Checked before as well, so that what is refused leaves no trace in the files that are
        // open. The failure is in `health`, from which each operation gets its refusal.
        let _refused = self.check_files();
        if batch.iter().any(|job| job.kind() == Kind::New) {
            self.find_room();
        }
        let mut todo = Vec::with_capacity(batch.len());
        for mut job in batch {
            match (self.refusal(job.kind()), job.kind()) {
                (Some(refusal), _) => job.settle(Some(refusal)),
                // What they may see is durable already: they need not wait for the others.
                (None, Kind::Read) => {
                    let failure = job.run(&mut self.book).err();
                    self.show_stopped();
                    job.settle(failure.map(|error| self.told(&error)));
                }
                (None, Kind::New | Kind::Work) => todo.push(job),
            }
        }
        if todo.is_empty() {
            return;
        }
        match self.attempt(&mut todo) {
            Ok(()) => todo.into_iter().for_each(|job| job.settle(None)),
            // One of them spoils it for all: each by itself, so that only that one fails.
            Err(error) if todo.len() > 1 && self.may_go_on(&error) => {
                for job in todo {
                    self.serve_one(job);
                }
            }
            Err(error) => self.fail(todo, &error),
        }
    }

    fn serve_one(&mut self, job: Box<dyn Job>) {
        if let Some(refusal) = self.refusal(job.kind()) {
            return job.settle(Some(refusal));
        }
        let mut alone = vec![job];
        match self.attempt(&mut alone) {
            Ok(()) => alone.into_iter().for_each(|job| job.settle(None)),
            Err(error) => self.fail(alone, &error),
        }
    }

    /// Answers operations that failed.
    fn fail(&mut self, jobs: Vec<Box<dyn Job>>, error: &rusqlite::Error) {
        let was_full = self.health() == Health::Full;
        let may_go_on = self.may_go_on(error);
        for mut job in jobs {
            // What there is room for now that the ballast is gone.
            let is_worth = may_go_on && !was_full && meaning(error) == Meaning::Full;
            let again = is_worth && job.kind() != Kind::New;
            match again.then(|| self.attempt(std::slice::from_mut(&mut job))) {
                Some(Ok(())) => job.settle(None),
                Some(Err(error)) => job.settle(Some(self.told(&error))),
                None => job.settle(Some(self.told(error))),
            }
        }
    }

    fn told(&self, error: &rusqlite::Error) -> JournalError {
        match self.health() {
            Health::Poisoned(reason) => JournalError::Poisoned { reason },
            Health::Replaced => JournalError::Replaced,
            Health::Good | Health::Full => told(error),
        }
    }

    /// Does all in one transaction, or nothing.
    fn attempt(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<(), rusqlite::Error> {
        let mut ran = jobs.iter_mut().map(|job| job.run(&mut self.book));
        let done = ran.find_map(Result::err).map_or(Ok(()), Err);
        let done = done.and_then(|()| self.book.commit());
        let done = done.and_then(|()| self.check_files());
        match &done {
            Ok(()) => self.tell(),
            Err(_) => {
                if let Err(error) = self.book.rollback() {
                    self.poison(&error);
                }
            }
        }
        self.show_stopped();
        done
    }

    fn tell(&mut self) {
        if self.book.news.is_empty() {
            return;
        }
        let mut watches = lock(&self.shared.watches);
        for (key, revision) in self.book.news.drain(..) {
            watches.tell(&key, revision);
        }
    }

    /// Shows which lanes are stopped by damage, before whoever met the damage is answered.
    fn show_stopped(&mut self) {
        let is = self.book.stopped_lanes();
        let mut shown = lock(&self.shared.stopped);
        if *shown == is {
            return;
        }
        for one in is.iter().filter(|one| !shown.contains(one)) {
            tracing::error!(lane = %one.lane, reason = %one.reason, "lane is stopped by damage");
        }
        *shown = is;
    }

    /// Draws the conclusion from a failure: whether anything can be written after it.
    fn may_go_on(&mut self, error: &rusqlite::Error) -> bool {
        match meaning(error) {
            Meaning::Damaged | Meaning::Busy => true,
            Meaning::Full => {
                self.ballast.free();
                let mut health = lock(&self.shared.health);
                if *health == Health::Good {
                    *health = Health::Full;
                }
                true
            }
            Meaning::Poisoned => {
                self.poison(error);
                false
            }
            Meaning::Replaced => {
                self.mark_replaced();
                false
            }
        }
    }

    /// Fails where a file is not where it was opened.
    fn check_files(&self) -> Result<(), rusqlite::Error> {
        match self.shared.check_health() {
            Health::Replaced => Err(replaced()),
            Health::Good | Health::Full | Health::Poisoned(_) => Ok(()),
        }
    }

    fn mark_replaced(&self) {
        *lock(&self.shared.health) = Health::Replaced;
    }

    fn poison(&self, error: &rusqlite::Error) {
        let mut health = lock(&self.shared.health);
        // The first failure is the one to know.
        if !matches!(*health, Health::Poisoned(_) | Health::Replaced) {
            *health = Health::Poisoned(error.to_string().into());
        }
    }

    /// Sees whether there is room again.
    fn find_room(&mut self) {
        if self.health() != Health::Full {
            return;
        }
        if !self.ballast.has_room()
            && let Err(error) = self.give_back()
        {
            self.may_go_on(&error);
        }
        if self.ballast.has_room() && self.ballast.make().is_ok() {
            *lock(&self.shared.health) = Health::Good;
        }
    }

    /// Gives room back to the disk that was taken up by what is ended now: where it is the journal
    /// that filled the disk, nobody else will. What is left must fit in the log beside it.
    fn give_back(&self) -> Result<(), rusqlite::Error> {
        let (used, free) = self.book.size()?;
        match used <= BALLAST_BYTES && free >= BALLAST_BYTES {
            true => self.book.shrink(),
            false => Ok(()),
        }
    }

    /// Moves the log into the file when it has grown long.
    fn checkpoint(&mut self) {
        if matches!(self.health(), Health::Poisoned(_) | Health::Replaced) {
            return;
        }
        let moved = self.book.log_pages().and_then(|pages| match pages {
            0..LOG_PAGES_MAX => Ok(0),
            _ => self.book.checkpoint("PASSIVE"),
        });
        if let Err(error) = moved {
            self.may_go_on(&error);
        }
    }

    fn close(mut self) {
        // A file that was not looked through is to be looked through the next time.
        let is_checked = self.check.take().is_none_or(Check::stop);
        if !matches!(self.health(), Health::Poisoned(_) | Health::Replaced) {
            // What was answered is durable in the log; the next one to open reads it from there.
            let _unclean = self.book.close(is_checked);
        }
        drop(self.lock);
    }
}
