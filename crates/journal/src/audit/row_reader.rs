//! Reads rows for display and export: the newest, a page after a sequence number, or a time range.

use std::path::Path;

use bowline_core::hex::to_hex;
use thiserror::Error;

use super::AuditError;
use super::audit_row::{AuditRowKind, ChainHash};
use super::row_block::StoredRow;
use super::trail_files::{self, ScanDirection, TrailFile};

/// Bytes shown of a row that cannot be read.
const UNREADABLE_BYTES_MAX: usize = 256;

/// Rows scanned per query.
const SCAN_ROWS_MAX: u64 = 500_000;

/// Row filter; `None` matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Principal name.
    pub principal: Option<String>,
    /// Server name.
    pub server: Option<String>,
    /// Row kind.
    pub kind: Option<AuditRowKind>,
    /// Start of the time range, inclusive, in milliseconds since 1970.
    pub from_ms: Option<u64>,
    /// End of the time range, exclusive.
    pub to_ms: Option<u64>,
}

/// Row as shown to readers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowText {
    /// Sequence number.
    pub seq: u64,
    /// JSON object. The hash covers the compact form of the same members.
    pub body: String,
    /// Chain hash.
    pub hash: ChainHash,
}

impl RowText {
    /// Returns the row with its hash as the last member.
    #[must_use]
    pub fn to_json_line(&self) -> String {
        let open = self.body.strip_suffix('}').unwrap_or(&self.body);
        format!("{open},\"hash\":\"{}\"}}", self.hash)
    }
}

/// Page of rows and the scan position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditPage {
    /// Matching rows, oldest first.
    pub rows: Vec<RowText>,
    /// Last sequence number scanned.
    pub next: u64,
}

/// Error of an export.
#[derive(Debug, Error)]
pub enum RowExportError {
    /// The trail cannot be read.
    #[error(transparent)]
    Read(#[from] AuditError),
    /// The consumer failed to write a row.
    #[error("the rows cannot be written")]
    Write(#[source] std::io::Error),
}

impl AuditFilter {
    fn matches(&self, row: &StoredRow) -> bool {
        if *self == Self::default() {
            return true;
        }
        // Unreadable rows are shown, since an auditor looks for exactly those.
        let Some(row) = row.decode() else {
            return true;
        };
        let same = |filter: &Option<String>, value: Option<&str>| {
            filter.is_none() || filter.as_deref() == value
        };
        same(&self.principal, row.principal.as_deref())
            && same(&self.server, row.server.as_deref())
            && self.kind.is_none_or(|kind| kind == row.kind)
            && self.from_ms.is_none_or(|from| row.at_ms >= from)
            && self.to_ms.is_none_or(|to| row.at_ms < to)
    }
}

/// Returns up to `limit` rows after sequence number `after`.
///
/// # Errors
/// The files cannot be read.
pub fn read_page(
    directory: &Path,
    filter: &AuditFilter,
    after: u64,
    limit: usize,
) -> Result<AuditPage, AuditError> {
    let mut page = AuditPage {
        rows: Vec::new(),
        next: after,
    };
    let mut scanned = 0;
    visit_rows(directory, after, &mut |row| {
        scanned += 1;
        page.next = row.seq;
        if filter.matches(&row) {
            page.rows.push(to_row_text(&row));
        }
        page.rows.len() < limit && scanned < SCAN_ROWS_MAX
    })?;
    Ok(page)
}

/// Returns up to `limit` of the newest rows.
///
/// # Errors
/// The files cannot be read.
pub fn read_newest(
    directory: &Path,
    filter: &AuditFilter,
    limit: usize,
) -> Result<AuditPage, AuditError> {
    let mut page = AuditPage::default();
    let mut scanned = 0;
    for file in trail_files::list_files(directory)?.iter().rev() {
        let Some(connection) = open_if_prepared(file)? else {
            continue;
        };
        let more = trail_files::scan_rows(
            &connection,
            file,
            ScanDirection::Backward,
            0,
            &mut |stored| {
                scanned += 1;
                page.next = page.next.max(stored.seq);
                if page.rows.len() < limit && filter.matches(&stored) {
                    page.rows.push(to_row_text(&stored));
                }
                page.rows.len() < limit && scanned < SCAN_ROWS_MAX
            },
        )?;
        if !more {
            break;
        }
    }
    page.rows.reverse();
    Ok(page)
}

/// Passes every matching row to `take`, oldest first, and returns the number of rows.
///
/// # Errors
/// The files cannot be read, or `take` failed.
pub fn export_rows(
    directory: &Path,
    filter: &AuditFilter,
    mut take: impl FnMut(&RowText) -> std::io::Result<()>,
) -> Result<u64, RowExportError> {
    let (mut count, mut refused) = (0, None);
    visit_rows(directory, 0, &mut |row| {
        if filter.matches(&row) {
            refused = take(&to_row_text(&row)).err();
            count += 1;
        }
        refused.is_none()
    })?;
    refused.map_or(Ok(count), |error| Err(RowExportError::Write(error)))
}

fn visit_rows(
    directory: &Path,
    after: u64,
    visit: &mut dyn FnMut(StoredRow) -> bool,
) -> Result<(), AuditError> {
    let files = trail_files::list_files(directory)?;
    let start = files
        .iter()
        .rposition(|file| file.first_seq <= after.saturating_add(1));
    for file in files.iter().skip(start.unwrap_or(0)) {
        let Some(connection) = open_if_prepared(file)? else {
            continue;
        };
        let more = trail_files::scan_rows(&connection, file, ScanDirection::Forward, after, visit)?;
        if !more {
            break;
        }
    }
    Ok(())
}

/// Opens a file for reading; `None` if the file was just evicted or has no table yet.
fn open_if_prepared(file: &TrailFile) -> Result<Option<rusqlite::Connection>, AuditError> {
    if !file.path.exists() {
        return Ok(None);
    }
    let connection = trail_files::open_for_read(file)?;
    Ok(trail_files::has_blocks(&connection, file)?.then_some(connection))
}

fn to_row_text(stored: &StoredRow) -> RowText {
    RowText {
        seq: stored.seq,
        body: render_row(stored),
        hash: stored.hash.unwrap_or_default(),
    }
}

/// Returns a row as JSON; of a row that no trail wrote, its number and the start of its bytes.
fn render_row(stored: &StoredRow) -> String {
    // A row holds only texts and numbers, so serialization cannot fail.
    let text = stored.decode().map(|row| serde_json::to_string(&row));
    text.and_then(Result::ok).unwrap_or_else(|| {
        let seq = stored.seq;
        let bytes = stored.encoded.as_deref().unwrap_or_default();
        let some = bytes.get(..UNREADABLE_BYTES_MAX).unwrap_or(bytes);
        format!("{{\"seq\":{seq},\"unreadable\":\"{}\"}}", to_hex(some))
    })
}
