//! Which files of a trail are kept: by their number, by their size and by the age of their rows.

use std::time::Duration;

use bowline_core::time::millis;
use rusqlite::Connection;

use super::super::AuditError;
use super::super::anchor::Anchored;
use super::super::files::{self, FileName, Walk};
use super::super::row::Row;
use super::{Open, Writer};

/// A file is followed by the next after this part of the age at which rows are let go, so that a
/// file is let go not much later than its oldest row should be.
const AGE_PARTS: u64 = 8;

/// How often files are looked at for their age.
const LOOK: Duration = Duration::from_secs(600);

impl Open {
    /// Goes on in a file that has rows.
    pub(super) fn resume(name: FileName, connection: Connection) -> Self {
        let begun_ms = files::noted_ms(&connection, Walk::Forward);
        Self {
            name,
            connection,
            begun_ms,
        }
    }
}

impl Writer {
    /// Begins the next file where this one is large or old enough, and lets old ones go.
    pub(super) fn keep_limits(&mut self) {
        let Some(open) = &self.file else {
            return;
        };
        let now_ms = (self.wall.0)();
        let is_old = self
            .limits
            .age_max
            .is_some_and(|age| now_ms.saturating_sub(open.begun_ms) > millis(age) / AGE_PARTS);
        if is_old || files::size(&open.connection) >= self.limits.file_bytes_max {
            self.looked_ms = now_ms;
            self.rotate();
            return;
        }
        if now_ms.abs_diff(self.looked_ms) < millis(LOOK) {
            return;
        }
        self.looked_ms = now_ms;
        if let Err(error) = self.let_go(now_ms) {
            self.fail(&error, 0);
        }
    }

    /// Lets files go that are too old or too many.
    fn let_go(&mut self, now_ms: u64) -> Result<(), AuditError> {
        let old = self.outdated(now_ms)?;
        if old.is_empty() {
            return Ok(());
        }
        let (head, from) = (self.head, self.from);
        // What is let go must be known to be, or it looks like a theft.
        self.anchor.write(Anchored { head, from })?;
        self.anchor.sync()?;
        old.iter().try_for_each(files::remove)
    }

    /// Returns the files that are to be let go, and counts their rows as such.
    pub(super) fn outdated(&mut self, now_ms: u64) -> Result<Vec<FileName>, AuditError> {
        let limits = self.limits;
        let files = files::list(&self.directory)?;
        let hard_max = limits.files_hard_max.max(limits.files_max).max(1);
        let mut old = Vec::new();
        // Never the newest, which is being written to or about to be.
        for (at, pair) in files.windows(2).enumerate() {
            let [file, next] = pair else { break };
            let kept = files.len() - at;
            // A file whose age cannot be read is as old as can be.
            let noted_ms = files::look(file)
                .map_or(0, |connection| files::noted_ms(&connection, Walk::Backward));
            let age_ms = now_ms.saturating_sub(noted_ms);
            let is_young = age_ms < millis(limits.age_min);
            let is_over = limits.age_max.is_some_and(|age| age_ms > millis(age));
            let is_spare = kept > limits.files_max.max(1) && !is_young;
            if !is_over && !is_spare && kept <= hard_max {
                break;
            }
            if !is_over && is_young {
                self.early += next.first.saturating_sub(file.first);
                tracing::error!(
                    file = file.shown(),
                    "audit rows are let go before their time, to make room"
                );
            }
            self.from = self.from.max(next.first);
            old.push(file.clone());
        }
        Ok(old)
    }
}

/// Returns how many rows had been let go before their time, as the newest file says.
pub(super) fn early(files: &[FileName]) -> u64 {
    let newest = files.iter().rev().find_map(|file| {
        let connection = files::look(file).ok()?;
        let first = "SELECT body FROM rows ORDER BY seq LIMIT 1";
        let body = connection.query_row(first, [], |row| row.get::<_, String>(0));
        body.ok()
    });
    let told = newest.as_deref().map(serde_json::from_str::<Row<'_>>);
    told.and_then(Result::ok)
        .and_then(|row| row.let_go_early)
        .unwrap_or(0)
}
