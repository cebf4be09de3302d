//! A stored write in progress: its outcome is recorded even if the caller leaves.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{BodyKind, CallReply, CallRequest, RequestMessage};
use bowline_core::era::Era;
use bowline_core::error::CallError;
use bowline_core::lane::{WriteDisposition, is_gateway_limit, may_be_poison, on_live_error};
use bowline_core::sync::lock;
use bowline_journal::{JournalError, LaneName, LeaseReceipt, MessageId};
use bowline_wire::era::result_translation::{ResultKind, result_kind};
use bowline_wire::object;
use bytes::Bytes;

use super::OutboxShared;
use super::key_lock::KeyGuard;
use super::parked_calls::TurnGuard;
use super::queued_reply::{QueueReason, QueuedWrite, queued_reply};
use super::write_record::WriteRecord;

/// Maximum bytes of a stored result, kept for callers repeating the same key.
pub(super) const RESULT_BYTES_MAX: usize = 256 * 1024;

/// A write in the journal.
#[derive(Debug)]
pub(super) struct StoredWrite {
    pub(super) id: MessageId,
    /// Position in the lane.
    pub(super) position: u64,
    pub(super) lane: LaneName,
    pub(super) record: WriteRecord,
}

/// A stored call in progress.
#[derive(Debug)]
pub(crate) struct StoredCall {
    shared: Arc<OutboxShared>,
    receipt: LeaseReceipt,
    write: StoredWrite,
    /// The call with its key in place.
    call: CallRequest,
    /// The outcome to record; `None` once recorded.
    settlement: Option<Settlement>,
    /// Locks the key until the end.
    key_guard: Option<KeyGuard>,
    /// Counts as in flight in a draining lane.
    turn_guard: Option<TurnGuard>,
}

/// The outcome of a stored write.
#[derive(Clone, Debug)]
enum Settlement {
    /// Completed.
    Completed(Option<Bytes>),
    /// Stays queued.
    Requeued,
    /// Withdrawn.
    Withdrawn,
}

/// Whether the journal still has a stored write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StorageState {
    /// The write is on disk, whether or not the outcome is.
    Kept,
    /// The journal's files are gone, and the write with them.
    Lost,
}

impl StoredCall {
    pub(super) fn new(
        shared: Arc<OutboxShared>,
        receipt: LeaseReceipt,
        write: StoredWrite,
        original: &CallRequest,
        flight: KeyGuard,
        turn_guard: Option<TurnGuard>,
    ) -> Self {
        let stored = write.record.to_call();
        let original = original.clone();
        let has_token = original.message.progress_at.is_some();
        let call = CallRequest {
            subject: stored.subject,
            name_at: stored.name_at,
            idempotency_key: stored.idempotency_key,
            message: RequestMessage {
                params: stored.message.params,
                progress_at: stored.message.progress_at.filter(|_| has_token),
                ..original.message
            },
            ..original
        };
        Self {
            shared,
            receipt,
            write,
            call,
            settlement: Some(Settlement::Withdrawn),
            key_guard: Some(flight),
            turn_guard,
        }
    }

    /// Returns the call to send.
    pub(crate) const fn call(&self) -> &CallRequest {
        &self.call
    }

    /// Returns the idempotency key.
    pub(crate) fn key(&self) -> Arc<str> {
        Arc::clone(&self.write.record.head.key)
    }

    /// Withdraws the write: it was not sent and will be stored again.
    pub(crate) async fn withdraw_write(mut self: Box<Self>) {
        self.record_settlement(Settlement::Withdrawn).await;
    }

    /// Records the outcome: completed, or queued if the server is down. A completed write is
    /// reported as completed even if recording fails. `serves` is true if the server answered
    /// other calls meanwhile.
    pub(crate) async fn settle(
        mut self: Box<Self>,
        outcome: Result<CallReply, CallError>,
        serves: bool,
    ) -> Result<CallReply, CallError> {
        let verdict = match &outcome {
            Ok(reply) => {
                let ending = match completed_result(reply) {
                    Some(result) => Settlement::Completed(storable_result(result)),
                    // Refused: unlock the key for a further attempt. Or the server requires input
                    // first, and the caller retries with the answer.
                    None => Settlement::Withdrawn,
                };
                self.record_settlement(ending).await;
                return outcome;
            }
            Err(error) => (on_live_error(error), queue_reason(error, serves)),
        };
        let (verdict, reason) = verdict;
        match verdict {
            WriteDisposition::Refused => {
                self.record_settlement(Settlement::Withdrawn).await;
            }
            WriteDisposition::Executed => {
                self.record_settlement(Settlement::Completed(None)).await;
            }
            WriteDisposition::Wait(after) => {
                // Before the message can be leased, so that later writes queue behind it.
                self.requeue(reason, after);
                // Without a record the write would never be sent: the caller gets the error.
                if self.record_settlement(Settlement::Requeued).await == StorageState::Lost {
                    return outcome;
                }
                let session = self
                    .call
                    .message
                    .client
                    .as_ref()
                    .map(|caller| caller.session());
                if let Err(error) = &outcome {
                    self.shared.record_failure(self.write.id, error);
                }
                let head = &self.write.record.head;
                self.shared.on_queued(self.write.id, session, head);
                let queued_write = QueuedWrite {
                    id: self.write.id,
                    position: self.write.position,
                    head,
                };
                return Ok(queued_reply(&queued_write, reason, &self.call.message.id));
            }
        }
        outcome
    }

