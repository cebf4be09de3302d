//! Retention of trail files by count, size and row age.

use std::time::Duration;

use bowline_core::time::to_millis;
use rusqlite::Connection;

use super::super::AuditError;
use super::super::anchor::AnchorRecord;
use super::super::audit_row::AuditRow;
use super::super::trail_files::{self, ScanDirection, TrailFile};
use super::{OpenTrailFile, TrailWriter};

/// Fraction of `age_max` after which the next file begins, so a file is evicted soon after its
/// oldest row expires.
const AGE_PARTS: u64 = 8;

/// Interval between checks of file age.
const AGE_CHECK_INTERVAL: Duration = Duration::from_secs(600);

impl OpenTrailFile {
    /// Resumes a file with existing rows.
    pub(super) fn resume(name: TrailFile, connection: Connection) -> Self {
        let first_row_ms = trail_files::boundary_row_ms(&connection, ScanDirection::Forward);
        Self {
            name,
            connection,
            first_row_ms,
        }
    }
}

impl TrailWriter {
    /// Begins the next file if the current file is too large or too old, and evicts old files.
    pub(super) fn enforce_limits(&mut self) {
        let Some(open) = &self.open_file else {
            return;
        };
        let now_ms = (self.clock.0)();
        let is_old = self.limits.age_max.is_some_and(|age| {
            now_ms.saturating_sub(open.first_row_ms) > to_millis(age) / AGE_PARTS
        });
        if is_old || trail_files::database_bytes(&open.connection) >= self.limits.file_bytes_max {
            self.age_checked_ms = now_ms;
            self.rotate_file();
            return;
        }
        if now_ms.abs_diff(self.age_checked_ms) < to_millis(AGE_CHECK_INTERVAL) {
            return;
        }
        self.age_checked_ms = now_ms;
        if let Err(error) = self.evict_files(now_ms) {
            self.handle_failure(&error, 0);
        }
    }

    /// Evicts files beyond the age or count limits.
    fn evict_files(&mut self, now_ms: u64) -> Result<(), AuditError> {
        let old = self.select_evicted(now_ms)?;
        if old.is_empty() {
            return Ok(());
        }
        let (head, from) = (self.head, self.oldest_seq);
        // The anchor must record an eviction before the deletion, or the missing rows look like
        // tampering.
        self.anchor.write(AnchorRecord {
            head,
            oldest_seq: from,
        })?;
        self.anchor.sync()?;
        old.iter().try_for_each(trail_files::delete_trail_file)
    }

    /// Selects files to evict and counts their rows as evicted.
    pub(super) fn select_evicted(&mut self, now_ms: u64) -> Result<Vec<TrailFile>, AuditError> {
        let limits = self.limits;
        let files = trail_files::list_files(&self.directory)?;
        let hard_max = limits.files_hard_max.max(limits.files_max).max(1);
        let mut old = Vec::new();
        // The newest file is never evicted: the writer appends to this file, or is about to.
        for (at, pair) in files.windows(2).enumerate() {
            let [file, next] = pair else { break };
            let remaining = files.len() - at;
            // A file with unreadable age counts as infinitely old.
            let noted_ms = trail_files::open_for_read(file).map_or(0, |connection| {
                trail_files::boundary_row_ms(&connection, ScanDirection::Backward)
            });
            let age_ms = now_ms.saturating_sub(noted_ms);
            let is_young = age_ms < to_millis(limits.age_min);
            let is_over = limits.age_max.is_some_and(|age| age_ms > to_millis(age));
            let is_spare = remaining > limits.files_max.max(1) && !is_young;
            if !is_over && !is_spare && remaining <= hard_max {
                break;
            }
            if !is_over && is_young {
                self.evicted_early += next.first_seq.saturating_sub(file.first_seq);
                tracing::error!(
                    file = file.file_name(),
                    "audit rows evicted before their minimum age to make room"
                );
            }
            self.oldest_seq = self.oldest_seq.max(next.first_seq);
            old.push(file.clone());
        }
        Ok(old)
    }
}

/// Returns the number of rows evicted early, as recorded by the newest file.
pub(super) fn read_evicted_early(files: &[TrailFile]) -> u64 {
    let newest = files.iter().rev().find_map(|file| {
        let connection = trail_files::open_for_read(file).ok()?;
        let first = "SELECT body FROM rows ORDER BY seq LIMIT 1";
        let body = connection.query_row(first, [], |row| row.get::<_, String>(0));
        body.ok()
    });
    let row = newest.as_deref().map(serde_json::from_str::<AuditRow<'_>>);
    row.and_then(Result::ok)
        .and_then(|row| row.let_go_early)
        .unwrap_or(0)
}
