//! Secrets used as upstream credentials: their origins and their current values.

mod keychain;
mod output_slot;
mod sealed_file;
pub(crate) mod secret_program;
pub mod secret_store;
pub mod secret_watch;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_runtime::{Clock, SystemClock};
use tokio::sync::Notify;
use zeroize::Zeroizing;

use self::output_slot::{FetchReason, OutputSlot};
use self::secret_program::{FetcherKey, SecretFetcher};
use self::secret_store::{SecretStore, SecretStoreEntry};
use crate::EnvVars;
use crate::state;

/// Maximum bytes of a secret value.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;

/// Maximum bytes of a secret name.
const NAME_BYTES_MAX: usize = 64;

/// Default maximum age of a program's output.
pub(crate) const MAX_AGE_DEFAULT: Duration = Duration::from_secs(15 * 60);

/// A secret value, zeroized on drop.
pub type SecretValue = Zeroizing<String>;

/// Returns whether a text is a valid secret name: `[A-Za-z0-9][A-Za-z0-9_.-]{0,63}`.
#[must_use]
pub fn is_secret_name(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    text.len() <= NAME_BYTES_MAX
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(inner)
}

/// The secrets section of the config file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecretsConfig {
    /// Origins of secrets with a table of their own.
    pub named: BTreeMap<String, SecretOrigin>,
    /// The store of all other secrets.
    pub store: SecretStoreKind,
}

impl SecretsConfig {
    /// Returns the origin of a secret.
    #[must_use]
    pub fn origin(&self, name: &str) -> SecretOrigin {
        let stored = || SecretOrigin::Store(self.store);
        self.named.get(name).cloned().unwrap_or_else(stored)
    }
}

/// Origin of one secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SecretOrigin {
    /// A variable of the gateway's own environment.
    Env(String),
    /// A file, read on every use.
    File(PathBuf),
    /// The first line printed by a program.
    Command(Arc<SecretProgram>),
    /// The store, filled by `bowline secret set`.
    Store(SecretStoreKind),
}

/// Storage of `bowline secret set`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SecretStoreKind {
    /// `secrets.json` in the state directory.
    #[default]
    File,
    /// The keychain of the desktop.
    Keychain,
}

/// A program that prints a secret.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SecretProgram {
    /// A bare name for PATH, or an absolute path.
    pub program: OsString,
    /// Passed to the program literally.
    pub args: Vec<String>,
    /// Working directory: the directory of the config file.
    pub directory: PathBuf,
    /// Maximum age of the output.
    pub max_age: Duration,
}

// Arguments may be sensitive.
impl fmt::Debug for SecretProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretProgram")
            .field("program", &self.program)
            .finish_non_exhaustive()
    }
}

impl SecretOrigin {
    /// Describes the origin for people.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Env(variable) => format!("env {variable}"),
            Self::File(path) => format!("file {}", path.display()),
            Self::Command(command) => format!("command {}", command.program.display()),
            Self::Store(SecretStoreKind::File) => "store".to_owned(),
            Self::Store(SecretStoreKind::Keychain) => "keychain".to_owned(),
        }
    }
}

/// Reason why a secret is unavailable. Never holds a value.
#[derive(Debug, thiserror::Error)]
pub enum SecretLookupError {
    /// The secret was never set.
    #[error("secret `{0}` is not set")]
    Unset(String),
    /// The environment variable is not set.
    #[error("secret `{name}` comes from variable `{variable}`, which is not set")]
    Variable {
        /// The secret.
        name: String,
        /// The variable.
        variable: String,
    },
    /// The file is unusable.
    #[error("secret `{name}`: {reason}")]
    File {
        /// The secret.
        name: String,
        /// Description of the problem.
        reason: String,
    },
    /// The program failed.
    #[error("secret `{name}`: {source}")]
    Command {
        /// The secret.
        name: String,
        /// The error of the program.
        source: secret_program::SecretProgramError,
    },
    /// The first fetch is still running.
    #[error("secret `{0}` is not here yet")]
    NotFetched(String),
    /// The value is empty, too long, or contains NUL.
    #[error("secret `{0}` is empty, holds a NUL, or is longer than 64 KiB")]
    Invalid(String),
    /// The store is unusable.
    #[error("the secret store cannot be used: {0}")]
    Store(#[source] state::StateError),
}

impl SecretLookupError {
    /// Returns the command to repair the problem, if one exists.
    #[must_use]
    pub fn suggest_fix(&self) -> Option<String> {
        match self {
            Self::Unset(name) => Some(format!("bowline secret set {name}")),
            Self::Store(error) => error.suggest_fix(),
            _ => None,
        }
    }
}

/// State shared by all configurations of one gateway: the store and cached program outputs.
pub struct SecretVault {
    store: Option<SecretStore>,
    clock: Arc<dyn Clock>,
    env: EnvVars,
    slots: Mutex<HashMap<FetcherKey, Arc<OutputSlot>>>,
    /// Notified when a secret has changed.
    changed: Notify,
    /// Templates polled for changes.
    watched: Mutex<Vec<secret_watch::WatchedTemplates>>,
}

impl fmt::Debug for SecretVault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretVault")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

impl SecretVault {
    /// Opens the secrets of a state directory, which may not exist yet. Programs inherit the same
    /// variables of `env` as servers.
    #[must_use]
    pub fn open(state: &Path, env: &EnvVars) -> Arc<Self> {
        Self::with_store(Some(SecretStore::in_directory(state)), env)
    }

