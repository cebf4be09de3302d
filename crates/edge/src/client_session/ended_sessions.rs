//! Ended sessions, persisted so that their ids stay invalid after a restart.

use std::collections::{HashSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use bowline_core::sync::lock;
use sha2::{Digest as _, Sha256};

use super::{AGE_MAX, ClientSessions};
use bowline_config::state::{self, StateDir, private_file};

/// Maximum number of remembered ended sessions.
pub(super) const ENDED_MAX: usize = 65_536;

/// Stored bytes of an id hash.
const HASH_BYTES: usize = 16;

/// Size of a record: hash and issue time in seconds since 1970.
const RECORD_BYTES: usize = HASH_BYTES + 8;

/// Maximum number of records before the file is rewritten.
const RECORDS_MAX: usize = 2 * ENDED_MAX;

/// Maximum file size.
const FILE_BYTES_MAX: u64 = (RECORDS_MAX * RECORD_BYTES) as u64;

type IdHash = [u8; HASH_BYTES];

/// Hashes of ended ids, oldest first.
#[derive(Debug, Default)]
pub(super) struct EndedSessions {
    known: HashSet<IdHash>,
    order: VecDeque<(IdHash, u64)>,
}

/// Append-only file of ended ids.
#[derive(Debug, Default)]
pub(super) struct EndedSessionLog(Mutex<Option<EndedLogFile>>);

#[derive(Debug)]
struct EndedLogFile {
    path: PathBuf,
    file: File,
    records: usize,
}

impl EndedSessions {
    pub(super) fn contains(&self, id: &str) -> bool {
        !self.known.is_empty() && self.known.contains(&hash_id(id))
    }

    /// Adds an id and returns its file record.
    pub(super) fn insert_id(&mut self, id: &str, issued_s: u64) -> [u8; RECORD_BYTES] {
        let hash = hash_id(id);
        self.insert(hash, issued_s);
        encode_record(&hash, issued_s)
    }

    fn insert(&mut self, hash: IdHash, issued_s: u64) {
        if !self.known.insert(hash) {
            return;
        }
        self.order.push_back((hash, issued_s));
        if self.order.len() > ENDED_MAX
            && let Some((oldest, _)) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    pub(super) fn encode_records(&self) -> Vec<u8> {
        let records = self
            .order
            .iter()
            .map(|(hash, issued_s)| encode_record(hash, *issued_s));
        records.flatten().collect()
    }
}

impl EndedSessionLog {
    /// Appends a record. A failed write is only logged: the id is forgotten with this process.
    pub(super) fn append(&self, record: &[u8; RECORD_BYTES], all: impl FnOnce() -> Vec<u8>) {
        let mut log = lock(&self.0);
        let Some(log) = log.as_mut() else {
            return;
        };
        let written = if log.records < RECORDS_MAX {
            log.records += 1;
            log.file
                .write_all(record)
                .map_err(|error| error.to_string())
        } else {
            let opened = EndedLogFile::rewrite(&log.path, &all());
            opened
                .map(|new| *log = new)
                .map_err(|error| error.to_string())
        };
        if let Err(error) = written {
            tracing::warn!(%error, "ended session not persisted");
        }
    }
}

impl EndedLogFile {
    /// Rewrites the file and opens it for appending.
    fn rewrite(path: &Path, records: &[u8]) -> Result<Self, state::StateError> {
        private_file::replace_file(path, records)?;
        let opened = OpenOptions::new().append(true).open(path);
        let file = opened.map_err(|source| state::StateError::Io {
            action: "open",
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            path: path.to_owned(),
            file,
            records: records.len() / RECORD_BYTES,
        })
    }
}

impl ClientSessions {
    /// Persists ended sessions in a file of `state` and loads existing records.
    ///
    /// # Errors
    /// The file cannot be read or written, or is accessible to other users.
    pub fn with_ended_file(
        self,
        state: &StateDir,
        unix_ms: u64,
    ) -> Result<Self, state::StateError> {
        let path = state.ended_file();
        let bytes = private_file::read_private(&path, FILE_BYTES_MAX)?.unwrap_or_default();
        let oldest = (unix_ms / 1_000).saturating_sub(AGE_MAX.as_secs());
        let all = {
            let mut table = self.lock_table();
            // A truncated record at the end is ignored.
            for record in bytes.chunks_exact(RECORD_BYTES) {
                let (hash, issued_s) = record.split_at(HASH_BYTES);
                let issued_s = issued_s.try_into().map_or(0, u64::from_be_bytes);
                // Older ids have expired anyway.
                if let Ok(hash) = hash.try_into()
                    && issued_s >= oldest
                {
                    table.ended.insert(hash, issued_s);
                }
            }
            table.ended.encode_records()
        };
        *lock(&self.ended_log.0) = Some(EndedLogFile::rewrite(&path, &all)?);
        Ok(self)
    }
}

fn encode_record(hash: &IdHash, issued_s: u64) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    let (first, last) = record.split_at_mut(HASH_BYTES);
    first.copy_from_slice(hash);
    last.copy_from_slice(&issued_s.to_be_bytes());
    record
}

fn hash_id(id: &str) -> IdHash {
    let whole: [u8; 32] = Sha256::digest(id.as_bytes()).into();
    let mut short = [0; HASH_BYTES];
    for (to, from) in short.iter_mut().zip(whole) {
        *to = from;
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_ids_are_bounded_and_persistent() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path().join("state")).unwrap();
        let now_ms = 10 * AGE_MAX.as_millis() as u64;
        let open = || {
            ClientSessions::new(&[1; 32])
                .with_ended_file(&state, now_ms)
                .unwrap()
        };
        let sessions = open();
        let end = |sessions: &ClientSessions, id: &str, issued_s: u64| {
            let record = sessions.lock_table().ended.insert_id(id, issued_s);
            sessions
                .ended_log
                .append(&record, || sessions.lock_table().ended.encode_records());
        };
        end(&sessions, "old", 1);
        for nth in 0..RECORDS_MAX + 10 {
            end(&sessions, &nth.to_string(), now_ms / 1_000);
        }
        let last = (RECORDS_MAX + 9).to_string();
        let size = std::fs::metadata(state.ended_file()).unwrap().len();
        assert!(size <= FILE_BYTES_MAX, "{size}");
        drop(sessions);
        // A torn last record is ignored.
        let mut torn = OpenOptions::new()
            .append(true)
            .open(state.ended_file())
            .unwrap();
        torn.write_all(b"half").unwrap();
        let again = open();
        let table = again.lock_table();
        assert!(
            table.ended.contains(&last)
                && !table.ended.contains("0")
                && !table.ended.contains("old")
        );
        assert_eq!(table.ended.order.len(), ENDED_MAX);
    }
}
