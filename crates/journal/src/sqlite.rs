//! A journal in one file of SQLite.
//!
//! # What is promised
//! - What was answered is on the disk: the log of SQLite was synced (`synchronous=FULL`) before.
//!   One thread writes; it takes what waits, up to 256 operations, writes it in one transaction
//!   and never waits for more. An operation that fails does not fail those beside it.
//! - Only attempts may be lost by a crash: they are written along with the next change.
//! - Every row carries a checksum, every lane the total of its rows, and the ledger the totals of
//!   lanes, ends and values. A row that was changed is told as `Damaged` and never read as
//!   something else, and one that is gone is missed, whichever index has lost it.
//! - A message whose row is damaged stops its lane, and no other: it may have been the next one,
//!   and its id may be the one that comes again. One of which only the body is damaged stops a
//!   strict lane when it is first; in a mailbox nobody waits for it. `remove` takes either away,
//!   and the lane goes on. What a page of SQLite itself has lost is found by `quick_check` when
//!   the file was not closed in order; then the journal is read only.
//! - After a failed write or sync nothing is acknowledged any more, whatever the disk says later;
//!   reads go on. A full disk refuses what is new; what is there can be ended, in the room of a
//!   ballast file that is given up for it and made again when there is room.
//! - Files that were deleted, moved or replaced are noticed before the next acknowledgement, and
//!   whenever the health is asked for; from then on nothing is written. One `stat` of each file
//!   per batch, per commit and per look does it.
//! - Memory does not grow with what waits: a lane keeps a compact index (about twelve bytes for a
//!   message), and the rows of those segments are in memory that were used last.
//!
//! # What cannot be seen
//! A file that was replaced as a whole by an older one of itself, while it was not open or by
//! writing over it, is whole. Neither can anybody
//! tell the last transaction of a log that rotted away after a crash from one that the crash
//! itself cut off.
//!
//! # Who reads
//! The writer answers reads as well, between two transactions: it alone has the checked list of
//! what there must be. A read waits for one sync at most, and never for a transaction to begin.

mod book;
mod check;
mod fault;
mod files;
mod identity;
mod log;
mod room;
mod rows;
mod schema;
mod sum;
mod writer;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bowline_core::sync::lock;
use bytes::Bytes;
use rusqlite::{Connection, OpenFlags};
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use self::book::Book;
use self::check::Check;
use self::fault::{Fault, Meaning};
use self::identity::OpenFiles;
use self::room::Ballast;
use self::rows::Ledger;
use self::sum::of_bytes;
use self::writer::{Job, Kind, Shared, Task, Writer};
use crate::engine::{
    At, BoxFuture, Delivery, Done, Draft, Entry, Expect, Filter, Health, Journal, JournalError,
    Lane, LaneView, MessageId, Order, Pending, Published, Receipt, StoppedLane, Value, Watch,
};
use crate::limits::{fits, names};
use crate::watches::Watches;

/// Operations that wait for the writer at most; whoever comes then waits to be let in.
const QUEUE_MAX: usize = 1024;

/// Bodies, results and values that wait for the writer at most, in bytes.
const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Why a journal cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// An operation of the file system failed.
    #[error("cannot {action} `{path}`")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A link could point anywhere tomorrow.
    #[error("`{0}` is a symbolic link")]
    Symlink(PathBuf),
    /// It is a directory, or something else again.
    #[error("`{0}` is not a file")]
    NotFile(PathBuf),
    /// Another user could change it under us.
    #[error("`{0}` belongs to another user")]
    Foreign(PathBuf),
    /// Others may read or write it.
    #[error("`{path}` is open to other users (mode {mode:03o}, not {wanted:03o})")]
    Exposed {
        /// The file or directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
        /// Those it must have.
        wanted: u32,
    },
    /// Over a network a write that was acknowledged may not be there.
    #[error("`{path}` is on a network file system ({kind}), where no write can be relied on")]
    Network {
        /// The directory.
        path: PathBuf,
        /// What it is on.
        kind: &'static str,
    },
    /// Somebody has it open.
    #[error("the journal `{0}` is in use by another gateway, or twice by this one")]
    InUse(PathBuf),
    /// A later version of this program wrote it.
    #[error("`{path}` was written by a newer version (format {found}, known is {known})")]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: usize,
        /// The newest format that is known.
        known: usize,
    },
    /// The SQLite in this program has known faults.
    #[error("this program was built with SQLite {found}, which can corrupt its files")]
    Library {
        /// Its version.
        found: &'static str,
    },
    /// The file is not what was written.
    #[error("the journal `{path}` is damaged: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// SQLite cannot open it.
    #[error("the journal `{path}` cannot be opened")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
}

