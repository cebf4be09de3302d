//! Rows of messages and their bodies.

use std::ops::Range;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::{SqlInt, expect_one_row, get_fixed_bytes, get_int, get_optional_int, verify_checksum};
use crate::engine::{BODY_BYTES_MAX, LaneName, Timestamps};
use crate::sqlite::checksum::{Checksum, ChecksumBuilder};

/// Message without its body.
#[derive(Clone, Debug)]
pub(in crate::sqlite) struct MessageRow {
    pub(in crate::sqlite) id: u64,
    pub(in crate::sqlite) lane: LaneName,
    pub(in crate::sqlite) place: u64,
    pub(in crate::sqlite) dedupe: Arc<str>,
    pub(in crate::sqlite) digest: [u8; 32],
    pub(in crate::sqlite) attempts: u32,
    pub(in crate::sqlite) stored_unix_ms: u64,
    pub(in crate::sqlite) expires_unix_ms: Option<u64>,
    pub(in crate::sqlite) dead: Option<Arc<str>>,
    pub(in crate::sqlite) body_bytes: u64,
    pub(in crate::sqlite) body_sum: Checksum,
}

/// Message row with its checksum, or the number of a damaged row.
pub(in crate::sqlite) type CheckedRow = Result<(MessageRow, Checksum), u64>;

/// Columns of a message, in the order read by [`MessageRow::from_row`].
const SELECT_ROW: &str = "SELECT id, lane, place, dedupe, digest, attempts, stored, expires, dead, \
                    body_bytes, body_sum, sum FROM message";

impl MessageRow {
    pub(in crate::sqlite) fn is_expired(&self, at: Timestamps) -> bool {
        self.expires_unix_ms.is_some_and(|end| end <= at.unix_ms)
    }

    pub(in crate::sqlite) fn checksum(&self) -> Checksum {
        let expires = self.expires_unix_ms.map(u64::to_le_bytes);
        ChecksumBuilder::new("message")
            .add_int(self.id)
            .add_bytes(self.lane.as_str().as_bytes())
            .add_int(self.place)
            .add_bytes(self.dedupe.as_bytes())
            .add_bytes(&self.digest)
            .add_int(u64::from(self.attempts))
            .add_int(self.stored_unix_ms)
            .add_optional(expires.as_ref().map(<[u8; 8]>::as_slice))
            .add_optional(self.dead.as_deref().map(str::as_bytes))
            .add_int(self.body_bytes)
            .add_bytes(&self.body_sum)
            .finish()
    }

    fn from_row(row: &Row<'_>) -> rusqlite::Result<(Self, Checksum)> {
        let name: String = row.get(1)?;
        let slot = Self {
            id: get_int(row, 0)?,
            lane: LaneName::new(&name).map_err(|_| rusqlite::Error::InvalidQuery)?,
            place: get_int(row, 2)?,
            dedupe: row.get(3)?,
            digest: get_fixed_bytes(row, 4)?,
            attempts: row.get(5)?,
            stored_unix_ms: get_int(row, 6)?,
            expires_unix_ms: get_optional_int(row, 7)?,
            dead: row.get(8)?,
            body_bytes: get_int(row, 9)?,
            body_sum: get_fixed_bytes(row, 10)?,
        };
        let sum = slot.checksum();
        verify_checksum(get_fixed_bytes(row, 11)?, sum, (slot, sum))
    }

    /// Passes the messages of a lane to `show` in order of place, using the SQL index; damaged rows
    /// by number. Stops when `show` returns false.
    pub(in crate::sqlite) fn visit_lane(
        conn: &Connection,
        lane: &LaneName,
        mut show: impl FnMut(CheckedRow) -> bool,
    ) -> rusqlite::Result<()> {
        let mut statement =
            conn.prepare_cached(&format!("{SELECT_ROW} WHERE lane = ?1 ORDER BY place"))?;
        let mut rows = statement.query([lane.as_str()])?;
        while let Some(row) = rows.next()? {
            if !show(Self::row_or_id(row)?) {
                break;
            }
        }
        Ok(())
    }

