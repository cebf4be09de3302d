//! Trusted directories: `bowline up` reads their `bowline.toml` without an explicit path.
//!
//! A config file names programs to start. A cloned repository may contain a config file, so the
//! file of the current directory counts only after `bowline trust DIR`, and only with the same
//! bytes as then.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use bowline_core::hex::to_hex;

use crate::state::{self, private_file};

/// Maximum number of trusted directories.
pub const TRUSTED_MAX: usize = 1_024;

/// Maximum size of the record.
const RECORD_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Name of the record in the state directory.
const FILE_NAME: &str = "trust.json";

/// The record of trusted directories, in the state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustStore {
    path: PathBuf,
}

/// One trusted directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustedDirectory {
    /// Canonical path of the directory.
    pub directory: PathBuf,
    /// SHA-256 of the config file at the time of trust, in hex.
    pub sha256: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrustRecord {
    v: u32,
    directories: Vec<TrustedDirectory>,
}

/// Trust in a config file because of its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustStatus {
    /// The directory is trusted, and the file is unchanged since.
    Trusted,
    /// The directory is trusted, but the file has changed since.
    Changed,
    /// The directory was never trusted.
    Unknown,
}

/// Reason why the record was not changed.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The state directory cannot be read or written.
    #[error(transparent)]
    State(#[from] state::StateError),
    /// The directory cannot be accessed.
    #[error("cannot look at `{path}`")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The record is full.
    #[error("{TRUSTED_MAX} directories are trusted, and no more can be")]
    Full,
}

impl TrustStore {
    /// Returns the record of a state directory.
    #[must_use]
    pub fn new(state_directory: &Path) -> Self {
        Self {
            path: state_directory.join(FILE_NAME),
        }
    }

    /// Returns the path of the record.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the trust in a config file with this text in this directory.
    ///
    /// # Errors
    /// The record cannot be read, or the directory cannot be accessed.
    pub fn check_trust(&self, directory: &Path, text: &str) -> Result<TrustStatus, TrustError> {
        let directory = canonical_path(directory)?;
        let trusted = self.list_directories()?;
        let trusted = trusted
            .iter()
            .find(|trusted| trusted.directory == directory);
        Ok(match trusted {
            None => TrustStatus::Unknown,
            Some(trusted) if trusted.sha256 == sha256_hex(text) => TrustStatus::Trusted,
            Some(_) => TrustStatus::Changed,
        })
    }

    /// Trusts a directory with the current text of its config file.
    ///
    /// # Errors
    /// The record cannot be written or is full.
    pub fn trust_directory(
        &self,
        directory: &Path,
        text: &str,
    ) -> Result<TrustedDirectory, TrustError> {
        let added = TrustedDirectory {
            directory: canonical_path(directory)?,
            sha256: sha256_hex(text),
        };
        let mut directories = self.list_directories()?;
        directories.retain(|entry| entry.directory != added.directory);
        if directories.len() >= TRUSTED_MAX {
            return Err(TrustError::Full);
        }
        directories.push(added.clone());
        self.write_record(directories)?;
        Ok(added)
    }

    /// Ends the trust in a directory; returns `false` for an untrusted directory.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn revoke_trust(&self, directory: &Path) -> Result<bool, TrustError> {
        // A removed directory is named by the path it was trusted under.
        let directory = canonical_path(directory).unwrap_or_else(|_gone| directory.to_owned());
        let mut directories = self.list_directories()?;
        let before = directories.len();
        directories.retain(|entry| entry.directory != directory);
        if directories.len() == before {
            return Ok(false);
        }
        self.write_record(directories)?;
        Ok(true)
    }

    /// Returns every trusted directory.
    ///
    /// # Errors
    /// The record cannot be read.
    pub fn list_directories(&self) -> Result<Vec<TrustedDirectory>, TrustError> {
        let Some(bytes) = private_file::read_private(&self.path, RECORD_BYTES_MAX)? else {
            return Ok(Vec::new());
        };
        let record: TrustRecord = serde_json::from_slice(&bytes)
            .map_err(|_source| state::StateError::Malformed(self.path.clone()))?;
        Ok(record.directories)
    }

    fn write_record(&self, directories: Vec<TrustedDirectory>) -> Result<(), TrustError> {
        let record = TrustRecord { v: 1, directories };
        private_file::replace_file(&self.path, &state::to_json_line(&record)?)?;
        Ok(())
    }
}

fn canonical_path(directory: &Path) -> Result<PathBuf, TrustError> {
    directory
        .canonicalize()
        .map_err(|source| TrustError::Directory {
            path: directory.to_owned(),
            source,
        })
}

fn sha256_hex(text: &str) -> String {
    to_hex(&Sha256::digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_file_is_no_longer_trusted() {
        let state = tempfile::tempdir().unwrap();
        let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = TrustStore::new(state.path());
        assert_eq!(
            store.check_trust(own.path(), "a").unwrap(),
            TrustStatus::Unknown
        );
        store.trust_directory(own.path(), "a").unwrap();
        assert_eq!(
            store.check_trust(own.path(), "a").unwrap(),
            TrustStatus::Trusted
        );
        assert_eq!(
            store.check_trust(own.path(), "b").unwrap(),
            TrustStatus::Changed
        );
        assert_eq!(
            store.check_trust(other.path(), "a").unwrap(),
            TrustStatus::Unknown
        );
        store.trust_directory(own.path(), "b").unwrap();
        assert_eq!(
            store.check_trust(own.path(), "b").unwrap(),
            TrustStatus::Trusted
        );
        assert_eq!(store.list_directories().unwrap().len(), 1);
        assert!(store.revoke_trust(own.path()).unwrap());
        assert!(!store.revoke_trust(own.path()).unwrap());
        assert_eq!(
            store.check_trust(own.path(), "b").unwrap(),
            TrustStatus::Unknown
        );
    }

    #[test]
    fn damaged_trust_record_is_an_error() {
        let state = tempfile::tempdir().unwrap();
        let store = TrustStore::new(state.path());
        store.trust_directory(state.path(), "a").unwrap();
        std::fs::write(store.path(), "{").unwrap();
        assert!(store.check_trust(state.path(), "a").is_err());
    }
}
