//! Reads rows for display and export: the newest, a page after a sequence number, or a time range.

use std::path::Path;

use serde::Deserialize;
use thiserror::Error;

use super::AuditError;
use super::audit_row::{AuditRowKind, ChainHash};
use super::trail_files::{self, ScanDirection, StoredRow, TrailFile};

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

/// Row as stored in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowText {
    /// Sequence number.
    pub seq: u64,
    /// JSON object; the hash covers exactly these bytes.
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

#[derive(Debug, Deserialize)]
struct FilterFields {
    at_ms: u64,
    kind: AuditRowKind,
    principal: Option<String>,
    server: Option<String>,
}

impl AuditFilter {
    fn matches(&self, body: &str) -> bool {
        if *self == Self::default() {
            return true;
        }
        // Unreadable rows are shown, since an auditor looks for exactly those.
        let Ok(fields) = serde_json::from_str::<FilterFields>(body) else {
            return true;
        };
        let same = |filter: &Option<String>, value: &Option<String>| {
            filter.is_none() || filter.as_deref() == value.as_deref()
        };
        same(&self.principal, &fields.principal)
            && same(&self.server, &fields.server)
            && self.kind.is_none_or(|kind| kind == fields.kind)
            && self.from_ms.is_none_or(|from| fields.at_ms >= from)
            && self.to_ms.is_none_or(|to| fields.at_ms < to)
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
        if filter.matches(&row.body) {
            page.rows.push(row);
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
                let row = to_row_text(stored);
                scanned += 1;
                page.next = page.next.max(row.seq);
                if page.rows.len() < limit && filter.matches(&row.body) {
                    page.rows.push(row);
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
        if filter.matches(&row.body) {
            refused = take(&row).err();
            count += 1;
        }
        refused.is_none()
    })?;
    refused.map_or(Ok(count), |error| Err(RowExportError::Write(error)))
}

fn visit_rows(
    directory: &Path,
    after: u64,
    visit: &mut dyn FnMut(RowText) -> bool,
) -> Result<(), AuditError> {
    let files = trail_files::list_files(directory)?;
    let start = files
        .iter()
        .rposition(|file| file.first_seq <= after.saturating_add(1));
    for file in files.iter().skip(start.unwrap_or(0)) {
        let Some(connection) = open_if_prepared(file)? else {
            continue;
        };
        let more = trail_files::scan_rows(
            &connection,
            file,
            ScanDirection::Forward,
            after,
            &mut |stored| visit(to_row_text(stored)),
        )?;
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
    Ok(trail_files::has_rows_table(&connection, file)?.then_some(connection))
}

fn to_row_text(stored: StoredRow) -> RowText {
    let body = stored.body.unwrap_or_default();
    RowText {
        seq: stored.seq,
        body: String::from_utf8_lossy(&body).into_owned(),
        hash: stored.hash.unwrap_or_default(),
    }
}
