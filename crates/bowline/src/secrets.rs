//! Secrets that prove who we are to servers: where each comes from, and what it is now.

pub(crate) mod command;
pub(crate) mod follow;
mod keychain;
mod sealed;
mod slot;
pub(crate) mod store;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_host::ports::{Clock, SystemClock};
use tokio::sync::Notify;
use zeroize::Zeroizing;

use self::command::{Key, Tool};
use self::slot::{Slot, Why};
use self::store::{Entry, Store};
use crate::config::Env;
use crate::state;

/// Longest value of a secret, in bytes.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;

/// Longest name of a secret, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// How old the output of a command may become where the file does not say.
pub(crate) const EVERY: Duration = Duration::from_secs(15 * 60);

/// A secret, wiped when it is let go.
pub type Value = Zeroizing<String>;

/// Whether a text can be the name of a secret: `[A-Za-z0-9][A-Za-z0-9_.-]{0,63}`.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    text.len() <= NAME_BYTES_MAX
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(inner)
}

/// What the config file says of secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecretsConfig {
    /// Where those with a table of their own come from.
    pub named: BTreeMap<String, Origin>,
    /// Where all others are.
    pub store: StoreKind,
}

impl SecretsConfig {
    /// Returns where a secret comes from.
    #[must_use]
    pub fn origin(&self, name: &str) -> Origin {
        let stored = || Origin::Store(self.store);
        self.named.get(name).cloned().unwrap_or_else(stored)
    }
}

/// Where one secret comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A variable of the gateway's own environment.
    Env(String),
    /// A file, read whenever it is used.
    File(PathBuf),
    /// The first line that a program prints.
    Command(Arc<Command>),
    /// The store, where `bowline secret set` puts it.
    Store(StoreKind),
}

/// Where `bowline secret set` puts secrets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StoreKind {
    /// `secrets.json` in the state directory.
    #[default]
    File,
    /// The keychain of the desktop.
    Keychain,
}

/// A program that prints a secret.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Command {
    /// A bare name for PATH, or an absolute path.
    pub program: OsString,
    /// Passed on literally.
    pub args: Vec<String>,
    /// Where it runs: beside the config file.
    pub directory: PathBuf,
    /// How old its output may become.
    pub every: Duration,
}

// Arguments may hold what is nobody's business.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("program", &self.program)
            .finish_non_exhaustive()
    }
}

impl Origin {
    /// Returns what people may read of it.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Env(variable) => format!("env {variable}"),
            Self::File(path) => format!("file {}", path.display()),
            Self::Command(command) => format!("command {}", command.program.display()),
            Self::Store(StoreKind::File) => "store".to_owned(),
            Self::Store(StoreKind::Keychain) => "keychain".to_owned(),
        }
    }
}

/// Why there is no secret. It never holds a value.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody gave it yet.
    #[error("secret `{0}` is not set")]
    Unset(String),
    /// Its variable is not there.
    #[error("secret `{name}` comes from variable `{variable}`, which is not set")]
    Variable {
        /// The secret.
        name: String,
        /// The variable.
        variable: String,
    },
    /// Its file cannot be used.
    #[error("secret `{name}`: {reason}")]
    File {
        /// The secret.
        name: String,
        /// Why not.
        reason: String,
    },
    /// Its program did not give it.
    #[error("secret `{name}`: {source}")]
    Command {
        /// The secret.
        name: String,
        /// Why not.
        source: command::Error,
    },
    /// It is being fetched for the first time.
    #[error("secret `{0}` is not here yet")]
    Early(String),
    /// It is empty, or holds what no secret can.
    #[error("secret `{0}` is empty, holds a NUL, or is longer than 64 KiB")]
    Odd(String),
    /// The store cannot be used.
    #[error("the secret store cannot be used: {0}")]
    Store(#[source] state::Error),
}

impl Error {
    /// Returns the command that mends it, when there is one.
    #[must_use]
    pub fn fix(&self) -> Option<String> {
        match self {
            Self::Unset(name) => Some(format!("bowline secret set {name}")),
            Self::Store(error) => error.fix(),
            _ => None,
        }
    }
}

