//! Reads rows for people: the newest, those after a number, those of a time.

use std::path::Path;

use serde::Deserialize;
use thiserror::Error;

use super::AuditError;
use super::chain::Hash;
use super::files::{self, FileName, Stored, Walk};
use super::row::Kind;

/// Rows that one question looks at.
const SCAN_ROWS_MAX: u64 = 500_000;

/// Which rows are wanted; all where nothing is said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of whom.
    pub principal: Option<String>,
    /// Of which server.
    pub server: Option<String>,
    /// Of what kind.
    pub kind: Option<Kind>,
    /// Not before, in milliseconds since 1970.
    pub from_ms: Option<u64>,
    /// Before.
    pub to_ms: Option<u64>,
}

/// One row as it stands in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowText {
    /// Its number.
    pub seq: u64,
    /// Its text, a JSON object; these bytes are what is hashed.
    pub body: String,
    /// Its hash.
    pub hash: Hash,
}

impl RowText {
    /// Returns the row with its hash as the last member.
    #[must_use]
    pub fn line(&self) -> String {
        let open = self.body.strip_suffix('}').unwrap_or(&self.body);
        format!("{open},\"hash\":\"{}\"}}", self.hash)
    }
}

/// Rows, and how far was looked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The rows that were wanted, oldest first.
    pub rows: Vec<RowText>,
    /// The last number that was looked at.
    pub next: u64,
}

/// Why rows were not handed on.
#[derive(Debug, Error)]
pub enum Kept {
    /// They cannot be read.
    #[error(transparent)]
    Unread(#[from] AuditError),
    /// Whoever wanted them cannot take them.
    #[error("the rows cannot be written")]
    Unwritten(#[source] std::io::Error),
}

#[derive(Debug, Deserialize)]
struct Told {
    at_ms: u64,
    kind: Kind,
    principal: Option<String>,
    server: Option<String>,
}

impl Filter {
    fn takes(&self, body: &str) -> bool {
        if *self == Self::default() {
            return true;
        }
        // What cannot be read is shown: it is what a person looks for.
        let Ok(told) = serde_json::from_str::<Told>(body) else {
            return true;
        };
        let same = |wanted: &Option<String>, is: &Option<String>| {
            wanted.is_none() || wanted.as_deref() == is.as_deref()
        };
        same(&self.principal, &told.principal)
            && same(&self.server, &told.server)
            && self.kind.is_none_or(|kind| kind == told.kind)
            && self.from_ms.is_none_or(|from| told.at_ms >= from)
            && self.to_ms.is_none_or(|to| told.at_ms < to)
    }
}

/// Returns up to `limit` rows after the row `after`.
///
/// # Errors
/// The files cannot be read.
pub fn page(
    directory: &Path,
    filter: &Filter,
    after: u64,
    limit: usize,
) -> Result<Page, AuditError> {
    let mut page = Page {
        rows: Vec::new(),
        next: after,
    };
    let mut scanned = 0;
    each(directory, after, &mut |row| {
        scanned += 1;
        page.next = row.seq;
        if filter.takes(&row.body) {
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
pub fn newest(directory: &Path, filter: &Filter, limit: usize) -> Result<Page, AuditError> {
    let mut page = Page::default();
    let mut scanned = 0;
    for file in files::list(directory)?.iter().rev() {
        let Some(connection) = begun(file)? else {
            continue;
        };
        let more = files::walk((&connection, file), Walk::Backward, 0, &mut |stored| {
            let row = text(stored);
            scanned += 1;
            page.next = page.next.max(row.seq);
            if page.rows.len() < limit && filter.takes(&row.body) {
                page.rows.push(row);
            }
            page.rows.len() < limit && scanned < SCAN_ROWS_MAX
        })?;
        if !more {
            break;
        }
    }
    page.rows.reverse();
    Ok(page)
}

/// Hands every row that is wanted to `take`, oldest first, and returns how many there were.
///
/// # Errors
/// The files cannot be read, or the rows not be taken.
pub fn span(
    directory: &Path,
    filter: &Filter,
    mut take: impl FnMut(&RowText) -> std::io::Result<()>,
) -> Result<u64, Kept> {
    let (mut count, mut refused) = (0, None);
    each(directory, 0, &mut |row| {
        if filter.takes(&row.body) {
            refused = take(&row).err();
            count += 1;
        }
        refused.is_none()
    })?;
    refused.map_or(Ok(count), |error| Err(Kept::Unwritten(error)))
}

fn each(
    directory: &Path,
    after: u64,
    visit: &mut dyn FnMut(RowText) -> bool,
) -> Result<(), AuditError> {
    let files = files::list(directory)?;
    let start = files
        .iter()
        .rposition(|file| file.first <= after.saturating_add(1));
    for file in files.iter().skip(start.unwrap_or(0)) {
        let Some(connection) = begun(file)? else {
            continue;
        };
        let more = files::walk((&connection, file), Walk::Forward, after, &mut |stored| {
            visit(text(stored))
        })?;
        if !more {
            break;
        }
    }
    Ok(())
}

/// Opens a file to read it; nothing where it was just let go, or holds nothing yet.
fn begun(file: &FileName) -> Result<Option<rusqlite::Connection>, AuditError> {
    if !file.path.exists() {
        return Ok(None);
    }
    let connection = files::look(file)?;
    Ok(files::is_begun(&connection, file)?.then_some(connection))
}

fn text(stored: Stored) -> RowText {
    let body = stored.body.unwrap_or_default();
    RowText {
        seq: stored.seq,
        body: String::from_utf8_lossy(&body).into_owned(),
        hash: stored.hash.unwrap_or_default(),
    }
}
