//! What a server that is a child process may use, and how a reaper is told.

use std::ffi::{OsStr, OsString};
use std::fmt;

/// Processes of one server, unless told otherwise.
const PROCESSES_MAX: u64 = 512;

/// Bytes of one file that a server writes, unless told otherwise.
const FILE_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Files that one process of a server has open, unless told otherwise.
const OPEN_FILES_MAX: u64 = 1_024;

/// A reaper's code when the server used too much memory. The server's own is never this one.
pub(crate) const EXIT_OVER_MEMORY: u8 = 118;

/// A reaper's code when the server had too many processes. The server's own is never this one.
pub(crate) const EXIT_OVER_PROCESSES: u8 = 119;

/// What a server may use, with all that it starts; what is absent has no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildLimits {
    /// Resident memory of all its processes together.
    pub memory_bytes_max: Option<u64>,
    /// Processes at the same time.
    pub processes_max: Option<u64>,
    /// The largest file that one of them may write.
    pub file_bytes_max: Option<u64>,
    /// Files that one of them has open, until it raises this itself.
    pub open_files_max: Option<u64>,
}

impl Default for ChildLimits {
    fn default() -> Self {
        Self {
            memory_bytes_max: None,
            processes_max: Some(PROCESSES_MAX),
            file_bytes_max: Some(FILE_BYTES_MAX),
            open_files_max: Some(OPEN_FILES_MAX),
        }
    }
}

const MEMORY: &str = "memory=";
const PROCESSES: &str = "processes=";
const FILE: &str = "file=";
const OPEN_FILES: &str = "open-files=";

impl ChildLimits {
    /// Nothing is limited.
    pub(crate) const NONE: Self = Self {
        memory_bytes_max: None,
        processes_max: None,
        file_bytes_max: None,
        open_files_max: None,
    };

    /// Writes the words that a reaper reads.
    pub(crate) fn words(&self) -> impl Iterator<Item = OsString> {
        let words = [
            (MEMORY, self.memory_bytes_max),
            (PROCESSES, self.processes_max),
            (FILE, self.file_bytes_max),
            (OPEN_FILES, self.open_files_max),
        ];
        words
            .into_iter()
            .filter_map(|(name, limit)| Some(format!("{name}{}", limit?).into()))
    }

    /// Takes one of those words; `None` when it is another one.
    pub(crate) fn take(&mut self, word: &OsStr) -> Option<()> {
        let word = word.to_str()?;
        for (name, limit) in [
            (MEMORY, &mut self.memory_bytes_max),
            (PROCESSES, &mut self.processes_max),
            (FILE, &mut self.file_bytes_max),
            (OPEN_FILES, &mut self.open_files_max),
        ] {
            if let Some(number) = word.strip_prefix(name) {
                *limit = Some(number.parse().ok()?);
                return Some(());
            }
        }
        None
    }
}

/// A number of bytes as people read it, exact.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size(pub(crate) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let whole = units
            .into_iter()
            .find(|(unit, _)| self.0 >= *unit && self.0.is_multiple_of(*unit));
        match whole {
            Some((unit, name)) => write!(f, "{} {name}", self.0 / unit),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reaper_reads_the_limits_that_were_written() {
        let all = ChildLimits {
            memory_bytes_max: Some(1 << 31),
            ..ChildLimits::default()
        };
        for limits in [all, ChildLimits::default(), ChildLimits::NONE] {
            let mut read = ChildLimits::NONE;
            for word in limits.words() {
                read.take(&word).unwrap();
            }
            assert_eq!(read, limits);
        }
        for word in ["", "memory", "memory=", "memory=-1", "cpu=1", "--"] {
            let mut none = ChildLimits::NONE;
            assert_eq!(none.take(word.as_ref()), None, "{word:?}");
        }
    }

    #[test]
    fn sizes_are_exact() {
        let sizes = [2 << 30, 100 << 20, 1536, 1000, 0].map(|bytes| Size(bytes).to_string());
        assert_eq!(
            sizes,
            ["2 GiB", "100 MiB", "1536 bytes", "1000 bytes", "0 bytes"]
        );
    }
}
