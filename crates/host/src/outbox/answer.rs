//! What the caller of a write is told that waits or was done before.

use bowline_core::call::{Origin, Reply};
use bowline_core::era::Era;
use bowline_journal::MessageId;
use bowline_wire::era::result::{ResultKind, kind};
use bytes::Bytes;
use serde_json::json;

use super::record::Head;
use crate::reply;

/// How the addresses of queued writes begin.
pub const URI: &str = "bowline://outbox/";

/// A write that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued<'a> {
    pub(super) id: MessageId,
    pub(super) position: u64,
    pub(super) head: &'a Head,
}

/// Why a write waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The server cannot be reached.
    Away,
    /// The server serves, but did not take this call.
    Failed,
    /// Calls that were made before it are delivered first.
    Behind,
}

impl Reason {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Away => "The server is not reachable now.",
            Self::Failed => "The server is reachable, but did not answer this call.",
            Self::Behind => {
                "The server is reachable, and calls that were queued before this one are being \
                 delivered first."
            }
        }
    }
}

/// Returns the address of a write.
pub(super) fn uri(id: MessageId) -> String {
    format!("{URI}{}", id.0)
}

/// Says that a write is stored and will be delivered.
pub(super) fn queued(queued: &Queued<'_>, reason: Reason, id: &Bytes) -> Reply {
    let note = format!(
        "{} The call is stored and will be delivered in order; do not repeat it. What became of \
         it: read the resource {}",
        reason.as_str(),
        uri(queued.id)
    );
    let said = said(queued, true, &note);
    reply::told(&said, id, Origin::Queued)
}

/// Says that a write was done before, and that its result was not kept.
pub(super) fn unrecorded(done: MessageId, head: &Head, id: &Bytes) -> Reply {
    let note = "The call was done before under the same idempotency key; its result was not kept.";
    let queued = Queued {
        id: done,
        position: 0,
        head,
    };
    reply::told(&said(&queued, false, note), id, Origin::Recorded)
}

/// Gives the result of a write that was done before.
pub(super) fn recorded(result: &[u8], id: &Bytes) -> Reply {
    // Results of the modern era say what they are, and no others do.
    let era = match kind(result) {
        ResultKind::Absent => Era::Legacy,
        _ => Era::Modern,
    };
    Reply {
        era,
        ..reply::whole(result, id, Origin::Recorded)
    }
}

/// Says why a write is not stored again.
pub(super) fn dead_reason(id: MessageId) -> String {
    format!(
        "it was stored before under the same idempotency key and could not be delivered; see {}",
        uri(id)
    )
}

fn said(queued: &Queued<'_>, waits: bool, note: &str) -> String {
    let Queued { id, position, head } = queued;
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