/// Keeps everything in one file.
#[derive(Debug)]
pub struct Sqlite {
    /// None once it is closed.
    inbox: Mutex<Option<mpsc::Sender<Box<dyn Job>>>>,
    room: Arc<Semaphore>,
    shared: Arc<Shared>,
    /// True when the file is closed.
    closed: watch::Receiver<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Sqlite {
    /// Opens the journal in this file, made where it is missing, in a directory of its own or of
    /// other private files.
    ///
    /// # Errors
    /// The file cannot be used; the error says why.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        schema::library()?;
        let (path, lock) = files::prepare(path)?;
        let ballast = Ballast::new(files::beside(&path, ".ballast"));
        let opened = open_book(&path).or_else(|error| match &error {
            OpenError::Sqlite { source, .. } if fault::meaning(source) == Meaning::Full => {
                ballast.free();
                open_book(&path)
            }
            _ => Err(error),
        })?;
        let (book, found) = opened;
        files::settle(&path)?;
        let files = OpenFiles::read(&path)?;
        let health = match &found {
            Found::Wrong(wrong) => Health::Poisoned(check::reason(wrong)),
            // Without room for the ballast there is no room.
            Found::Well | Found::Unchecked => match ballast.make() {
                Ok(()) => Health::Good,
                Err(_) => Health::Full,
            },
        };
        let watches = Watches::new(book.revision());
        let shared = Arc::new(Shared {
            health: Mutex::new(health),
            watches: Mutex::new(watches),
            files,
            stopped: Mutex::default(),
        });
        let check = match found {
            Found::Unchecked => {
                let check = Check::start(path.clone(), Arc::clone(&shared));
                Some(check.map_err(|source| OpenError::Sqlite {
                    path: path.clone(),
                    source,
                })?)
            }
            Found::Well | Found::Wrong(_) => None,
        };
        let (sender, inbox) = mpsc::channel(QUEUE_MAX);
        let (ended, closed) = watch::channel(false);
        let writer = Writer {
            inbox,
            book,
            shared: Arc::clone(&shared),
            ballast,
            check,
            lock,
        };
        let builder = std::thread::Builder::new().name("journal".to_owned());
        let thread = builder.spawn(move || {
            writer.run();
            ended.send_replace(true);
        });
        Ok(Self {
            inbox: Mutex::new(Some(sender)),
            room: Arc::new(Semaphore::new(QUEUE_BYTES_MAX)),
            shared,
            closed,
            thread: Some(thread.map_err(|source| OpenError::Io {
                action: "start the writer of",
                path,
                source,
            })?),
        })
    }

    /// Has the writer do something, and waits until it is durable.
    fn ask<'a, T: Send + 'static>(
        &self,
        kind: Kind,
        bytes: usize,
        act: impl FnMut(&mut Book) -> Result<T, Fault> + Send + 'static,
    ) -> Pending<'a, T> {
        let inbox = lock(&self.inbox).clone();
        let room = Arc::clone(&self.room);
        Box::pin(async move {
            let inbox = inbox.ok_or(JournalError::Closed)?;
            // No body is near as large as all that may wait, so the room is always enough.
            let permits = u32::try_from(bytes.min(QUEUE_BYTES_MAX)).unwrap_or(u32::MAX);
            let _room = room.acquire_many_owned(permits).await;
            let (reply, answer) = oneshot::channel();
            let job: Box<dyn Job> = Box::new(Task::new(kind, act, reply));
            inbox.send(job).await.map_err(|_| JournalError::Closed)?;
            drop(inbox);
            answer.await.unwrap_or(Err(JournalError::Closed))
        })
    }
}

