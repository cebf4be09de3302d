//! The audit trail on a disk as the sink of a host.

use std::path::Path;
use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_journal::audit::{AuditError, AuditLimits, FileAuditTrail};
use bowline_runtime::Clock;

use super::{AuditEntry, AuditSink, RenderOptions, render_row};

/// The audit trail on disk.
#[derive(Debug)]
pub struct AuditTrail {
    file: FileAuditTrail,
    render: RenderOptions,
}

impl AuditTrail {
    /// Opens the trail in a directory used exclusively.
    ///
    /// # Errors
    /// The files cannot be created or written.
    pub fn open(
        directory: &Path,
        limits: AuditLimits,
        clock: Arc<dyn Clock>,
        render: RenderOptions,
    ) -> Result<Self, AuditError> {
        let wall = Arc::new(move || clock.unix_ms());
        let file = FileAuditTrail::open(directory, limits, wall)?;
        Ok(Self { file, render })
    }

    /// Returns the files of the trail.
    #[must_use]
    pub const fn file(&self) -> &FileAuditTrail {
        &self.file
    }

    pub(super) fn append_entry(&self, entry: &AuditEntry) {
        let (row, bodies) = render_row(entry, &self.render);
        self.file.append(row, bodies);
    }
}

impl AuditSink for AuditTrail {
    fn has_room(&self) -> bool {
        self.file.has_room()
    }

    fn wait_room(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.file.wait_for_room())
    }

    fn record(&self, note: AuditEntry) {
        self.append_entry(&note);
    }
}
