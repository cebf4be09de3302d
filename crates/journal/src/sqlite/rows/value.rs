//! Values.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::{Int, fixed, int, one, whole};
use crate::sqlite::sum::{Sum, Summer};

/// A value without its bytes.
#[derive(Clone, Debug)]
pub(in crate::sqlite) struct ValueSlot {
    pub(in crate::sqlite) revision: u64,
    pub(in crate::sqlite) key: Arc<str>,
    pub(in crate::sqlite) bytes_len: u64,
    pub(in crate::sqlite) bytes_sum: Sum,
}

impl ValueSlot {
    pub(in crate::sqlite) fn sum(&self) -> Sum {
        Summer::new("value")
            .int(self.revision)
            .bytes(self.key.as_bytes())
            .int(self.bytes_len)
            .bytes(&self.bytes_sum)
            .finish()
    }

    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        let slot = Self {
            revision: int(row, 0)?,
            key: row.get(1)?,
            bytes_len: int(row, 2)?,
            bytes_sum: fixed(row, 3)?,
        };
        whole(fixed(row, 4)?, slot.sum(), slot)
    }

    /// Reads all; of each that is damaged its revision.
    pub(in crate::sqlite) fn all(conn: &Connection) -> rusqlite::Result<Vec<Result<Self, u64>>> {
        let sql = "SELECT revision, key, bytes_len, bytes_sum, sum FROM value";
        let mut statement = conn.prepare(sql)?;
        let rows = statement.query_map([], |row| {
            let revision = int(row, 0)?;
            Ok(Self::of(row).map_err(|_| revision))
        })?;
        rows.collect()
    }

    pub(in crate::sqlite) fn insert(
        &self,
        conn: &Connection,
        bytes: &[u8],
    ) -> rusqlite::Result<()> {
        let sql = "INSERT INTO value (revision, key, bytes_len, bytes_sum, sum, bytes) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        conn.prepare_cached(sql)?.execute(params![
            Int(self.revision),
            self.key,
            Int(self.bytes_len),
            self.bytes_sum,
            self.sum(),
            bytes,
        ])?;
        Ok(())
    }

    pub(in crate::sqlite) fn delete(conn: &Connection, revision: u64) -> rusqlite::Result<()> {
        let sql = "DELETE FROM value WHERE revision = ?1";
        one(conn.prepare_cached(sql)?.execute([Int(revision)])?)
    }

    /// Reads the bytes, as they are on the disk.
    pub(in crate::sqlite) fn bytes(&self, conn: &Connection) -> rusqlite::Result<Option<Vec<u8>>> {
        let sql = "SELECT bytes FROM value WHERE revision = ?1";
        let mut statement = conn.prepare_cached(sql)?;
        let bytes = statement.query_row([Int(self.revision)], |row| Ok(row.get(0).ok()));
        Ok(bytes.optional()?.flatten())
    }
}
