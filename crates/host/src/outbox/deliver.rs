//! Delivers a stored write and records the outcome.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::CallReply;
use bowline_core::error::CallError;
use bowline_core::lane::{
    POISON_TRIES_MAX, RETRY_BACKOFF, WriteDisposition, is_gateway_limit, may_be_poison,
    on_replay_error,
};
use bowline_core::retry::{JitterSource, Retry};
use bowline_core::sync::lock;
use bowline_journal::audit::AuditRowKind;
use bowline_journal::{
    CompletedMessage, JournalError, LaneName, LeaseReceipt, LeasedMessage, MessageId,
    MessageStatus, MessageView,
};

use super::OutboxShared;
use super::delivered_index::DeliveredWrite;
use super::notify::FinishedWrite;
use super::queue_view::{ViewContext, view_delivered, view_entry};
use super::stored_call::{completed_result, requires_input, storable_result};
use super::write_record::WriteRecord;
use crate::audit::AuditOutcome;
use crate::callpath::CallPath;

/// Dead-letter reason for a revoked credential.
const REVOKED: &str = "the credential that made it was revoked";

/// Result of sending a stored write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendOutcome {
    /// The server responded.
    Responded,
    /// Finished without a response of the server.
    Finished,
    /// Failed by itself; retried after this time, still leased.
    Delayed(Duration),
    /// Failed; other writes must show whether the server is down. Still leased.
    Suspect {
        /// Retry delay if other writes succeed.
        rest: Duration,
        /// Delay for the server if they fail.
        after: Option<Duration>,
    },
    /// The server was down; the message was released.
    ServerDown(Option<Duration>),
}

/// Answered calls of a server before and after an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ServedCounts {
    pub(super) before: u64,
    pub(super) after: u64,
}

/// Sends a stored write and records the outcome.
pub(super) async fn deliver_write(
    shared: &Arc<OutboxShared>,
    path: &CallPath,
    lane: &LaneName,
    delivery: &LeasedMessage,
) -> Result<SendOutcome, JournalError> {
    let receipt = delivery.receipt;
    let Some(record) = WriteRecord::parse(&delivery.body) else {
        tracing::error!(id = receipt.id.0, "queued write cannot be parsed");
        let (journal, at) = (&shared.journal, shared.timestamps());
        let reason = "it is written in a form that is not known".into();
        journal.dead_letter(receipt, reason, at).await?;
        return Ok(SendOutcome::Finished);
    };
    let is_revoked = lock(&shared.notes)
        .revoked
        .contains(record.head.credential());
    if is_revoked {
        dead_letter_revoked(shared, receipt, &record).await?;
        return Ok(SendOutcome::Finished);
    }
    // May have been stored before such names were refused on entry.
    if !record.is_unambiguous() {
        let error = CallError::AmbiguousNames {
            server: Arc::clone(&record.head.server),
            tool: Arc::clone(&record.head.tool),
        };
        return on_failure(shared, receipt, &record, error, ServedCounts::default()).await;
    }
    let call = record.to_call();
    let (server, key) = (&record.head.server, record.head.replay_key());
    let before = path.answered_calls(server);
    match path.replay_write(&call, server, key).await {
        Ok(reply) => on_response(shared, lane, delivery, &record, reply).await,
        Err(error) => {
            let served = ServedCounts {
                before,
                after: path.answered_calls(server),
            };
            on_failure(shared, receipt, &record, error, served).await
        }
    }
}

/// Handles a response: the server accepted the write, or never will.
async fn on_response(
    shared: &OutboxShared,
    lane: &LaneName,
    delivery: &LeasedMessage,
    record: &WriteRecord,
    reply: CallReply,
) -> Result<SendOutcome, JournalError> {
    let (receipt, at) = (delivery.receipt, shared.timestamps());
    let Some(result) = completed_result(&reply) else {
        let body = reply.response.body_bytes();
        let cause = match requires_input(&reply) {
            true => "the server asks for something, and nobody is there to answer",
            false => "the server refused it",
        };
        let reason = format!("{cause}: {}", truncate_body(body));
        let end = AuditOutcome::Reply(reply);
        dead_letter(shared, receipt, record, reason.into(), end).await?;
        return Ok(SendOutcome::Responded);
    };
    let result = storable_result(result);
    let done = CompletedMessage {
        id: receipt.id,
        result: result.clone(),
        unix_ms: at.unix_ms,
    };
    let (journal, dedupe) = (&*shared.journal, &*delivery.dedupe);
    // Concurrently: both are written in a single commit.
    let (acked, noted) = tokio::join!(
        journal.ack(receipt, result, at),
        shared.delivered.add(journal, receipt.id, lane, dedupe),
    );
    if let Err(error) = noted {
        tracing::warn!(id = receipt.id.0, %error, "delivered write could not be indexed");
    }
    acked?;
    let view = view_delivered(&DeliveredWrite {
        lane: lane.clone(),
        dedupe: Arc::clone(&delivery.dedupe),
        done,
    });
    shared.on_finished(FinishedWrite {
        id: receipt.id,
        record,
        view: &view,
        kind: AuditRowKind::Delivered,
        outcome: AuditOutcome::Reply(reply),
    });
    Ok(SendOutcome::Responded)
}

