//! Trusted directories: whose `bowline.toml` `bowline up` reads without being told its name.
//!
//! A config file says which programs are started. A repository may hold one, and a person may be
//! in that repository for any reason, so the file of the current directory counts only after
//! `bowline trust DIR`, and only with the bytes it had then.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::state::{self, file};

/// Directories that are remembered.
pub const TRUSTED_MAX: usize = 1_024;

/// Bytes of the record.
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
    /// Its path, without links.
    pub directory: PathBuf,
    /// SHA-256 of the config file when it was trusted, in hex.
    pub sha256: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    v: u32,
    directories: Vec<TrustedDirectory>,
}

/// Whether a config file may be read because of where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Its directory is trusted, and it is as it was then.
    Trusted,
    /// Its directory is trusted, but the file has changed since.
    Changed,
    /// Its directory was never trusted.
    Unknown,
}

/// Why the record was not changed.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The state directory cannot be read or written.
    #[error(transparent)]
    State(#[from] state::Error),
    /// The directory cannot be looked at.
    #[error("cannot look at `{path}`")]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is no room for one more.
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

    /// Returns where the record is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether a config file with this text is trusted in this directory.
    ///
    /// # Errors
    /// The record cannot be read, or the directory cannot be looked at.
    pub fn check(&self, directory: &Path, text: &str) -> Result<Trust, TrustError> {
        let directory = canonical(directory)?;
        let known = self.list()?;
        let known = known.iter().find(|known| known.directory == directory);
        Ok(match known {
            None => Trust::Unknown,
            Some(known) if known.sha256 == fingerprint(text) => Trust::Trusted,
            Some(_) => Trust::Changed,
        })
    }

    /// Trusts a directory with the text that its config file has now.
    ///
    /// # Errors
    /// The record cannot be written or is full.
    pub fn add(&self, directory: &Path, text: &str) -> Result<TrustedDirectory, TrustError> {
        let added = TrustedDirectory {
            directory: canonical(directory)?,
            sha256: fingerprint(text),
        };
        let mut directories = self.list()?;
        directories.retain(|known| known.directory != added.directory);
        if directories.len() >= TRUSTED_MAX {
            return Err(TrustError::Full);
        }
        directories.push(added.clone());
        self.write(directories)?;
        Ok(added)
    }

    /// Trusts a directory no longer; returns whether it was trusted.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn revoke(&self, directory: &Path) -> Result<bool, TrustError> {
        // A directory that is gone is named by the path under which it was trusted.
        let directory = canonical(directory).unwrap_or_else(|_gone| directory.to_owned());
        let mut directories = self.list()?;
        let before = directories.len();
        directories.retain(|known| known.directory != directory);
        if directories.len() == before {
            return Ok(false);
        }
        self.write(directories)?;
        Ok(true)
    }

    /// Returns every trusted directory.
    ///
    /// # Errors
    /// The record cannot be read.
    pub fn list(&self) -> Result<Vec<TrustedDirectory>, TrustError> {
        let Some(bytes) = file::read_private(&self.path, RECORD_BYTES_MAX)? else {
            return Ok(Vec::new());
        };
        let record: Record = serde_json::from_slice(&bytes)
            .map_err(|_source| state::Error::Malformed(self.path.clone()))?;
        Ok(record.directories)
    }

    fn write(&self, directories: Vec<TrustedDirectory>) -> Result<(), TrustError> {
        let record = Record { v: 1, directories };
        file::replace(&self.path, &state::json(&record)?)?;
        Ok(())
    }
}

fn canonical(directory: &Path) -> Result<PathBuf, TrustError> {
    directory
        .canonicalize()
        .map_err(|source| TrustError::Directory {
            path: directory.to_owned(),
            source,
        })
}

fn fingerprint(text: &str) -> String {
    state::hex(&Sha256::digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_ends_when_the_file_changes() {
        let state = tempfile::tempdir().unwrap();
        let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = TrustStore::new(state.path());
        assert_eq!(store.check(own.path(), "a").unwrap(), Trust::Unknown);
        store.add(own.path(), "a").unwrap();
        assert_eq!(store.check(own.path(), "a").unwrap(), Trust::Trusted);
        assert_eq!(store.check(own.path(), "b").unwrap(), Trust::Changed);
        assert_eq!(store.check(other.path(), "a").unwrap(), Trust::Unknown);
        store.add(own.path(), "b").unwrap();
        assert_eq!(store.check(own.path(), "b").unwrap(), Trust::Trusted);
        assert_eq!(store.list().unwrap().len(), 1);
        assert!(store.revoke(own.path()).unwrap());
        assert!(!store.revoke(own.path()).unwrap());
        assert_eq!(store.check(own.path(), "b").unwrap(), Trust::Unknown);
    }

    #[test]
    fn damaged_trust_record_is_an_error() {
        let state = tempfile::tempdir().unwrap();
        let store = TrustStore::new(state.path());
        store.add(state.path(), "a").unwrap();
        std::fs::write(store.path(), "{").unwrap();
        assert!(store.check(state.path(), "a").is_err());
    }
}
