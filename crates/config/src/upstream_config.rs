//! How the gateway connects to a server: as a child process, at a URL, or through an executor.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use bowline_host::spec::ChildLimits;
use bowline_link::http::HttpTransport;
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::sandbox::{SandboxLevel, SandboxPolicy};
use http::HeaderName;

use super::env::EnvVars;
use super::expand::{ExpandSource, expand_with, list_references, referenced_secrets};
use super::via_config::{PlacementConfig, ViaConfig};
use crate::secrets::secret_program::SecretFetcher;
use crate::secrets::{SecretOrigin, SecretSources};

/// Connection to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamConfig {
    /// A local child process, over its pipes.
    Child(ChildConfig),
    /// A remote server, over HTTP.
    Remote(RemoteConfig),
    /// A server started by an executor.
    Placed(PlacementConfig),
}

/// A child process.
#[derive(Clone, PartialEq, Eq)]
pub struct ChildConfig {
    /// A bare name for PATH, or an absolute path when the config file has a directory.
    pub command: OsString,
    /// Passed literally, without a shell.
    pub args: Vec<String>,
    /// Variables set for the child, besides the few given to every child.
    pub env: BTreeMap<String, String>,
    /// Variables of the gateway inherited by the child.
    pub inherit_env: Vec<String>,
    /// Working directory; the gateway's own when absent.
    pub cwd: Option<PathBuf>,
    /// Resource limits.
    pub limits: ChildLimits,
    /// The sandbox; hidden paths are added later.
    pub sandbox: SandboxPolicy,
}

/// A remote server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteConfig {
    /// URL of the server.
    pub url: HttpEndpoint,
    /// Transport of the server.
    pub transport: HttpTransport,
    /// Headers sent with every request.
    pub headers: Vec<(HeaderName, ConfigTemplate)>,
    /// The executor that sends the requests; this machine when absent.
    pub via: Option<ViaConfig>,
}

/// A text whose `${...}` references are expanded on every use, so a rotated secret takes effect at
/// once.
#[derive(Clone)]
pub struct ConfigTemplate {
    text: String,
    env: Arc<EnvVars>,
    directory: Arc<PathBuf>,
    secrets: SecretSources,
    /// Origins of the referenced secrets.
    origins: Vec<SecretOrigin>,
}

/// Sources of template values.
#[derive(Clone, Debug)]
pub(super) struct TemplateContext {
    env: Arc<EnvVars>,
    directory: Arc<PathBuf>,
    secrets: SecretSources,
}

impl TemplateContext {
    pub(super) fn new(source: ExpandSource<'_>) -> Self {
        Self {
            env: Arc::new(source.env.clone()),
            directory: Arc::new(source.directory.to_path_buf()),
            secrets: source.secrets.cloned().unwrap_or_default(),
        }
    }
}

impl ConfigTemplate {
    pub(super) fn new(text: &str, context: &TemplateContext) -> Self {
        let config = context.secrets.config();
        Self {
            text: text.to_owned(),
            env: Arc::clone(&context.env),
            directory: Arc::clone(&context.directory),
            origins: referenced_secrets(text)
                .map(|name| config.origin(name))
                .collect(),
            // Requests are sent from threads that must not block.
            secrets: context.secrets.non_blocking(),
        }
    }

    /// Refetches the secrets of the template after a refusal by a server. Waits for programs.
    pub fn refetch_secrets(&self) {
        self.secrets.refetch(referenced_secrets(&self.text));
    }

    /// Returns the programs of the template's secrets due for another run.
    pub(crate) fn due_fetchers(&self) -> Vec<SecretFetcher> {
        self.secrets.due_fetchers(referenced_secrets(&self.text))
    }

    pub const fn secret_sources(&self) -> &SecretSources {
        &self.secrets
    }

    /// Returns whether the value never changes.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        let mut references = list_references(&self.text);
        !references
            .any(|reference| reference.starts_with("file:") || reference.starts_with("secret:"))
    }

    /// Returns the expanded text, or the reason of a failure, which never holds the value.
    pub fn expand(&self) -> Result<String, String> {
        self.expand_with(|_, _| {})
    }

    /// Like [`expand`](Self::expand); passes each reference and its value to `note`.
    pub fn expand_with(&self, note: impl FnMut(&str, &str)) -> Result<String, String> {
        let source = ExpandSource {
            env: &self.env,
            directory: &self.directory,
            secrets: Some(&self.secrets),
        };
        expand_with(&self.text, source, note).map_err(|error| error.format_line(""))
    }
}

impl PartialEq for ConfigTemplate {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
            && self.directory == other.directory
            && self.origins == other.origins
    }
}

impl Eq for ConfigTemplate {}

impl Hash for ConfigTemplate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.text, &self.directory, &self.origins).hash(state);
    }
}

// A literal value may be a secret too.
impl fmt::Debug for ConfigTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

// Arguments and environment may hold secrets.
impl fmt::Debug for ChildConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildConfig")
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}

impl ChildConfig {
    /// Creates a child with a command line and defaults.
    #[must_use]
    pub fn new(command: OsString, args: Vec<String>) -> Self {
        Self {
            command,
            args,
            env: BTreeMap::new(),
            inherit_env: Vec::new(),
            cwd: None,
            limits: ChildLimits::default(),
            sandbox: SandboxPolicy {
                level: SandboxLevel::Default,
                ..SandboxPolicy::allow_all()
            },
        }
    }
}

impl UpstreamConfig {
    /// Describes the connection for people: the program or the URL.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Child(child) => child.command.display().to_string(),
            Self::Remote(remote) => remote.url.to_string(),
            Self::Placed(placed) => format!("{} on executor {}", placed.server, placed.executor),
        }
    }
}
