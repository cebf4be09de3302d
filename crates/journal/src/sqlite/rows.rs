//! Rows of the database: reading, writing and checksum verification.

mod completed_row;
mod message_row;
mod value_row;

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

pub(super) use self::completed_row::{CompletedRow, completed_key, lane_tag};
pub(super) use self::message_row::MessageRow;
pub(super) use self::value_row::ValueRow;
use super::checksum::{Checksum, ChecksumBuilder, ChecksumTotal};
use crate::engine::LaneName;

/// Unsigned number as stored by SQLite: the same bits, read as signed.
#[derive(Clone, Copy, Debug)]
pub(super) struct SqlInt(pub(super) u64);

impl ToSql for SqlInt {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::from(self.0.cast_signed()))
    }
}

impl FromSql for SqlInt {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_i64().map(|number| Self(number.cast_unsigned()))
    }
}

/// Blob of a fixed length.
struct FixedBytes<const N: usize>([u8; N]);

impl<const N: usize> FromSql for FixedBytes<N> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let bytes = value.as_blob()?.try_into();
        bytes.map(Self).map_err(|_| FromSqlError::InvalidType)
    }
}

fn get_int(row: &Row<'_>, at: usize) -> rusqlite::Result<u64> {
    row.get::<_, SqlInt>(at).map(|number| number.0)
}

fn get_optional_int(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<u64>> {
    Ok(row.get::<_, Option<SqlInt>>(at)?.map(|number| number.0))
}

fn get_fixed_bytes<const N: usize>(row: &Row<'_>, at: usize) -> rusqlite::Result<[u8; N]> {
    row.get::<_, FixedBytes<N>>(at).map(|bytes| bytes.0)
}

/// Single row with the counters and totals of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LedgerRow {
    /// Whether the file was cleanly closed.
    pub(super) clean: bool,
    /// Number of opens; receipts of earlier opens never match.
    pub(super) epoch: u64,
    /// Last number of a message, of a place in a lane, of a value revision, and of a completed
    /// message.
    pub(super) id: u64,
    pub(super) place: u64,
    pub(super) revision: u64,
    pub(super) seq: u64,
    /// Total number of dead letters.
    pub(super) dead: u64,
    pub(super) lanes: ChecksumTotal,
    pub(super) done: ChecksumTotal,
    pub(super) values: ChecksumTotal,
    /// Elapsed time for message expiry, in milliseconds since 1970; 0 if never written.
    pub(super) time: u64,
}

impl LedgerRow {
    fn checksum(&self) -> Checksum {
        let counters = [self.id, self.place, self.revision, self.seq, self.dead];
        let mut summer = ChecksumBuilder::new("ledger")
            .add_int(u64::from(self.clean))
            .add_int(self.epoch);
        for counter in counters {
            summer = summer.add_int(counter);
        }
        for total in [self.lanes, self.done, self.values] {
            summer = summer.add_int(total.count).add_bytes(&total.total_bytes());
        }
        // Version 1 rows have no time column, and their checksum covers none.
        if self.time != 0 {
            summer = summer.add_int(self.time);
        }
        summer.finish()
    }

    /// Reads the row; `None` if damaged.
    pub(super) fn read(conn: &Connection) -> rusqlite::Result<Option<Self>> {
        let sql = "SELECT clean, epoch, id, place, revision, seq, dead, lanes, lanes_total, \
                   done, done_total, vals, vals_total, sum, time FROM ledger WHERE one = 1";
        let row = conn.query_row(sql, [], |row| Ok(Self::from_row(row).ok()));
        row.optional().map(Option::flatten)
    }

    fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        let tally = |at| {
            let total = u128::from_le_bytes(get_fixed_bytes(row, at + 1)?);
            let count = get_int(row, at)?;
            Ok::<_, rusqlite::Error>(ChecksumTotal { count, total })
        };
        let ledger = Self {
            clean: get_int(row, 0)? == 1,
            epoch: get_int(row, 1)?,
            id: get_int(row, 2)?,
            place: get_int(row, 3)?,
            revision: get_int(row, 4)?,
            seq: get_int(row, 5)?,
            dead: get_int(row, 6)?,
            lanes: tally(7)?,
            done: tally(9)?,
            values: tally(11)?,
            time: get_int(row, 14)?,
        };
        verify_checksum(get_fixed_bytes(row, 13)?, ledger.checksum(), ledger)
    }

    pub(super) fn write(&self, conn: &Connection) -> rusqlite::Result<()> {
        let sql = "INSERT OR REPLACE INTO ledger (one, clean, epoch, id, place, revision, seq, \
                   dead, lanes, lanes_total, done, done_total, vals, vals_total, sum, time) \
                   VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)";
        conn.prepare_cached(sql)?.execute(params![
            self.clean,
            SqlInt(self.epoch),
            SqlInt(self.id),
            SqlInt(self.place),
            SqlInt(self.revision),
            SqlInt(self.seq),
            SqlInt(self.dead),
            SqlInt(self.lanes.count),
            self.lanes.total_bytes(),
            SqlInt(self.done.count),
            self.done.total_bytes(),
            SqlInt(self.values.count),
            self.values.total_bytes(),
            self.checksum(),
            SqlInt(self.time),
        ])?;
        Ok(())
    }
}

/// Returns a row with a matching checksum. The error otherwise is not inspected.
fn verify_checksum<T>(stored: Checksum, reckoned: Checksum, row: T) -> rusqlite::Result<T> {
    match stored == reckoned {
        true => Ok(row),
        false => Err(rusqlite::Error::InvalidQuery),
    }
}

/// Counters of a lane, and the checksum total of its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LaneRow {
    pub(super) waiting: u64,
    pub(super) dead: u64,
    /// Publication time of the first live message.
    pub(super) oldest: Option<u64>,
    /// Checksum total of all messages; their count is `waiting` plus `dead`.
    pub(super) total: u128,
}

impl LaneRow {
    pub(super) const fn count(&self) -> u64 {
        self.waiting.wrapping_add(self.dead)
    }

    pub(super) fn checksum(&self, lane: &LaneName) -> Checksum {
        let oldest = self.oldest.map(u64::to_le_bytes);
        ChecksumBuilder::new("lane")
            .add_bytes(lane.as_str().as_bytes())
            .add_int(self.waiting)
            .add_int(self.dead)
            .add_optional(oldest.as_ref().map(<[u8; 8]>::as_slice))
            .add_bytes(&self.total.to_le_bytes())
            .finish()
    }

    /// Reads all lanes; `None` per damaged row.
    pub(super) fn read_all(conn: &Connection) -> rusqlite::Result<Vec<Option<(LaneName, Self)>>> {
        let sql = "SELECT name, waiting, dead, oldest, total, sum FROM lane";
        let mut statement = conn.prepare(sql)?;
        let rows = statement.query_map([], |row| Ok(Self::from_row(row).ok()))?;
        rows.collect()
    }

    fn from_row(row: &Row<'_>) -> rusqlite::Result<(LaneName, Self)> {
        let name: String = row.get(0)?;
        let lane = LaneName::new(&name).map_err(|_| rusqlite::Error::InvalidQuery)?;
        let read = Self {
            waiting: get_int(row, 1)?,
            dead: get_int(row, 2)?,
            oldest: get_optional_int(row, 3)?,
            total: u128::from_le_bytes(get_fixed_bytes(row, 4)?),
        };
        verify_checksum(get_fixed_bytes(row, 5)?, read.checksum(&lane), (lane, read))
    }

    pub(super) fn write(&self, conn: &Connection, lane: &LaneName) -> rusqlite::Result<()> {
        let sql = "INSERT OR REPLACE INTO lane (name, waiting, dead, oldest, total, sum) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        conn.prepare_cached(sql)?.execute(params![
            lane.as_str(),
            SqlInt(self.waiting),
            SqlInt(self.dead),
            self.oldest.map(SqlInt),
            self.total.to_le_bytes(),
            self.checksum(lane),
        ])?;
        Ok(())
    }

    pub(super) fn delete(conn: &Connection, lane: &LaneName) -> rusqlite::Result<()> {
        let sql = "DELETE FROM lane WHERE name = ?1";
        conn.prepare_cached(sql)?.execute([lane.as_str()])?;
        Ok(())
    }
}

/// Requires a statement to change exactly one row.
fn expect_one_row(changed: usize) -> rusqlite::Result<()> {
    match changed {
        1 => Ok(()),
        _ => Err(rusqlite::Error::StatementChangedRows(changed)),
    }
}