/// How a file was found.
enum Found {
    /// As it was closed, or looked through.
    Well,
    /// Not closed in order, and too large to be looked through at once.
    Unchecked,
    /// Its pages do not hang together.
    Wrong(String),
}

/// Opens the file, brings it up to date, and looks through it where it was not closed in order.
fn open_book(path: &Path) -> Result<(Book, Found), OpenError> {
    let failed = |source| OpenError::Sqlite {
        path: path.to_owned(),
        source,
    };
    let broken = |what: String| OpenError::Damaged {
        path: path.to_owned(),
        what,
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    log::check(&files::beside(path, "-wal"))?;
    let conn = Connection::open_with_flags(path, flags).map_err(failed)?;
    schema::prepare(&conn).map_err(failed)?;
    let found = schema::version(&conn).map_err(failed)?;
    let known = schema::STEPS.len();
    if found > known {
        return Err(OpenError::Newer {
            path: path.to_owned(),
            found,
            known,
        });
    }
    let is_new = found == 0;
    schema::migrate(&conn, schema::STEPS).map_err(failed)?;
    if is_new {
        Ledger::default().write(&conn).map_err(failed)?;
    }
    let ledger = Ledger::read(&conn).map_err(failed)?;
    let ledger = ledger.ok_or_else(|| broken("its ledger cannot be read".to_owned()))?;
    let found = match ledger.clean || is_new {
        true => Found::Well,
        false if !check::is_small(path) => Found::Unchecked,
        false => match check::look(&conn).map_err(failed)? {
            Some(wrong) => Found::Wrong(wrong),
            None => Found::Well,
        },
    };
    let mut book = Book::open(conn, ledger).map_err(failed)?;
    if !matches!(found, Found::Wrong(_)) {
        book.mark_used().map_err(failed)?;
    }
    Ok((book, found))
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        lock(&self.inbox).take();
        // So that whoever opens the file next finds it closed.
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// An answer that needs nobody.
fn at_once<'a, T: Send + 'a>(outcome: Result<T, JournalError>) -> Pending<'a, T> {
    Box::pin(std::future::ready(outcome))
}

impl Journal for Sqlite {
    fn publish(&self, draft: Draft, at: At) -> Pending<'_, Published> {
        if let Err(error) = names(&draft.dedupe).and_then(|()| fits(&draft.body)) {
            return at_once(Err(error));
        }
        let sum = of_bytes(&draft.body);
        self.ask(Kind::New, draft.body.len(), move |book| {
            book.publish(&draft, sum, at)
        })
    }

    fn lease<'a>(
        &'a self,
        lane: &'a Lane,
        order: Order,
        max: usize,
        hold: Duration,
        at: At,
    ) -> Pending<'a, Vec<Delivery>> {
        let lane = lane.clone();
        self.ask(Kind::Work, 0, move |book| {
            book.lease(&lane, order, max, hold, at)
        })
    }

    fn ack(&self, receipt: Receipt, result: Option<Bytes>, at: At) -> Pending<'_, ()> {
        if let Some(Err(error)) = result.as_ref().map(fits) {
            return at_once(Err(error));
        }
        let bytes = result.as_ref().map_or(0, Bytes::len);
        self.ask(Kind::Work, bytes, move |book| {
            book.ack(receipt, result.as_ref(), at)
        })
    }

    fn nak(&self, receipt: Receipt, delay: Duration, at: At) -> Pending<'_, ()> {
        self.ask(Kind::Work, 0, move |book| book.nak(receipt, delay, at))
    }

    fn bury(&self, receipt: Receipt, reason: Arc<str>, _at: At) -> Pending<'_, ()> {
        self.ask(Kind::Work, 0, move |book| book.bury(receipt, &reason))
    }

    fn revive(&self, id: MessageId, ttl: Option<Duration>, at: At) -> Pending<'_, ()> {
        self.ask(Kind::Work, 0, move |book| book.revive(id, ttl, at))
    }

    fn remove(&self, id: MessageId, at: At) -> Pending<'_, ()> {
        self.ask(Kind::Work, 0, move |book| book.remove(id, at))
    }

    fn withdraw(&self, receipt: Receipt, _at: At) -> Pending<'_, ()> {
        self.ask(Kind::Work, 0, move |book| book.withdraw(receipt))
    }

    fn expire<'a>(&'a self, lanes: &'a str, at: At) -> Pending<'a, Vec<Entry>> {
        let lanes = lanes.to_owned();
        self.ask(Kind::Work, 0, move |book| book.expire(&lanes, at))
    }

    fn lanes<'a>(&'a self, prefix: &'a str, _at: At) -> Pending<'a, Vec<LaneView>> {
        let prefix = prefix.to_owned();
        self.ask(Kind::Read, 0, move |book| book.lane_views(&prefix))
    }

    fn lane_bytes<'a>(&'a self, prefix: &'a str) -> Pending<'a, Vec<(Lane, u64)>> {
        let prefix = prefix.to_owned();
        self.ask(Kind::Read, 0, move |book| book.lane_bytes(&prefix))
    }

    fn inspect(&self, filter: Filter, at: At) -> Pending<'_, Vec<Entry>> {
        self.ask(Kind::Read, 0, move |book| book.inspect(&filter, at))
    }

    fn entry(&self, id: MessageId, at: At) -> Pending<'_, Option<Entry>> {
        self.ask(Kind::Read, 0, move |book| book.entry(id, at))
    }

    fn result<'a>(&'a self, lane: &'a Lane, dedupe: &'a str) -> Pending<'a, Option<Done>> {
        let (lane, dedupe) = (lane.clone(), dedupe.to_owned());
        self.ask(Kind::Read, 0, move |book| book.result(&lane, &dedupe))
    }

    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Value>> {
        let key = key.to_owned();
        self.ask(Kind::Read, 0, move |book| book.get(&key))
    }

    fn list<'a>(&'a self, prefix: &'a str, limit: usize) -> Pending<'a, Vec<(Arc<str>, Value)>> {
        let prefix = prefix.to_owned();
        self.ask(Kind::Read, 0, move |book| book.list(&prefix, limit))
    }

    fn put<'a>(&'a self, key: &'a str, bytes: Option<Bytes>, expect: Expect) -> Pending<'a, u64> {
        let checked = names(key).and_then(|()| bytes.as_ref().map_or(Ok(()), fits));
        if let Err(error) = checked {
            return at_once(Err(error));
        }
        let key = key.to_owned();
        let kind = match bytes {
            Some(_) => Kind::New,
            None => Kind::Work,
        };
        let sum = bytes.as_deref().map(of_bytes).unwrap_or_default();
        self.ask(kind, bytes.as_ref().map_or(0, Bytes::len), move |book| {
            book.put(&key, bytes.as_ref().map(|bytes| (bytes, sum)), expect)
        })
    }

    fn watch(&self, prefix: &str) -> Watch {
        lock(&self.shared.watches).add(prefix)
    }

    fn health(&self) -> Health {
        self.shared.check_health()
    }

    fn stopped_lanes(&self) -> Vec<StoppedLane> {
        lock(&self.shared.stopped).clone()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        lock(&self.inbox).take();
        let mut closed = self.closed.clone();
        Box::pin(async move {
            // An error is that the thread is gone, which is as closed as can be.
            let _closed = closed.wait_for(|closed| *closed).await;
        })
    }
}
