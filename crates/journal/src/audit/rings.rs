//! Two rings of one trail: executed calls and denied requests. Each ring has a separate chain and
//! separate limits, so denials never evict calls. Readers see both rings merged.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

use super::audit_row::{ChainHead, ParseHashError};
use super::row_reader::{self, AuditFilter, AuditPage, RowExportError, RowText};
use super::verify::{self, VerifyReport};
use super::{AuditError, AuditRowKind};

/// Name of the denials ring, and of its subdirectory.
pub const DENIALS_RING: &str = "denials";

/// Rows per page during an export of both rings.
const EXPORT_PAGE_ROWS: usize = 2_000;

/// Returns the directory of the denials ring.
#[must_use]
pub fn denials_directory(directory: &Path) -> PathBuf {
    directory.join(DENIALS_RING)
}

/// Read position in both rings, written `12.5`. A bare number such as `12` skips all denials; `0`
/// starts both rings from the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditCursor {
    /// Last row read from the calls ring.
    pub calls: u64,
    /// Last row read from the denials ring.
    pub denials: u64,
}

impl fmt::Display for AuditCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.calls, self.denials)
    }
}

impl FromStr for AuditCursor {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (calls, denials) = match text.split_once('.') {
            Some((calls, denials)) => (calls.parse()?, denials.parse()?),
            None => match text.parse()? {
                0 => (0, 0),
                calls => (calls, u64::MAX),
            },
        };
        Ok(Self { calls, denials })
    }
}

/// Rows of both rings and the read position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergedPage {
    /// Matching rows, ordered by time.
    pub rows: Vec<RowText>,
    /// Read position.
    pub next: AuditCursor,
}

#[derive(Debug, Deserialize)]
struct RowTime {
    at_ms: u64,
}

/// Returns the timestamp of a row; 0 for an unreadable row, which keeps its place.
fn row_time_ms(row: &RowText) -> u64 {
    serde_json::from_str::<RowTime>(&row.body).map_or(0, |noted| noted.at_ms)
}

/// Returns whether the denials ring can hold a matching row.
fn can_match_denials(filter: &AuditFilter) -> bool {
    use AuditRowKind::{Call, Denied, File, Gap, Unauthenticated};
    filter
        .kind
        .is_none_or(|kind| matches!(kind, Call | Denied | Unauthenticated | File | Gap))
}

impl MergedPage {
    /// Returns up to `limit` rows after `after`.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn read_page(
        directory: &Path,
        filter: &AuditFilter,
        after: AuditCursor,
        limit: usize,
    ) -> Result<Self, AuditError> {
        let calls = row_reader::read_page(directory, filter, after.calls, limit)?;
        let refused = if can_match_denials(filter) {
            row_reader::read_page(&denials_directory(directory), filter, after.denials, limit)?
        } else {
            AuditPage {
                rows: Vec::new(),
                next: after.denials,
            }
        };
        let mut next = AuditCursor {
            calls: calls.next,
            denials: refused.next,
        };
        let (mut rows, mut left) = merge_by_time(calls.rows, refused.rows);
        let more = rows.split_off(limit.min(rows.len()));
        let more_rings = left.split_off(limit.min(left.len()));
        // Rows read but not returned are read again by the next page.
        for (row, ring) in more.iter().zip(more_rings).rev() {
            match ring {
                AuditRing::Calls => next.calls = row.seq.saturating_sub(1),
                AuditRing::Denials => next.denials = row.seq.saturating_sub(1),
            }
        }
        Ok(Self { rows, next })
    }

    /// Returns up to `limit` of the newest rows.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn read_newest(
        directory: &Path,
        filter: &AuditFilter,
        limit: usize,
    ) -> Result<Self, AuditError> {
        let calls = row_reader::read_newest(directory, filter, limit)?;
        let refused = row_reader::read_newest(&denials_directory(directory), filter, limit)?;
        let next = AuditCursor {
            calls: calls.next,
            denials: refused.next,
        };
        let (mut rows, _) = merge_by_time(calls.rows, refused.rows);
        rows.drain(..rows.len().saturating_sub(limit));
        Ok(Self { rows, next })
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
        let (mut after, mut count) = (AuditCursor::default(), 0);
        loop {
            let page = Self::read_page(directory, filter, after, EXPORT_PAGE_ROWS)?;
            for row in &page.rows {
                take(row).map_err(RowExportError::Write)?;
                count += 1;
            }
            if page.next == after {
                return Ok(count);
            }
            after = page.next;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AuditRing {
    Calls,
    Denials,
}

/// Merges rows by timestamp; rows of one ring keep their order.
fn merge_by_time(calls: Vec<RowText>, refused: Vec<RowText>) -> (Vec<RowText>, Vec<AuditRing>) {
    let mut rows = Vec::with_capacity(calls.len() + refused.len());
    let mut rings = Vec::with_capacity(rows.capacity());
    let mut calls = calls.into_iter().peekable();
    let mut refused = refused.into_iter().peekable();
    loop {
        let is_call = match (calls.peek(), refused.peek()) {
            (None, None) => return (rows, rings),
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(call), Some(refusal)) => row_time_ms(call) <= row_time_ms(refusal),
        };
        let (next, ring) = if is_call {
            (calls.next(), AuditRing::Calls)
        } else {
            (refused.next(), AuditRing::Denials)
        };
        rows.extend(next);
        rings.push(ring);
    }
}

/// Verification reports of both rings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RingReports {
    /// Report on the calls ring.
    pub calls: VerifyReport,
    /// Report on the denials ring.
    pub denials: VerifyReport,
}

impl RingReports {
    /// Verifies both rings, each against an expected head.
    ///
    /// # Errors
    /// A directory or an anchor cannot be read.
    pub fn verify_rings(directory: &Path, expect: ExpectedHeads) -> Result<Self, AuditError> {
        Ok(Self {
            calls: verify::verify_trail(directory, expect.calls)?,
            denials: verify::verify_trail(&denials_directory(directory), expect.denials)?,
        })
    }

    /// Returns whether both rings are undamaged.
    #[must_use]
    pub const fn is_intact(&self) -> bool {
        self.calls.broken.is_none() && self.denials.broken.is_none()
    }
}

/// Heads recorded earlier, to verify against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedHeads {
    /// Head of the calls ring.
    pub calls: Option<ChainHead>,
    /// Head of the denials ring.
    pub denials: Option<ChainHead>,
}

impl ExpectedHeads {
    /// Parses heads as printed by `audit verify`.
    ///
    /// # Errors
    /// A text is not a chain head.
    pub fn parse(calls: Option<&str>, denials: Option<&str>) -> Result<Self, ParseHashError> {
        Ok(Self {
            calls: calls.map(str::parse).transpose()?,
            denials: denials.map(str::parse).transpose()?,
        })
    }
}
