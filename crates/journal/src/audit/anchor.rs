//! The head of a trail in a file beside its rows, so that a missing end is noticed.
//!
//! Two slots are written in turn, each with a check of its own: whatever moment the power goes,
//! one of them is whole. It is written after the rows are durable, so it never runs ahead.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use bowline_core::hex::hex;
use rustix::fs::OFlags;

use super::AuditError;
use super::chain::{Hash, Head};

/// The name of the file.
pub(super) const NAME: &str = "head";

/// Bytes of one slot, padding included.
const SLOT_BYTES: u64 = 160;

/// What the anchor says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Anchored {
    /// The last row.
    pub(super) head: Head,
    /// The number of the oldest row that is kept.
    pub(super) from: u64,
}

/// The file, to be written.
#[derive(Debug)]
pub(super) struct Anchor {
    file: File,
    path: PathBuf,
    second: bool,
}

impl Anchor {
    /// Opens the anchor of a trail, and returns what it says; nothing where it was just made, or
    /// says nothing whole.
    pub(super) fn open(directory: &Path) -> Result<(Self, Option<Anchored>), AuditError> {
        let path = directory.join(NAME);
        let failed = |source| failed("open", &path, source);
        let is_new = std::fs::symlink_metadata(&path).is_err();
        let mut made = options();
        made.write(true).create(true).truncate(false).mode(0o600);
        let file = made.open(&path).map_err(failed)?;
        let mut anchor = Self {
            file,
            path: path.clone(),
            second: false,
        };
        if is_new {
            let none = Anchored {
                from: 1,
                ..Anchored::default()
            };
            anchor.write(none)?;
            anchor.write(none)?;
            anchor.sync()?;
            return Ok((anchor, None));
        }
        let said = read(directory)?;
        Ok((anchor, said))
    }

    /// Says where the trail ends now.
    pub(super) fn write(&mut self, said: Anchored) -> Result<(), AuditError> {
        let at = if self.second { SLOT_BYTES } else { 0 };
        let slot = self.file.write_all_at(line(said).as_bytes(), at);
        slot.map_err(|source| failed("write", &self.path, source))?;
        self.second = !self.second;
        Ok(())
    }

    /// Whether its path still names the file that is written to.
    pub(super) fn is_in_place(&self) -> bool {
        let (open, found) = (self.file.metadata(), self.path.symlink_metadata());
        let pair = |about: std::fs::Metadata| (about.dev(), about.ino());
        open.ok().map(pair) == found.ok().map(pair)
    }

    /// Returns its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Has it outlast a power cut, too.
    pub(super) fn sync(&self) -> Result<(), AuditError> {
        let synced = self.file.sync_data();
        synced.map_err(|source| failed("write", &self.path, source))
    }
}

/// Reads what the anchor of a trail says; nothing where it is gone or says nothing whole.
pub(super) fn read(directory: &Path) -> Result<Option<Anchored>, AuditError> {
    let path = directory.join(NAME);
    let file = match options().open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(failed("read", &path, source)),
    };
    let mut text = Vec::new();
    let read = file.take(2 * SLOT_BYTES).read_to_end(&mut text);
    read.map_err(|source| failed("read", &path, source))?;
    let slots = text.chunks(usize::try_from(SLOT_BYTES).unwrap_or(1));
    let said = slots.filter_map(parse);
    Ok(said.max_by_key(|said| said.head.seq))
}

fn line(said: Anchored) -> String {
    let text = format!("{} {}", said.head, said.from);
    let text = format!("{text} {}", check(&text));
    let width = usize::try_from(SLOT_BYTES - 1).unwrap_or(0);
    format!("{text:<width$}\n")
}

fn parse(slot: &[u8]) -> Option<Anchored> {
    let (text, said) = std::str::from_utf8(slot)
        .ok()?
        .trim_end()
        .rsplit_once(' ')?;
    if check(text) != said {
        return None;
    }
    let (head, from) = text.split_once(' ')?;
    Some(Anchored {
        head: head.parse().ok()?,
        from: from.parse().ok()?,
    })
}

fn check(text: &str) -> String {
    let hash = Hash::default().then(text.as_bytes());
    hex(hash.0.first_chunk::<8>().map_or(&[], |some| some))
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.read(true).custom_flags(flags.bits().cast_signed());
    options
}

fn failed(action: &'static str, path: &Path, source: std::io::Error) -> AuditError {
    let path = path.to_owned();
    AuditError::Io {
        action,
        path,
        source,
    }
}
