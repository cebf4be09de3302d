//! Journal in a single SQLite file.
//!
//! # Guarantees
//! - An acknowledged operation is on disk: SQLite synced the WAL (`synchronous=FULL`) before the
//!   response. One writer thread takes up to 256 queued operations, commits them in one transaction
//!   and never waits for more. A failing operation does not fail the rest of its batch.
//! - A crash loses only attempt counters: they are written with the next change.
//! - Every row carries a checksum, every lane the total of its rows, and the ledger the totals of
//!   lanes, completed messages and values. A changed row is reported as `Damaged` and never read as
//!   valid; a missing row is detected, whichever index lost the row.
//! - A message with a damaged row stops its lane and no other lane: the message may have been next,
//!   and its dedupe id may be published again. A message with only a damaged body stops a strict
//!   lane when first; a mailbox skips the message. `remove_message` removes either, and the lane
//!   resumes. Damaged SQLite pages are found by `quick_check` after an unclean shutdown; the
//!   journal is then read-only.
//! - After a failed write or sync nothing is acknowledged any more, whatever the disk reports
//!   later; reads continue. A full disk refuses new data; existing messages can still be settled in
//!   the space of a reserve file, which is deleted for this purpose and allocated again later.
//! - Deleted, moved or replaced files are detected before the next acknowledgement and on every
//!   health check; from then on nothing is written. Detection costs a `stat` of each file per
//!   batch, commit and health check.
//! - Memory does not grow with the queue: a lane keeps a compact index (about twelve bytes per
//!   message), and only rows of recently used segments are in memory.
//!
//! # Undetectable changes
//! A file replaced as a whole by an older copy, while closed or by overwriting, looks intact. After
//! a crash, a last WAL transaction lost to bit rot looks the same as a transaction cut off by the
//! crash.
//!
//! # Reads
//! The writer thread also serves reads, between two transactions: only the writer has the verified
//! index. A read waits for at most one sync, and never for a transaction to begin.

mod checksum;
mod disk_reserve;
mod integrity_check;
mod journal_files;
mod journal_open_error;
mod journal_state;
mod open_files;
mod rows;
mod schema;
mod sqlite_error;
mod sqlite_writer;
mod wal_check;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::sync::lock;
use bytes::Bytes;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use self::checksum::checksum_bytes;
use self::disk_reserve::DiskReserve;
use self::integrity_check::IntegrityCheck;
use self::journal_state::JournalState;
use self::open_files::OpenFiles;
use self::rows::LedgerRow;
use self::sqlite_error::{OperationError, SqliteErrorClass};
use self::sqlite_writer::{ClosureJob, OperationKind, SqliteShared, SqliteWriter, WriterJob};
use crate::engine::{
    CompletedMessage, ExpectedRevision, Journal, JournalError, JournalFuture, JournalHealth,
    LaneName, LaneStats, LeaseOrder, LeaseReceipt, LeasedMessage, MessageDraft, MessageFilter,
    MessageId, MessageView, PublishOutcome, RevisionWatch, StoppedLane, Timestamps, VersionedValue,
};
use crate::validation::{check_key, check_size};
use crate::watches::RevisionWatches;

pub use self::journal_open_error::JournalOpenError;

/// Operations queued for the writer at most; further callers wait.
const QUEUE_MAX: usize = 1024;

/// Bytes of bodies, results and values queued for the writer at most.
const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Journal in a SQLite file.
#[derive(Debug)]
pub struct SqliteJournal {
    /// `None` once closed.
    inbox: Mutex<Option<mpsc::Sender<Box<dyn WriterJob>>>>,
    byte_permits: Arc<Semaphore>,
    shared: Arc<SqliteShared>,
    /// True once the file is closed.
    closed: watch::Receiver<bool>,
    thread: Option<JoinHandle<()>>,
}