    /// Passes all messages after a number to `show` without the SQL index, in order of number.
    pub(in crate::sqlite) fn visit_all(
        conn: &Connection,
        after: u64,
        mut show: impl FnMut(CheckedRow) -> bool,
    ) -> rusqlite::Result<()> {
        let sql = format!("{SELECT_ROW} NOT INDEXED WHERE id > ?1 ORDER BY id");
        let mut statement = conn.prepare(&sql)?;
        let mut rows = statement.query([SqlInt(after)])?;
        while let Some(row) = rows.next()? {
            if !show(Self::row_or_id(row)?) {
                break;
            }
        }
        Ok(())
    }

    /// Reads the messages of a lane between two places, in order; damaged rows by number.
    pub(in crate::sqlite) fn read_range(
        conn: &Connection,
        lane: &LaneName,
        place_range: Range<u64>,
        by_index: bool,
    ) -> rusqlite::Result<Vec<Result<Self, u64>>> {
        let index_hint = match by_index {
            true => "",
            false => "NOT INDEXED",
        };
        let sql = format!(
            "{SELECT_ROW} {index_hint} WHERE lane = ?1 AND place >= ?2 AND place < ?3 \
             ORDER BY place"
        );
        let mut statement = conn.prepare_cached(&sql)?;
        let end = SqlInt(place_range.end.min(i64::MAX.cast_unsigned()));
        let start = SqlInt(place_range.start);
        let rows = statement.query_map(params![lane.as_str(), start, end], |row| {
            let read = Self::row_or_id(row)?;
            Ok(read.and_then(|(slot, _)| match slot.lane == *lane {
                // All rows of a lane share a single allocation of its name.
                true => Ok(Self {
                    lane: lane.clone(),
                    ..slot
                }),
                false => Err(slot.id),
            }))
        })?;
        rows.collect()
    }

    /// Reads a message; `None` if absent or damaged.
    pub(in crate::sqlite) fn read_by_id(
        conn: &Connection,
        id: u64,
    ) -> rusqlite::Result<Option<Self>> {
        let mut statement = conn.prepare_cached(&format!("{SELECT_ROW} WHERE id = ?1"))?;
        let read = statement
            .query_row([SqlInt(id)], Self::row_or_id)
            .optional()?;
        Ok(read.and_then(|read| read.ok().map(|(slot, _)| slot)))
    }

    fn row_or_id(row: &Row<'_>) -> rusqlite::Result<CheckedRow> {
        let number = get_int(row, 0)?;
        Ok(Self::from_row(row).map_err(|_| number))
    }

    /// Returns the lane recorded in a message row, without verification.
    pub(in crate::sqlite) fn claimed_lane(
        conn: &Connection,
        id: u64,
    ) -> rusqlite::Result<Option<LaneName>> {
        let sql = "SELECT lane FROM message WHERE id = ?1";
        let mut statement = conn.prepare_cached(sql)?;
        let name = statement.query_row([SqlInt(id)], |row| Ok(row.get::<_, String>(0).ok()));
        let name = name.optional()?.flatten();
        Ok(name.and_then(|name| LaneName::new(&name).ok()))
    }

    /// Returns the body bytes of each lane with this prefix.
    pub(in crate::sqlite) fn lane_bytes(
        conn: &Connection,
        prefix: &str,
    ) -> rusqlite::Result<Vec<(LaneName, u64)>> {
        // A damaged length counts for no more than the largest body.
        let sql = "SELECT lane, SUM(MIN(MAX(body_bytes, 0), ?2)) FROM message \
                   WHERE substr(lane, 1, length(?1)) = ?1 GROUP BY lane";
        let mut statement = conn.prepare_cached(sql)?;
        let most = SqlInt(BODY_BYTES_MAX as u64);
        let rows = statement.query_map(params![prefix, most], |row| {
            let name: String = row.get(0)?;
            Ok(LaneName::new(&name).ok().zip(Some(get_int(row, 1)?)))
        })?;
        // An invalid lane name belongs to a damaged row.
        rows.filter_map(Result::transpose).collect()
    }

