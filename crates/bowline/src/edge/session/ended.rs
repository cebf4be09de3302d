//! Sessions that were ended, so that their ids stay dead, also in the next life of the gateway.

use std::collections::{HashSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use bowline_core::sync::lock;
use sha2::{Digest as _, Sha256};

use super::{AGE_MAX, Sessions};
use crate::state::{self, State, file};

/// Ended sessions that are remembered.
pub(super) const ENDED_MAX: usize = 65_536;

/// Bytes of the hash of an id that are kept.
const HASH_BYTES: usize = 16;

/// Bytes of one record: the hash, and when the id was issued in seconds since 1970.
const RECORD_BYTES: usize = HASH_BYTES + 8;

/// Records that the file holds at most before it is written anew.
const RECORDS_MAX: usize = 2 * ENDED_MAX;

/// The largest file.
const FILE_BYTES_MAX: u64 = (RECORDS_MAX * RECORD_BYTES) as u64;

type Hash = [u8; HASH_BYTES];

/// Hashes of the ids that are dead, oldest first.
#[derive(Debug, Default)]
pub(super) struct Ended {
    known: HashSet<Hash>,
    order: VecDeque<(Hash, u64)>,
}

/// The file that they are appended to.
#[derive(Debug, Default)]
pub(super) struct EndedLog(Mutex<Option<Log>>);

#[derive(Debug)]
struct Log {
    path: PathBuf,
    file: File,
    records: usize,
}

impl Ended {
    pub(super) fn has(&self, id: &str) -> bool {
        !self.known.is_empty() && self.known.contains(&hash(id))
    }

    /// Notes that the session of this id is over; returns what is to be written down.
    pub(super) fn add(&mut self, id: &str, issued_s: u64) -> [u8; RECORD_BYTES] {
        let hash = hash(id);
        self.insert(hash, issued_s);
        record(&hash, issued_s)
    }

    fn insert(&mut self, hash: Hash, issued_s: u64) {
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

    pub(super) fn written(&self) -> Vec<u8> {
        let records = self
            .order
            .iter()
            .map(|(hash, issued_s)| record(hash, *issued_s));
        records.flatten().collect()
    }
}

impl EndedLog {
    /// Writes a record. What cannot be written is forgotten with this process.
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
            let opened = Log::begin(&log.path, &all());
            opened
                .map(|new| *log = new)
                .map_err(|error| error.to_string())
        };
        if let Err(error) = written {
            tracing::warn!(%error, "an ended session is not remembered for the next start");
        }
    }
}

impl Log {
    /// Writes the file anew and opens it to append.
    fn begin(path: &Path, records: &[u8]) -> Result<Self, state::Error> {
        file::replace(path, records)?;
        let opened = OpenOptions::new().append(true).open(path);
        let file = opened.map_err(|source| state::Error::Io {
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

impl Sessions {
    /// Keeps which sessions were ended in a file of `state`, and goes on with what it says.
    ///
    /// # Errors
    /// When the file cannot be read or written, or is open to others.
    pub fn keep_ended(self, state: &State, unix_ms: u64) -> Result<Self, state::Error> {
        let path = state.ended_file();
        let bytes = file::read_private(&path, FILE_BYTES_MAX)?.unwrap_or_default();
        let oldest = (unix_ms / 1_000).saturating_sub(AGE_MAX.as_secs());
        let all = {
            let mut table = self.table();
            // A record that is cut off at the end was never whole.
            for record in bytes.chunks_exact(RECORD_BYTES) {
                let (hash, issued_s) = record.split_at(HASH_BYTES);
                let issued_s = issued_s.try_into().map_or(0, u64::from_be_bytes);
                // Older ids are dead by their age.
                if let Ok(hash) = hash.try_into()
                    && issued_s >= oldest
                {
                    table.ended.insert(hash, issued_s);
                }
            }
            table.ended.written()
        };
        *lock(&self.ended_log.0) = Some(Log::begin(&path, &all)?);
        Ok(self)
    }
}

fn record(hash: &Hash, issued_s: u64) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    let (first, last) = record.split_at_mut(HASH_BYTES);
    first.copy_from_slice(hash);
    last.copy_from_slice(&issued_s.to_be_bytes());
    record
}

fn hash(id: &str) -> Hash {
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
    fn ended_ids_are_bounded_and_outlive_their_process() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(dir.path().join("state")).unwrap();
        let now_ms = 10 * AGE_MAX.as_millis() as u64;
        let open = || Sessions::new(&[1; 32]).keep_ended(&state, now_ms).unwrap();
        let sessions = open();
        let end = |sessions: &Sessions, id: &str, issued_s: u64| {
            let record = sessions.table().ended.add(id, issued_s);
            sessions
                .ended_log
                .append(&record, || sessions.table().ended.written());
        };
        end(&sessions, "old", 1);
        for nth in 0..RECORDS_MAX + 10 {
            end(&sessions, &nth.to_string(), now_ms / 1_000);
        }
        let last = (RECORDS_MAX + 9).to_string();
        let size = std::fs::metadata(state.ended_file()).unwrap().len();
        assert!(size <= FILE_BYTES_MAX, "{size}");
        drop(sessions);
        // A torn last record is none.
        let mut torn = OpenOptions::new()
            .append(true)
            .open(state.ended_file())
            .unwrap();
        torn.write_all(b"half").unwrap();
        let again = open();
        let table = again.table();
        assert!(table.ended.has(&last) && !table.ended.has("0") && !table.ended.has("old"));
        assert_eq!(table.ended.order.len(), ENDED_MAX);
    }
}
