//! Anchor file: the head of a trail beside its row files, so that a truncated end is detected.
//!
//! Two slots are written alternately, each with a digest, so a power cut leaves at least one valid
//! slot. The anchor is written after the rows are durable and never runs ahead of the rows.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use bowline_core::hex::to_hex;
use rustix::fs::OFlags;

use super::AuditError;
use super::chain::{ChainHash, ChainHead};

/// Name of the anchor file.
pub(super) const NAME: &str = "head";

/// Bytes of one slot, padding included.
const SLOT_BYTES: u64 = 160;

/// Content of the anchor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AnchorRecord {
    /// Last row.
    pub(super) head: ChainHead,
    /// Sequence number of the oldest kept row.
    pub(super) oldest_seq: u64,
}

/// Open anchor file with its next slot.
#[derive(Debug)]
pub(super) struct AnchorFile {
    file: File,
    path: PathBuf,
    writes_second: bool,
}

impl AnchorFile {
    /// Opens the anchor of a trail and returns its record; `None` for a new anchor and for an
    /// anchor without a valid slot.
    pub(super) fn open(directory: &Path) -> Result<(Self, Option<AnchorRecord>), AuditError> {
        let path = directory.join(NAME);
        let failed = |source| io_error("open", &path, source);
        let is_new = std::fs::symlink_metadata(&path).is_err();
        let mut options_for_write = open_options();
        options_for_write
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        let file = options_for_write.open(&path).map_err(failed)?;
        let mut anchor = Self {
            file,
            path: path.clone(),
            writes_second: false,
        };
        if is_new {
            let none = AnchorRecord {
                oldest_seq: 1,
                ..AnchorRecord::default()
            };
            anchor.write(none)?;
            anchor.write(none)?;
            anchor.sync()?;
            return Ok((anchor, None));
        }
        let record = read_anchor(directory)?;
        Ok((anchor, record))
    }

    /// Writes the current end of the trail into the next slot.
    pub(super) fn write(&mut self, record: AnchorRecord) -> Result<(), AuditError> {
        let at = if self.writes_second { SLOT_BYTES } else { 0 };
        let slot = self.file.write_all_at(format_slot(record).as_bytes(), at);
        slot.map_err(|source| io_error("write", &self.path, source))?;
        self.writes_second = !self.writes_second;
        Ok(())
    }

    /// Returns whether the path still names the open file.
    pub(super) fn is_in_place(&self) -> bool {
        let (open, found) = (self.file.metadata(), self.path.symlink_metadata());
        let pair = |about: std::fs::Metadata| (about.dev(), about.ino());
        open.ok().map(pair) == found.ok().map(pair)
    }

    /// Returns the path of the anchor.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Syncs the anchor to disk, so a power cut does not lose the record.
    pub(super) fn sync(&self) -> Result<(), AuditError> {
        let synced = self.file.sync_data();
        synced.map_err(|source| io_error("write", &self.path, source))
    }
}

/// Reads the anchor of a trail; `None` if the file is missing or has no valid slot.
pub(super) fn read_anchor(directory: &Path) -> Result<Option<AnchorRecord>, AuditError> {
    let path = directory.join(NAME);
    let file = match open_options().open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io_error("read", &path, source)),
    };
    let mut text = Vec::new();
    let read = file.take(2 * SLOT_BYTES).read_to_end(&mut text);
    read.map_err(|source| io_error("read", &path, source))?;
    let slots = text.chunks(usize::try_from(SLOT_BYTES).unwrap_or(1));
    let record = slots.filter_map(parse_slot);
    Ok(record.max_by_key(|record| record.head.seq))
}

fn format_slot(record: AnchorRecord) -> String {
    let text = format!("{} {}", record.head, record.oldest_seq);
    let text = format!("{text} {}", slot_digest(&text));
    let width = usize::try_from(SLOT_BYTES - 1).unwrap_or(0);
    format!("{text:<width$}\n")
}

fn parse_slot(slot: &[u8]) -> Option<AnchorRecord> {
    let (text, digest) = std::str::from_utf8(slot)
        .ok()?
        .trim_end()
        .rsplit_once(' ')?;
    if slot_digest(text) != digest {
        return None;
    }
    let (head, from) = text.split_once(' ')?;
    Some(AnchorRecord {
        head: head.parse().ok()?,
        oldest_seq: from.parse().ok()?,
    })
}

fn slot_digest(text: &str) -> String {
    let hash = ChainHash::default().extend(text.as_bytes());
    to_hex(hash.0.first_chunk::<8>().map_or(&[], |some| some))
}

fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.read(true).custom_flags(flags.bits().cast_signed());
    options
}

fn io_error(action: &'static str, path: &Path, source: std::io::Error) -> AuditError {
    let path = path.to_owned();
    AuditError::Io {
        action,
        path,
        source,
    }
}
