//! Records which requests started and how each ended, so that no request runs twice.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_journal::engine::COMPLETED_TTL;
use bowline_journal::sqlite::JournalOpenError;
use bowline_journal::{
    Duplicate, Journal, JournalError, LaneName, LeaseOrder, LeaseReceipt, MemoryJournal,
    MessageDraft, PublishOutcome, SqliteJournal, Timestamps,
};
use bytes::Bytes;
use thiserror::Error;
use tokio::sync::OnceCell;

/// Lease of a started request: longer than any process lives.
const REQUEST_LEASE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Unfinished requests of earlier processes leased per batch.
const TAKE_OVER_BATCH_MAX: usize = 256;

/// A lane of the journal. A started request is a leased message; a finished request is
/// acknowledged with the response. A message still unfinished after a restart has an unknown
/// outcome.
#[derive(Clone, Debug)]
pub struct RequestLedger(Arc<LedgerInner>);

#[derive(Debug)]
struct LedgerInner {
    journal: Arc<dyn Journal>,
    lane: LaneName,
    /// Set once the unfinished requests of earlier processes are leased.
    taken_over: OnceCell<()>,
    /// Lease receipts of unfinished requests, of this process and of earlier ones: at most the
    /// running requests plus old requests never sent again.
    receipts: Mutex<HashMap<Arc<str>, LeaseReceipt>>,
}

/// Why a ledger file cannot be opened.
#[derive(Debug, Error)]
pub enum LedgerError {
    /// The file cannot be used.
    #[error("the file of the ledger cannot be used")]
    File(#[from] JournalOpenError),
    /// The mailbox name does not fit into a lane name.
    #[error("the mailbox cannot name a ledger")]
    Name(#[from] JournalError),
}

/// A request recorded as started.
#[derive(Clone, Debug)]
pub(super) struct LedgerEntry {
    name: Arc<str>,
    receipt: LeaseReceipt,
}

/// State of a request that is about to start.
#[derive(Debug)]
pub(super) enum BeginOutcome {
    /// New; now recorded as started.
    Started(LedgerEntry),
    /// Already answered, with the response if still kept.
    Answered(Option<Bytes>),
    /// Started by an earlier process and never finished.
    Interrupted(Option<LedgerEntry>),
}

impl RequestLedger {
    /// Opens the ledger of a mailbox in `journal`. Only one ledger may use both at a time.
    ///
    /// # Errors
    /// The mailbox name does not fit into a lane name.
    pub fn new(journal: Arc<dyn Journal>, mailbox: &str) -> Result<Self, JournalError> {
        let lane = LaneName::new(&format!("ran/{mailbox}"))?;
        Ok(Self(Arc::new(LedgerInner {
            journal,
            lane,
            taken_over: OnceCell::new(),
            receipts: Mutex::default(),
        })))
    }

    /// Opens a ledger in a file of its own, created if missing: the record survives a kill of the
    /// program. One process uses the file at a time.
    ///
    /// # Errors
    /// The file cannot be used, or the mailbox name does not fit into a lane name.
    pub fn open(path: &Path, mailbox: &str) -> Result<Self, LedgerError> {
        let journal = SqliteJournal::open(path)?;
        Ok(Self::new(Arc::new(journal), mailbox)?)
    }

    /// Opens a ledger in memory, lost with the process.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn in_memory(mailbox: &str) -> Result<Self, JournalError> {
        Self::new(Arc::new(MemoryJournal::default()), mailbox)
    }

    /// Returns the underlying journal.
    #[must_use]
    pub fn journal(&self) -> &Arc<dyn Journal> {
        &self.0.journal
    }

    /// Finds the recorded response to a request: `None` if unfinished, `Some(None)` if the
    /// response is no longer kept.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn find_response(
        &self,
        caller: &str,
        id: &str,
    ) -> Result<Option<Option<Bytes>>, JournalError> {
        let name = request_name(caller, id);
        let done = self.0.journal.get_result(&self.0.lane, &name).await?;
        Ok(done.map(|done| done.result))
    }

