//! Verifies a whole trail and reports the first damaged row.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::AuditError;
use super::audit_row::{AuditRowKind, ChainHash, ChainHead};
use super::row_block::StoredRow;
use super::trail_files::{self, AnchorRecord, ScanDirection, TrailFile};

/// Kind of damage to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowDamage {
    /// The content changed.
    Changed,
    /// The row is missing.
    Removed,
    /// The row was never written by the trail.
    Inserted,
    /// The row stands at a wrong position.
    Reordered,
    /// First row missing at the end of the trail.
    Truncated,
    /// The chain is consistent but differs from a recorded head.
    Rewritten,
    /// The file cannot be read.
    Unreadable,
    /// The anchor with the length of the trail is missing.
    Unanchored,
    /// The expected row is older than the oldest kept row.
    NotKept,
    /// No trail exists: neither rows nor an anchor.
    Missing,
}

impl RowDamage {
    /// Returns the damage as a word.
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

/// First damaged row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenRow {
    /// Sequence number.
    pub seq: u64,
    /// Kind of damage.
    pub damage: RowDamage,
    /// File of the row, if known.
    pub file: Option<String>,
}

/// Report of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Number of undamaged rows.
    pub rows: u64,
    /// Sequence number of the first undamaged row.
    pub first_seq: u64,
    /// Last undamaged row.
    pub head: ChainHead,
    /// Number of files read.
    pub files: usize,
    /// Number of gap rows.
    pub gaps: u64,
    /// Number of lost rows recorded by gap rows.
    pub lost: u64,
    /// Number of rows with coalesced events.
    pub merged: u64,
    /// Number of coalesced events.
    pub coalesced: u64,
    /// Number of older rows evicted, by size or by age.
    pub evicted: u64,
    /// Number of rows evicted before their minimum age.
    pub evicted_early: u64,
    /// First damaged row, if any.
    pub broken: Option<BrokenRow>,
}

/// Verifies the trail of a directory row by row, against the anchor and an optional recorded head.
/// A gateway may write to the trail meanwhile.
///
/// # Errors
/// The directory or the anchor cannot be read.
pub fn verify_trail(
    directory: &Path,
    expect: Option<ChainHead>,
) -> Result<VerifyReport, AuditError> {
    // The anchor is read before the rows, so rows named by the anchor are already on disk.
    let anchor_record = trail_files::read_anchor(directory)?;
    let mut files = trail_files::list_files(directory)?;
    if files.is_empty() && anchor_record.is_none() {
        return Ok(missing_report());
    }
    // Files before the oldest kept row are about to be deleted and are skipped.
    let from = anchor_record.map_or(0, |anchor_record| anchor_record.oldest_seq);
    let start = files
        .iter()
        .rposition(|file| file.first_seq <= from)
        .unwrap_or(0);
    files.drain(..start);
    let mut walker = ChainWalker {
        anchor: anchor_record,
        expected_head: expect,
        oldest_seq: from,
        ..ChainWalker::default()
    };
    for file in &files {
        walker.read_file(file);
        if walker.report.broken.is_some() {
            break;
        }
    }
    walker.report.files = files.len();
    Ok(walker.into_report())
}

/// Returns the previous hash recorded in the first row of a file.
fn parse_prev_hash(row: &StoredRow) -> Option<ChainHash> {
    row.decode()?.prev?.parse().ok()
}

/// Report for a directory without a trail. A gateway writes the anchor and a first row on opening,
/// so either the files were deleted or no trail ever existed.
fn missing_report() -> VerifyReport {
    let broken = BrokenRow {
        seq: 1,
        damage: RowDamage::Missing,
        file: None,
    };
    VerifyReport {
        broken: Some(broken),
        ..VerifyReport::default()
    }
}

/// State of a verification in progress.
#[derive(Debug, Default)]
struct ChainWalker {
    anchor: Option<AnchorRecord>,
    expected_head: Option<ChainHead>,
    /// Oldest row required to exist.
    oldest_seq: u64,
    /// Hash of the row before the head.
    previous_hash: ChainHash,
    /// Row with a mismatch; the following row decides the kind of damage.
    mismatch: Option<(StoredRow, Option<u64>)>,
    /// Whether a row was read.
    has_first_row: bool,
    report: VerifyReport,
}

impl ChainWalker {
    fn read_file(&mut self, file: &TrailFile) {
        let name = file.file_name();
        let walked = trail_files::open_for_read(file).and_then(|connection| {
            if !trail_files::has_blocks(&connection, file)? {
                return Ok(true);
            }
            trail_files::scan_rows(&connection, file, ScanDirection::Forward, 0, &mut |row| {
                self.check_row(row, &name);
                self.report.broken.is_none()
            })
        });
        if walked.is_err() && self.report.broken.is_none() {
            let seq = match self.has_first_row {
                true => self.report.head.seq + 1,
                false => file.first_seq,
            };
            self.report_damage(seq, RowDamage::Unreadable, Some(&name));
        }
        self.classify_mismatch(None, &name);
    }

