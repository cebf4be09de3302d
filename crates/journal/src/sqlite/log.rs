//! Looks through the log before SQLite does.
//!
//! SQLite takes the first frame whose checksum is wrong for the end of the log, since a crash can
//! leave such an end. Where whole transactions follow it, it is no end: each of them began after
//! the one before was synced. To go on would forget them all without a word.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use super::OpenError;

/// Bytes before the first frame.
const HEADER_BYTES: usize = 32;

/// Bytes before the page of a frame.
const FRAME_BYTES: usize = 24;

/// The first word of a log; the last bit says how its words are read.
const MAGIC: u32 = 0x377f_0682;

/// Largest page that SQLite knows.
const PAGE_BYTES_MAX: usize = 65_536;

/// What a log says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Log {
    /// There is none, or it is empty.
    Empty,
    /// Every frame is whole.
    Whole,
    /// Its last transaction is not whole: it was never finished, as far as anybody can tell.
    Unfinished,
    /// It is broken, and whole transactions follow.
    Damaged {
        /// Where, in bytes.
        at: u64,
    },
}

/// Refuses a log of which SQLite would forget transactions that were acknowledged.
pub(super) fn check(path: &Path) -> Result<(), OpenError> {
    let found = match File::open(path) {
        Ok(file) => look(BufReader::new(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
    };
    let found = found.map_err(|source| OpenError::Io {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    match found {
        Log::Empty | Log::Whole | Log::Unfinished => Ok(()),
        Log::Damaged { at } => Err(OpenError::Damaged {
            path: path.to_owned(),
            what: format!("its log breaks off at byte {at}, and whole transactions follow"),
        }),
    }
}

/// Reads a log to its end.
fn look(mut log: impl Read) -> io::Result<Log> {
    let mut header = [0; HEADER_BYTES];
    match fill(&mut log, &mut header)? {
        0 => return Ok(Log::Empty),
        HEADER_BYTES => {}
        // A header is written at once and synced before any frame.
        _ => return Ok(Log::Unfinished),
    }
    let Some(mut reader) = Reader::new(&header) else {
        let mut one = [0];
        return Ok(match fill(&mut log, &mut one)? {
            0 => Log::Unfinished,
            _ => Log::Damaged { at: 0 },
        });
    };
    let mut frame = vec![0; FRAME_BYTES + reader.page_bytes];
    let mut at = HEADER_BYTES as u64;
    let mut broken = None;
    loop {
        if fill(&mut log, &mut frame)? < frame.len() {
            break;
        }
        let seen = reader.take(&frame);
        match &mut broken {
            None if seen == Frame::Whole => {}
            // Frames of an older log lie behind the end; nothing of this one may follow them.
            None => broken = Some(Broken::new(at, seen)),
            Some(broken) => broken.commits += u64::from(seen == Frame::Commit),
        }
        at += frame.len() as u64;
    }
    Ok(broken.map_or(Log::Whole, Broken::verdict))
}

/// The first frame that is not whole, and what follows it.
#[derive(Debug)]
struct Broken {
    at: u64,
    first: Frame,
    /// Frames after it that end a transaction of this log.
    commits: u64,
}

impl Broken {
    const fn new(at: u64, first: Frame) -> Self {
        Self {
            at,
            first,
            commits: 0,
        }
    }

    /// A transaction that a crash cut off has one last frame at most. One more is of another
    /// transaction, which began after the broken one had been synced.
    fn verdict(self) -> Log {
        match (self.first, self.commits) {
            (Frame::Foreign, 0) => Log::Whole,
            (Frame::Foreign | Frame::Stray, 0 | 1) | (Frame::Commit, 0) => Log::Unfinished,
            _ => Log::Damaged { at: self.at },
        }
    }
}

/// How a frame looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    /// It continues the log.
    Whole,
    /// It is of this log, ends a transaction, and does not continue it.
    Commit,
    /// It is of this log and does not continue it.
    Stray,
    /// It is of another log.
    Foreign,
    /// It continues the log, and names another one: no crash does that.
    Renamed,
}

/// Follows the checksums from frame to frame.
#[derive(Debug)]
struct Reader {
    page_bytes: usize,
    salt: [u8; 8],
    sum: (u32, u32),
    /// How words are read.
    word: fn([u8; 4]) -> u32,
    is_broken: bool,
}

impl Reader {
    fn new(header: &[u8; HEADER_BYTES]) -> Option<Self> {
        let magic = number(header, 0)?;
        if magic & !1 != MAGIC {
            return None;
        }
        let word = if magic & 1 == 1 {
            u32::from_be_bytes
        } else {
            u32::from_le_bytes
        };
        let page_bytes = usize::try_from(number(header, 8)?).ok()?;
        if !page_bytes.is_power_of_two() || page_bytes > PAGE_BYTES_MAX {
            return None;
        }
        let sum = checksum((0, 0), header.get(..24)?, word);
        if sum != (number(header, 24)?, number(header, 28)?) {
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

    fn take(&mut self, frame: &[u8]) -> Frame {
        let Some((head, page)) = frame.split_at_checked(FRAME_BYTES) else {
            return Frame::Foreign;
        };
        let is_ours = head.get(8..16) == Some(&self.salt);
        if !self.is_broken {
            let sum = checksum(self.sum, head.get(..8).unwrap_or_default(), self.word);
            let sum = checksum(sum, page, self.word);
            let follows = (number(head, 16), number(head, 20)) == (Some(sum.0), Some(sum.1));
            if follows && is_ours {
                self.sum = sum;
                return Frame::Whole;
            }
            self.is_broken = true;
            if follows {
                return Frame::Renamed;
            }
        }
        if !is_ours {
            return Frame::Foreign;
        }
        match number(head, 4) {
            Some(0) | None => Frame::Stray,
            Some(_) => Frame::Commit,
        }
    }
}

/// The checksum of SQLite's logs, over words in pairs.
fn checksum(from: (u32, u32), bytes: &[u8], word: fn([u8; 4]) -> u32) -> (u32, u32) {
    let (mut a, mut b) = from;
    let (pairs, _) = bytes.as_chunks::<8>();
    for [p, q, r, s, t, u, v, w] in pairs {
        a = a.wrapping_add(word([*p, *q, *r, *s])).wrapping_add(b);
        b = b.wrapping_add(word([*t, *u, *v, *w])).wrapping_add(a);
    }
    (a, b)
}

/// The big-endian number at a place.
fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Reads until the buffer is full or the file ends.
fn fill(from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
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

    /// A log of three transactions, and where the frames of each begin.
    fn log() -> Vec<u8> {
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

    fn frames(log: &[u8]) -> usize {
        (log.len() - HEADER_BYTES) / (FRAME_BYTES + 4096)
    }

    #[test]
    fn a_log_that_sqlite_wrote_is_whole() {
        assert_eq!(look(log().as_slice()).unwrap(), Log::Whole);
        assert_eq!(look(&[][..]).unwrap(), Log::Empty);
    }

    #[test]
    fn a_log_cut_at_any_byte_is_no_damage() {
        let log = log();
        for at in 1..log.len() {
            let found = look(&log[..at]).unwrap();
            assert!(
                matches!(found, Log::Whole | Log::Unfinished),
                "{at}: {found:?}"
            );
        }
    }

    #[test]
    fn a_flipped_bit_before_the_last_transaction_is_damage() {
        let log = log();
        let frame = FRAME_BYTES + 4096;
        let commits: Vec<usize> = (0..frames(&log))
            .filter(|nth| number(&log, HEADER_BYTES + nth * frame + 4) != Some(0))
            .collect();
        let last = HEADER_BYTES + (commits[commits.len() - 2] + 1) * frame;
        for at in (0..log.len()).step_by(61).chain(0..HEADER_BYTES) {
            let mut flipped = log.clone();
            flipped[at] ^= 4;
            let found = look(flipped.as_slice()).unwrap();
            match at < last {
                true => assert!(matches!(found, Log::Damaged { .. }), "{at}: {found:?}"),
                // A flipped name of the log is seen even there.
                false => assert_ne!(found, Log::Whole, "{at}"),
            }
        }
    }

    #[test]
    fn what_an_older_log_left_behind_the_end_is_no_damage() {
        let mut log = log();
        let mut older = log[HEADER_BYTES..].to_vec();
        for nth in 0..frames(&log) {
            older[nth * (FRAME_BYTES + 4096) + 8] ^= 0xff;
        }
        log.extend(older);
        assert_eq!(look(log.as_slice()).unwrap(), Log::Whole);
    }
}