    /// Returns the number of the oldest dead letter.
    pub(in crate::sqlite) fn oldest_dead_letter(
        conn: &Connection,
    ) -> rusqlite::Result<Option<u64>> {
        let sql = "SELECT id FROM message WHERE dead IS NOT NULL ORDER BY id LIMIT 1";
        let mut statement = conn.prepare_cached(sql)?;
        statement.query_row([], |row| get_int(row, 0)).optional()
    }

    pub(in crate::sqlite) fn insert(&self, conn: &Connection, body: &[u8]) -> rusqlite::Result<()> {
        let sql = "INSERT INTO message (id, lane, place, dedupe, digest, attempts, stored, \
                   expires, dead, body_bytes, body_sum, sum) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
        conn.prepare_cached(sql)?.execute(params![
            SqlInt(self.id),
            self.lane.as_str(),
            SqlInt(self.place),
            self.dedupe,
            self.digest,
            self.attempts,
            SqlInt(self.stored_unix_ms),
            self.expires_unix_ms.map(SqlInt),
            self.dead,
            SqlInt(self.body_bytes),
            self.body_sum,
            self.checksum(),
        ])?;
        let sql = "INSERT INTO body (id, bytes) VALUES (?1, ?2)";
        conn.prepare_cached(sql)?
            .execute(params![SqlInt(self.id), body])?;
        Ok(())
    }

    /// Writes the mutable columns of a message.
    pub(in crate::sqlite) fn update(&self, conn: &Connection) -> rusqlite::Result<()> {
        let sql = "UPDATE message SET place = ?2, attempts = ?3, expires = ?4, dead = ?5, \
                   sum = ?6 WHERE id = ?1";
        let changed = conn.prepare_cached(sql)?.execute(params![
            SqlInt(self.id),
            SqlInt(self.place),
            self.attempts,
            self.expires_unix_ms.map(SqlInt),
            self.dead,
            self.checksum(),
        ])?;
        expect_one_row(changed)
    }

    /// Writes the attempts of a message, without touching any SQL index.
    pub(in crate::sqlite) fn update_attempts(&self, conn: &Connection) -> rusqlite::Result<()> {
        let sql = "UPDATE message SET attempts = ?2, sum = ?3 WHERE id = ?1";
        let mut statement = conn.prepare_cached(sql)?;
        expect_one_row(statement.execute(params![
            SqlInt(self.id),
            self.attempts,
            self.checksum()
        ])?)
    }

    pub(in crate::sqlite) fn delete(conn: &Connection, id: u64) -> rusqlite::Result<()> {
        let sql = "DELETE FROM message WHERE id = ?1";
        expect_one_row(conn.prepare_cached(sql)?.execute([SqlInt(id)])?)?;
        Self::delete_body(conn, id)
    }

    pub(in crate::sqlite) fn delete_body(conn: &Connection, id: u64) -> rusqlite::Result<()> {
        let sql = "DELETE FROM body WHERE id = ?1";
        conn.prepare_cached(sql)?.execute([SqlInt(id)])?;
        Ok(())
    }

    /// Reads the body without verification.
    pub(in crate::sqlite) fn read_body(
        &self,
        conn: &Connection,
    ) -> rusqlite::Result<Option<Vec<u8>>> {
        let sql = "SELECT bytes FROM body WHERE id = ?1";
        let mut statement = conn.prepare_cached(sql)?;
        let body = statement.query_row([SqlInt(self.id)], |row| Ok(row.get(0).ok()));
        Ok(body.optional()?.flatten())
    }
}
