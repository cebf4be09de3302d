//! Reads a whole trail and names the first row that is not as it was written.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::anchor::{self, Anchored};
use super::chain::{Hash, Head};
use super::files::{self, FileName, Stored, Walk};
use super::row::Kind;
use super::{AuditError, Row};

/// In which way a row is not as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Damage {
    /// It says something else.
    Changed,
    /// It is gone.
    Removed,
    /// It was never written.
    Inserted,
    /// It stands in another's place.
    Reordered,
    /// It was the first of those that are missing at the end.
    Truncated,
    /// Everything fits together, and is not what was there before.
    Rewritten,
    /// Its file cannot be read.
    Unreadable,
    /// What says how long the trail is, is gone.
    Unanchored,
    /// The row that was asked for is too old to be kept.
    NotKept,
    /// There is no trail: neither rows nor what says how long it is.
    Missing,
}

impl Damage {
    /// Returns its word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Removed => "removed",
            Self::Inserted => "inserted",
            Self::Reordered => "reordered",
            Self::Truncated => "truncated",
            Self::Rewritten => "rewritten",
            Self::Unreadable => "unreadable",
            Self::Unanchored => "unanchored",
            Self::NotKept => "not_kept",
            Self::Missing => "missing",
        }
    }
}

/// The first row that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Its number.
    pub seq: u64,
    /// What happened to it.
    pub damage: Damage,
    /// The file it should be in, as far as that is known.
    pub file: Option<String>,
}

/// What came of looking at a trail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Rows that are as they were written.
    pub rows: u64,
    /// The number of the first of them.
    pub first: u64,
    /// The last of them.
    pub head: Head,
    /// Files that were read.
    pub files: usize,
    /// Rows that tell of others that were lost.
    pub gaps: u64,
    /// How many rows they say were lost.
    pub lost: u64,
    /// Rows that stand for several alike.
    pub merged: u64,
    /// How many these stand for.
    pub coalesced: u64,
    /// Older rows that were let go, to make room or because of their age.
    pub let_go: u64,
    /// Those of them that were let go before their time.
    pub let_go_early: u64,
    /// The first that is not, where there is one.
    pub broken: Option<Broken>,
}

/// Reads the trail of a directory, one row at a time, and also holds it against a head that was
/// noted before. A gateway that writes to it meanwhile does no harm.
///
/// # Errors
/// The directory or the head beside the files cannot be read.
pub fn verify(directory: &Path, expect: Option<Head>) -> Result<Verdict, AuditError> {
    // First the anchor, then the rows: what it knows is on disk by then.
    let said = anchor::read(directory)?;
    let mut files = files::list(directory)?;
    if files.is_empty() && said.is_none() {
        return Ok(missing());
    }
    // One that is let go, but not yet gone, is not looked at.
    let from = said.map_or(0, |said| said.from);
    let start = files
        .iter()
        .rposition(|file| file.first <= from)
        .unwrap_or(0);
    files.drain(..start);
    let mut walker = Walker {
        said,
        expect,
        from,
        ..Walker::default()
    };
    for file in &files {
        walker.read(file);
        if walker.verdict.broken.is_some() {
            break;
        }
    }
    walker.verdict.files = files.len();
    Ok(walker.ended())
}

/// Returns the hash that the first row of a file says it follows.
fn prev(row: &Stored) -> Option<Hash> {
    let told: Row<'_> = serde_json::from_slice(row.body.as_deref()?).ok()?;
    told.prev?.parse().ok()
}

/// The verdict on a directory without a trail. A gateway that opens a trail writes its head and a
/// first row at once, so the files were deleted, or there never was a trail to vouch for.
fn missing() -> Verdict {
    let broken = Broken {
        seq: 1,
        damage: Damage::Missing,
        file: None,
    };
    Verdict {
        broken: Some(broken),
        ..Verdict::default()
    }
}

/// A look at a trail that is under way.
#[derive(Debug, Default)]
struct Walker {
    said: Option<Anchored>,
    expect: Option<Head>,
    /// The oldest row that must be there.
    from: u64,
    /// The hash before the one of the head.
    before: Hash,
    /// A row that does not fit; what comes after it tells why.
    odd: Option<(Stored, Option<u64>)>,
    /// Whether a row was seen.
    begun: bool,
    verdict: Verdict,
}

/// The little that is read of each row.
#[derive(Debug, Deserialize)]
struct Told {
    seq: u64,
    kind: Kind,
    lost: Option<u64>,
    count: Option<u64>,
    let_go_early: Option<u64>,
}

impl Walker {
    fn read(&mut self, file: &FileName) {
        let name = file.shown();
        let walked = files::look(file).and_then(|connection| {
            if !files::is_begun(&connection, file)? {
                return Ok(true);
            }
            files::walk((&connection, file), Walk::Forward, 0, &mut |row| {
                self.row(row, &name);
                self.verdict.broken.is_none()
            })
        });
        if walked.is_err() && self.verdict.broken.is_none() {
            let seq = match self.begun {
                true => self.verdict.head.seq + 1,
                false => file.first,
            };
            self.name(seq, Damage::Unreadable, Some(&name));
        }
        self.explain_odd(None, &name);
    }

