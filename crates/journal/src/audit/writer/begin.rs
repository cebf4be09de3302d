//! Where a trail goes on: after the last row of its files, as far as its anchor agrees.

use std::path::Path;
use std::sync::Arc;

use bowline_core::sync::lock;
use rusqlite::OptionalExtension as _;

use super::super::anchor::{Anchor, Anchored};
use super::super::chain::{Hash, Head};
use super::super::files::{self, FileName};
use super::super::row::{Kind, Row};
use super::super::{AuditError, Limits, Wall};
use super::{Open, Shared, WallClock, Writer, keep, shown};

/// Where the files end, and what is wrong with that.
#[derive(Debug, Default)]
struct End {
    head: Head,
    /// The file to go on in; a new one where absent.
    file: Option<Open>,
    trouble: Option<String>,
}

impl Writer {
    /// Opens the files and writes that a gateway begins here.
    pub(in super::super) fn open(
        directory: &Path,
        limits: Limits,
        wall: Wall,
        shared: Arc<Shared>,
    ) -> Result<Self, AuditError> {
        let files = files::list(directory)?;
        let (anchor, said) = Anchor::open(directory)?;
        let end = end_of(directory, &files, said)?;
        let mut writer = Self {
            directory: directory.to_owned(),
            limits,
            wall: WallClock(wall),
            shared,
            anchor,
            file: end.file,
            resume: None,
            head: end.head,
            from: said.map_or(1, |said| said.from),
            early: 0,
            looked_ms: 0,
            owed: 0,
            why: None,
        };
        writer.early = keep::early(&files);
        if writer.file.is_none() {
            writer.begin()?;
        }
        let gap = end.trouble.as_ref().map(|trouble| {
            tracing::error!(reason = %trouble, "the audit trail is damaged");
            let mut gap = Row::new(Kind::Gap, (writer.wall.0)());
            gap.reason = Some(trouble.clone().into());
            gap
        });
        let is_told = limits.ring.is_none();
        let started = is_told.then(|| Row::new(Kind::Started, (writer.wall.0)()));
        writer.append(gap.into_iter().chain(started))?;
        Ok(writer)
    }

    /// Begins a new file, and lets the oldest go where there are too many.
    pub(super) fn begin(&mut self) -> Result<(), AuditError> {
        let name = FileName::of(&self.directory, self.head.seq + 1);
        let connection = files::create(&name)?;
        let begun_ms = (self.wall.0)();
        let old = self.outdated(begun_ms)?;
        let mut first = Row::new(Kind::File, begun_ms);
        first.prev = Some(self.head.hash.to_string().into());
        first.kept_from = Some(self.from);
        first.let_go_early = Some(self.early).filter(|early| *early > 0);
        self.file = Some(Open {
            name,
            connection,
            begun_ms,
        });
        if let Err(error) = self.append(std::iter::once(first)) {
            self.file = None;
            lock(&self.shared.files).clear();
            return Err(error);
        }
        // What is let go must be known to be, or it looks like a theft.
        self.anchor.sync()?;
        for file in &old {
            files::remove(file)?;
        }
        Ok(())
    }
}

/// Finds where to go on. What is missing stays visible: the chain goes on from what the anchor
/// knows, and the rows that are gone leave a hole that every look at the trail will find.
fn end_of(directory: &Path, files: &[FileName], said: Option<Anchored>) -> Result<End, AuditError> {
    let Some(said) = said else {
        let mut end = found(files)?.unwrap_or_default();
        if end.head != Head::default() {
            let trouble = "the head beside the files was missing".to_owned();
            end.trouble.get_or_insert(trouble);
        }
        return Ok(end);
    };
    let end = match found(files) {
        Ok(Some(end)) => end,
        Ok(None) if said.head.seq == 0 => return Ok(End::default()),
        Ok(None) => {
            let trouble = format!("no file is left in {}", shown(directory));
            return Ok(End {
                head: said.head,
                file: None,
                trouble: Some(trouble),
            });
        }
        Err(error) => {
            let trouble = format!("{error}: begun anew after row {}", said.head.seq);
            return Ok(End {
                head: said.head,
                file: None,
                trouble: Some(trouble),
            });
        }
    };
    if end.head.seq < said.head.seq {
        let (first, last) = (end.head.seq + 1, said.head.seq);
        let trouble = format!("rows {first} to {last} are missing");
        return Ok(End {
            head: said.head,
            file: None,
            trouble: Some(trouble),
        });
    }
    let known = end.file.as_ref().map(|open| hash_of(open, said.head.seq));
    match known {
        // It lies in a file before this one, which only a whole look at the trail will read.
        None | Some(Ok(None)) => Ok(end),
        Some(Ok(Some(hash))) if hash == said.head.hash => Ok(end),
        Some(Ok(Some(_)) | Err(_)) => {
            let trouble = format!("row {} is not the one that was written", said.head.seq);
            let head = Head {
                seq: end.head.seq,
                hash: said.head.hash,
            };
            Ok(End {
                head,
                file: None,
                trouble: Some(trouble),
            })
        }
    }
}

/// Returns the end of the newest file that has a row; nothing where there is no row at all.
fn found(files: &[FileName]) -> Result<Option<End>, AuditError> {
    for name in files.iter().rev() {
        let connection = files::open(name)?;
        if !files::is_begun(&connection, name)? {
            continue;
        }
        if let Some(head) = files::last(&connection, name)? {
            let name = name.clone();
            let file = Some(Open::resume(name, connection));
            return Ok(Some(End {
                head,
                file,
                trouble: None,
            }));
        }
    }
    Ok(None)
}

/// Returns the hash of a row, where the file has it.
fn hash_of(open: &Open, seq: u64) -> Result<Option<Hash>, rusqlite::Error> {
    let seq = i64::try_from(seq).unwrap_or(i64::MAX);
    let row = open
        .connection
        .query_row("SELECT hash FROM rows WHERE seq = ?1", [seq], |row| {
            row.get::<_, Vec<u8>>(0)
        });
    Ok(row.optional()?.and_then(|hash| Hash::of(&hash)))
}
