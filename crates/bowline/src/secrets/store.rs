//! The secret store: a private, encrypted file that holds values, or says that the keychain does.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{StoreKind, Value, command, is_name, is_usable, keychain, sealed};
use crate::config::Env;
use crate::reload::{Stamp, stamp};
use crate::state::{self, State, file};

/// Its name in the state directory.
pub(crate) const FILE: &str = "secrets.json";

/// The largest file: longest values beyond any need.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Secrets that it holds.
const SECRETS_MAX: usize = 1024;

/// Why a secret cannot be put away.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The file cannot be used.
    #[error(transparent)]
    State(#[from] state::Error),
    /// The keychain cannot.
    #[error("the keychain cannot be used")]
    Keychain(#[from] command::Error),
    /// There are too many.
    #[error("the store holds {SECRETS_MAX} secrets, which is all that it takes")]
    Full,
}

/// One secret of the store.
#[derive(Clone)]
pub(crate) enum Entry {
    /// Its value is here.
    Here(Value),
    /// Its value is in the keychain; counts how often it was set.
    InKeychain(u64),
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(_) => f.write_str("Here(…)"),
            Self::InKeychain(version) => f.debug_tuple("InKeychain").field(version).finish(),
        }
    }
}

type Entries = BTreeMap<String, Entry>;

/// The file, read again whenever it is another one.
pub(crate) struct Store {
    path: PathBuf,
    read: Mutex<Option<(Option<Stamp>, Arc<Entries>)>>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.path).finish()
    }
}

impl Store {
    /// Returns the store of a state directory.
    #[must_use]
    pub(crate) fn of(directory: &Path) -> Self {
        Self {
            path: directory.join(FILE),
            read: Mutex::default(),
        }
    }

    /// Returns where it is.
    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file again at the next look, whatever it looks like.
    pub(super) fn forget(&self) {
        *lock(&self.read) = None;
    }

    /// Returns one secret.
    pub(crate) fn entry(&self, name: &str) -> Result<Option<Entry>, state::Error> {
        Ok(self.entries()?.get(name).cloned())
    }

    /// Returns the names of all, and where their values are.
    pub(crate) fn names(&self) -> Result<Vec<(String, StoreKind)>, state::Error> {
        let entries = self.entries()?;
        let named = entries.iter().map(|(name, entry)| {
            let kind = match entry {
                Entry::Here(_) => StoreKind::File,
                Entry::InKeychain(_) => StoreKind::Keychain,
            };
            (name.clone(), kind)
        });
        Ok(named.collect())
    }

    fn entries(&self) -> Result<Arc<Entries>, state::Error> {
        let now = stamp(&self.path);
        if let Some((stamp, entries)) = &*lock(&self.read)
            && *stamp == now
        {
            return Ok(Arc::clone(entries));
        }
        let entries = Arc::new(read(&self.path)?);
        // The stamp of before: what changes while it is read is read again.
        *lock(&self.read) = Some((now, Arc::clone(&entries)));
        Ok(entries)
    }

    /// Puts a secret away, in place of one of that name.
    pub(crate) fn set(
        &self,
        state: &State,
        (name, value): (&str, Value),
        kind: StoreKind,
        env: &Env,
    ) -> Result<(), Error> {
        self.change(state, |entries| {
            if entries.len() >= SECRETS_MAX && !entries.contains_key(name) {
                return Err(Error::Full);
            }
            let entry = match kind {
                StoreKind::File => {
                    if let Some(Entry::InKeychain(_)) = entries.get(name) {
                        keychain::clear(name, env)?;
                    }
                    Entry::Here(value)
                }
                StoreKind::Keychain => {
                    keychain::store(name, &value, env)?;
                    let version = match entries.get(name) {
                        Some(Entry::InKeychain(version)) => *version,
                        Some(Entry::Here(_)) | None => 0,
                    };
                    Entry::InKeychain(version + 1)
                }
            };
            entries.insert(name.to_owned(), entry);
            Ok(())
        })
    }

