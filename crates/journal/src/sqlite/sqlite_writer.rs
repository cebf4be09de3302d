//! Writer thread: batches queued operations into a transaction and responds once durable.

use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use tokio::sync::{mpsc, oneshot};

use super::disk_reserve::{DiskReserve, RESERVE_BYTES};
use super::integrity_check::IntegrityCheck;
use super::journal_files::JournalLock;
use super::journal_state::JournalState;
use super::open_files::OpenFiles;
use super::sqlite_error::{
    OperationError, SqliteErrorClass, classify_error, files_replaced_error, to_journal_error,
};
use crate::engine::{JournalError, JournalHealth, StoppedLane};
use crate::watches::RevisionWatches;

/// Operations per transaction at most.
const BATCH_MAX: usize = 256;

/// WAL pages that trigger a checkpoint.
const WAL_PAGES_MAX: u64 = 1000;

/// Effect of an operation on the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationKind {
    /// Adds new data; refused on a full disk.
    Insert,
    /// Changes existing data.
    Update,
    /// Reads only.
    Read,
}

/// Operation with its reply channel.
pub(super) trait WriterJob: Send {
    fn kind(&self) -> OperationKind;
    /// Runs the operation within the open transaction; may run again after a rollback.
    fn run(&mut self, state: &mut JournalState) -> Result<(), rusqlite::Error>;
    /// Sends the outcome, or the failure of the transaction, to the caller.
    fn send_outcome(self: Box<Self>, failure: Option<JournalError>);
}

/// Operation as a closure.
pub(super) struct ClosureJob<T, F> {
    kind: OperationKind,
    act: F,
    outcome: Option<Result<T, JournalError>>,
    reply: oneshot::Sender<Result<T, JournalError>>,
}

