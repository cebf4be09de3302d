//! Specification of a server.

mod executor_process;
mod naming;
mod peer_server;
mod spec_diff;
mod spec_json;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::breaker::BreakerPolicy;
use bowline_core::call::Effect;
use bowline_core::era::EraSetting;
use bowline_core::lane::{KeyChannel, QueuePolicy};
use bowline_core::policy::FeaturePattern;
use bowline_core::redact::Redactor;
use bowline_core::restart_budget::RestartPolicy;
use bowline_core::secret_header::SecretHeader;
pub use bowline_link::ChildLimits;
use bowline_link::http::HttpTransport;
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::upstream_credentials::UpstreamCredentials;
pub use bowline_link::sandbox::{LandlockGap, SandboxPolicy};
use bowline_tools::ToolExecutor;

use crate::pins::PinMode;
use crate::result_secrets::ResultSecrets;
use crate::server_card::ServerCard;

pub use bowline_core::peer_role::PeerRole;
pub use executor_process::ExecutorProcessSpec;
pub use naming::{NameClash, resolve_names};
pub use peer_server::{DialedLink, PEER_WAIT_MAX, PeerConnector, PeerSpec};
pub use spec_json::{CHILD_ENV, SpecError};

/// Default timeout from start to tool list.
pub const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Default call timeout.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(300);

/// Default timeout of the first start, if the command may install the server.
pub const INSTALL_TIMEOUT: Duration = Duration::from_secs(300);

/// Default timeout for calls in flight on reload or idle stop.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Default ping interval of a quiet link.
pub const PING_INTERVAL: Duration = Duration::from_secs(30);

/// Default maximum age of lists without TTL and change notifications.
pub const RELIST_AFTER: Duration = Duration::from_secs(60);

/// Default maximum calls in flight per server.
pub const CALLS_MAX: usize = 256;

/// Default maximum entries per list.
pub const LIST_MAX: usize = 32_768;

/// Default maximum bytes of a result passed on in full.
pub const RESULT_MAX: usize = 8 * 1024 * 1024;

/// Default maximum queued calls per server.
pub const QUEUE_MAX: usize = 256;

/// Sharing of links to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Shared by all, until the server sends requests to clients; then each session with client
    /// capabilities gets a dedicated link.
    #[default]
    Auto,
    /// Always shared by all.
    Shared,
    /// Shared by the sessions of a principal.
    Principal,
    /// Dedicated to each session.
    Session,
}

impl Isolation {
    /// Returns the word used in configuration and API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Shared => "shared",
            Self::Principal => "principal",
            Self::Session => "session",
        }
    }
}

/// A server: transport, limits and rules.
#[derive(Clone)]
pub struct ServerSpec {
    /// Server name, `[a-z0-9][a-z0-9-]{0,31}`; any other name becomes its slug, as in a config
    /// file.
    pub name: Arc<str>,
    /// The given name, if [`name`](Self::name) is its slug.
    pub given_name: Option<Arc<str>>,
    /// Transport.
    pub transport: ServerTransport,
    /// Sharing of links.
    pub isolation: Isolation,
    /// Era, if configured.
    pub era: EraSetting,
    /// True if the first call starts the server.
    pub lazy: bool,
    /// Start timeout.
    pub start_timeout: Duration,
    /// Timeout of the first start, if the command may install the server.
    pub install_timeout: Option<Duration>,
    /// Idle time after which the server is stopped until the next call.
    pub idle_stop: Option<Duration>,
    /// Ping interval of a quiet link.
    pub ping: Option<Duration>,
    /// Maximum age of lists without TTL and change notifications, refreshed on use; `None` for
    /// never.
    pub relist: Option<Duration>,
    /// Timeout for calls in flight on reload.
    pub drain_timeout: Duration,
    /// Call timeout.
    pub call_timeout: Duration,
    /// Maximum calls in flight.
    pub calls_max: usize,
    /// Maximum queued calls.
    pub queue_max: usize,
    /// Maximum entries per list; further entries are omitted.
    pub list_max: usize,
    /// Maximum bytes of a result passed on in full; a longer result is stored and read in parts.
    pub result_max: usize,
    /// Restart budget.
    pub restart: RestartPolicy,
    /// Backoff between restarts.
    pub backoff: Backoff,
    /// Circuit breaker.
    pub breaker: BreakerPolicy,
    /// Configured rules of tools, by the server's own names.
    pub tools: BTreeMap<String, ToolRule>,
    /// Redacts secrets from everything shown about the server.
    pub secrets: Arc<Redactor>,
    /// Secrets redacted from results; `None` passes results unchanged.
    pub redact_results: Option<Arc<ResultSecrets>>,
    /// True if arguments may contain secrets, visible to every user of the machine.
    pub argv_secrets: bool,
    /// Handling of unapproved definitions.
    pub pin: PinMode,
    /// True if responses are cached by the server's TTL.
    pub cache: bool,
    /// True if structured content is validated against the output schema.
    pub check_output: bool,
    /// Server card, shown until the server has listed.
    pub card: Option<Arc<ServerCard>>,
}

