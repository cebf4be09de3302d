//! Ends of messages and what came of them.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::{Int, fixed, int, maybe_int, one, whole};
use crate::engine::Lane;
use crate::sqlite::sum::{Sum, Summer};

/// The end of a message, without what came of it.
#[derive(Clone, Debug)]
pub(in crate::sqlite) struct DoneSlot {
    pub(in crate::sqlite) seq: u64,
    /// Stands for the lane and the dedupe id.
    pub(in crate::sqlite) key: Sum,
    /// Stands for the lane: of a damaged row this much can be guessed.
    pub(in crate::sqlite) lane: u64,
    pub(in crate::sqlite) id: u64,
    pub(in crate::sqlite) digest: [u8; 32],
    pub(in crate::sqlite) unix_ms: u64,
    /// Length and checksum of what came of it.
    pub(in crate::sqlite) result: Option<(u64, Sum)>,
}

/// A row as it was read; of a damaged one the mark of its lane, if that is readable.
type Read = Result<DoneSlot, Option<u64>>;

/// Columns of a row without its result.
const SLOT: &str = "SELECT seq, key, lane, id, digest, at, result_bytes, result_sum, sum FROM done";

/// Stands for a lane in rows of ends.
pub(in crate::sqlite) fn lane_mark(lane: &Lane) -> u64 {
    let sum = Summer::new("lane mark").bytes(lane.as_str().as_bytes());
    let [a, b, c, d, ..] = sum.finish();
    mark(u32::from_le_bytes([a, b, c, d]))
}

/// A number with a check of itself: of a damaged row, its own mark may be what is damaged.
const fn mark(number: u32) -> u64 {
    let check = number.wrapping_mul(0x9E37_79B1) >> 16;
    ((number as u64) << 16) | check as u64
}

/// Whether it is a mark as it was made.
fn is_mark(found: u64) -> bool {
    u32::try_from(found >> 16).is_ok_and(|number| mark(number) == found)
}

/// Stands for a lane and a dedupe id in rows of ends.
pub(in crate::sqlite) fn done_key(lane: &Lane, dedupe: &str) -> Sum {
    let lane = lane.as_str().as_bytes();
    let key = Summer::new("key").bytes(lane).bytes(dedupe.as_bytes());
    key.finish()
}

impl DoneSlot {
    pub(in crate::sqlite) fn sum(&self) -> Sum {
        let result = self.result.as_ref();
        let bytes = result.map(|(bytes, _)| bytes.to_le_bytes());
        Summer::new("done")
            .int(self.seq)
            .bytes(&self.key)
            .int(self.lane)
            .int(self.id)
            .bytes(&self.digest)
            .int(self.unix_ms)
            .maybe(bytes.as_ref().map(<[u8; 8]>::as_slice))
            .maybe(result.map(|(_, sum)| sum.as_slice()))
            .finish()
    }

    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        let bytes = maybe_int(row, 6)?;
        let slot = Self {
            seq: int(row, 0)?,
            key: fixed(row, 1)?,
            lane: int(row, 2)?,
            id: int(row, 3)?,
            digest: fixed(row, 4)?,
            unix_ms: int(row, 5)?,
            result: match bytes {
                Some(bytes) => Some((bytes, fixed(row, 7)?)),
                None => None,
            },
        };
        whole(fixed(row, 8)?, slot.sum(), slot)
    }

    /// Returns the bytes of the result.
    pub(in crate::sqlite) fn result_bytes(&self) -> u64 {
        self.result.map_or(0, |(bytes, _)| bytes)
    }

    /// Returns the row; of a damaged one the mark of its lane, if that is readable.
    fn read(row: &Row<'_>) -> Read {
        let lane = |_| int(row, 2).ok().filter(|found| is_mark(*found));
        Self::of(row).map_err(lane)
    }

    /// Shows all rows, oldest first.
    pub(in crate::sqlite) fn each(
        conn: &Connection,
        mut show: impl FnMut(Read),
    ) -> rusqlite::Result<()> {
        let mut statement = conn.prepare(&format!("{SLOT} ORDER BY seq"))?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            show(Self::read(row));
        }
        Ok(())
    }

    /// Reads the row of a sequence number; none if there is none.
    pub(in crate::sqlite) fn by_seq(conn: &Connection, seq: u64) -> rusqlite::Result<Option<Read>> {
        let mut statement = conn.prepare_cached(&format!("{SLOT} WHERE seq = ?1"))?;
        let read = statement.query_row([Int(seq)], |row| Ok(Self::read(row)));
        read.optional()
    }

    /// Reads the first row after a sequence number, with its own number.
    pub(in crate::sqlite) fn first_after(
        conn: &Connection,
        seq: u64,
    ) -> rusqlite::Result<Option<(u64, Read)>> {
        let sql = format!("{SLOT} WHERE seq > ?1 ORDER BY seq LIMIT 1");
        let mut statement = conn.prepare_cached(&sql)?;
        let read = statement.query_row([Int(seq)], |row| Ok((int(row, 0)?, Self::read(row))));
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
            Int(self.seq),
            self.key,
            Int(self.lane),
            Int(self.id),
            self.digest,
            Int(self.unix_ms),
            self.result.map(|(bytes, _)| Int(bytes)),
            self.result.map(|(_, sum)| sum),
            self.sum(),
            result,
        ])?;
        Ok(())
    }

    pub(in crate::sqlite) fn delete(conn: &Connection, seq: u64) -> rusqlite::Result<()> {
        let sql = "DELETE FROM done WHERE seq = ?1";
        one(conn.prepare_cached(sql)?.execute([Int(seq)])?)
    }

    /// Reads what came of it, as it is on the disk.
    pub(in crate::sqlite) fn result(&self, conn: &Connection) -> rusqlite::Result<Option<Vec<u8>>> {
        let sql = "SELECT result FROM done WHERE seq = ?1";
        let mut statement = conn.prepare_cached(sql)?;
        let result = statement.query_row([Int(self.seq)], |row| Ok(row.get(0).ok()));
        Ok(result.optional()?.flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_with_a_flipped_bit_is_none() {
        let marked = lane_mark(&Lane::new("outbox/a/b").unwrap());
        assert!(is_mark(marked));
        for bit in 0..64 {
            assert!(!is_mark(marked ^ (1 << bit)), "{bit}");
        }
    }
}