    /// Looks at one row.
    fn row(&mut self, row: Stored, file: &str) {
        let body = row.body.as_deref().unwrap_or_default();
        let told: Option<Told> = serde_json::from_slice(body).ok();
        if self.odd.is_some() {
            self.explain_odd(Some((&row, told.as_ref().map(|told| told.seq))), file);
            return;
        }
        if !self.begun {
            self.begin(&row, file);
            if self.verdict.broken.is_some() {
                return;
            }
        }
        let expected = self.verdict.head.seq + 1;
        if row.seq > expected {
            self.name(expected, Damage::Removed, Some(file));
            return;
        }
        let head = self.verdict.head.then(body);
        let fits = row.hash == Some(head.hash);
        match told {
            Some(told) if fits && told.seq == expected => {
                self.before = self.verdict.head.hash;
                self.verdict.head = head;
                self.verdict.rows += 1;
                if told.kind == Kind::Gap {
                    self.verdict.gaps += 1;
                    self.verdict.lost += told.lost.unwrap_or(0);
                }
                if let Some(count) = told.count {
                    self.verdict.merged += 1;
                    self.verdict.coalesced += count;
                }
                let early = told.let_go_early.unwrap_or(0);
                self.verdict.let_go_early = self.verdict.let_go_early.max(early);
                self.pass(file);
            }
            told => self.odd = Some((row, told.map(|told| told.seq))),
        }
    }

    /// Finds where the trail begins: with the first row of a file that is kept.
    fn begin(&mut self, row: &Stored, file: &str) {
        self.begun = true;
        let from = self.from.max(1);
        if row.seq > from {
            self.name(from, Damage::Removed, Some(file));
            return;
        }
        self.verdict.first = row.seq;
        self.verdict.let_go = row.seq.saturating_sub(1);
        self.verdict.head.seq = row.seq.saturating_sub(1);
        self.verdict.head.hash = prev(row).unwrap_or_default();
        self.pass(file);
    }

    /// Holds the row just passed against what is known of it from elsewhere.
    fn pass(&mut self, file: &str) {
        let head = self.verdict.head;
        let known = [self.said.map(|said| said.head), self.expect];
        let known = known.into_iter().flatten();
        if known
            .into_iter()
            .any(|known| known.seq == head.seq && known.hash != head.hash)
        {
            self.name(head.seq, Damage::Rewritten, Some(file));
        }
    }

    /// Says what is wrong with a row that does not fit, by what follows it.
    fn explain_odd(&mut self, next: Option<(&Stored, Option<u64>)>, file: &str) {
        let Some((odd, says)) = self.odd.take() else {
            return;
        };
        let at = odd.seq;
        let body = |row: &Stored| row.body.clone().unwrap_or_default();
        let follows = |row: &Stored, hash: Hash| row.hash == Some(hash.then(&body(row)));
        let head = self.verdict.head.hash;
        let next_says = next.and_then(|(_, says)| says);
        let (seq, damage) = match says {
            Some(says) if says == at => match next {
                Some((next, Some(says))) if says == at && follows(next, head) => {
                    (at, Damage::Inserted)
                }
                // It is as it was written: what it was written after is another now.
                _ if prev(&odd).is_some_and(|prev| follows(&odd, prev)) => {
                    (at - 1, Damage::Rewritten)
                }
                _ => (at, Damage::Changed),
            },
            Some(says) if says > at && next_says == Some(at) => (at, Damage::Reordered),
            Some(says) if says > at => (at, Damage::Removed),
            Some(says) if says + 1 == at && follows(&odd, self.before) => (says, Damage::Inserted),
            Some(_) => (at, Damage::Reordered),
            None => (at, Damage::Changed),
        };
        self.name(seq, damage, Some(file));
    }

    fn name(&mut self, seq: u64, damage: Damage, file: Option<&str>) {
        let file = file.map(str::to_owned);
        self.verdict
            .broken
            .get_or_insert(Broken { seq, damage, file });
    }

    /// Holds the end against what is known of it.
    fn ended(mut self) -> Verdict {
        if self.verdict.broken.is_some() {
            return self.verdict;
        }
        let head = self.verdict.head.seq;
        let Some(said) = self.said else {
            self.name(head + 1, Damage::Unanchored, None);
            return self.verdict;
        };
        let wanted = self
            .expect
            .map_or(0, |expect| expect.seq)
            .max(said.head.seq);
        if head < wanted {
            let first = if self.begun {
                head + 1
            } else {
                self.from.max(1)
            };
            self.name(first, Damage::Truncated, None);
        } else if let Some(expect) = self.expect
            && expect.seq + 1 < self.verdict.first
        {
            self.name(expect.seq, Damage::NotKept, None);
        }
        self.verdict
    }
}
