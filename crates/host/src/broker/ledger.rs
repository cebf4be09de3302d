//! Remembers which requests were begun and what came of them, so that none runs twice.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_journal::engine::DONE_KEPT;
use bowline_journal::sqlite::OpenError;
use bowline_journal::{
    At, Draft, Journal, JournalError, Known, Lane, Memory, Order, Published, Receipt, Sqlite,
};
use bytes::Bytes;
use thiserror::Error;
use tokio::sync::OnceCell;

/// How long a request that was begun is held: as long as any process lives.
const HOLD: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Requests of earlier processes that are taken over at a time.
const TAKEN_MAX: usize = 256;

/// A lane of the journal: a request that was begun is a message that is held, one that is done is
/// acknowledged with its answer. Begun and not done after a restart means: nobody knows.
#[derive(Clone, Debug)]
pub struct Ledger(Arc<Book>);

#[derive(Debug)]
struct Book {
    journal: Arc<dyn Journal>,
    lane: Lane,
    /// Whether what earlier processes began was taken over.
    taken_over: OnceCell<()>,
    /// What proves that we hold each request that was begun and is not done, here or before. As
    /// many as run at once, and those of earlier processes that nobody asked for again.
    held: Mutex<HashMap<Arc<str>, Receipt>>,
}

/// Why a ledger cannot be kept in a file.
#[derive(Debug, Error)]
pub enum LedgerError {
    /// The file cannot be used.
    #[error("the file of the ledger cannot be used")]
    File(#[from] OpenError),
    /// The mailbox cannot name a ledger.
    #[error("the mailbox cannot name a ledger")]
    Name(#[from] JournalError),
}

/// A request that is written down as begun.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    name: Arc<str>,
    receipt: Receipt,
}

/// What the ledger knows of a request that is to begin.
#[derive(Debug)]
pub(super) enum Begun {
    /// Nothing; it is written down as begun now.
    Now(Entry),
    /// It was answered, and this is the answer where it is still kept.
    Answered(Option<Bytes>),
    /// It was begun and never ended; whoever began it is gone.
    Before(Option<Entry>),
}

impl Ledger {
    /// Keeps it in this journal, for the mailbox of this name. Nobody else may use both at the
    /// same time.
    ///
    /// # Errors
    /// The name is longer than that of a lane may be.
    pub fn new(journal: Arc<dyn Journal>, mailbox: &str) -> Result<Self, JournalError> {
        let lane = Lane::new(&format!("ran/{mailbox}"))?;
        Ok(Self(Arc::new(Book {
            journal,
            lane,
            taken_over: OnceCell::new(),
            held: Mutex::default(),
        })))
    }

    /// Keeps it in a file of its own, made where it is missing: what was begun is known over a kill
    /// of the program. One process uses the file at a time.
    ///
    /// # Errors
    /// The file cannot be used, or the name is longer than that of a lane may be.
    pub fn open(path: &Path, mailbox: &str) -> Result<Self, LedgerError> {
        let journal = Sqlite::open(path)?;
        Ok(Self::new(Arc::new(journal), mailbox)?)
    }

    /// Keeps it in memory: it forgets with the process.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn in_memory(mailbox: &str) -> Result<Self, JournalError> {
        Self::new(Arc::new(Memory::default()), mailbox)
    }

    /// Returns where it is kept.
    #[must_use]
    pub fn journal(&self) -> &Arc<dyn Journal> {
        &self.0.journal
    }

    /// Returns what was answered to a request: nothing where it was not, and no bytes where the
    /// answer is not kept any more.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn answered(
        &self,
        caller: &str,
        id: &str,
    ) -> Result<Option<Option<Bytes>>, JournalError> {
        let name = name(caller, id);
        let done = self.0.journal.result(&self.0.lane, &name).await?;
        Ok(done.map(|done| done.result))
    }

    /// Writes down that a request is begun, unless it was before.
    pub(super) async fn begin(
        &self,
        (caller, id): (&str, &str),
        (digest, body): ([u8; 32], Bytes),
        at: At,
    ) -> Result<Begun, JournalError> {
        let book = &*self.0;
        book.taken_over
            .get_or_try_init(|| book.take_over(at))
            .await?;
        let name = name(caller, id);
        let draft = Draft {
            lane: book.lane.clone(),
            dedupe: Arc::clone(&name),
            digest,
            body,
            ttl: None,
            hold: Some(HOLD),
        };
        match book.journal.publish(draft, at).await? {
            Published::Stored {
                held: Some(receipt),
                ..
            } => {
                lock(&book.held).insert(Arc::clone(&name), receipt);
                Ok(Begun::Now(Entry { name, receipt }))
            }
            // Something in the lane is held by nobody; it is ours to hold, and so is this one.
            Published::Stored { held: None, .. } => {
                book.take_over(at).await?;
                book.entry(name).map(Begun::Now).ok_or(JournalError::Lapsed)
            }
            Published::Known(Known::Done(done)) => Ok(Begun::Answered(done.result)),
            Published::Known(Known::Waiting { .. } | Known::Dead(_)) => {
                Ok(Begun::Before(book.entry(name)))
            }
        }
    }

    /// Returns a request that was begun and never ended, where there is one.
    pub(super) async fn begun(
        &self,
        (caller, id): (&str, &str),
        at: At,
    ) -> Result<Option<Entry>, JournalError> {
        let book = &*self.0;
        book.taken_over
            .get_or_try_init(|| book.take_over(at))
            .await?;
        Ok(book.entry(name(caller, id)))
    }

    /// Writes down what came of a request that was begun.
    pub(super) async fn end(
        &self,
        entry: &Entry,
        result: Bytes,
        at: At,
    ) -> Result<(), JournalError> {
        let book = &*self.0;
        let done = match book.journal.ack(entry.receipt, Some(result), at).await {
            // That it is done is worth more than what came of it.
            Err(JournalError::TooLarge { .. }) => book.journal.ack(entry.receipt, None, at).await,
            other => other,
        };
        if done.is_ok() {
            lock(&book.held).remove(&entry.name);
        }
        done
    }
}

impl Book {
    fn entry(&self, name: Arc<str>) -> Option<Entry> {
        let receipt = lock(&self.held).get(&name).copied()?;
        Some(Entry { name, receipt })
    }

    /// Holds what nobody holds: what earlier processes began. What is so old that nobody can ask
    /// for it again is forgotten.
    async fn take_over(&self, at: At) -> Result<(), JournalError> {
        loop {
            let lease = self
                .journal
                .lease(&self.lane, Order::Any, TAKEN_MAX, HOLD, at);
            let taken = lease.await?;
            if taken.is_empty() {
                return Ok(());
            }
            for one in taken {
                if one.age > DONE_KEPT {
                    self.journal.withdraw(one.receipt, at).await?;
                } else {
                    lock(&self.held).insert(one.dedupe, one.receipt);
                }
            }
        }
    }
}

/// Names a request among those of all callers. A mailbox holds no `/`.
fn name(caller: &str, id: &str) -> Arc<str> {
    format!("{caller}/{id}").into()
}
