//! The audit trail on a disk as the sink of a host.

use std::path::Path;
use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_journal::audit::{AuditError, AuditLimits, FileAuditTrail};
use bowline_runtime::Clock;

use super::{AuditEntry, AuditOutcome, AuditSink, RenderOptions, row_renderer};

/// The audit trail on disk.
pub type AuditTrail = FileAuditTrail<AuditEntry>;

/// Opens the audit trail in a directory used exclusively.
///
/// # Errors
/// The files cannot be created or written.
pub fn open_trail(
    directory: &Path,
    limits: AuditLimits,
    clock: Arc<dyn Clock>,
    options: RenderOptions,
) -> Result<AuditTrail, AuditError> {
    let wall = Arc::new(move || clock.unix_ms());
    AuditTrail::open(directory, limits, wall, row_renderer(options))
}

impl AuditSink for AuditTrail {
    fn has_room(&self) -> bool {
        Self::has_room(self)
    }

    fn wait_room(&self) -> BoxFuture<'_, ()> {
        Box::pin(Self::wait_for_room(self))
    }

    fn record(&self, note: AuditEntry) {
        let bytes = note.held_bytes();
        Self::append_note(self, note, bytes);
    }
}

impl AuditEntry {
    /// Returns the number of bytes kept alive.
    pub(super) fn held_bytes(&self) -> usize {
        let response_bytes = match &self.outcome {
            AuditOutcome::Reply(reply) => reply.response.bytes.len(),
            AuditOutcome::Cancelled
            | AuditOutcome::Failed(_)
            | AuditOutcome::Refused { .. }
            | AuditOutcome::Word(_) => 0,
        };
        size_of::<Self>() + self.params.len() + response_bytes
    }
}
