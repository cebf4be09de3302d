//! Makes the book fail where a test wants it to.

use rusqlite::ffi;

use super::Book;

impl Book {
    /// Lets the file grow by so many pages; without end where absent.
    pub(in crate::sqlite) fn allow_pages(&self, more: Option<u32>) {
        let count = self
            .conn
            .query_row("PRAGMA page_count", [], |row| row.get::<_, u32>(0));
        let limit = more.map_or(u32::MAX - 1, |more| count.unwrap() + more);
        let sql = format!("PRAGMA max_page_count = {limit}");
        let set: u32 = self.conn.query_row(&sql, [], |row| row.get(0)).unwrap();
        assert_eq!(set, limit);
    }

    /// Returns how many lanes something is kept in memory of.
    pub(in crate::sqlite) fn known_lanes(&self) -> usize {
        self.loaded.len() + self.lanes.len()
    }

    /// Refuses bodies of this length.
    pub(in crate::sqlite) fn fail_bodies_of(&self, length: usize) {
        let sql = format!(
            "CREATE TEMP TRIGGER refuse BEFORE INSERT ON body WHEN length(NEW.bytes) = {length} \
             BEGIN SELECT RAISE(ABORT, 'refused'); END"
        );
        self.conn.execute_batch(&sql).unwrap();
    }

    /// Lets commits fail as when a sync fails.
    pub(in crate::sqlite) const fn fail_commits(&mut self, fails: bool) {
        self.fails_commits = fails;
    }

    pub(super) fn fail_commit(&self) -> Result<(), rusqlite::Error> {
        match self.fails_commits {
            true => Err(rusqlite::Error::SqliteFailure(
                ffi::Error::new(ffi::SQLITE_IOERR_FSYNC),
                None,
            )),
            false => Ok(()),
        }
    }
}