/// What all configurations of one gateway share: the store, and what programs printed.
pub struct Vault {
    store: Option<Store>,
    clock: Arc<dyn Clock>,
    env: Env,
    slots: Mutex<HashMap<Key, Arc<Slot>>>,
    /// Rung when a secret is another one than it was.
    changed: Notify,
    /// What is looked at for changes.
    watched: Mutex<Vec<follow::Watched>>,
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vault")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

impl Vault {
    /// Opens the secrets of a state directory, which need not be there yet; programs get what
    /// servers get of `env`.
    #[must_use]
    pub fn of(state: &Path, env: &Env) -> Arc<Self> {
        Self::with(Some(Store::of(state)), env)
    }

    /// Returns a vault whose store is empty.
    #[must_use]
    pub fn empty(env: &Env) -> Arc<Self> {
        Self::with(None, env)
    }

    fn with(store: Option<Store>, env: &Env) -> Arc<Self> {
        Arc::new(Self {
            store,
            clock: Arc::new(SystemClock::start()),
            env: env.clone(),
            slots: Mutex::default(),
            changed: Notify::new(),
            watched: Mutex::default(),
        })
    }

    /// Says that a secret is another one than it was.
    pub(crate) fn ring(&self) {
        self.changed.notify_one();
    }

    fn slot(&self, tool: &Tool) -> Arc<Slot> {
        let mut slots = lock(&self.slots);
        Arc::clone(slots.entry(tool.key()).or_default())
    }

    /// Runs the program, unless another did so meanwhile; waits for it.
    fn fetch(&self, tool: &Tool, why: Why) -> Result<Value, Arc<command::Error>> {
        let slot = self.slot(tool);
        let run = || tool.run(&self.env);
        let (fetched, is_news) = slot.fetch(self.clock.as_ref(), (tool, why), run);
        if is_news {
            self.ring();
        }
        fetched
    }

    /// Returns the entry of the store, if there is one.
    fn entry(&self, name: &str) -> Result<Option<Entry>, Error> {
        match &self.store {
            Some(store) => store.entry(name).map_err(Error::Store),
            None => Ok(None),
        }
    }
}

/// Whether a program may be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    /// It may: nobody else waits on this thread.
    Fetch,
    /// It may not: what it printed last is taken.
    Known,
}

/// The secrets of one configuration.
#[derive(Clone, Debug)]
pub struct Sources {
    vault: Arc<Vault>,
    config: Arc<SecretsConfig>,
    patience: Patience,
}

// The store is the same for all configurations of a gateway.
impl PartialEq for Sources {
    fn eq(&self, other: &Self) -> bool {
        self.config == other.config
    }
}

impl Default for Sources {
    fn default() -> Self {
        Self::new(&Vault::empty(&Env::default()), SecretsConfig::default())
    }
}

impl Sources {
    /// Returns those that `config` names; programs are waited for.
    #[must_use]
    pub fn new(vault: &Arc<Vault>, config: SecretsConfig) -> Self {
        Self {
            vault: Arc::clone(vault),
            config: Arc::new(config),
            patience: Patience::Fetch,
        }
    }

    /// Returns the same for a thread on which nobody may wait.
    pub(crate) fn without_waiting(&self) -> Self {
        Self {
            patience: Patience::Known,
            ..self.clone()
        }
    }

    pub(crate) const fn vault(&self) -> &Arc<Vault> {
        &self.vault
    }

    pub(crate) fn config(&self) -> &SecretsConfig {
        &self.config
    }