    /// Records a request as started, unless recorded before.
    pub(super) async fn begin_request(
        &self,
        caller: &str,
        id: &str,
        digest: [u8; 32],
        body: Bytes,
        at: Timestamps,
    ) -> Result<BeginOutcome, JournalError> {
        let ledger = &*self.0;
        ledger
            .taken_over
            .get_or_try_init(|| ledger.take_over_unfinished(at))
            .await?;
        let name = request_name(caller, id);
        let draft = MessageDraft {
            lane: ledger.lane.clone(),
            dedupe: Arc::clone(&name),
            digest,
            body,
            ttl: None,
            lease: Some(REQUEST_LEASE),
        };
        match ledger.journal.publish(draft, at).await? {
            PublishOutcome::Stored {
                receipt: Some(receipt),
                ..
            } => {
                lock(&ledger.receipts).insert(Arc::clone(&name), receipt);
                Ok(BeginOutcome::Started(LedgerEntry { name, receipt }))
            }
            // Some message of the lane has no lease; take over all of them, this request included.
            PublishOutcome::Stored { receipt: None, .. } => {
                ledger.take_over_unfinished(at).await?;
                ledger
                    .find_entry(name)
                    .map(BeginOutcome::Started)
                    .ok_or(JournalError::LeaseLost)
            }
            PublishOutcome::Duplicate(Duplicate::Completed(done)) => {
                Ok(BeginOutcome::Answered(done.result))
            }
            PublishOutcome::Duplicate(Duplicate::Queued { .. } | Duplicate::DeadLetter(_)) => {
                Ok(BeginOutcome::Interrupted(ledger.find_entry(name)))
            }
        }
    }

    /// Finds a request that started and never finished.
    pub(super) async fn find_unfinished(
        &self,
        caller: &str,
        id: &str,
        at: Timestamps,
    ) -> Result<Option<LedgerEntry>, JournalError> {
        let ledger = &*self.0;
        ledger
            .taken_over
            .get_or_try_init(|| ledger.take_over_unfinished(at))
            .await?;
        Ok(ledger.find_entry(request_name(caller, id)))
    }

    /// Records the response of a started request.
    pub(super) async fn finish_request(
        &self,
        entry: &LedgerEntry,
        result: Bytes,
        at: Timestamps,
    ) -> Result<(), JournalError> {
        let ledger = &*self.0;
        let done = match ledger.journal.ack(entry.receipt, Some(result), at).await {
            // The fact that the request finished matters more than the response.
            Err(JournalError::TooLarge { .. }) => ledger.journal.ack(entry.receipt, None, at).await,
            other => other,
        };
        if done.is_ok() {
            lock(&ledger.receipts).remove(&entry.name);
        }
        done
    }
}

impl LedgerInner {
    fn find_entry(&self, name: Arc<str>) -> Option<LedgerEntry> {
        let receipt = lock(&self.receipts).get(&name).copied()?;
        Some(LedgerEntry { name, receipt })
    }

    /// Leases all unleased messages: requests started by earlier processes. Requests too old to
    /// be sent again are removed.
    async fn take_over_unfinished(&self, at: Timestamps) -> Result<(), JournalError> {
        loop {
            let lease = self.journal.lease(
                &self.lane,
                LeaseOrder::Any,
                TAKE_OVER_BATCH_MAX,
                REQUEST_LEASE,
                at,
            );
            let deliveries = lease.await?;
            if deliveries.is_empty() {
                return Ok(());
            }
            for delivery in deliveries {
                if delivery.age > COMPLETED_TTL {
                    self.journal.discard_leased(delivery.receipt, at).await?;
                } else {
                    lock(&self.receipts).insert(delivery.dedupe, delivery.receipt);
                }
            }
        }
    }
}

/// Builds the key of a request. A mailbox name contains no `/`.
fn request_name(caller: &str, id: &str) -> Arc<str> {
    format!("{caller}/{id}").into()
}
