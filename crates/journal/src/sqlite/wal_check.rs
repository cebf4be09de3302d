//! Checks the WAL before SQLite opens the file.
//!
//! SQLite takes the first frame with a wrong checksum for the end of the WAL, since a crash can
//! leave such an end. If whole transactions follow, the frame is damaged instead: each following
//! transaction began after the previous was synced. SQLite would silently drop all of them.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use super::JournalOpenError;

/// Bytes before the first frame.
const HEADER_BYTES: usize = 32;

/// Bytes before the page of a frame.
const FRAME_BYTES: usize = 24;

/// First word of a WAL; the last bit selects the byte order of checksums.
const MAGIC: u32 = 0x377f_0682;

/// Largest SQLite page.
const PAGE_BYTES_MAX: usize = 65_536;

/// Status of a WAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WalStatus {
    /// The file is missing or empty.
    Empty,
    /// Every frame is valid.
    Whole,
    /// The last transaction is incomplete, presumably cut off by a crash.
    Unfinished,
    /// A frame is invalid, and whole transactions follow.
    Damaged {
        /// Byte offset of the invalid frame.
        at: u64,
    },
}

/// Refuses a WAL from which SQLite would drop acknowledged transactions.
pub(super) fn check_wal(path: &Path) -> Result<(), JournalOpenError> {
    let status = match File::open(path) {
        Ok(file) => scan_wal(BufReader::new(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
    };
    let status = status.map_err(|source| JournalOpenError::Io {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    match status {
        WalStatus::Empty | WalStatus::Whole | WalStatus::Unfinished => Ok(()),
        WalStatus::Damaged { at } => Err(JournalOpenError::Damaged {
            path: path.to_owned(),
            what: format!("its log breaks off at byte {at}, and whole transactions follow"),
        }),
    }
}

/// Reads a WAL to its end.
fn scan_wal(mut log: impl Read) -> io::Result<WalStatus> {
    let mut header = [0; HEADER_BYTES];
    match read_full(&mut log, &mut header)? {
        0 => return Ok(WalStatus::Empty),
        HEADER_BYTES => {}
        // SQLite writes the header at once and syncs before any frame.
        _ => return Ok(WalStatus::Unfinished),
    }
    let Some(mut reader) = WalReader::new(&header) else {
        let mut one = [0];
        return Ok(match read_full(&mut log, &mut one)? {
            0 => WalStatus::Unfinished,
            _ => WalStatus::Damaged { at: 0 },
        });
    };
    let mut frame = vec![0; FRAME_BYTES + reader.page_bytes];
    let mut at = HEADER_BYTES as u64;
    let mut broken = None;
    loop {
        if read_full(&mut log, &mut frame)? < frame.len() {
            break;
        }
        let frame_status = reader.check_frame(&frame);
        match &mut broken {
            None if frame_status == WalFrame::Whole => {}
            // Frames of an older WAL may follow the end; no frame of this WAL may follow those.
            None => broken = Some(BrokenFrame::new(at, frame_status)),
            Some(broken) => broken.commits += u64::from(frame_status == WalFrame::Commit),
        }
        at += frame.len() as u64;
    }
    Ok(broken.map_or(WalStatus::Whole, BrokenFrame::into_status))
}

/// First invalid frame, and the number of commits after.
#[derive(Debug)]
struct BrokenFrame {
    at: u64,
    first: WalFrame,
    /// Commit frames of this WAL after the invalid frame.
    commits: u64,
}

impl BrokenFrame {
    const fn new(at: u64, first: WalFrame) -> Self {
        Self {
            at,
            first,
            commits: 0,
        }
    }

    /// A transaction cut off by a crash has at most one commit frame. A second commit frame belongs
    /// to a transaction that began after the invalid frame was synced.
    fn into_status(self) -> WalStatus {
        match (self.first, self.commits) {
            (WalFrame::Foreign, 0) => WalStatus::Whole,
            (WalFrame::Foreign | WalFrame::Stray, 0 | 1) | (WalFrame::Commit, 0) => {
                WalStatus::Unfinished
            }
            _ => WalStatus::Damaged { at: self.at },
        }
    }
}

/// Classification of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WalFrame {
    /// Continues the WAL.
    Whole,
    /// Commit frame of this WAL that breaks the checksum chain.
    Commit,
    /// Frame of this WAL that breaks the checksum chain.
    Stray,
    /// Frame of a different WAL.
    Foreign,
    /// Continues the checksum chain but has the salt of a different WAL: no crash causes this.
    Renamed,
}

/// Follows the checksum chain from frame to frame.
#[derive(Debug)]
struct WalReader {
    page_bytes: usize,
    salt: [u8; 8],
    sum: WalChecksum,
    /// Byte order of checksum words.
    word: fn([u8; 4]) -> u32,
    is_broken: bool,
}

impl WalReader {
    fn new(header: &[u8; HEADER_BYTES]) -> Option<Self> {
        let magic = read_u32(header, 0)?;
        if magic & !1 != MAGIC {
            return None;
        }
        let word = if magic & 1 == 1 {
            u32::from_be_bytes
        } else {
            u32::from_le_bytes
        };
        let page_bytes = usize::try_from(read_u32(header, 8)?).ok()?;
        if !page_bytes.is_power_of_two() || page_bytes > PAGE_BYTES_MAX {
            return None;
        }
        let sum = WalChecksum::default().with_bytes(header.get(..24)?, word);
        if WalChecksum::read(header, 24) != Some(sum) {
            return None;
        }
        let salt = header.get(16..24)?.try_into().ok()?;
        Some(Self {
            page_bytes,
            salt,
            sum,
            word,
            is_broken: false,
        })
    }

    fn check_frame(&mut self, frame: &[u8]) -> WalFrame {
        let Some((head, page)) = frame.split_at_checked(FRAME_BYTES) else {
            return WalFrame::Foreign;
        };
        let is_ours = head.get(8..16) == Some(&self.salt);
        if !self.is_broken {
            let sum = self.sum;
            let sum = sum.with_bytes(head.get(..8).unwrap_or_default(), self.word);
            let sum = sum.with_bytes(page, self.word);
            let follows = WalChecksum::read(head, 16) == Some(sum);
            if follows && is_ours {
                self.sum = sum;
                return WalFrame::Whole;
            }
            self.is_broken = true;
            if follows {
                return WalFrame::Renamed;
            }
        }
        if !is_ours {
            return WalFrame::Foreign;
        }
        match read_u32(head, 4) {
            Some(0) | None => WalFrame::Stray,
            Some(_) => WalFrame::Commit,
        }
    }
}

/// SQLite WAL checksum, computed over pairs of words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WalChecksum {
    first: u32,
    second: u32,
}

impl WalChecksum {
    /// Returns the big-endian checksum at an offset.
    fn read(bytes: &[u8], at: usize) -> Option<Self> {
        let (first, second) = (read_u32(bytes, at)?, read_u32(bytes, at + 4)?);
        Some(Self { first, second })
    }

    /// Returns the checksum after further bytes.
    fn with_bytes(self, bytes: &[u8], word: fn([u8; 4]) -> u32) -> Self {
        let Self {
            mut first,
            mut second,
        } = self;
        let (pairs, _) = bytes.as_chunks::<8>();
        for [p, q, r, s, t, u, v, w] in pairs {
            first = first
                .wrapping_add(word([*p, *q, *r, *s]))
                .wrapping_add(second);
            second = second
                .wrapping_add(word([*t, *u, *v, *w]))
                .wrapping_add(first);
        }
        Self { first, second }
    }
}

/// Returns the big-endian number at an offset.
fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Reads until the buffer is full or the file ends.
fn read_full(from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = into.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match from.read(rest) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rusqlite::Connection;

    use super::*;

    /// Returns a WAL of three transactions.
    fn sample_wal() -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let conn = Connection::open(dir.path().join("a.db")).unwrap();
        let mode: String = conn
            .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
            .unwrap();
        assert_eq!(mode, "wal");
        conn.execute_batch(
            "CREATE TABLE t (a BLOB); INSERT INTO t VALUES (zeroblob(9000));
             INSERT INTO t VALUES (zeroblob(9000));",
        )
        .unwrap();
        fs::read(dir.path().join("a.db-wal")).unwrap()
    }

    fn frame_count(log: &[u8]) -> usize {
        (log.len() - HEADER_BYTES) / (FRAME_BYTES + 4096)
    }

    #[test]
    fn wal_from_sqlite_is_valid() {
        assert_eq!(scan_wal(sample_wal().as_slice()).unwrap(), WalStatus::Whole);
        assert_eq!(scan_wal(&[][..]).unwrap(), WalStatus::Empty);
    }

    #[test]
    fn wal_cut_anywhere_is_not_damaged() {
        let log = sample_wal();
        for at in 1..log.len() {
            let found = scan_wal(&log[..at]).unwrap();
            assert!(
                matches!(found, WalStatus::Whole | WalStatus::Unfinished),
                "{at}: {found:?}"
            );
        }
    }

    #[test]
    fn flip_before_last_transaction_is_damage() {
        let log = sample_wal();
        let frame = FRAME_BYTES + 4096;
        let commits: Vec<usize> = (0..frame_count(&log))
            .filter(|nth| read_u32(&log, HEADER_BYTES + nth * frame + 4) != Some(0))
            .collect();
        let last = HEADER_BYTES + (commits[commits.len() - 2] + 1) * frame;
        for at in (0..log.len()).step_by(61).chain(0..HEADER_BYTES) {
            let mut flipped = log.clone();
            flipped[at] ^= 4;
            let found = scan_wal(flipped.as_slice()).unwrap();
            match at < last {
                true => assert!(
                    matches!(found, WalStatus::Damaged { .. }),
                    "{at}: {found:?}"
                ),
                // A changed salt is detected even in the last transaction.
                false => assert_ne!(found, WalStatus::Whole, "{at}"),
            }
        }
    }

    #[test]
    fn frames_of_older_wal_are_ignored() {
        let mut log = sample_wal();
        let mut older = log[HEADER_BYTES..].to_vec();
        for nth in 0..frame_count(&log) {
            older[nth * (FRAME_BYTES + 4096) + 8] ^= 0xff;
        }
        log.extend(older);
        assert_eq!(scan_wal(log.as_slice()).unwrap(), WalStatus::Whole);
    }
}
