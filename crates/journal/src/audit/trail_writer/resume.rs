//! Resumes a trail after the last row of its files, as far as the anchor agrees.

use std::path::Path;
use std::sync::Arc;

use bowline_core::sync::lock;

use super::super::audit_row::{AuditRow, AuditRowKind, ChainHash, ChainHead};
use super::super::trail_files::{self, AnchorFile, AnchorRecord, TrailFile};
use super::super::{AuditError, AuditLimits, UnixClock};
use super::{
    DebugClock, OpenTrailFile, TrailShared, TrailWriter, display_path, read_evicted_early,
};

/// End of the existing files, and detected damage.
#[derive(Debug, Default)]
struct TrailEnd {
    head: ChainHead,
    /// File to continue in; `None` starts a new file.
    file: Option<OpenTrailFile>,
    damage: Option<String>,
}

impl TrailWriter {
    /// Opens the files and writes the `started` row.
    pub(in super::super) fn open(
        directory: &Path,
        limits: AuditLimits,
        wall: UnixClock,
        shared: Arc<TrailShared>,
    ) -> Result<Self, AuditError> {
        let files = trail_files::list_files(directory)?;
        let (anchor, record) = AnchorFile::open(directory)?;
        let end = find_end(directory, &files, record)?;
        let mut writer = Self {
            directory: directory.to_owned(),
            limits,
            clock: DebugClock(wall),
            shared,
            anchor,
            open_file: end.file,
            resume: None,
            head: end.head,
            oldest_seq: record.map_or(1, |record| record.oldest_seq),
            evicted_early: 0,
            age_checked_ms: 0,
            unreported_lost: 0,
            failure_reason: None,
        };
        writer.evicted_early = read_evicted_early(&files);
        if writer.open_file.is_none() {
            writer.begin_file()?;
        }
        let gap = end.damage.as_ref().map(|trouble| {
            tracing::error!(reason = %trouble, "audit trail is damaged");
            let mut gap = AuditRow::new(AuditRowKind::Gap, (writer.clock.0)());
            gap.reason = Some(trouble.clone().into());
            gap
        });
        let is_told = limits.ring.is_none();
        let started = is_told.then(|| AuditRow::new(AuditRowKind::Started, (writer.clock.0)()));
        for row in gap.into_iter().chain(started) {
            writer.append_own_row(row)?;
        }
        Ok(writer)
    }

    /// Begins a new file and evicts the oldest files beyond the limits.
    pub(super) fn begin_file(&mut self) -> Result<(), AuditError> {
        let name = TrailFile::new(&self.directory, self.head.seq + 1);
        let connection = trail_files::create_file(&name)?;
        let begun_ms = (self.clock.0)();
        let old = self.select_evicted(begun_ms)?;
        let mut first = AuditRow::new(AuditRowKind::File, begun_ms);
        first.prev = Some(self.head.hash.to_string().into());
        first.kept_from = Some(self.oldest_seq);
        first.let_go_early = Some(self.evicted_early).filter(|early| *early > 0);
        self.open_file = Some(OpenTrailFile {
            name,
            connection,
            first_row_ms: begun_ms,
        });
        if let Err(error) = self.append_own_row(first) {
            self.open_file = None;
            lock(&self.shared.files).clear();
            return Err(error);
        }
        // The anchor must record an eviction before the deletion, or the missing rows look like
        // tampering.
        self.anchor.sync()?;
        for file in &old {
            trail_files::delete_trail_file(file)?;
        }
        Ok(())
    }
}

/// Finds the row to continue after. Missing rows stay visible: the chain continues from the
/// anchor's head, and the hole is reported by every verification.
fn find_end(
    directory: &Path,
    files: &[TrailFile],
    record: Option<AnchorRecord>,
) -> Result<TrailEnd, AuditError> {
    let Some(record) = record else {
        let mut end = find_newest_end(files)?.unwrap_or_default();
        if end.head != ChainHead::default() {
            let trouble = "the head beside the files was missing".to_owned();
            end.damage.get_or_insert(trouble);
        }
        return Ok(end);
    };
    let end = match find_newest_end(files) {
        Ok(Some(end)) => end,
        Ok(None) if record.head.seq == 0 => return Ok(TrailEnd::default()),
        Ok(None) => {
            let trouble = format!("no file is left in {}", display_path(directory));
            return Ok(TrailEnd {
                head: record.head,
                file: None,
                damage: Some(trouble),
            });
        }
        Err(error) => {
            let trouble = format!("{error}: begun anew after row {}", record.head.seq);
            return Ok(TrailEnd {
                head: record.head,
                file: None,
                damage: Some(trouble),
            });
        }
    };
    if end.head.seq < record.head.seq {
        let (first, last) = (end.head.seq + 1, record.head.seq);
        let trouble = format!("rows {first} to {last} are missing");
        return Ok(TrailEnd {
            head: record.head,
            file: None,
            damage: Some(trouble),
        });
    }
    let stored_hash = end
        .file
        .as_ref()
        .map(|open| read_hash(open, record.head.seq));
    match stored_hash {
        // The row is in an earlier file, which only a full verification reads.
        None | Some(Ok(None)) => Ok(end),
        Some(Ok(Some(hash))) if hash == record.head.hash => Ok(end),
        Some(Ok(Some(_)) | Err(_)) => {
            let trouble = format!("row {} is not the one that was written", record.head.seq);
            let head = ChainHead {
                seq: end.head.seq,
                hash: record.head.hash,
            };
            Ok(TrailEnd {
                head,
                file: None,
                damage: Some(trouble),
            })
        }
    }
}

/// Returns the end of the newest file with a row; `None` without any row.
fn find_newest_end(files: &[TrailFile]) -> Result<Option<TrailEnd>, AuditError> {
    for name in files.iter().rev() {
        let connection = trail_files::open_for_append(name)?;
        if !trail_files::has_blocks(&connection, name)? {
            continue;
        }
        if let Some(head) = trail_files::last_head(&connection, name)? {
            let name = name.clone();
            let file = Some(OpenTrailFile::resume(name, connection));
            return Ok(Some(TrailEnd {
                head,
                file,
                damage: None,
            }));
        }
    }
    Ok(None)
}

/// Reads the hash of a row, if present in the file.
fn read_hash(open: &OpenTrailFile, seq: u64) -> Result<Option<ChainHash>, AuditError> {
    let row = trail_files::read_row(&open.connection, &open.name, seq)?;
    Ok(row.and_then(|row| row.hash))
}
