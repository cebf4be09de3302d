//! Two rings of one trail: what ran, and what was refused. Each has a chain and limits of its
//! own, so that no number of refusals pushes a call out; for people they are read as one.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

use super::chain::{Head, NoHash};
use super::read::{self, Filter, Kept, Page, RowText};
use super::verify::{self, Verdict};
use super::{AuditError, Kind};

/// The name of the ring of refusals, and of its directory in that of the calls.
pub const DENIALS: &str = "denials";

/// Rows that are read at a time while both rings are read to their end.
const SPAN_ROWS: usize = 2_000;

/// Returns where the ring of refusals is.
#[must_use]
pub fn denials(directory: &Path) -> PathBuf {
    directory.join(DENIALS)
}

/// How far both rings were read: `12.5`. A number alone, as in `12`, means that nothing of the
/// refusals is wanted, unless it is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The last row of the calls.
    pub calls: u64,
    /// The last row of the refusals.
    pub denials: u64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.calls, self.denials)
    }
}

impl FromStr for Cursor {
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

/// Rows of both rings, and how far was looked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// The rows that were wanted, in the order of their time.
    pub rows: Vec<RowText>,
    /// How far was looked.
    pub next: Cursor,
}

#[derive(Debug, Deserialize)]
struct Noted {
    at_ms: u64,
}

/// Returns when a row was noted; a row that cannot be read stands where it is.
fn noted_ms(row: &RowText) -> u64 {
    serde_json::from_str::<Noted>(&row.body).map_or(0, |noted| noted.at_ms)
}

/// Whether the refusals can hold a row that is wanted.
fn wants_denials(filter: &Filter) -> bool {
    use Kind::{Call, Denied, File, Gap, Unauthenticated};
    filter
        .kind
        .is_none_or(|kind| matches!(kind, Call | Denied | Unauthenticated | File | Gap))
}

impl Merged {
    /// Returns up to `limit` rows after these.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn page(
        directory: &Path,
        filter: &Filter,
        after: Cursor,
        limit: usize,
    ) -> Result<Self, AuditError> {
        let calls = read::page(directory, filter, after.calls, limit)?;
        let refused = if wants_denials(filter) {
            read::page(&denials(directory), filter, after.denials, limit)?
        } else {
            Page {
                rows: Vec::new(),
                next: after.denials,
            }
        };
        let mut next = Cursor {
            calls: calls.next,
            denials: refused.next,
        };
        let (mut rows, mut left) = join(calls.rows, refused.rows);
        let more = rows.split_off(limit.min(rows.len()));
        let more_rings = left.split_off(limit.min(left.len()));
        // What was read and is not given out is read again.
        for (row, ring) in more.iter().zip(more_rings).rev() {
            match ring {
                Ring::Calls => next.calls = row.seq.saturating_sub(1),
                Ring::Denials => next.denials = row.seq.saturating_sub(1),
            }
        }
        Ok(Self { rows, next })
    }

    /// Returns up to `limit` of the newest rows.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn newest(directory: &Path, filter: &Filter, limit: usize) -> Result<Self, AuditError> {
        let calls = read::newest(directory, filter, limit)?;
        let refused = read::newest(&denials(directory), filter, limit)?;
        let next = Cursor {
            calls: calls.next,
            denials: refused.next,
        };
        let (mut rows, _) = join(calls.rows, refused.rows);
        rows.drain(..rows.len().saturating_sub(limit));
        Ok(Self { rows, next })
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
        let (mut after, mut count) = (Cursor::default(), 0);
        loop {
            let page = Self::page(directory, filter, after, SPAN_ROWS)?;
            for row in &page.rows {
                take(row).map_err(Kept::Unwritten)?;
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
enum Ring {
    Calls,
    Denials,
}

/// Joins rows by their time. Those of one ring stay in their order.
fn join(calls: Vec<RowText>, refused: Vec<RowText>) -> (Vec<RowText>, Vec<Ring>) {
    let mut rows = Vec::with_capacity(calls.len() + refused.len());
    let mut rings = Vec::with_capacity(rows.capacity());
    let mut calls = calls.into_iter().peekable();
    let mut refused = refused.into_iter().peekable();
    loop {
        let is_call = match (calls.peek(), refused.peek()) {
            (None, None) => return (rows, rings),
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(call), Some(refusal)) => noted_ms(call) <= noted_ms(refusal),
        };
        let (next, ring) = if is_call {
            (calls.next(), Ring::Calls)
        } else {
            (refused.next(), Ring::Denials)
        };
        rows.extend(next);
        rings.push(ring);
    }
}

/// What came of looking at both rings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// Of the calls.
    pub calls: Verdict,
    /// Of the refusals.
    pub denials: Verdict,
}

impl Verdicts {
    /// Looks at both rings, each against a head that was noted before.
    ///
    /// # Errors
    /// A directory or a head beside its files cannot be read.
    pub fn verify(directory: &Path, expect: ExpectedHeads) -> Result<Self, AuditError> {
        Ok(Self {
            calls: verify::verify(directory, expect.calls)?,
            denials: verify::verify(&denials(directory), expect.denials)?,
        })
    }

    /// Whether every row that is kept is as it was written.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.calls.broken.is_none() && self.denials.broken.is_none()
    }
}

/// Heads that were noted before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedHeads {
    /// Of the calls.
    pub calls: Option<Head>,
    /// Of the refusals.
    pub denials: Option<Head>,
}

impl ExpectedHeads {
    /// Reads heads as `verify` prints them.
    ///
    /// # Errors
    /// One of them is none.
    pub fn parse(calls: Option<&str>, denials: Option<&str>) -> Result<Self, NoHash> {
        Ok(Self {
            calls: calls.map(str::parse).transpose()?,
            denials: denials.map(str::parse).transpose()?,
        })
    }
}