/// Configured rule of a tool; unset members fall back to the server's annotations and defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolRule {
    /// Effect of a call.
    pub effect: Option<Effect>,
    /// True if a repeated call has no further effect.
    pub idempotent: Option<bool>,
    /// Call timeout.
    pub timeout: Option<Duration>,
    /// Tools of the same server with cached responses invalidated by a call, as patterns with any
    /// server: `*.get_*`.
    pub invalidates: Vec<FeaturePattern>,
    /// Lifetime of a queued call while the server is down; `None` disables queueing.
    pub queue: Option<Duration>,
    /// Where the server expects the idempotency key.
    pub idempotency: KeyChannel,
}

impl ToolRule {
    /// Returns the queue policy of a tool with this effect, if any. Reads are never queued: a late
    /// result is useless.
    pub fn queue_policy(&self, effect: Effect) -> Option<QueuePolicy> {
        let keep = self.queue.filter(|_| effect != Effect::Read)?;
        let channel = self.idempotency.clone();
        Some(QueuePolicy {
            max_age: keep,
            key_channel: channel,
        })
    }
}

impl ServerSpec {
    /// Creates a spec for the child process `command` with defaults.
    #[must_use]
    pub fn new(name: &str, command: impl Into<OsString>) -> Self {
        Self::with_transport(name, ServerTransport::Child(ChildSpec::new(command)))
    }

    /// Creates a spec for an in-process server with the tools of `executor`; calls are authorized,
    /// counted, cached and measured as for any server. A panicking tool fails only its call. The
    /// tools are listed when the server starts, when a list older than [`relist`](Self::relist) is
    /// used, and by `Host::refresh_server`.
    ///
    /// ```
    /// # use bowline_catalog::spec::ServerSpec as Server;
    /// # use bowline_tools::Toolbox;
    ///
    /// let spec = Server::in_process("clock", Toolbox::default());
    /// assert_eq!(spec.transport.name(), "in_process");
    /// ```
    #[must_use]
    pub fn in_process(name: &str, executor: impl ToolExecutor + 'static) -> Self {
        let executor = Arc::new(executor);
        Self {
            // No pings: the executor lives as long as the gateway.
            ping: None,
            ..Self::with_transport(name, ServerTransport::InProcess(InProcessSpec { executor }))
        }
    }

    /// Creates a spec with defaults.
    #[must_use]
    pub fn with_transport(name: &str, reach: ServerTransport) -> Self {
        let spec = Self {
            name: name.into(),
            given_name: None,
            transport: reach,
            isolation: Isolation::default(),
            era: EraSetting::Auto,
            lazy: false,
            start_timeout: START_TIMEOUT,
            install_timeout: None,
            idle_stop: None,
            ping: Some(PING_INTERVAL),
            relist: Some(RELIST_AFTER),
            drain_timeout: DRAIN_TIMEOUT,
            call_timeout: CALL_TIMEOUT,
            calls_max: CALLS_MAX,
            queue_max: QUEUE_MAX,
            list_max: LIST_MAX,
            result_max: RESULT_MAX,
            restart: RestartPolicy::default(),
            backoff: Backoff::default(),
            breaker: BreakerPolicy::default(),
            tools: BTreeMap::new(),
            secrets: Arc::default(),
            redact_results: None,
            argv_secrets: false,
            pin: PinMode::default(),
            cache: true,
            check_output: true,
            card: None,
        };
        spec.with_slug()
    }
}

impl ServerSpec {
    /// True if a response of this size is passed on in full. In-process results are already in
    /// memory.
    pub const fn is_within_result_limit(&self, bytes: usize) -> bool {
        bytes <= self.result_max || matches!(self.transport, ServerTransport::InProcess(_))
    }
}

/// Transport of a server.
#[derive(Clone, Debug)]
pub enum ServerTransport {
    /// Child process over stdio.
    Child(ChildSpec),
    /// Process run by an executor, over stdio.
    Executor(ExecutorProcessSpec),
    /// HTTP.
    Remote(RemoteSpec),
    /// In this process.
    InProcess(InProcessSpec),
    /// Through a connected gateway.
    Peer(PeerSpec),
}

/// An in-process server.
#[derive(Clone)]
pub struct InProcessSpec {
    /// Runs the tools.
    pub executor: Arc<dyn ToolExecutor>,
}

