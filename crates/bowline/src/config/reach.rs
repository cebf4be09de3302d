//! How a server is reached: as a child process, or at an address.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use bowline_host::spec::ChildLimits;
use bowline_link::http::Transport;
use bowline_link::http::endpoint::Endpoint;
use bowline_link::sandbox::{Level, Sandbox};
use http::HeaderName;

use super::env::Env;
use super::expand::{Source, expand_noting, references, secrets_in};
use super::via::{Placed, Via};
use crate::secrets::command::Tool;
use crate::secrets::{Origin, Sources};

/// How a server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It is started here and speaks over its pipes.
    Child(Child),
    /// It runs elsewhere and speaks HTTP.
    Remote(Remote),
    /// An executor starts it.
    Placed(Placed),
}

/// A child process.
#[derive(Clone, PartialEq, Eq)]
pub struct Child {
    /// A bare name for PATH, or an absolute path when the config file has a directory.
    pub command: OsString,
    /// Passed on literally; no shell sees them.
    pub args: Vec<String>,
    /// Set for the child, beyond the few variables every child gets.
    pub env: BTreeMap<String, String>,
    /// Names of the gateway's own variables that the child also gets.
    pub inherit_env: Vec<String>,
    /// Where the child starts; the gateway's own directory when absent.
    pub cwd: Option<PathBuf>,
    /// What the system lets it take.
    pub limits: ChildLimits,
    /// What it may reach; nothing is hidden in it yet.
    pub sandbox: Sandbox,
}

/// An address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Where.
    pub url: Endpoint,
    /// What is spoken there.
    pub transport: Transport,
    /// Sent with every request.
    pub headers: Vec<(HeaderName, Template)>,
    /// The executor that sends them; this machine where absent.
    pub via: Option<Via>,
}

/// A text whose `${...}` are read anew whenever it is used, so that a rotated secret counts at
/// once.
#[derive(Clone)]
pub struct Template {
    text: String,
    env: Arc<Env>,
    directory: Arc<PathBuf>,
    secrets: Sources,
    /// Where the secrets in it come from.
    origins: Vec<Origin>,
}

/// Where templates take values from.
#[derive(Clone, Debug)]
pub(super) struct Ground {
    env: Arc<Env>,
    directory: Arc<PathBuf>,
    secrets: Sources,
}

impl Ground {
    pub(super) fn new(source: Source<'_>) -> Self {
        Self {
            env: Arc::new(source.env.clone()),
            directory: Arc::new(source.directory.to_path_buf()),
            secrets: source.secrets.cloned().unwrap_or_default(),
        }
    }
}

impl Template {
    pub(super) fn new(text: &str, ground: &Ground) -> Self {
        let config = ground.secrets.config();
        Self {
            text: text.to_owned(),
            env: Arc::clone(&ground.env),
            directory: Arc::clone(&ground.directory),
            origins: secrets_in(text).map(|name| config.origin(name)).collect(),
            // Requests are sent where nobody may wait.
            secrets: ground.secrets.without_waiting(),
        }
    }

    /// Gets the secrets in it anew, because a server refused them. Waits for programs.
    pub(crate) fn refresh(&self) {
        self.secrets.refresh(secrets_in(&self.text));
    }

    /// Returns the programs that its secrets come from and that are to be run again.
    pub(crate) fn due(&self) -> Vec<Tool> {
        self.secrets.due(secrets_in(&self.text))
    }

    pub(crate) const fn sources(&self) -> &Sources {
        &self.secrets
    }

    /// Whether its value can change from one use to the next.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        let mut references = references(&self.text);
        !references.any(|inside| inside.starts_with("file:") || inside.starts_with("secret:"))
    }

    /// Returns the text as it is now, or why there is none; never the value.
    pub fn value(&self) -> Result<String, String> {
        self.value_noting(|_, _| {})
    }

    /// The same; `note` is told what came out of each reference, and what stood inside it.
    pub(crate) fn value_noting(&self, note: impl FnMut(&str, &str)) -> Result<String, String> {
        let source = Source {
            env: &self.env,
            directory: &self.directory,
            secrets: Some(&self.secrets),
        };
        expand_noting(&self.text, source, note).map_err(|error| error.told(""))
    }
}

impl PartialEq for Template {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
            && self.directory == other.directory
            && self.origins == other.origins
    }
}

impl Eq for Template {}

impl Hash for Template {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.text, &self.directory, &self.origins).hash(state);
    }
}

// A literal value may be a secret as well.
impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

// Arguments and environment may hold secrets.
impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child")
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}

impl Child {
    /// Returns a child with nothing but its command line.
    #[must_use]
    pub fn new(command: OsString, args: Vec<String>) -> Self {
        Self {
            command,
            args,
            env: BTreeMap::new(),
            inherit_env: Vec::new(),
            cwd: None,
            limits: ChildLimits::default(),
            sandbox: Sandbox {
                level: Level::Default,
                ..Sandbox::off()
            },
        }
    }
}

impl Reach {
    /// Returns what a person may read of it: the program or the address.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Child(child) => child.command.display().to_string(),
            Self::Remote(remote) => remote.url.to_string(),
            Self::Placed(placed) => format!("{} on executor {}", placed.server, placed.executor),
        }
    }
}
