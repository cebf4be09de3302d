//! Resource limits of a child process, and their encoding as reaper arguments.

use std::ffi::OsString;
use std::fmt;

/// Default limit of processes per server.
const PROCESSES_MAX: u64 = 512;

/// Default limit of bytes per written file.
const FILE_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Default limit of open files per process.
const OPEN_FILES_MAX: u64 = 1_024;

/// Reaper exit code: too much memory. Never the code of the server.
pub(crate) const EXIT_OVER_MEMORY: u8 = 118;

/// Reaper exit code: too many processes. Never the code of the server.
pub(crate) const EXIT_OVER_PROCESSES: u8 = 119;

/// Reaper exit code: program not found. Never the code of the server.
pub(crate) const EXIT_PROGRAM_NOT_FOUND: u8 = 120;

/// Resource limits of a server and its descendants; absent values have defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChildLimits {
    /// Resident memory of all processes together; unlimited by default.
    pub memory_bytes_max: Option<u64>,
    /// Concurrent processes; 512 by default.
    pub processes_max: Option<u64>,
    /// Largest written file; 1 GiB by default.
    pub file_bytes_max: Option<u64>,
    /// Open files per process, as a soft limit; 1,024 by default.
    pub open_files_max: Option<u64>,
}

const MEMORY: &str = "memory=";
const PROCESSES: &str = "processes=";
const FILE: &str = "file=";
const OPEN_FILES: &str = "open-files=";

impl ChildLimits {
    /// Fills in the defaults.
    #[must_use]
    pub const fn with_defaults(self) -> Self {
        const fn or(configured: Option<u64>, default: u64) -> Option<u64> {
            match configured {
                None => Some(default),
                configured => configured,
            }
        }
        Self {
            memory_bytes_max: self.memory_bytes_max,
            processes_max: or(self.processes_max, PROCESSES_MAX),
            file_bytes_max: or(self.file_bytes_max, FILE_BYTES_MAX),
            open_files_max: or(self.open_files_max, OPEN_FILES_MAX),
        }
    }

    /// Returns the reaper arguments.
    pub(crate) fn to_args(self) -> impl Iterator<Item = OsString> {
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

    /// Parses a reaper argument; `None` for an unknown argument.
    #[cfg(feature = "sandbox")]
    pub(crate) fn parse_arg(&mut self, word: &std::ffi::OsStr) -> Option<()> {
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

/// Displays a number of bytes exactly, in the largest fitting unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteSize(pub(crate) u64);

impl fmt::Display for ByteSize {
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
    fn child_limits_survive_reaper_args() {
        let all = ChildLimits {
            memory_bytes_max: Some(1 << 31),
            ..ChildLimits::default().with_defaults()
        };
        for limits in [all, ChildLimits::default()] {
            let mut read = ChildLimits::default();
            for word in limits.to_args() {
                read.parse_arg(&word).unwrap();
            }
            assert_eq!(read, limits);
        }
        for word in ["", "memory", "memory=", "memory=-1", "cpu=1", "--"] {
            let mut none = ChildLimits::default();
            assert_eq!(none.parse_arg(word.as_ref()), None, "{word:?}");
        }
    }

    #[test]
    fn missing_child_limits_get_defaults() {
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
        assert_eq!(given.with_defaults(), in_force);
    }

    #[test]
    fn byte_sizes_are_exact() {
        let sizes = [2 << 30, 100 << 20, 1536, 1000, 0].map(|bytes| ByteSize(bytes).to_string());
        assert_eq!(
            sizes,
            ["2 GiB", "100 MiB", "1536 bytes", "1000 bytes", "0 bytes"]
        );
    }
}
