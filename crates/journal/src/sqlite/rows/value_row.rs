//! Rows of values.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::{SqlInt, expect_one_row, get_fixed_bytes, get_int, verify_checksum};
use crate::sqlite::checksum::{Checksum, ChecksumBuilder};

/// Value without its bytes.
#[derive(Clone, Debug)]
pub(in crate::sqlite) struct ValueRow {
    pub(in crate::sqlite) revision: u64,
    pub(in crate::sqlite) key: Arc<str>,
    pub(in crate::sqlite) bytes_len: u64,
    pub(in crate::sqlite) bytes_sum: Checksum,
}

impl ValueRow {
    pub(in crate::sqlite) fn checksum(&self) -> Checksum {
        ChecksumBuilder::new("value")
            .add_int(self.revision)
            .add_bytes(self.key.as_bytes())
            .add_int(self.bytes_len)
            .add_bytes(&self.bytes_sum)
            .finish()
    }

    fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        let slot = Self {
            revision: get_int(row, 0)?,
            key: row.get(1)?,
            bytes_len: get_int(row, 2)?,
            bytes_sum: get_fixed_bytes(row, 3)?,
        };
        verify_checksum(get_fixed_bytes(row, 4)?, slot.checksum(), slot)
    }

    /// Reads all values; damaged rows by revision.
    pub(in crate::sqlite) fn read_all(
        conn: &Connection,
    ) -> rusqlite::Result<Vec<Result<Self, u64>>> {
        let sql = "SELECT revision, key, bytes_len, bytes_sum, sum FROM value";
        let mut statement = conn.prepare(sql)?;
        let rows = statement.query_map([], |row| {
            let revision = get_int(row, 0)?;
            Ok(Self::from_row(row).map_err(|_| revision))
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
            SqlInt(self.revision),
            self.key,
            SqlInt(self.bytes_len),
            self.bytes_sum,
            self.checksum(),
            bytes,
        ])?;
        Ok(())
    }

    pub(in crate::sqlite) fn delete(conn: &Connection, revision: u64) -> rusqlite::Result<()> {
        let sql = "DELETE FROM value WHERE revision = ?1";
        expect_one_row(conn.prepare_cached(sql)?.execute([SqlInt(revision)])?)
    }

    /// Reads the bytes without verification.
    pub(in crate::sqlite) fn read_bytes(
        &self,
        conn: &Connection,
    ) -> rusqlite::Result<Option<Vec<u8>>> {
        let sql = "SELECT bytes FROM value WHERE revision = ?1";
        let mut statement = conn.prepare_cached(sql)?;
        let bytes = statement.query_row([SqlInt(self.revision)], |row| Ok(row.get(0).ok()));
        Ok(bytes.optional()?.flatten())
    }
}
