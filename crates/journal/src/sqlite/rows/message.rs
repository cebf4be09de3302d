//! Messages and their bodies.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::{Int, fixed, int, maybe_int, one, whole};
use crate::engine::{At, BODY_BYTES_MAX, Lane};
use crate::sqlite::sum::{Sum, Summer};

/// A message without its body.
#[derive(Clone, Debug)]
pub(in crate::sqlite) struct Slot {
    pub(in crate::sqlite) id: u64,
    pub(in crate::sqlite) lane: Lane,
    pub(in crate::sqlite) place: u64,
    pub(in crate::sqlite) dedupe: Arc<str>,
    pub(in crate::sqlite) digest: [u8; 32],
    pub(in crate::sqlite) attempts: u32,
    pub(in crate::sqlite) stored_unix_ms: u64,
    pub(in crate::sqlite) expires_unix_ms: Option<u64>,
    pub(in crate::sqlite) dead: Option<Arc<str>>,
    pub(in crate::sqlite) body_bytes: u64,
    pub(in crate::sqlite) body_sum: Sum,
}

/// A message with its checksum, or the number of one that is damaged.
pub(in crate::sqlite) type Read = Result<(Slot, Sum), u64>;

/// The columns of a message, in the order in which [`Slot::of`] reads them.
const SLOT: &str = "SELECT id, lane, place, dedupe, digest, attempts, stored, expires, dead, \
                    body_bytes, body_sum, sum FROM message";

impl Slot {
    pub(in crate::sqlite) fn is_past(&self, at: At) -> bool {
        self.expires_unix_ms.is_some_and(|end| end <= at.unix_ms)
    }

    pub(in crate::sqlite) fn sum(&self) -> Sum {
        let expires = self.expires_unix_ms.map(u64::to_le_bytes);
        Summer::new("message")
            .int(self.id)
            .bytes(self.lane.as_str().as_bytes())
            .int(self.place)
            .bytes(self.dedupe.as_bytes())
            .bytes(&self.digest)
            .int(u64::from(self.attempts))
            .int(self.stored_unix_ms)
            .maybe(expires.as_ref().map(<[u8; 8]>::as_slice))
            .maybe(self.dead.as_deref().map(str::as_bytes))
            .int(self.body_bytes)
            .bytes(&self.body_sum)
            .finish()
    }

    fn of(row: &Row<'_>) -> rusqlite::Result<(Self, Sum)> {
        let name: String = row.get(1)?;
        let slot = Self {
            id: int(row, 0)?,
            lane: Lane::new(&name).map_err(|_| rusqlite::Error::InvalidQuery)?,
            place: int(row, 2)?,
            dedupe: row.get(3)?,
            digest: fixed(row, 4)?,
            attempts: row.get(5)?,
            stored_unix_ms: int(row, 6)?,
            expires_unix_ms: maybe_int(row, 7)?,
            dead: row.get(8)?,
            body_bytes: int(row, 9)?,
            body_sum: fixed(row, 10)?,
        };
        let sum = slot.sum();
        whole(fixed(row, 11)?, sum, (slot, sum))
    }

    /// Shows the messages of a lane by the index, in the order of their places; of each that is
    /// damaged its number. Ends early where `show` says so.
    pub(in crate::sqlite) fn each_of_lane(
        conn: &Connection,
        lane: &Lane,
        mut show: impl FnMut(Read) -> bool,
    ) -> rusqlite::Result<()> {
        let mut statement =
            conn.prepare_cached(&format!("{SLOT} WHERE lane = ?1 ORDER BY place"))?;
        let mut rows = statement.query([lane.as_str()])?;
        while let Some(row) = rows.next()? {
            if !show(Self::or_number(row)?) {
                break;
            }
        }
        Ok(())
    }

    /// Shows all messages after a number without the index, likewise.
    pub(in crate::sqlite) fn each(
        conn: &Connection,
        after: u64,
        mut show: impl FnMut(Read) -> bool,
    ) -> rusqlite::Result<()> {
        let sql = format!("{SLOT} NOT INDEXED WHERE id > ?1 ORDER BY id");
        let mut statement = conn.prepare(&sql)?;
        let mut rows = statement.query([Int(after)])?;
        while let Some(row) = rows.next()? {
            if !show(Self::or_number(row)?) {
                break;
            }
        }
        Ok(())
    }

    /// Reads the messages of a lane from a place to before another, in order; of each that is
    /// damaged its number.
    pub(in crate::sqlite) fn between(
        conn: &Connection,
        lane: &Lane,
        (from, to): (u64, u64),
        by_index: bool,
    ) -> rusqlite::Result<Vec<Result<Self, u64>>> {
        let how = match by_index {
            true => "",
            false => "NOT INDEXED",
        };
        let sql =
            format!("{SLOT} {how} WHERE lane = ?1 AND place >= ?2 AND place < ?3 ORDER BY place");
        let mut statement = conn.prepare_cached(&sql)?;
        let to = Int(to.min(i64::MAX.cast_unsigned()));
        let rows = statement.query_map(params![lane.as_str(), Int(from), to], |row| {
            let read = Self::or_number(row)?;
            Ok(read.and_then(|(slot, _)| match slot.lane == *lane {
                // All rows of a lane share its name.
                true => Ok(Self {
                    lane: lane.clone(),
                    ..slot
                }),
                false => Err(slot.id),
            }))
        })?;
        rows.collect()
    }

