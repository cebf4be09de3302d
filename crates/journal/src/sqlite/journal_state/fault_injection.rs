//! Fault injection for tests.

use rusqlite::ffi;

use super::JournalState;

impl JournalState {
    /// Lets the file grow by `more` pages; `None` removes the limit.
    pub(in crate::sqlite) fn allow_pages(&self, more: Option<u32>) {
        let count = self
            .conn
            .query_row("PRAGMA page_count", [], |row| row.get::<_, u32>(0));
        let limit = more.map_or(u32::MAX - 1, |more| count.unwrap() + more);
        let sql = format!("PRAGMA max_page_count = {limit}");
        let set: u32 = self.conn.query_row(&sql, [], |row| row.get(0)).unwrap();
        assert_eq!(set, limit);
    }

    /// Returns the number of lanes with state in memory.
    pub(in crate::sqlite) fn known_lanes(&self) -> usize {
        self.lane_indexes.len() + self.lanes.len()
    }

    /// Refuses bodies of this length.
    pub(in crate::sqlite) fn fail_bodies_of(&self, length: usize) {
        let sql = format!(
            "CREATE TEMP TRIGGER refuse BEFORE INSERT ON body WHEN length(NEW.bytes) = {length} \
             BEGIN SELECT RAISE(ABORT, 'refused'); END"
        );
        self.conn.execute_batch(&sql).unwrap();
    }

    /// Makes commits fail as after a failed sync.
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