/// An HTTP server.
#[derive(Clone, Debug)]
pub struct RemoteSpec {
    /// Address.
    pub url: HttpEndpoint,
    /// HTTP transport variant.
    pub transport: HttpTransport,
    /// Credentials, read for every request.
    pub credentials: Arc<dyn UpstreamCredentials>,
    /// Executor that sends the requests; `None` sends directly.
    pub via: Option<ExecutorRoute>,
}

/// An executor that sends HTTP requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorRoute {
    /// Executor name.
    pub executor: Arc<str>,
    /// Headers with values known only to the executor.
    pub fills: Vec<SecretHeader>,
}

/// A child process server.
#[derive(Clone)]
pub struct ChildSpec {
    /// Program.
    pub command: OsString,
    /// Arguments, passed literally.
    pub args: Vec<OsString>,
    /// The complete environment.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory; defaults to that of the gateway.
    pub cwd: Option<PathBuf>,
    /// The gateway's binary with the arguments for reaper mode; without it, descendants of a server
    /// may outlive a killed gateway.
    pub reaper: Option<(PathBuf, Vec<OsString>)>,
    /// Resource limits of the process tree.
    pub limits: ChildLimits,
    /// Sandbox of the process tree.
    pub sandbox: SandboxPolicy,
    /// Sandbox features missing in the kernel.
    pub sandbox_lacks: Option<LandlockGap>,
}

impl ChildSpec {
    /// Creates a child without arguments and environment.
    #[must_use]
    pub fn new(command: impl Into<OsString>) -> Self {
        Self {
            command: command.into(),
            args: Vec::new(),
            env: Vec::new(),
            cwd: None,
            reaper: None,
            limits: ChildLimits::default(),
            sandbox: SandboxPolicy::allow_all(),
            sandbox_lacks: None,
        }
    }
}

impl ServerTransport {
    /// Returns the status word.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            // The displayed target tells where the process runs.
            Self::Child(_) | Self::Executor(_) => "stdio",
            Self::Remote(_) => "http",
            Self::InProcess(_) => "in_process",
            Self::Peer(_) => "peer",
        }
    }

    /// Returns the executor in the path to the server, if any.
    #[must_use]
    pub fn executor(&self) -> Option<&str> {
        match self {
            Self::Remote(remote) => remote.via.as_ref().map(|via| &*via.executor),
            Self::Executor(placed) => Some(&placed.executor),
            Self::Child(_) | Self::InProcess(_) | Self::Peer(_) => None,
        }
    }

    /// True if the server and its tasks survive the gateway.
    #[must_use]
    pub const fn outlives_gateway(&self) -> bool {
        match self {
            Self::Remote(_) | Self::Peer(_) => true,
            Self::Child(_) | Self::Executor(_) | Self::InProcess(_) => false,
        }
    }

    /// True for a process started for this gateway, here or by an executor.
    #[must_use]
    pub const fn is_process(&self) -> bool {
        match self {
            Self::Child(_) | Self::Executor(_) => true,
            Self::Remote(_) | Self::InProcess(_) | Self::Peer(_) => false,
        }
    }

    /// True if lists are kept across restarts of the gateway and shown before the server confirms
    /// them. A worker offers complete servers; a hub shows only permitted items, and permissions
    /// may shrink.
    #[must_use]
    pub const fn keeps_manifest(&self) -> bool {
        match self {
            Self::Child(_) | Self::Executor(_) | Self::Remote(_) | Self::InProcess(_) => true,
            Self::Peer(peer) => matches!(peer.role, PeerRole::Worker),
        }
    }

    /// Returns a displayable target. Arguments may contain secrets and are only counted.
    #[must_use]
    pub fn display_target(&self) -> String {
        match self {
            Self::Child(child) => {
                let command = child.command.to_string_lossy();
                match child.args.len() {
                    0 => command.into_owned(),
                    1 => format!("{command} (1 argument)"),
                    count => format!("{command} ({count} arguments)"),
                }
            }
            Self::Executor(placed) => placed.display_target(),
            Self::Remote(remote) => match &remote.via {
                None => remote.url.to_string(),
                Some(via) => format!("{} via executor:{}", remote.url, via.executor),
            },
            Self::InProcess(_) => "(in process)".to_owned(),
            Self::Peer(peer) => peer.display_target(),
        }
    }
}

// Arguments and environment may contain secrets, which must not reach a log.
impl fmt::Debug for ChildSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildSpec")
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ServerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerSpec")
            .field("name", &self.name)
            .field("reach", &self.transport.display_target())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for InProcessSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcessSpec").finish_non_exhaustive()
    }
}