    /// Takes a secret away, and says whether it was there.
    pub(crate) fn remove(&self, state: &State, name: &str, env: &Env) -> Result<bool, Error> {
        let mut was_there = false;
        self.change(state, |entries| {
            if let Some(Entry::InKeychain(_)) = entries.get(name) {
                keychain::clear(name, env)?;
            }
            was_there = entries.remove(name).is_some();
            Ok(())
        })?;
        Ok(was_there)
    }

    /// Encrypts a store that an older version wrote plainly. Until it is written, the plain one
    /// counts, and afterwards the other: there is no moment without one.
    pub(crate) fn seal_plain(&self, state: &State) -> Result<(), Error> {
        let bytes = file::read_private(&self.path, FILE_BYTES_MAX)?.map(Zeroizing::new);
        match bytes.is_some_and(|bytes| version(&bytes) == Some(PLAIN_VERSION)) {
            true => self.change(state, |_| Ok(())),
            false => Ok(()),
        }
    }

    /// Reads, changes and writes the file while nobody else does.
    fn change(
        &self,
        state: &State,
        change: impl FnOnce(&mut Entries) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let _alone = state.wait_for("secrets.lock")?;
        let mut entries = read(&self.path)?;
        change(&mut entries)?;
        write(&self.path, &entries)?;
        self.forget();
        Ok(())
    }
}

/// The version of a store that is not encrypted, and of what is inside one that is.
const PLAIN_VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Written {
    v: u32,
    secrets: BTreeMap<String, One>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum One {
    Here { value: String },
    InKeychain { keychain: u64 },
}

fn read(path: &Path) -> Result<Entries, state::Error> {
    let Some(bytes) = file::read_private(path, FILE_BYTES_MAX)? else {
        return Ok(Entries::new());
    };
    let bytes = Zeroizing::new(bytes);
    let corrupt = |reason: &str| state::Error::Corrupt {
        path: path.to_owned(),
        reason: reason.to_owned(),
        fix: format!("rm {}  # and set every secret again", path.display()),
    };
    let bytes = match version(&bytes) {
        Some(sealed::VERSION) => match sealed::open(path, &bytes)? {
            Ok(opened) => opened,
            Err(why) => {
                return Err(state::Error::Corrupt {
                    path: path.to_owned(),
                    reason: why.reason().to_owned(),
                    fix: format!(
                        "bring {} and {} back from one backup, or `rm` both and set every secret \
                         again",
                        path.display(),
                        sealed::key_file(path).display()
                    ),
                });
            }
        },
        Some(_) | None => bytes,
    };
    // What is wrong is not quoted: it may be a secret.
    let written: Written = serde_json::from_slice(&bytes).map_err(|_| corrupt("no such JSON"))?;
    if written.v != PLAIN_VERSION {
        return Err(corrupt("written by another version"));
    }
    let mut entries = Entries::new();
    for (name, one) in written.secrets {
        let entry = match one {
            One::Here { value } => Entry::Here(Value::new(value)),
            One::InKeychain { keychain } => Entry::InKeychain(keychain),
        };
        let is_good = match &entry {
            Entry::Here(value) => is_usable(value),
            Entry::InKeychain(_) => true,
        };
        if !is_name(&name) || !is_good {
            return Err(corrupt("a name or value that nobody could set"));
        }
        entries.insert(name, entry);
    }
    Ok(entries)
}

fn write(path: &Path, entries: &Entries) -> Result<(), state::Error> {
    let secrets = entries.iter().map(|(name, entry)| {
        let one = match entry {
            Entry::Here(value) => One::Here {
                value: String::clone(value),
            },
            Entry::InKeychain(version) => One::InKeychain { keychain: *version },
        };
        (name.clone(), one)
    });
    let mut written = Written {
        v: PLAIN_VERSION,
        secrets: secrets.collect(),
    };
    let bytes = state::json(&written).map(Zeroizing::new);
    for one in written.secrets.values_mut() {
        if let One::Here { value } = one {
            zeroize::Zeroize::zeroize(value);
        }
    }
    // The key is on the disk before anything that needs it.
    let sealed = sealed::seal(path, &bytes?)?;
    file::replace(path, &sealed)
}

/// Returns which form a file has.
fn version(bytes: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct Any {
        v: u32,
    }
    let any: Result<Any, _> = serde_json::from_slice(bytes);
    any.ok().map(|any| any.v)
}