impl SqliteJournal {
    /// Opens the journal in this file, created if missing, in a private directory.
    ///
    /// # Errors
    /// The file cannot be used; the error names the reason.
    pub fn open(path: &Path) -> Result<Self, JournalOpenError> {
        schema::check_library_version()?;
        let (path, lock) = journal_files::prepare_files(path)?;
        let reserve = DiskReserve::new(journal_files::sibling_path(&path, ".ballast"));
        let opened = open_state(&path).or_else(|error| match &error {
            JournalOpenError::Sqlite { source, .. }
                if sqlite_error::classify_error(source) == SqliteErrorClass::Full =>
            {
                reserve.release();
                open_state(&path)
            }
            _ => Err(error),
        })?;
        let (state, integrity) = opened;
        journal_files::sync_directory(&path)?;
        let files = OpenFiles::read_identities(&path)?;
        let health = match &integrity {
            IntegrityStatus::Corrupt(wrong) => {
                JournalHealth::Poisoned(integrity_check::corruption_reason(wrong))
            }
            // Without room for the reserve the disk counts as full.
            IntegrityStatus::Intact | IntegrityStatus::Unchecked => match reserve.allocate() {
                Ok(()) => JournalHealth::Good,
                Err(_) => JournalHealth::DiskFull,
            },
        };
        let watches = RevisionWatches::new(state.revision());
        let shared = Arc::new(SqliteShared {
            health: Mutex::new(health),
            watches: Mutex::new(watches),
            files,
            stopped: Mutex::default(),
        });
        let check = match integrity {
            IntegrityStatus::Unchecked => {
                let check = IntegrityCheck::start(path.clone(), Arc::clone(&shared));
                Some(check.map_err(|source| JournalOpenError::Sqlite {
                    path: path.clone(),
                    source,
                })?)
            }
            IntegrityStatus::Intact | IntegrityStatus::Corrupt(_) => None,
        };
        let (sender, inbox) = mpsc::channel(QUEUE_MAX);
        let (closed_sender, closed) = watch::channel(false);
        let writer = SqliteWriter {
            inbox,
            state,
            shared: Arc::clone(&shared),
            reserve,
            check,
            lock,
        };
        let builder = std::thread::Builder::new().name("journal".to_owned());
        let thread = builder.spawn(move || {
            writer.run();
            closed_sender.send_replace(true);
        });
        Ok(Self {
            inbox: Mutex::new(Some(sender)),
            byte_permits: Arc::new(Semaphore::new(QUEUE_BYTES_MAX)),
            shared,
            closed,
            thread: Some(thread.map_err(|source| JournalOpenError::Io {
                action: "start the writer of",
                path,
                source,
            })?),
        })
    }

    /// Runs an operation on the writer thread and waits until the operation is durable.
    fn run_on_writer<'a, T: Send + 'static>(
        &self,
        kind: OperationKind,
        bytes: usize,
        operation: impl FnMut(&mut JournalState) -> Result<T, OperationError> + Send + 'static,
    ) -> JournalFuture<'a, T> {
        let inbox = lock(&self.inbox).clone();
        let room = Arc::clone(&self.byte_permits);
        Box::pin(async move {
            let inbox = inbox.ok_or(JournalError::Closed)?;
            // A single body is far smaller than the budget, so the permits always suffice.
            let permits = u32::try_from(bytes.min(QUEUE_BYTES_MAX)).unwrap_or(u32::MAX);
            let _room = room.acquire_many_owned(permits).await;
            let (reply, outcome) = oneshot::channel();
            let job: Box<dyn WriterJob> = Box::new(ClosureJob::new(kind, operation, reply));
            inbox.send(job).await.map_err(|_| JournalError::Closed)?;
            drop(inbox);
            outcome.await.unwrap_or(Err(JournalError::Closed))
        })
    }
}

/// Integrity of a file at opening.
enum IntegrityStatus {
    /// Cleanly closed, or checked now.
    Intact,
    /// Not cleanly closed, and too large to check before use.
    Unchecked,
    /// The check found corrupt pages.
    Corrupt(String),
}

