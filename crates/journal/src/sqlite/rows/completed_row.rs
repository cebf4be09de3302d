//! Rows of completed messages and their results.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::{SqlInt, expect_one_row, get_fixed_bytes, get_int, get_optional_int, verify_checksum};
use crate::engine::LaneName;
use crate::sqlite::checksum::{Checksum, ChecksumBuilder};

/// Completed message without its result.
#[derive(Clone, Debug)]
pub(in crate::sqlite) struct CompletedRow {
    pub(in crate::sqlite) seq: u64,
    /// Hash of the lane and the dedupe id.
    pub(in crate::sqlite) key: Checksum,
    /// Lane tag, possibly readable even in a damaged row.
    pub(in crate::sqlite) lane: u64,
    pub(in crate::sqlite) id: u64,
    pub(in crate::sqlite) digest: [u8; 32],
    pub(in crate::sqlite) unix_ms: u64,
    /// Length and checksum of the result.
    pub(in crate::sqlite) result: Option<(u64, Checksum)>,
}

/// Row as read; for a damaged row the lane tag, if readable.
type CompletedRead = Result<CompletedRow, Option<u64>>;

/// Columns of a row without its result.
const SELECT_ROW: &str =
    "SELECT seq, key, lane, id, digest, at, result_bytes, result_sum, sum FROM done";

/// Returns the tag of a lane.
pub(in crate::sqlite) fn lane_tag(lane: &LaneName) -> u64 {
    let sum = ChecksumBuilder::new("lane mark").add_bytes(lane.as_str().as_bytes());
    let [a, b, c, d, ..] = sum.finish();
    checked_tag(u32::from_le_bytes([a, b, c, d]))
}

/// Returns a number with a check value: in a damaged row, the tag may be damaged too.
const fn checked_tag(number: u32) -> u64 {
    let check = number.wrapping_mul(0x9E37_79B1) >> 16;
    ((number as u64) << 16) | check as u64
}

/// Returns whether a tag has a valid check value.
fn is_valid_tag(tag: u64) -> bool {
    u32::try_from(tag >> 16).is_ok_and(|number| checked_tag(number) == tag)
}

/// Returns the key of a lane and a dedupe id.
pub(in crate::sqlite) fn completed_key(lane: &LaneName, dedupe: &str) -> Checksum {
    let lane = lane.as_str().as_bytes();
    let key = ChecksumBuilder::new("key")
        .add_bytes(lane)
        .add_bytes(dedupe.as_bytes());
    key.finish()
}

impl CompletedRow {
    pub(in crate::sqlite) fn checksum(&self) -> Checksum {
        let result = self.result.as_ref();
        let bytes = result.map(|(bytes, _)| bytes.to_le_bytes());
        ChecksumBuilder::new("done")
            .add_int(self.seq)
            .add_bytes(&self.key)
            .add_int(self.lane)
            .add_int(self.id)
            .add_bytes(&self.digest)
            .add_int(self.unix_ms)
            .add_optional(bytes.as_ref().map(<[u8; 8]>::as_slice))
            .add_optional(result.map(|(_, sum)| sum.as_slice()))
            .finish()
    }

    fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        let bytes = get_optional_int(row, 6)?;
        let slot = Self {
            seq: get_int(row, 0)?,
            key: get_fixed_bytes(row, 1)?,
            lane: get_int(row, 2)?,
            id: get_int(row, 3)?,
            digest: get_fixed_bytes(row, 4)?,
            unix_ms: get_int(row, 5)?,
            result: match bytes {
                Some(bytes) => Some((bytes, get_fixed_bytes(row, 7)?)),
                None => None,
            },
        };
        verify_checksum(get_fixed_bytes(row, 8)?, slot.checksum(), slot)
    }

    /// Returns the length of the result.
    pub(in crate::sqlite) fn result_bytes(&self) -> u64 {
        self.result.map_or(0, |(bytes, _)| bytes)
    }

    /// Reads a row; for a damaged row the lane tag, if readable.
    fn read_row(row: &Row<'_>) -> CompletedRead {
        let lane = |_| get_int(row, 2).ok().filter(|tag| is_valid_tag(*tag));
        Self::from_row(row).map_err(lane)
    }

    /// Passes all rows to `show`, oldest first.
    pub(in crate::sqlite) fn visit_all(
        conn: &Connection,
        mut show: impl FnMut(CompletedRead),
    ) -> rusqlite::Result<()> {
        let mut statement = conn.prepare(&format!("{SELECT_ROW} ORDER BY seq"))?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            show(Self::read_row(row));
        }
        Ok(())
    }

    /// Reads the row with a sequence number; `None` if absent.
    pub(in crate::sqlite) fn read_by_seq(
        conn: &Connection,
        seq: u64,
    ) -> rusqlite::Result<Option<CompletedRead>> {
        let mut statement = conn.prepare_cached(&format!("{SELECT_ROW} WHERE seq = ?1"))?;
        let read = statement.query_row([SqlInt(seq)], |row| Ok(Self::read_row(row)));
        read.optional()
    }

    /// Reads the first row after a sequence number, with its sequence number.
    pub(in crate::sqlite) fn read_first_after(
        conn: &Connection,
        seq: u64,
    ) -> rusqlite::Result<Option<(u64, CompletedRead)>> {
        let sql = format!("{SELECT_ROW} WHERE seq > ?1 ORDER BY seq LIMIT 1");
        let mut statement = conn.prepare_cached(&sql)?;
        let read = statement.query_row([SqlInt(seq)], |row| {
            Ok((get_int(row, 0)?, Self::read_row(row)))
        });
        read.optional()
    }

    pub(in crate::sqlite) fn insert(
        &self,
        conn: &Connection,
        result: Option<&[u8]>,
    ) -> rusqlite::Result<()> {
        let sql = "INSERT INTO done (seq, key, lane, id, digest, at, result_bytes, result_sum, \
                   sum, result) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
        conn.prepare_cached(sql)?.execute(params![
            SqlInt(self.seq),
            self.key,
            SqlInt(self.lane),
            SqlInt(self.id),
            self.digest,
            SqlInt(self.unix_ms),
            self.result.map(|(bytes, _)| SqlInt(bytes)),
            self.result.map(|(_, sum)| sum),
            self.checksum(),
            result,
        ])?;
        Ok(())
    }

    pub(in crate::sqlite) fn delete(conn: &Connection, seq: u64) -> rusqlite::Result<()> {
        let sql = "DELETE FROM done WHERE seq = ?1";
        expect_one_row(conn.prepare_cached(sql)?.execute([SqlInt(seq)])?)
    }

    /// Reads the result without verification.
    pub(in crate::sqlite) fn read_result(
        &self,
        conn: &Connection,
    ) -> rusqlite::Result<Option<Vec<u8>>> {
        let sql = "SELECT result FROM done WHERE seq = ?1";
        let mut statement = conn.prepare_cached(sql)?;
        let result = statement.query_row([SqlInt(self.seq)], |row| Ok(row.get(0).ok()));
        Ok(result.optional()?.flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flipped_bit_invalidates_lane_tag() {
        let marked = lane_tag(&LaneName::new("outbox/a/b").unwrap());
        assert!(is_valid_tag(marked));
        for bit in 0..64 {
            assert!(!is_valid_tag(marked ^ (1 << bit)), "{bit}");
        }
    }
}