    /// Creates a vault without a store.
    #[must_use]
    pub fn empty(env: &EnvVars) -> Arc<Self> {
        Self::with_store(None, env)
    }

    fn with_store(store: Option<SecretStore>, env: &EnvVars) -> Arc<Self> {
        Arc::new(Self {
            store,
            clock: Arc::new(SystemClock::start()),
            env: env.clone(),
            slots: Mutex::default(),
            changed: Notify::new(),
            watched: Mutex::default(),
        })
    }

    /// Signals that a secret has changed.
    pub fn notify_changed(&self) {
        self.changed.notify_one();
    }

    fn output_slot(&self, fetcher: &SecretFetcher) -> Arc<OutputSlot> {
        let mut slots = lock(&self.slots);
        Arc::clone(slots.entry(fetcher.fetcher_key()).or_default())
    }

    /// Runs the program and waits, unless another caller ran it meanwhile.
    fn fetch_secret(
        &self,
        fetcher: &SecretFetcher,
        reason: FetchReason,
    ) -> Result<SecretValue, Arc<secret_program::SecretProgramError>> {
        let slot = self.output_slot(fetcher);
        let run = || fetcher.run(&self.env);
        let (fetched, is_news) = slot.run_fetch(self.clock.as_ref(), fetcher, reason, run);
        if is_news {
            self.notify_changed();
        }
        fetched
    }

    /// Returns the entry of the store, if present.
    fn store_entry(&self, name: &str) -> Result<Option<SecretStoreEntry>, SecretLookupError> {
        match &self.store {
            Some(store) => store.find_entry(name).map_err(SecretLookupError::Store),
            None => Ok(None),
        }
    }
}

/// Whether a caller may wait for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FetchMode {
    /// The caller may block, so the program runs when due.
    Fetch,
    /// The caller must not block; the last output is used.
    Known,
}

/// The secrets of one configuration.
#[derive(Clone, Debug)]
pub struct SecretSources {
    vault: Arc<SecretVault>,
    config: Arc<SecretsConfig>,
    mode: FetchMode,
}

// All configurations of a gateway share one store, so only the config is compared.
impl PartialEq for SecretSources {
    fn eq(&self, other: &Self) -> bool {
        self.config == other.config
    }
}

impl Default for SecretSources {
    fn default() -> Self {
        Self::new(
            &SecretVault::empty(&EnvVars::default()),
            SecretsConfig::default(),
        )
    }
}

impl SecretSources {
    /// Returns the secrets named in `config`; lookups wait for programs.
    #[must_use]
    pub fn new(vault: &Arc<SecretVault>, config: SecretsConfig) -> Self {
        Self {
            vault: Arc::clone(vault),
            config: Arc::new(config),
            mode: FetchMode::Fetch,
        }
    }

    /// Returns a copy whose lookups never block.
    pub(crate) fn non_blocking(&self) -> Self {
        Self {
            mode: FetchMode::Known,
            ..self.clone()
        }
    }

    pub const fn vault(&self) -> &Arc<SecretVault> {
        &self.vault
    }

    pub fn config(&self) -> &SecretsConfig {
        &self.config
    }

    /// Returns the current value of a secret.
    pub(crate) fn read_secret(&self, name: &str) -> Result<SecretValue, SecretLookupError> {
        let value = match self.config.origin(name) {
            SecretOrigin::Env(variable) => {
                let value = self.vault.env.text(&variable).map(str::to_owned);
                value
                    .map(SecretValue::new)
                    .ok_or_else(|| SecretLookupError::Variable {
                        name: name.to_owned(),
                        variable,
                    })
            }
            SecretOrigin::File(path) => crate::read_secret_file(&path).map_err(|reason| {
                let name = name.to_owned();
                SecretLookupError::File { name, reason }
            }),
            SecretOrigin::Command(command) => {
                self.read_program_output(name, &SecretFetcher::Command(command))
            }
            SecretOrigin::Store(kind) => self.read_stored(name, kind),
        }?;
        if is_valid_value(&value) {
            Ok(value)
        } else {
            Err(SecretLookupError::Invalid(name.to_owned()))
        }
    }

