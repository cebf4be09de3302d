//! Replies for a write that is queued or already completed.

use bowline_core::call::{CallReply, ReplyOrigin};
use bowline_core::era::Era;
use bowline_journal::MessageId;
use bowline_wire::era::result_translation::{ResultKind, result_kind};
use bytes::Bytes;
use serde_json::json;

use super::write_record::WriteHead;
use crate::local_reply;

/// URI prefix of queued writes.
pub const OUTBOX_URI_PREFIX: &str = "bowline://outbox/";

/// A queued write.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedWrite<'a> {
    pub(super) id: MessageId,
    pub(super) position: u64,
    pub(super) head: &'a WriteHead,
}

/// Why a write is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueReason {
    /// The server is unreachable.
    Unreachable,
    /// The server is up, but failed this call.
    Failed,
    /// Earlier writes are delivered first.
    Behind,
}

impl QueueReason {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "The server is not reachable now.",
            Self::Failed => "The server is reachable, but did not answer this call.",
            Self::Behind => {
                "The server is reachable, and calls that were queued before this one are being \
                 delivered first."
            }
        }
    }
}

/// Returns the URI of a write.
pub(super) fn write_uri(id: MessageId) -> String {
    format!("{OUTBOX_URI_PREFIX}{}", id.0)
}

/// Returns the reply for a queued write.
pub(super) fn queued_reply(queued: &QueuedWrite<'_>, reason: QueueReason, id: &Bytes) -> CallReply {
    let note = format!(
        "{} The call is stored and will be delivered in order; do not repeat it. What became of \
         it: read the resource {}",
        reason.as_str(),
        write_uri(queued.id)
    );
    let status = status_json(queued, true, &note);
    local_reply::structured_reply(&status, id, ReplyOrigin::Queued)
}

/// Returns the reply for a completed write without a stored result.
pub(super) fn unrecorded_reply(done: MessageId, head: &WriteHead, id: &Bytes) -> CallReply {
    let note = "The call was done before under the same idempotency key; its result was not kept.";
    let queued = QueuedWrite {
        id: done,
        position: 0,
        head,
    };
    local_reply::structured_reply(
        &status_json(&queued, false, note),
        id,
        ReplyOrigin::Recorded,
    )
}

/// Returns the stored result of a completed write.
pub(super) fn recorded_reply(result: &[u8], id: &Bytes) -> CallReply {
    // Only modern results state their type.
    let era = match result_kind(result) {
        ResultKind::Absent => Era::Legacy,
        _ => Era::Modern,
    };
    let mut reply = local_reply::result_reply(result, id, ReplyOrigin::Recorded);
    reply.response.era = era;
    reply
}

/// Returns the error reason for a dead-lettered write.
pub(super) fn dead_reason(id: MessageId) -> String {
    format!(
        "it was stored before under the same idempotency key and could not be delivered; see {}",
        write_uri(id)
    )
}

fn status_json(queued: &QueuedWrite<'_>, waits: bool, note: &str) -> String {
    let QueuedWrite { id, position, head } = queued;
    json!({
        "queued": waits,
        "tool": head.tool,
        "idempotencyKey": head.key,
        "note": note,
        "id": id.0.to_string(),
        "position": position,
    })
    .to_string()
}