    fn requeue(&self, reason: QueueReason, after: Option<Duration>) {
        let (lane, now) = (Arc::from(self.write.lane.as_str()), self.shared.clock.now());
        {
            let mut board = lock(&self.shared.scheduler);
            board.mark_pending(&lane, &self.write.record.head.server, now);
            if reason == QueueReason::Unreachable {
                board.on_unreachable(&lane, after, now);
            }
        }
        if reason == QueueReason::Unreachable {
            self.shared.parked.release_lane(&self.write.lane, reason);
        }
    }

    /// Records an outcome; if dropped midway, `Drop` records it.
    async fn record_settlement(&mut self, ending: Settlement) -> StorageState {
        self.settlement = Some(ending.clone());
        let is_done = matches!(ending, Settlement::Completed(_));
        let written = settle_message(&self.shared, &self.write.lane, self.receipt, ending).await;
        self.settlement = None;
        let storage = match &written {
            Err(JournalError::Replaced) => StorageState::Lost,
            Ok(()) | Err(_) => StorageState::Kept,
        };
        report_settled(&self.shared, self.write.id, &self.write.lane, written);
        if is_done {
            let now = self.shared.clock.now();
            lock(&self.shared.scheduler).on_server_ready(&self.write.record.head.server, now);
        }
        storage
    }
}

/// A leaving caller withdraws its write; at shutdown the write stays.
impl Drop for StoredCall {
    fn drop(&mut self) {
        let Some(ending) = self.settlement.take() else {
            return;
        };
        // At shutdown, writes in progress are left to the next gateway.
        let ending = match ending {
            Settlement::Withdrawn if self.shared.is_closing() => Settlement::Requeued,
            ending => ending,
        };
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let (receipt, id, lane) = (self.receipt, self.write.id, self.write.lane.clone());
        let guards = (self.key_guard.take(), self.turn_guard.take());
        self.shared.tasks.spawn("outbox.end", async move {
            let written = settle_message(&shared, &lane, receipt, ending).await;
            report_settled(&shared, id, &lane, written);
            // Callers with the same key see the recorded outcome.
            drop(guards);
        });
    }
}

async fn settle_message(
    shared: &OutboxShared,
    lane: &LaneName,
    receipt: LeaseReceipt,
    ending: Settlement,
) -> Result<(), JournalError> {
    let (journal, at) = (&shared.journal, shared.timestamps());
    match ending {
        Settlement::Completed(result) => journal.ack(receipt, result, at).await,
        Settlement::Requeued => shared.requeue_message(lane, receipt).await,
        Settlement::Withdrawn => journal.discard_leased(receipt, at).await,
    }
}

/// Wakes the lane. A write with an unrecorded outcome is sent again after a restart, with the same
/// key.
fn report_settled(
    shared: &OutboxShared,
    id: MessageId,
    lane: &LaneName,
    written: Result<(), JournalError>,
) {
    if let Err(error) = written {
        tracing::error!(id = id.0, %lane, %error, "outcome of a write could not be recorded");
    }
    shared.wake_lane(lane.as_str());
    if lock(&shared.scheduler).has_pending(lane.as_str()) {
        shared.scheduler.wake();
    }
}

/// Returns why a failed write is queued: a server answering other calls is not down.
fn queue_reason(error: &CallError, serves: bool) -> QueueReason {
    match is_gateway_limit(error) || (serves && may_be_poison(error)) {
        true => QueueReason::Failed,
        false => QueueReason::Unreachable,
    }
}

/// True if the server requires input before executing the write.
pub(super) fn requires_input(reply: &CallReply) -> bool {
    let body = reply.response.body_bytes();
    reply.response.era == Era::Modern
        && reply.response.body == BodyKind::Result
        && matches!(
            result_kind(body),
            ResultKind::InputRequired | ResultKind::Unknown
        )
}

/// Returns the result of a write that was executed or accepted as a task.
pub(super) fn completed_result(reply: &CallReply) -> Option<&[u8]> {
    if requires_input(reply) {
        return None;
    }
    let body = reply.response.body_bytes();
    let is_error = object::field(body, "isError").is_some_and(|at| at.slice(body) != b"false");
    (reply.response.body == BodyKind::Result && !is_error).then_some(body)
}

/// Copies a result for storage, unless too large.
pub(super) fn storable_result(result: &[u8]) -> Option<Bytes> {
    (result.len() <= RESULT_BYTES_MAX).then(|| Bytes::copy_from_slice(result))
}
