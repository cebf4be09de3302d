//! The secret store: a private, encrypted file with values or references to the keychain.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{
    SecretStoreKind, SecretValue, is_secret_name, is_valid_value, keychain, sealed_file,
    secret_program,
};
use crate::EnvVars;
use crate::reload::{FileStamp, file_stamp};
use crate::state::{self, StateDir, private_file};

/// Name of the store in the state directory.
pub(crate) const STORE_FILE: &str = "secrets.json";

/// Maximum size of the file.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Maximum number of secrets.
const SECRETS_MAX: usize = 1024;

/// Reason why the store cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum SecretStoreError {
    /// The file is unusable.
    #[error(transparent)]
    State(#[from] state::StateError),
    /// The keychain is unusable.
    #[error("the keychain cannot be used")]
    Keychain(#[from] secret_program::SecretProgramError),
    /// The maximum number of secrets exists.
    #[error("the store holds {SECRETS_MAX} secrets, which is all that it takes")]
    Full,
}

/// One secret of the store.
#[derive(Clone)]
pub(crate) enum SecretStoreEntry {
    /// The value is in the file.
    InFile(SecretValue),
    /// The value is in the keychain; the number counts how often the secret was set.
    InKeychain(u64),
}

impl fmt::Debug for SecretStoreEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InFile(_) => f.write_str("InFile(…)"),
            Self::InKeychain(version) => f.debug_tuple("InKeychain").field(version).finish(),
        }
    }
}

type SecretStoreEntries = BTreeMap<String, SecretStoreEntry>;

/// The store file, read again after every change of the file.
pub struct SecretStore {
    path: PathBuf,
    cached: Mutex<Option<(Option<FileStamp>, Arc<SecretStoreEntries>)>>,
}

impl fmt::Debug for SecretStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SecretStore").field(&self.path).finish()
    }
}

