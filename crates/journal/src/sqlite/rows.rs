//! The rows of the file: how each is written, read, and known to be whole.

mod done;
mod message;
mod value;

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

pub(super) use self::done::{DoneSlot, done_key, lane_mark};
pub(super) use self::message::Slot;
pub(super) use self::value::ValueSlot;
use super::sum::{Sum, Summer, Tally};
use crate::engine::Lane;

/// A number as SQLite keeps it: the same bits, read as signed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Int(pub(super) u64);

impl ToSql for Int {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::from(self.0.cast_signed()))
    }
}

impl FromSql for Int {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_i64().map(|number| Self(number.cast_unsigned()))
    }
}

/// Bytes of a fixed length.
struct Fixed<const N: usize>([u8; N]);

impl<const N: usize> FromSql for Fixed<N> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let bytes = value.as_blob()?.try_into();
        bytes.map(Self).map_err(|_| FromSqlError::InvalidType)
    }
}

fn int(row: &Row<'_>, at: usize) -> rusqlite::Result<u64> {
    row.get::<_, Int>(at).map(|number| number.0)
}

fn maybe_int(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<u64>> {
    Ok(row.get::<_, Option<Int>>(at)?.map(|number| number.0))
}

fn fixed<const N: usize>(row: &Row<'_>, at: usize) -> rusqlite::Result<[u8; N]> {
    row.get::<_, Fixed<N>>(at).map(|bytes| bytes.0)
}

/// The counters and totals of the whole file: its one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ledger {
    /// Whether the file was closed in order.
    pub(super) clean: bool,
    /// How often it was opened: no receipt from before is good after.
    pub(super) epoch: u64,
    /// The last number of a message, of a place in a lane, of a change of values, of an end.
    pub(super) id: u64,
    pub(super) place: u64,
    pub(super) revision: u64,
    pub(super) seq: u64,
    /// Dead letters in all.
    pub(super) dead: u64,
    pub(super) lanes: Tally,
    pub(super) done: Tally,
    pub(super) values: Tally,
    /// How far the time went by which messages expire, in milliseconds since 1970; 0 where it was
    /// never written.
    pub(super) time: u64,
}

impl Ledger {
    fn sum(&self) -> Sum {
        let counters = [self.id, self.place, self.revision, self.seq, self.dead];
        let mut summer = Summer::new("ledger")
            .int(u64::from(self.clean))
            .int(self.epoch);
        for counter in counters {
            summer = summer.int(counter);
        }
        for tally in [self.lanes, self.done, self.values] {
            summer = summer.int(tally.count).bytes(&tally.total_bytes());
        }
        // A row of the first version has no such column, and its checksum knows of none.
        if self.time != 0 {
            summer = summer.int(self.time);
        }
        summer.finish()
    }

    /// Returns the row; none where it is damaged.
    pub(super) fn read(conn: &Connection) -> rusqlite::Result<Option<Self>> {
        let sql = "SELECT clean, epoch, id, place, revision, seq, dead, lanes, lanes_total, \
                   done, done_total, vals, vals_total, sum, time FROM ledger WHERE one = 1";
        let row = conn.query_row(sql, [], |row| Ok(Self::of(row).ok()));
        row.optional().map(Option::flatten)
    }

    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        let tally = |at| {
            let total = u128::from_le_bytes(fixed(row, at + 1)?);
            let count = int(row, at)?;
            Ok::<_, rusqlite::Error>(Tally { count, total })
        };
        let ledger = Self {
            clean: int(row, 0)? == 1,
            epoch: int(row, 1)?,
            id: int(row, 2)?,
            place: int(row, 3)?,
            revision: int(row, 4)?,
            seq: int(row, 5)?,
            dead: int(row, 6)?,
            lanes: tally(7)?,
            done: tally(9)?,
            values: tally(11)?,
            time: int(row, 14)?,
        };
        whole(fixed(row, 13)?, ledger.sum(), ledger)
    }

    pub(super) fn write(&self, conn: &Connection) -> rusqlite::Result<()> {
        let sql = "INSERT OR REPLACE INTO ledger (one, clean, epoch, id, place, revision, seq, \
                   dead, lanes, lanes_total, done, done_total, vals, vals_total, sum, time) \
                   VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)";
        conn.prepare_cached(sql)?.execute(params![
            self.clean,
            Int(self.epoch),
            Int(self.id),
            Int(self.place),
            Int(self.revision),
            Int(self.seq),
            Int(self.dead),
            Int(self.lanes.count),
            self.lanes.total_bytes(),
            Int(self.done.count),
            self.done.total_bytes(),
            Int(self.values.count),
            self.values.total_bytes(),
            self.sum(),
            Int(self.time),
        ])?;
        Ok(())
    }
}