async fn on_failure(
    shared: &OutboxShared,
    receipt: LeaseReceipt,
    record: &WriteRecord,
    error: CallError,
    served: ServedCounts,
) -> Result<SendOutcome, JournalError> {
    let after = match on_replay_error(&error) {
        WriteDisposition::Wait(after) => after,
        WriteDisposition::Refused | WriteDisposition::Executed => {
            let reason = error.to_string().into();
            dead_letter(shared, receipt, record, reason, AuditOutcome::Failed(error)).await?;
            return Ok(SendOutcome::Finished);
        }
    };
    shared.record_failure(receipt.id, &error);
    if is_gateway_limit(&error) {
        return Ok(SendOutcome::Delayed(after.unwrap_or(RETRY_BACKOFF.base)));
    }
    if may_be_poison(&error) {
        let (tries, serves) = lock(&shared.notes).count_try(receipt.id, served);
        if tries >= POISON_TRIES_MAX {
            let reason = format!(
                "it failed {tries} times while the server served other calls, the last time so: \
                 {error}"
            );
            let end = AuditOutcome::Failed(error);
            dead_letter(shared, receipt, record, reason.into(), end).await?;
            return Ok(SendOutcome::Finished);
        }
        let jitter = JitterSource::from_owner(&record.head.key);
        let rest = Retry::new(RETRY_BACKOFF, jitter)
            .with_failures(tries)
            .wait(shared.clock.now());
        return Ok(match serves {
            true => SendOutcome::Delayed(rest),
            false => SendOutcome::Suspect { rest, after },
        });
    }
    shared.release_message(receipt).await?;
    Ok(SendOutcome::ServerDown(after))
}

/// Moves a write of a revoked credential to the dead letters.
pub(super) async fn dead_letter_revoked(
    shared: &OutboxShared,
    receipt: LeaseReceipt,
    record: &WriteRecord,
) -> Result<(), JournalError> {
    let end = AuditOutcome::Word("revoked");
    dead_letter(shared, receipt, record, REVOKED.into(), end).await
}

/// Moves a write to the dead letters and notifies.
async fn dead_letter(
    shared: &OutboxShared,
    receipt: LeaseReceipt,
    record: &WriteRecord,
    reason: Arc<str>,
    end: AuditOutcome,
) -> Result<(), JournalError> {
    let (journal, at) = (&shared.journal, shared.timestamps());
    journal
        .dead_letter(receipt, Arc::clone(&reason), at)
        .await?;
    match journal.get_message(receipt.id, at).await? {
        Some(entry) => shared.on_dead_letter(&entry, record, AuditRowKind::Dead, end),
        None => tracing::warn!(id = receipt.id.0, %reason, "dead letter is already gone"),
    }
    Ok(())
}

impl OutboxShared {
    pub(super) fn on_dead_letter(
        &self,
        entry: &MessageView,
        record: &WriteRecord,
        kind: AuditRowKind,
        end: AuditOutcome,
    ) {
        debug_assert!(matches!(entry.status, MessageStatus::DeadLetter(_)));
        let view = view_entry(entry, None, self.view_context(None));
        self.on_finished(FinishedWrite {
            id: entry.id,
            record,
            view: &view,
            kind,
            outcome: end,
        });
    }

    pub(super) fn view_context(&self, lane: Option<&str>) -> ViewContext {
        ViewContext {
            now: self.clock.now(),
            unix_ms: self.clock.unix_ms(),
            times: lane.and_then(|lane| lock(&self.scheduler).lane_times(lane)),
        }
    }

    pub(super) fn last_error(&self, id: MessageId) -> Option<Arc<str>> {
        lock(&self.notes).error(id)
    }
}

/// Maximum characters of a server's response in the reason.
const REASON_CHARS_MAX: usize = 500;

fn truncate_body(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    match text.char_indices().nth(REASON_CHARS_MAX) {
        Some((cut, _)) => format!("{}…", text.get(..cut).unwrap_or_default()),
        None => text.into_owned(),
    }
}