impl<T, F> ClosureJob<T, F>
where
    T: Send,
    F: FnMut(&mut JournalState) -> Result<T, OperationError> + Send,
{
    pub(super) const fn new(
        kind: OperationKind,
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

impl<T, F> WriterJob for ClosureJob<T, F>
where
    T: Send,
    F: FnMut(&mut JournalState) -> Result<T, OperationError> + Send,
{
    fn kind(&self) -> OperationKind {
        self.kind
    }

    fn run(&mut self, state: &mut JournalState) -> Result<(), rusqlite::Error> {
        self.outcome = None;
        self.outcome = Some(match (self.act)(state) {
            Ok(done) => Ok(done),
            Err(OperationError::Refused(error)) => Err(error),
            Err(OperationError::Disk(error)) => return Err(error),
        });
        Ok(())
    }

    fn send_outcome(self: Box<Self>, failure: Option<JournalError>) {
        let outcome = match (failure, self.outcome) {
            (Some(error), _) => Err(error),
            (None, Some(outcome)) => outcome,
            (None, None) => Err(JournalError::Closed),
        };
        // The caller may be gone; the operation stays done.
        let _gone = self.reply.send(outcome);
    }
}

/// State shared by the writer thread and the journal handle.
#[derive(Debug)]
pub(super) struct SqliteShared {
    pub(super) health: Mutex<JournalHealth>,
    pub(super) watches: Mutex<RevisionWatches>,
    /// Identities of the open files.
    pub(super) files: OpenFiles,
    /// Lanes stopped by damage.
    pub(super) stopped: Mutex<Vec<StoppedLane>>,
}

impl SqliteShared {
    /// Checks for replaced files and returns the health. A replacement is final even if the files
    /// come back, since a different gateway may have written meanwhile. It takes precedence over
    /// any other failure, because earlier acknowledged writes are in doubt as well.
    pub(super) fn check_health(&self) -> JournalHealth {
        let mut health = lock(&self.health);
        if *health != JournalHealth::Replaced
            && let Some(path) = self.files.find_replaced()
        {
            let path = path.display();
            let message = "journal file was deleted, moved or replaced; writes are refused";
            tracing::error!(%path, "{message}");
            *health = JournalHealth::Replaced;
        }
        health.clone()
    }
}

/// State owned by the writer thread.
pub(super) struct SqliteWriter {
    pub(super) inbox: mpsc::Receiver<Box<dyn WriterJob>>,
    pub(super) state: JournalState,
    pub(super) shared: Arc<SqliteShared>,
    pub(super) reserve: DiskReserve,
    /// Integrity check in progress.
    pub(super) check: Option<IntegrityCheck>,
    /// Lock, released last, after the file is closed.
    pub(super) lock: JournalLock,
}

impl SqliteWriter {
    /// Serves batches until all senders are dropped, then closes the file.
    pub(super) fn run(mut self) {
        while let Some(first) = self.inbox.blocking_recv() {
            let mut batch = vec![first];
            while batch.len() < BATCH_MAX
                && let Ok(next) = self.inbox.try_recv()
            {
                batch.push(next);
            }
            self.run_batch(batch);
            self.checkpoint_wal();
        }
        self.close_file();
    }

    fn current_health(&self) -> JournalHealth {
        lock(&self.shared.health).clone()
    }

    /// Returns the error for an operation that cannot be tried in the current health.
    fn admission_error(&self, kind: OperationKind) -> Option<JournalError> {
        match (self.current_health(), kind) {
            (_, OperationKind::Read)
            | (JournalHealth::Good, _)
            | (JournalHealth::DiskFull, OperationKind::Update) => None,
            (JournalHealth::DiskFull, OperationKind::Insert) => Some(JournalError::DiskFull),
            (JournalHealth::Poisoned(reason), _) => Some(JournalError::Poisoned { reason }),
            (JournalHealth::Replaced, _) => Some(JournalError::Replaced),
        }
    }

    /// Runs all operations of a batch in one transaction.
    fn run_batch(&mut self, batch: Vec<Box<dyn WriterJob>>) {
        // Files are also checked first, so a refused operation leaves no trace in the open files.
        // The failure is recorded in `health`, from which each operation derives its refusal.
        let _refused = self.check_files();
        if batch.iter().any(|job| job.kind() == OperationKind::Insert) {
            self.restore_reserve();
        }
        let mut todo = Vec::with_capacity(batch.len());
        for mut job in batch {
            match (self.admission_error(job.kind()), job.kind()) {
                (Some(refusal), _) => job.send_outcome(Some(refusal)),
                // Reads see only durable data and need not wait for the batch.
                (None, OperationKind::Read) => {
                    let failure = job.run(&mut self.state).err();
                    self.publish_stopped_lanes();
                    job.send_outcome(failure.map(|error| self.to_caller_error(&error)));
                }
                (None, OperationKind::Insert | OperationKind::Update) => todo.push(job),
            }
        }
        if todo.is_empty() {
            return;
        }
        match self.try_commit(&mut todo) {
            Ok(()) => todo.into_iter().for_each(|job| job.send_outcome(None)),
            // A single operation spoils the batch: run each alone, so only that operation fails.
            Err(error) if todo.len() > 1 && self.handle_failure(&error) => {
                for job in todo {
                    self.run_alone(job);
                }
            }
            Err(error) => self.fail_jobs(todo, &error),
        }
    }

    fn run_alone(&mut self, job: Box<dyn WriterJob>) {
        if let Some(refusal) = self.admission_error(job.kind()) {
            return job.send_outcome(Some(refusal));
        }
        let mut alone = vec![job];
        match self.try_commit(&mut alone) {
            Ok(()) => alone.into_iter().for_each(|job| job.send_outcome(None)),
            Err(error) => self.fail_jobs(alone, &error),
        }
    }

    /// Responds to operations of a failed transaction.
    fn fail_jobs(&mut self, jobs: Vec<Box<dyn WriterJob>>, error: &rusqlite::Error) {
        let was_full = self.current_health() == JournalHealth::DiskFull;
        let may_go_on = self.handle_failure(error);
        for mut job in jobs {
            // The deleted reserve may leave room for a retry.
            let is_worth =
                may_go_on && !was_full && classify_error(error) == SqliteErrorClass::Full;
            let should_retry = is_worth && job.kind() != OperationKind::Insert;
            match should_retry.then(|| self.try_commit(std::slice::from_mut(&mut job))) {
                Some(Ok(())) => job.send_outcome(None),
                Some(Err(error)) => job.send_outcome(Some(self.to_caller_error(&error))),
                None => job.send_outcome(Some(self.to_caller_error(error))),
            }
        }
    }

    fn to_caller_error(&self, error: &rusqlite::Error) -> JournalError {
        match self.current_health() {
            JournalHealth::Poisoned(reason) => JournalError::Poisoned { reason },
            JournalHealth::Replaced => JournalError::Replaced,
            JournalHealth::Good | JournalHealth::DiskFull => to_journal_error(error),
        }
    }

    /// Runs all operations and commits, or rolls back.
    fn try_commit(&mut self, jobs: &mut [Box<dyn WriterJob>]) -> Result<(), rusqlite::Error> {
        let mut ran = jobs.iter_mut().map(|job| job.run(&mut self.state));
        let done = ran.find_map(Result::err).map_or(Ok(()), Err);
        let done = done.and_then(|()| self.state.commit());
        let done = done.and_then(|()| self.check_files());
        match &done {
            Ok(()) => self.notify_watches(),
            Err(_) => {
                if let Err(error) = self.state.rollback() {
                    self.poison_journal(&error);
                }
            }
        }
        self.publish_stopped_lanes();
        done
    }

    fn notify_watches(&mut self) {
        if self.state.changed_values.is_empty() {
            return;
        }
        let mut watches = lock(&self.shared.watches);
        for (key, revision) in self.state.changed_values.drain(..) {
            watches.notify_change(&key, revision);
        }
    }

    /// Publishes the lanes stopped by damage, before the caller that met the damage gets a
    /// response.
    fn publish_stopped_lanes(&mut self) {
        let current = self.state.stopped_lanes();
        let mut published = lock(&self.shared.stopped);
        if *published == current {
            return;
        }
        for one in current.iter().filter(|one| !published.contains(one)) {
            tracing::error!(lane = %one.lane, reason = %one.reason, "lane stopped by damage");
        }
        *published = current;
    }

    /// Updates the health after a failure and returns whether writes may continue.
    fn handle_failure(&mut self, error: &rusqlite::Error) -> bool {
        match classify_error(error) {
            SqliteErrorClass::Damaged | SqliteErrorClass::Busy => true,
            SqliteErrorClass::Full => {
                self.reserve.release();
                let mut health = lock(&self.shared.health);
                if *health == JournalHealth::Good {
                    *health = JournalHealth::DiskFull;
                }
                true
            }
            SqliteErrorClass::Poisoned => {
                self.poison_journal(error);
                false
            }
            SqliteErrorClass::Replaced => {
                self.mark_replaced();
                false
            }
        }
    }

    /// Fails if a file was replaced.
    fn check_files(&self) -> Result<(), rusqlite::Error> {
        match self.shared.check_health() {
            JournalHealth::Replaced => Err(files_replaced_error()),
            JournalHealth::Good | JournalHealth::DiskFull | JournalHealth::Poisoned(_) => Ok(()),
        }
    }

    fn mark_replaced(&self) {
        *lock(&self.shared.health) = JournalHealth::Replaced;
    }

    fn poison_journal(&self, error: &rusqlite::Error) {
        let mut health = lock(&self.shared.health);
        // Keep the first failure.
        if !matches!(
            *health,
            JournalHealth::Poisoned(_) | JournalHealth::Replaced
        ) {
            *health = JournalHealth::Poisoned(error.to_string().into());
        }
    }

    /// Restores the reserve if the disk has room again.
    fn restore_reserve(&mut self) {
        if self.current_health() != JournalHealth::DiskFull {
            return;
        }
        if !self.reserve.has_room()
            && let Err(error) = self.shrink_file()
        {
            self.handle_failure(&error);
        }
        if self.reserve.has_room() && self.reserve.allocate().is_ok() {
            *lock(&self.shared.health) = JournalHealth::Good;
        }
    }

    /// Returns free pages to the disk: if the journal filled the disk, nothing else frees space.
    /// The remaining data must fit into the WAL.
    fn shrink_file(&self) -> Result<(), rusqlite::Error> {
        let (used, free) = self.state.file_usage()?;
        match used <= RESERVE_BYTES && free >= RESERVE_BYTES {
            true => self.state.vacuum(),
            false => Ok(()),
        }
    }

    /// Checkpoints a long WAL.
    fn checkpoint_wal(&mut self) {
        if matches!(
            self.current_health(),
            JournalHealth::Poisoned(_) | JournalHealth::Replaced
        ) {
            return;
        }
        let moved = self.state.wal_pages().and_then(|pages| match pages {
            0..WAL_PAGES_MAX => Ok(0),
            _ => self.state.checkpoint("PASSIVE"),
        });
        if let Err(error) = moved {
            self.handle_failure(&error);
        }
    }

    fn close_file(mut self) {
        // An unfinished check must run again at the next start.
        let is_checked = self.check.take().is_none_or(IntegrityCheck::stop);
        if !matches!(
            self.current_health(),
            JournalHealth::Poisoned(_) | JournalHealth::Replaced
        ) {
            // Acknowledged operations are durable in the WAL and read from the WAL at the next
            // open.
            let _unclean = self.state.close(is_checked);
        }
        drop(self.lock);
    }
}