    /// Reads one message; none where there is none or it is damaged.
    pub(in crate::sqlite) fn by_id(conn: &Connection, id: u64) -> rusqlite::Result<Option<Self>> {
        let mut statement = conn.prepare_cached(&format!("{SLOT} WHERE id = ?1"))?;
        let read = statement.query_row([Int(id)], Self::or_number).optional()?;
        Ok(read.and_then(|read| read.ok().map(|(slot, _)| slot)))
    }

    fn or_number(row: &Row<'_>) -> rusqlite::Result<Read> {
        let number = int(row, 0)?;
        Ok(Self::of(row).map_err(|_| number))
    }

    /// Returns the lane in which a message claims to be.
    pub(in crate::sqlite) fn lane_of(conn: &Connection, id: u64) -> rusqlite::Result<Option<Lane>> {
        let sql = "SELECT lane FROM message WHERE id = ?1";
        let mut statement = conn.prepare_cached(sql)?;
        let name = statement.query_row([Int(id)], |row| Ok(row.get::<_, String>(0).ok()));
        let name = name.optional()?.flatten();
        Ok(name.and_then(|name| Lane::new(&name).ok()))
    }

    /// Returns how many bytes the bodies of each lane have whose name begins so.
    pub(in crate::sqlite) fn lane_bytes(
        conn: &Connection,
        prefix: &str,
    ) -> rusqlite::Result<Vec<(Lane, u64)>> {
        // A number that is damaged counts for no more than a body can have.
        let sql = "SELECT lane, SUM(MIN(MAX(body_bytes, 0), ?2)) FROM message \
                   WHERE substr(lane, 1, length(?1)) = ?1 GROUP BY lane";
        let mut statement = conn.prepare_cached(sql)?;
        let most = Int(BODY_BYTES_MAX as u64);
        let rows = statement.query_map(params![prefix, most], |row| {
            let name: String = row.get(0)?;
            Ok(Lane::new(&name).ok().zip(Some(int(row, 1)?)))
        })?;
        // A name that is none is that of a row that is damaged.
        rows.filter_map(Result::transpose).collect()
    }

    /// Returns the oldest dead letter.
    pub(in crate::sqlite) fn oldest_dead(conn: &Connection) -> rusqlite::Result<Option<u64>> {
        let sql = "SELECT id FROM message WHERE dead IS NOT NULL ORDER BY id LIMIT 1";
        let mut statement = conn.prepare_cached(sql)?;
        statement.query_row([], |row| int(row, 0)).optional()
    }

    pub(in crate::sqlite) fn insert(&self, conn: &Connection, body: &[u8]) -> rusqlite::Result<()> {
        let sql = "INSERT INTO message (id, lane, place, dedupe, digest, attempts, stored, \
                   expires, dead, body_bytes, body_sum, sum) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
        conn.prepare_cached(sql)?.execute(params![
            Int(self.id),
            self.lane.as_str(),
            Int(self.place),
            self.dedupe,
            self.digest,
            self.attempts,
            Int(self.stored_unix_ms),
            self.expires_unix_ms.map(Int),
            self.dead,
            Int(self.body_bytes),
            self.body_sum,
            self.sum(),
        ])?;
        let sql = "INSERT INTO body (id, bytes) VALUES (?1, ?2)";
        conn.prepare_cached(sql)?
            .execute(params![Int(self.id), body])?;
        Ok(())
    }

    /// Writes what changes in the life of a message.
    pub(in crate::sqlite) fn update(&self, conn: &Connection) -> rusqlite::Result<()> {
        let sql = "UPDATE message SET place = ?2, attempts = ?3, expires = ?4, dead = ?5, \
                   sum = ?6 WHERE id = ?1";
        let changed = conn.prepare_cached(sql)?.execute(params![
            Int(self.id),
            Int(self.place),
            self.attempts,
            self.expires_unix_ms.map(Int),
            self.dead,
            self.sum(),
        ])?;
        one(changed)
    }

    /// Writes how often a message was handed out, which leaves all indexes as they are.
    pub(in crate::sqlite) fn update_attempts(&self, conn: &Connection) -> rusqlite::Result<()> {
        let sql = "UPDATE message SET attempts = ?2, sum = ?3 WHERE id = ?1";
        let mut statement = conn.prepare_cached(sql)?;
        one(statement.execute(params![Int(self.id), self.attempts, self.sum()])?)
    }

    pub(in crate::sqlite) fn delete(conn: &Connection, id: u64) -> rusqlite::Result<()> {
        let sql = "DELETE FROM message WHERE id = ?1";
        one(conn.prepare_cached(sql)?.execute([Int(id)])?)?;
        Self::delete_body(conn, id)
    }

    pub(in crate::sqlite) fn delete_body(conn: &Connection, id: u64) -> rusqlite::Result<()> {
        let sql = "DELETE FROM body WHERE id = ?1";
        conn.prepare_cached(sql)?.execute([Int(id)])?;
        Ok(())
    }

    /// Reads the body, as it is on the disk.
    pub(in crate::sqlite) fn body(&self, conn: &Connection) -> rusqlite::Result<Option<Vec<u8>>> {
        let sql = "SELECT bytes FROM body WHERE id = ?1";
        let mut statement = conn.prepare_cached(sql)?;
        let body = statement.query_row([Int(self.id)], |row| Ok(row.get(0).ok()));
        Ok(body.optional()?.flatten())
    }
}