    fn read_stored(
        &self,
        name: &str,
        kind: SecretStoreKind,
    ) -> Result<SecretValue, SecretLookupError> {
        let in_keychain = |version| SecretFetcher::Keychain {
            name: name.into(),
            version,
        };
        match (self.vault.store_entry(name)?, kind) {
            (Some(SecretStoreEntry::InFile(value)), _) => Ok(value),
            (Some(SecretStoreEntry::InKeychain(version)), _) => {
                self.read_program_output(name, &in_keychain(version))
            }
            // Another program may have stored the secret in the keychain.
            (None, SecretStoreKind::Keychain) => self.read_program_output(name, &in_keychain(0)),
            (None, SecretStoreKind::File) => Err(SecretLookupError::Unset(name.to_owned())),
        }
    }

    fn read_program_output(
        &self,
        name: &str,
        fetcher: &SecretFetcher,
    ) -> Result<SecretValue, SecretLookupError> {
        let name = || name.to_owned();
        let slot = self.vault.output_slot(fetcher);
        let now = self.vault.clock.now();
        let fetched = match (self.mode, slot.cached_result()) {
            (FetchMode::Known, Some(cached)) => cached,
            (FetchMode::Known, None) => return Err(SecretLookupError::NotFetched(name())),
            (FetchMode::Fetch, Some(cached)) if !slot.is_due(now, fetcher) => cached,
            (FetchMode::Fetch, cached) => {
                match (self.vault.fetch_secret(fetcher, FetchReason::Age), cached) {
                    // A stale value is better than none.
                    (Err(_), Some(Ok(cached))) => Ok(cached),
                    (fetched, _) => fetched,
                }
            }
        };
        fetched.map_err(|source| match (&*source, fetcher) {
            (secret_program::SecretProgramError::Empty, SecretFetcher::Keychain { .. }) => {
                SecretLookupError::Unset(name())
            }
            _ => SecretLookupError::Command {
                name: name(),
                source: (*source).clone(),
            },
        })
    }

    /// Runs the due programs of these secrets in parallel.
    pub(crate) fn prefetch<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        let mut due = self.due_fetchers(names);
        due.dedup();
        std::thread::scope(|scope| {
            for fetcher in &due {
                // Lookups report the error later.
                scope.spawn(|| self.vault.fetch_secret(fetcher, FetchReason::Age));
            }
        });
    }

    /// Refetches secrets because a server refused them; waits for programs.
    pub(crate) fn refetch<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        if let Some(store) = &self.vault.store {
            store.clear_cache();
        }
        for fetcher in names.into_iter().filter_map(|name| self.fetcher(name)) {
            // The fetch logs its error; the last value stays.
            let _fetched = self.vault.fetch_secret(&fetcher, FetchReason::Refused);
        }
    }

    /// Returns the programs of these secrets due for another run.
    pub(crate) fn due_fetchers<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Vec<SecretFetcher> {
        let now = self.vault.clock.now();
        let tools = names.into_iter().filter_map(|name| self.fetcher(name));
        tools
            .filter(|tool| self.vault.output_slot(tool).is_due(now, tool))
            .collect()
    }

    /// Returns the program or keychain lookup behind a secret, if any.
    fn fetcher(&self, name: &str) -> Option<SecretFetcher> {
        match self.config.origin(name) {
            SecretOrigin::Command(command) => Some(SecretFetcher::Command(command)),
            SecretOrigin::Store(kind) => {
                let version = match self.vault.store_entry(name) {
                    Ok(Some(SecretStoreEntry::InKeychain(version))) => Some(version),
                    Ok(None) => (kind == SecretStoreKind::Keychain).then_some(0),
                    Ok(Some(SecretStoreEntry::InFile(_))) | Err(_) => None,
                };
                let name = name.into();
                version.map(|version| SecretFetcher::Keychain { name, version })
            }
            SecretOrigin::Env(_) | SecretOrigin::File(_) => None,
        }
    }
}

/// Returns whether a text is a valid secret value.
pub fn is_valid_value(text: &str) -> bool {
    !text.is_empty() && text.len() <= VALUE_BYTES_MAX && !text.contains('\0')
}