/// Opens the file, migrates its schema, and checks the pages after an unclean shutdown.
fn open_state(path: &Path) -> Result<(JournalState, IntegrityStatus), JournalOpenError> {
    let failed = |source| JournalOpenError::Sqlite {
        path: path.to_owned(),
        source,
    };
    let broken = |what: String| JournalOpenError::Damaged {
        path: path.to_owned(),
        what,
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    wal_check::check_wal(&journal_files::sibling_path(path, "-wal"))?;
    let conn = Connection::open_with_flags(path, flags).map_err(failed)?;
    schema::set_up_writer(&conn).map_err(failed)?;
    let found = schema::file_version(&conn).map_err(failed)?;
    let known = schema::MIGRATIONS.len();
    if found > known {
        return Err(JournalOpenError::Newer {
            path: path.to_owned(),
            found,
            known,
        });
    }
    let is_new = found == 0;
    schema::migrate(&conn, schema::MIGRATIONS).map_err(failed)?;
    if is_new {
        LedgerRow::default().write(&conn).map_err(failed)?;
    }
    let ledger = LedgerRow::read(&conn).map_err(failed)?;
    let ledger = ledger.ok_or_else(|| broken("its ledger cannot be read".to_owned()))?;
    let found = match ledger.clean || is_new {
        true => IntegrityStatus::Intact,
        false if !integrity_check::is_small(path) => IntegrityStatus::Unchecked,
        false => match integrity_check::quick_check(&conn).map_err(failed)? {
            Some(wrong) => IntegrityStatus::Corrupt(wrong),
            None => IntegrityStatus::Intact,
        },
    };
    let mut state = JournalState::open(conn, ledger).map_err(failed)?;
    if !matches!(found, IntegrityStatus::Corrupt(_)) {
        state.mark_open().map_err(failed)?;
    }
    Ok((state, found))
}

impl Drop for SqliteJournal {
    fn drop(&mut self) {
        lock(&self.inbox).take();
        // The writer thread must end first, so the next open finds the file closed.
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// Returns a ready future.
fn ready_future<'a, T: Send + 'a>(outcome: Result<T, JournalError>) -> JournalFuture<'a, T> {
    Box::pin(std::future::ready(outcome))
}

impl Journal for SqliteJournal {
    fn publish(&self, draft: MessageDraft, at: Timestamps) -> JournalFuture<'_, PublishOutcome> {
        if let Err(error) = check_key(&draft.dedupe).and_then(|()| check_size(&draft.body)) {
            return ready_future(Err(error));
        }
        let sum = checksum_bytes(&draft.body);
        self.run_on_writer(OperationKind::Insert, draft.body.len(), move |state| {
            state.publish(&draft, sum, at)
        })
    }

    fn lease<'a>(
        &'a self,
        lane: &'a LaneName,
        order: LeaseOrder,
        max: usize,
        hold: Duration,
        at: Timestamps,
    ) -> JournalFuture<'a, Vec<LeasedMessage>> {
        let lane = lane.clone();
        self.run_on_writer(OperationKind::Update, 0, move |state| {
            state.lease(&lane, order, max, hold, at)
        })
    }

    fn ack(
        &self,
        receipt: LeaseReceipt,
        result: Option<Bytes>,
        at: Timestamps,
    ) -> JournalFuture<'_, ()> {
        if let Some(Err(error)) = result.as_ref().map(check_size) {
            return ready_future(Err(error));
        }
        let bytes = result.as_ref().map_or(0, Bytes::len);
        self.run_on_writer(OperationKind::Update, bytes, move |state| {
            state.ack(receipt, result.as_ref(), at)
        })
    }

    fn nak(&self, receipt: LeaseReceipt, delay: Duration, at: Timestamps) -> JournalFuture<'_, ()> {
        self.run_on_writer(OperationKind::Update, 0, move |state| {
            state.nak(receipt, delay, at)
        })
    }

    fn dead_letter(
        &self,
        receipt: LeaseReceipt,
        reason: Arc<str>,
        _at: Timestamps,
    ) -> JournalFuture<'_, ()> {
        self.run_on_writer(OperationKind::Update, 0, move |book| {
            book.dead_letter(receipt, &reason)
        })
    }

    fn requeue(
        &self,
        id: MessageId,
        ttl: Option<Duration>,
        at: Timestamps,
    ) -> JournalFuture<'_, ()> {
        self.run_on_writer(OperationKind::Update, 0, move |book| {
            book.requeue(id, ttl, at)
        })
    }

    fn remove_message(&self, id: MessageId, at: Timestamps) -> JournalFuture<'_, ()> {
        self.run_on_writer(OperationKind::Update, 0, move |book| {
            book.remove_message(id, at)
        })
    }

    fn discard_leased(&self, receipt: LeaseReceipt, _at: Timestamps) -> JournalFuture<'_, ()> {
        self.run_on_writer(OperationKind::Update, 0, move |book| {
            book.discard_leased(receipt)
        })
    }

    fn expire_messages<'a>(
        &'a self,
        lanes: &'a str,
        at: Timestamps,
    ) -> JournalFuture<'a, Vec<MessageView>> {
        let lanes = lanes.to_owned();
        self.run_on_writer(OperationKind::Update, 0, move |book| {
            book.expire_messages(&lanes, at)
        })
    }

    fn lane_stats<'a>(
        &'a self,
        prefix: &'a str,
        _at: Timestamps,
    ) -> JournalFuture<'a, Vec<LaneStats>> {
        let prefix = prefix.to_owned();
        self.run_on_writer(OperationKind::Read, 0, move |book| book.lane_stats(&prefix))
    }

    fn lane_bytes<'a>(&'a self, prefix: &'a str) -> JournalFuture<'a, Vec<(LaneName, u64)>> {
        let prefix = prefix.to_owned();
        self.run_on_writer(OperationKind::Read, 0, move |state| {
            state.lane_bytes(&prefix)
        })
    }

    fn list_messages(
        &self,
        filter: MessageFilter,
        at: Timestamps,
    ) -> JournalFuture<'_, Vec<MessageView>> {
        self.run_on_writer(OperationKind::Read, 0, move |book| {
            book.list_messages(&filter, at)
        })
    }

    fn get_message(&self, id: MessageId, at: Timestamps) -> JournalFuture<'_, Option<MessageView>> {
        self.run_on_writer(OperationKind::Read, 0, move |book| book.get_message(id, at))
    }

    fn get_result<'a>(
        &'a self,
        lane: &'a LaneName,
        dedupe: &'a str,
    ) -> JournalFuture<'a, Option<CompletedMessage>> {
        let (lane, dedupe) = (lane.clone(), dedupe.to_owned());
        self.run_on_writer(OperationKind::Read, 0, move |book| {
            book.get_result(&lane, &dedupe)
        })
    }

    fn get_value<'a>(&'a self, key: &'a str) -> JournalFuture<'a, Option<VersionedValue>> {
        let key = key.to_owned();
        self.run_on_writer(OperationKind::Read, 0, move |book| book.get_value(&key))
    }

    fn list_values<'a>(
        &'a self,
        prefix: &'a str,
        limit: usize,
    ) -> JournalFuture<'a, Vec<(Arc<str>, VersionedValue)>> {
        let prefix = prefix.to_owned();
        self.run_on_writer(OperationKind::Read, 0, move |book| {
            book.list_values(&prefix, limit)
        })
    }

    fn put_value<'a>(
        &'a self,
        key: &'a str,
        bytes: Option<Bytes>,
        expect: ExpectedRevision,
    ) -> JournalFuture<'a, u64> {
        let checked = check_key(key).and_then(|()| bytes.as_ref().map_or(Ok(()), check_size));
        if let Err(error) = checked {
            return ready_future(Err(error));
        }
        let key = key.to_owned();
        let kind = match bytes {
            Some(_) => OperationKind::Insert,
            None => OperationKind::Update,
        };
        let sum = bytes.as_deref().map(checksum_bytes).unwrap_or_default();
        self.run_on_writer(kind, bytes.as_ref().map_or(0, Bytes::len), move |book| {
            book.put_value(&key, bytes.as_ref().map(|bytes| (bytes, sum)), expect)
        })
    }

    fn watch_prefix(&self, prefix: &str) -> RevisionWatch {
        lock(&self.shared.watches).add_watch(prefix)
    }

    fn health(&self) -> JournalHealth {
        self.shared.check_health()
    }

    fn stopped_lanes(&self) -> Vec<StoppedLane> {
        lock(&self.shared.stopped).clone()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        lock(&self.inbox).take();
        let mut closed = self.closed.clone();
        Box::pin(async move {
            // An error means the thread is gone, so the journal is closed.
            let _closed = closed.wait_for(|closed| *closed).await;
        })
    }
}