    /// Checks a row against the chain.
    fn check_row(&mut self, row: StoredRow, file: &str) {
        let decoded = row.decode();
        let stated_seq = decoded.as_ref().map(|decoded| decoded.seq);
        if self.mismatch.is_some() {
            self.classify_mismatch(Some((&row, stated_seq)), file);
            return;
        }
        if !self.has_first_row {
            self.check_first_row(&row, file);
            if self.report.broken.is_some() {
                return;
            }
        }
        let expected = self.report.head.seq + 1;
        if row.seq > expected {
            self.report_damage(expected, RowDamage::Removed, Some(file));
            return;
        }
        let head = self
            .report
            .head
            .advance(row.encoded.as_deref().unwrap_or_default());
        let fits = row.hash == Some(head.hash);
        match decoded {
            Some(fields) if fits && fields.seq == expected => {
                self.previous_hash = self.report.head.hash;
                self.report.head = head;
                self.report.rows += 1;
                if fields.kind == AuditRowKind::Gap {
                    self.report.gaps += 1;
                    self.report.lost += fields.lost.unwrap_or(0);
                }
                if let Some(count) = fields.count {
                    self.report.merged += 1;
                    self.report.coalesced += count;
                }
                let early = fields.let_go_early.unwrap_or(0);
                self.report.evicted_early = self.report.evicted_early.max(early);
                self.check_known_heads(file);
            }
            Some(_) | None => self.mismatch = Some((row, stated_seq)),
        }
    }

    /// Sets the start of the chain from the first kept row.
    fn check_first_row(&mut self, row: &StoredRow, file: &str) {
        self.has_first_row = true;
        let from = self.oldest_seq.max(1);
        if row.seq > from {
            self.report_damage(from, RowDamage::Removed, Some(file));
            return;
        }
        self.report.first_seq = row.seq;
        self.report.evicted = row.seq.saturating_sub(1);
        self.report.head.seq = row.seq.saturating_sub(1);
        self.report.head.hash = parse_prev_hash(row).unwrap_or_default();
        self.check_known_heads(file);
    }

    /// Compares the current head with the anchor and the expected head.
    fn check_known_heads(&mut self, file: &str) {
        let head = self.report.head;
        let known = [self.anchor.map(|record| record.head), self.expected_head];
        let known = known.into_iter().flatten();
        if known
            .into_iter()
            .any(|known| known.seq == head.seq && known.hash != head.hash)
        {
            self.report_damage(head.seq, RowDamage::Rewritten, Some(file));
        }
    }

    /// Classifies the damage of a mismatched row, using the next row.
    fn classify_mismatch(&mut self, next: Option<(&StoredRow, Option<u64>)>, file: &str) {
        let Some((odd, stated_seq)) = self.mismatch.take() else {
            return;
        };
        let at = odd.seq;
        let follows = |row: &StoredRow, hash: ChainHash| {
            row.hash == Some(hash.extend(row.encoded.as_deref().unwrap_or_default()))
        };
        let head = self.report.head.hash;
        let next_seq = next.and_then(|(_, stated_seq)| stated_seq);
        let (seq, damage) = match stated_seq {
            Some(stated_seq) if stated_seq == at => match next {
                Some((next, Some(stated_seq))) if stated_seq == at && follows(next, head) => {
                    (at, RowDamage::Inserted)
                }
                // The row matches its own recorded predecessor, so the row before was rewritten.
                _ if parse_prev_hash(&odd).is_some_and(|prev| follows(&odd, prev)) => {
                    (at - 1, RowDamage::Rewritten)
                }
                _ => (at, RowDamage::Changed),
            },
            Some(stated_seq) if stated_seq > at && next_seq == Some(at) => {
                (at, RowDamage::Reordered)
            }
            Some(stated_seq) if stated_seq > at => (at, RowDamage::Removed),
            Some(stated_seq) if stated_seq + 1 == at && follows(&odd, self.previous_hash) => {
                (stated_seq, RowDamage::Inserted)
            }
            Some(_) => (at, RowDamage::Reordered),
            None => (at, RowDamage::Changed),
        };
        self.report_damage(seq, damage, Some(file));
    }

    fn report_damage(&mut self, seq: u64, damage: RowDamage, file: Option<&str>) {
        let file = file.map(str::to_owned);
        self.report
            .broken
            .get_or_insert(BrokenRow { seq, damage, file });
    }

    /// Compares the end of the chain with the anchor and the expected head.
    fn into_report(mut self) -> VerifyReport {
        if self.report.broken.is_some() {
            return self.report;
        }
        let head = self.report.head.seq;
        let Some(record) = self.anchor else {
            self.report_damage(head + 1, RowDamage::Unanchored, None);
            return self.report;
        };
        let expected_seq = self
            .expected_head
            .map_or(0, |expect| expect.seq)
            .max(record.head.seq);
        if head < expected_seq {
            let first = if self.has_first_row {
                head + 1
            } else {
                self.oldest_seq.max(1)
            };
            self.report_damage(first, RowDamage::Truncated, None);
        } else if let Some(expect) = self.expected_head
            && expect.seq + 1 < self.report.first_seq
        {
            self.report_damage(expect.seq, RowDamage::NotKept, None);
        }
        self.report
    }
}
