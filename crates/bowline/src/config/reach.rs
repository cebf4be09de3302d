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
use http::HeaderName;

use super::env::Env;
use super::expand::{Source, expand};

/// How a server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It is started here and speaks over its pipes.
    Child(Child),
    /// It runs elsewhere and speaks HTTP.
    Remote(Remote),
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
}

/// A text whose `${...}` are read anew whenever it is used, so that a rotated secret counts at
/// once.
#[derive(Clone)]
pub struct Template {
    text: String,
    env: Arc<Env>,
    directory: Arc<PathBuf>,
}

impl Template {
    pub(super) fn new(text: String, env: &Arc<Env>, directory: &Arc<PathBuf>) -> Self {
        Self {
            text,
            env: Arc::clone(env),
            directory: Arc::clone(directory),
        }
    }

    /// Whether its value can change from one use to the next.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        !self.text.contains("${file:")
    }

    /// Returns the text as it is now, or why there is none; never the value.
    pub fn value(&self) -> Result<String, String> {
        let source = Source {
            env: &self.env,
            directory: &self.directory,
        };
        expand(&self.text, source).map_err(|error| error.to_string())
    }
}

impl PartialEq for Template {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.directory == other.directory
    }
}

impl Eq for Template {}

impl Hash for Template {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.text, &self.directory).hash(state);
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
        }
    }
}