/// Returns a row whose checksum is right. Which error it is otherwise does not matter.
fn whole<T>(stored: Sum, reckoned: Sum, row: T) -> rusqlite::Result<T> {
    match stored == reckoned {
        true => Ok(row),
        false => Err(rusqlite::Error::InvalidQuery),
    }
}

/// The counters of a lane, and the total of the checksums of its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LaneRow {
    pub(super) waiting: u64,
    pub(super) dead: u64,
    /// When the first that waits was stored.
    pub(super) oldest: Option<u64>,
    /// The total of all its messages; their number is that of the waiting and the dead.
    pub(super) total: u128,
}

impl LaneRow {
    pub(super) const fn count(&self) -> u64 {
        self.waiting.wrapping_add(self.dead)
    }

    pub(super) fn sum(&self, lane: &Lane) -> Sum {
        let oldest = self.oldest.map(u64::to_le_bytes);
        Summer::new("lane")
            .bytes(lane.as_str().as_bytes())
            .int(self.waiting)
            .int(self.dead)
            .maybe(oldest.as_ref().map(<[u8; 8]>::as_slice))
            .bytes(&self.total.to_le_bytes())
            .finish()
    }

    /// Reads all lanes; each that is damaged as nothing.
    pub(super) fn all(conn: &Connection) -> rusqlite::Result<Vec<Option<(Lane, Self)>>> {
        let sql = "SELECT name, waiting, dead, oldest, total, sum FROM lane";
        let mut statement = conn.prepare(sql)?;
        let rows = statement.query_map([], |row| Ok(Self::of(row).ok()))?;
        rows.collect()
    }

    fn of(row: &Row<'_>) -> rusqlite::Result<(Lane, Self)> {
        let name: String = row.get(0)?;
        let lane = Lane::new(&name).map_err(|_| rusqlite::Error::InvalidQuery)?;
        let read = Self {
            waiting: int(row, 1)?,
            dead: int(row, 2)?,
            oldest: maybe_int(row, 3)?,
            total: u128::from_le_bytes(fixed(row, 4)?),
        };
        whole(fixed(row, 5)?, read.sum(&lane), (lane, read))
    }

    pub(super) fn write(&self, conn: &Connection, lane: &Lane) -> rusqlite::Result<()> {
        let sql = "INSERT OR REPLACE INTO lane (name, waiting, dead, oldest, total, sum) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        conn.prepare_cached(sql)?.execute(params![
            lane.as_str(),
            Int(self.waiting),
            Int(self.dead),
            self.oldest.map(Int),
            self.total.to_le_bytes(),
            self.sum(lane),
        ])?;
        Ok(())
    }

    pub(super) fn delete(conn: &Connection, lane: &Lane) -> rusqlite::Result<()> {
        let sql = "DELETE FROM lane WHERE name = ?1";
        conn.prepare_cached(sql)?.execute([lane.as_str()])?;
        Ok(())
    }
}

/// A change must have found its row.
fn one(changed: usize) -> rusqlite::Result<()> {
    match changed {
        1 => Ok(()),
        _ => Err(rusqlite::Error::StatementChangedRows(changed)),
    }
}
