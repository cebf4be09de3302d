//! Why a journal file cannot be opened.

use std::path::PathBuf;

use thiserror::Error;

/// Error of opening a journal.
#[derive(Debug, Error)]
pub enum JournalOpenError {
    /// A file system operation failed.
    #[error("cannot {action} `{path}`")]
    Io {
        /// Attempted action.
        action: &'static str,
        /// Affected file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The path is a symbolic link, whose target could change.
    #[error("`{0}` is a symbolic link")]
    Symlink(PathBuf),
    /// The path is a directory or special file.
    #[error("`{0}` is not a file")]
    NotFile(PathBuf),
    /// The file belongs to another user, who could change the content.
    #[error("`{0}` belongs to another user")]
    Foreign(PathBuf),
    /// Group or world has access to the file.
    #[error("`{path}` is open to other users (mode {mode:03o}, not {wanted:03o})")]
    Exposed {
        /// File or directory.
        path: PathBuf,
        /// Actual permissions.
        mode: u32,
        /// Required permissions.
        wanted: u32,
    },
    /// The directory is on a network file system, where an acknowledged write may be lost.
    #[error("`{path}` is on a network file system ({kind}), where no write can be relied on")]
    Network {
        /// Journal directory.
        path: PathBuf,
        /// File system type.
        kind: &'static str,
    },
    /// Another process, or this process, has the journal open.
    #[error("the journal `{0}` is in use by another gateway, or twice by this one")]
    InUse(PathBuf),
    /// A newer version of Bowline wrote the file.
    #[error("`{path}` was written by a newer version (format {found}, known is {known})")]
    Newer {
        /// Journal file.
        path: PathBuf,
        /// Format version of the file.
        found: usize,
        /// Newest supported format version.
        known: usize,
    },
    /// The bundled SQLite has known corruption bugs.
    #[error("this program was built with SQLite {found}, which can corrupt its files")]
    Library {
        /// Version of SQLite.
        found: &'static str,
    },
    /// The file is damaged.
    #[error("the journal `{path}` is damaged: {what}")]
    Damaged {
        /// Journal file.
        path: PathBuf,
        /// Description of the damage.
        what: String,
    },
    /// SQLite cannot open the file.
    #[error("the journal `{path}` cannot be opened")]
    Sqlite {
        /// Journal file.
        path: PathBuf,
        /// Error of SQLite.
        source: rusqlite::Error,
    },
}