    /// Returns a secret as it is now.
    pub(crate) fn value(&self, name: &str) -> Result<Value, Error> {
        let value = match self.config.origin(name) {
            Origin::Env(variable) => {
                let value = self.vault.env.text(&variable).map(str::to_owned);
                value.map(Value::new).ok_or_else(|| Error::Variable {
                    name: name.to_owned(),
                    variable,
                })
            }
            Origin::File(path) => crate::config::read_secret_file(&path).map_err(|reason| {
                let name = name.to_owned();
                Error::File { name, reason }
            }),
            Origin::Command(command) => self.printed(name, &Tool::Command(command)),
            Origin::Store(kind) => self.stored(name, kind),
        }?;
        if is_usable(&value) {
            Ok(value)
        } else {
            Err(Error::Odd(name.to_owned()))
        }
    }

    fn stored(&self, name: &str, kind: StoreKind) -> Result<Value, Error> {
        let in_keychain = |version| Tool::Keychain {
            name: name.into(),
            version,
        };
        match (self.vault.entry(name)?, kind) {
            (Some(Entry::Here(value)), _) => Ok(value),
            (Some(Entry::InKeychain(version)), _) => self.printed(name, &in_keychain(version)),
            // Somebody else may have put it there.
            (None, StoreKind::Keychain) => self.printed(name, &in_keychain(0)),
            (None, StoreKind::File) => Err(Error::Unset(name.to_owned())),
        }
    }

    fn printed(&self, name: &str, tool: &Tool) -> Result<Value, Error> {
        let name = || name.to_owned();
        let slot = self.vault.slot(tool);
        let now = self.vault.clock.now();
        let fetched = match (self.patience, slot.known()) {
            (Patience::Known, Some(known)) => known,
            (Patience::Known, None) => return Err(Error::Early(name())),
            (Patience::Fetch, Some(known)) if !slot.is_due(now, tool) => known,
            (Patience::Fetch, known) => match (self.vault.fetch(tool, Why::Age), known) {
                // What was good before is better than nothing.
                (Err(_), Some(Ok(known))) => Ok(known),
                (fetched, _) => fetched,
            },
        };
        fetched.map_err(|source| match (&*source, tool) {
            (command::Error::Nothing, Tool::Keychain { .. }) => Error::Unset(name()),
            _ => Error::Command {
                name: name(),
                source: (*source).clone(),
            },
        })
    }

    /// Runs the programs that these secrets come from and that are to be run by now, all at once.
    pub(crate) fn warm<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        let mut due = self.due(names);
        due.dedup();
        std::thread::scope(|scope| {
            for tool in &due {
                // Why one failed is told by whoever needs it.
                scope.spawn(|| self.vault.fetch(tool, Why::Age));
            }
        });
    }

    /// Gets secrets anew because a server refused what it was sent; waits for programs.
    pub(crate) fn refresh<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        if let Some(store) = &self.vault.store {
            store.forget();
        }
        for tool in names.into_iter().filter_map(|name| self.tool(name)) {
            // Why it failed is logged there; what is known stays.
            let _fetched = self.vault.fetch(&tool, Why::Refused);
        }
    }

    /// Returns the programs that these secrets come from and that are to be run again by now.
    pub(crate) fn due<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Vec<Tool> {
        let now = self.vault.clock.now();
        let tools = names.into_iter().filter_map(|name| self.tool(name));
        tools
            .filter(|tool| self.vault.slot(tool).is_due(now, tool))
            .collect()
    }

    /// Returns the program that a secret comes from, if it does.
    fn tool(&self, name: &str) -> Option<Tool> {
        match self.config.origin(name) {
            Origin::Command(command) => Some(Tool::Command(command)),
            Origin::Store(kind) => {
                let version = match self.vault.entry(name) {
                    Ok(Some(Entry::InKeychain(version))) => Some(version),
                    Ok(None) => (kind == StoreKind::Keychain).then_some(0),
                    Ok(Some(Entry::Here(_))) | Err(_) => None,
                };
                let name = name.into();
                version.map(|version| Tool::Keychain { name, version })
            }
            Origin::Env(_) | Origin::File(_) => None,
        }
    }
}

/// Whether a text can be a secret.
pub(crate) fn is_usable(text: &str) -> bool {
    !text.is_empty() && text.len() <= VALUE_BYTES_MAX && !text.contains('\0')
}