impl SecretStore {
    /// Returns the store of a state directory.
    #[must_use]
    pub fn in_directory(directory: &Path) -> Self {
        Self {
            path: directory.join(STORE_FILE),
            cached: Mutex::default(),
        }
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Drops the cached content, so the next lookup reads the file.
    pub(super) fn clear_cache(&self) {
        *lock(&self.cached) = None;
    }

    /// Returns one secret.
    pub(crate) fn find_entry(
        &self,
        name: &str,
    ) -> Result<Option<SecretStoreEntry>, state::StateError> {
        Ok(self.load_entries()?.get(name).cloned())
    }

    /// Returns all names with the locations of their values.
    pub fn list_names(&self) -> Result<Vec<(String, SecretStoreKind)>, state::StateError> {
        let entries = self.load_entries()?;
        let named = entries.iter().map(|(name, entry)| {
            let kind = match entry {
                SecretStoreEntry::InFile(_) => SecretStoreKind::File,
                SecretStoreEntry::InKeychain(_) => SecretStoreKind::Keychain,
            };
            (name.clone(), kind)
        });
        Ok(named.collect())
    }

    fn load_entries(&self) -> Result<Arc<SecretStoreEntries>, state::StateError> {
        let now = file_stamp(&self.path);
        if let Some((stamp, entries)) = &*lock(&self.cached)
            && *stamp == now
        {
            return Ok(Arc::clone(entries));
        }
        let entries = Arc::new(read_store(&self.path)?);
        // The stamp from before the read: a change during the read causes another read.
        *lock(&self.cached) = Some((now, Arc::clone(&entries)));
        Ok(entries)
    }

    /// Stores a secret, replacing any previous value.
    pub fn set_secret(
        &self,
        state: &StateDir,
        name: &str,
        value: SecretValue,
        kind: SecretStoreKind,
        env: &EnvVars,
    ) -> Result<(), SecretStoreError> {
        self.update_entries(state, |entries| {
            if entries.len() >= SECRETS_MAX && !entries.contains_key(name) {
                return Err(SecretStoreError::Full);
            }
            let entry = match kind {
                SecretStoreKind::File => {
                    if let Some(SecretStoreEntry::InKeychain(_)) = entries.get(name) {
                        keychain::delete_secret(name, env)?;
                    }
                    SecretStoreEntry::InFile(value)
                }
                SecretStoreKind::Keychain => {
                    keychain::store_secret(name, &value, env)?;
                    let version = match entries.get(name) {
                        Some(SecretStoreEntry::InKeychain(version)) => *version,
                        Some(SecretStoreEntry::InFile(_)) | None => 0,
                    };
                    SecretStoreEntry::InKeychain(version + 1)
                }
            };
            entries.insert(name.to_owned(), entry);
            Ok(())
        })
    }

    /// Removes a secret; returns `false` for an unknown name.
    pub fn remove_secret(
        &self,
        state: &StateDir,
        name: &str,
        env: &EnvVars,
    ) -> Result<bool, SecretStoreError> {
        let mut was_there = false;
        self.update_entries(state, |entries| {
            if let Some(SecretStoreEntry::InKeychain(_)) = entries.get(name) {
                keychain::delete_secret(name, env)?;
            }
            was_there = entries.remove(name).is_some();
            Ok(())
        })?;
        Ok(was_there)
    }

    /// Encrypts a store written in the clear by an older version. The replacement is atomic: a
    /// valid store exists at any time.
    pub fn encrypt_plain_store(&self, state: &StateDir) -> Result<(), SecretStoreError> {
        let bytes = private_file::read_private(&self.path, FILE_BYTES_MAX)?.map(Zeroizing::new);
        match bytes.is_some_and(|bytes| store_version(&bytes) == Some(PLAIN_VERSION)) {
            true => self.update_entries(state, |_| Ok(())),
            false => Ok(()),
        }
    }

    /// Reads, changes and writes the file under an exclusive lock.
    fn update_entries(
        &self,
        state: &StateDir,
        change: impl FnOnce(&mut SecretStoreEntries) -> Result<(), SecretStoreError>,
    ) -> Result<(), SecretStoreError> {
        let _store_lock = state.wait_for_lock("secrets.lock")?;
        let mut entries = read_store(&self.path)?;
        change(&mut entries)?;
        write_store(&self.path, &entries)?;
        self.clear_cache();
        Ok(())
    }
}

/// Version of an unencrypted store, and of the content inside an encrypted one.
const PLAIN_VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct SecretStoreFile {
    v: u32,
    secrets: BTreeMap<String, SecretStoreRecord>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum SecretStoreRecord {
    Here { value: String },
    InKeychain { keychain: u64 },
}

fn read_store(path: &Path) -> Result<SecretStoreEntries, state::StateError> {
    let Some(bytes) = private_file::read_private(path, FILE_BYTES_MAX)? else {
        return Ok(SecretStoreEntries::new());
    };
    let bytes = Zeroizing::new(bytes);
    let corrupt = |reason: &str| state::StateError::Corrupt {
        path: path.to_owned(),
        reason: reason.to_owned(),
        fix: format!("rm {}  # and set every secret again", path.display()),
    };
    let bytes = match store_version(&bytes) {
        Some(sealed_file::SEALED_VERSION) => match sealed_file::open_sealed_store(path, &bytes)? {
            Ok(opened) => opened,
            Err(error) => {
                return Err(state::StateError::Corrupt {
                    path: path.to_owned(),
                    reason: error.reason().to_owned(),
                    fix: format!(
                        "bring {} and {} back from one backup, or `rm` both and set every secret \
                         again",
                        path.display(),
                        sealed_file::key_path(path).display()
                    ),
                });
            }
        },
        Some(_) | None => bytes,
    };
    // The error must not quote the text: it may be a secret.
    let store: SecretStoreFile =
        serde_json::from_slice(&bytes).map_err(|_| corrupt("no such JSON"))?;
    if store.v != PLAIN_VERSION {
        return Err(corrupt("written by another version"));
    }
    let mut entries = SecretStoreEntries::new();
    for (name, record) in store.secrets {
        let entry = match record {
            SecretStoreRecord::Here { value } => SecretStoreEntry::InFile(SecretValue::new(value)),
            SecretStoreRecord::InKeychain { keychain } => SecretStoreEntry::InKeychain(keychain),
        };
        let is_good = match &entry {
            SecretStoreEntry::InFile(value) => is_valid_value(value),
            SecretStoreEntry::InKeychain(_) => true,
        };
        if !is_secret_name(&name) || !is_good {
            return Err(corrupt("a name or value that nobody could set"));
        }
        entries.insert(name, entry);
    }
    Ok(entries)
}

fn write_store(path: &Path, entries: &SecretStoreEntries) -> Result<(), state::StateError> {
    let secrets = entries.iter().map(|(name, entry)| {
        let record = match entry {
            SecretStoreEntry::InFile(value) => SecretStoreRecord::Here {
                value: String::clone(value),
            },
            SecretStoreEntry::InKeychain(version) => {
                SecretStoreRecord::InKeychain { keychain: *version }
            }
        };
        (name.clone(), record)
    });
    let mut store = SecretStoreFile {
        v: PLAIN_VERSION,
        secrets: secrets.collect(),
    };
    let bytes = state::to_json_line(&store).map(Zeroizing::new);
    for record in store.secrets.values_mut() {
        if let SecretStoreRecord::Here { value } = record {
            zeroize::Zeroize::zeroize(value);
        }
    }
    // The key is on disk before any data sealed with it.
    let sealed = sealed_file::seal_store(path, &bytes?)?;
    private_file::replace_file(path, &sealed)
}

/// Returns the format version of a file.
fn store_version(bytes: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct VersionProbe {
        v: u32,
    }
    let any: Result<VersionProbe, _> = serde_json::from_slice(bytes);
    any.ok().map(|any| any.v)
}
