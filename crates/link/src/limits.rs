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

/// A reaper's code when the program does not exist. The server's own is never this one.
pub(crate) const EXIT_PROGRAM_NOT_FOUND: u8 = 120;

/// What a server may use, with all that it starts; what is absent has its usual limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChildLimits {
    /// Resident memory of all its processes together; usually without a limit.
    pub memory_bytes_max: Option<u64>,
    /// Processes at the same time; usually 512.
    pub processes_max: Option<u64>,
    /// The largest file that one of them may write; usually 1 GiB.
    pub file_bytes_max: Option<u64>,
    /// Files that one of them has open, until it raises this itself; usually 1,024.
    pub open_files_max: Option<u64>,
}

const MEMORY: &str = "memory=";
const PROCESSES: &str = "processes=";
const FILE: &str = "file=";
const OPEN_FILES: &str = "open-files=";

impl ChildLimits {
    /// Returns what holds: the usual limit where none was given.
    #[must_use]
    pub const fn in_force(self) -> Self {
        const fn or(given: Option<u64>, usual: u64) -> Option<u64> {
            match given {
                None => Some(usual),
                given => given,
            }
        }
        Self {
            memory_bytes_max: self.memory_bytes_max,
            processes_max: or(self.processes_max, PROCESSES_MAX),
            file_bytes_max: or(self.file_bytes_max, FILE_BYTES_MAX),
            open_files_max: or(self.open_files_max, OPEN_FILES_MAX),
        }
    }

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
            ..ChildLimits::default().in_force()
        };
        for limits in [all, ChildLimits::default()] {
            let mut read = ChildLimits::default();
            for word in limits.words() {
                read.take(&word).unwrap();
            }
            assert_eq!(read, limits);
        }
        for word in ["", "memory", "memory=", "memory=-1", "cpu=1", "--"] {
            let mut none = ChildLimits::default();
            assert_eq!(none.take(word.as_ref()), None, "{word:?}");
        }
    }

    #[test]
    fn what_was_not_given_has_its_usual_limit() {
        let given = ChildLimits {
            processes_max: Some(7),
            ..ChildLimits::default()
        };
        let in_force = ChildLimits {
            memory_bytes_max: None,
            processes_max: Some(7),
            file_bytes_max: Some(1 << 30),
            open_files_max: Some(1024),
        };
        assert_eq!(given.in_force(), in_force);
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
