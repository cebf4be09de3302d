//! What the host is told about one server.

mod compare;
mod json;
mod naming;
mod peer;
mod placed;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::breaker::BreakerPolicy;
use bowline_core::call::Effect;
use bowline_core::era::Speaks;
use bowline_core::lane::{Channel, Queueing};
use bowline_core::policy::Pattern;
use bowline_core::redact::Redactor;
use bowline_core::supervision::RestartPolicy;
pub use bowline_link::ChildLimits;
use bowline_link::http::Transport;
use bowline_link::http::credentials::Credentials;
use bowline_link::http::endpoint::Endpoint;
pub use bowline_link::sandbox::{Lack, Sandbox};
use bowline_wire::executor::Fill;

use crate::card::Card;
use crate::pins::PinMode;
use crate::redaction::ResultSecrets;
use crate::tools::ToolExecutor;

pub use json::{CHILD_ENV, SpecError};
pub use naming::NameClash;
pub(crate) use naming::settle_names;
pub use peer::{PeerSpec, Side};
pub use placed::PlacedSpec;

/// How long a server may take from its start to its list of tools, unless told otherwise.
pub const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a call may take, unless told otherwise.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(300);

/// How long a server may take whose command may have to install it first, until it has served once.
pub const INSTALL_TIMEOUT: Duration = Duration::from_secs(300);

/// How long calls in flight may go on when a server is reloaded or stopped for being idle.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// A quiet server is asked this often whether it is still there.
pub const PING_EVERY: Duration = Duration::from_secs(30);

/// Lists of a server that says nothing of their age and of their changes are asked for again when
/// they are older than this, unless told otherwise.
pub const RELIST_AFTER: Duration = Duration::from_secs(60);

/// Calls that one server has in flight at most.
pub const CALLS_MAX: usize = 256;

/// Entries of one list of a server that are offered, unless told otherwise.
pub const LIST_MAX: usize = 32_768;

/// Bytes of a result that is passed on whole, unless told otherwise.
pub const RESULT_MAX: usize = 8 * 1024 * 1024;

/// Calls that wait for one of those places at most.
pub const QUEUE_MAX: usize = 256;

/// Who shares one link to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// All, until the server asks clients for something; then each session that can answer has
    /// its own.
    #[default]
    Auto,
    /// All, always.
    Shared,
    /// All sessions of one principal.
    Principal,
    /// Nobody.
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

/// One server: how to start it and how to treat it.
#[derive(Clone)]
pub struct ServerSpec {
    /// Its name, `[a-z0-9][a-z0-9-]{0,31}`; any other becomes its slug, as in a config file.
    pub name: Arc<str>,
    /// The name that it was given, where [`name`](Self::name) is the slug of it.
    pub given_name: Option<Arc<str>>,
    /// How it is reached.
    pub reach: Reach,
    /// Who shares a link to it.
    pub isolation: Isolation,
    /// How it speaks, as far as that is known.
    pub speaks: Speaks,
    /// Whether it waits for its first call before it is started.
    pub lazy: bool,
    /// How long it may take to start.
    pub start_timeout: Duration,
    /// How long it may take until it has served once, where its command may install it first.
    pub install_timeout: Option<Duration>,
    /// How long it may be without a call before it is stopped until the next one.
    pub idle_stop: Option<Duration>,
    /// How often it is asked, while it is quiet, whether it is still there.
    pub ping: Option<Duration>,
    /// Lists older than this are asked for again when they are wanted, where the server announces
    /// neither their changes nor how long they are good; never where absent.
    pub relist: Option<Duration>,
    /// How long calls in flight may go on when it is reloaded.
    pub drain_timeout: Duration,
    /// How long one call may take.
    pub call_timeout: Duration,
    /// Calls it has in flight at most.
    pub calls_max: usize,
    /// Calls that wait for one of those places at most.
    pub queue_max: usize,
    /// Entries of one of its lists that are offered at most; the others are left out.
    pub list_max: usize,
    /// Bytes of a response that is passed on whole; a longer result is kept and read in parts.
    pub result_max: usize,
    /// How often it may be restarted.
    pub restart: RestartPolicy,
    /// How long to wait between restarts.
    pub backoff: Backoff,
    /// When to stop calling it for a while.
    pub breaker: BreakerPolicy,
    /// What a person said of its tools, by the server's own names.
    pub tools: BTreeMap<String, ToolRule>,
    /// What must not be shown of anything that it says or that is said of it.
    pub secrets: Arc<Redactor>,
    /// The secrets that its results are cleaned of; they are passed on as they are where absent.
    pub redact_results: Option<Arc<ResultSecrets>>,
    /// Whether secrets may stand among its arguments, where every user of the machine sees them.
    pub argv_secrets: bool,
    /// What happens to a tool whose definition is not the approved one.
    pub pin: PinMode,
    /// Whether answers are kept as long as the server says that they stay good.
    pub cache: bool,
    /// Whether structured content is checked against the schema of its tool.
    pub check_output: bool,
    /// What a card says of it, shown until the server itself has spoken.
    pub card: Option<Arc<Card>>,
}

/// What a person said of a tool; what is not said is left to the server and to defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolRule {
    /// What running it does.
    pub effect: Option<Effect>,
    /// Whether running it twice is like running it once.
    pub idempotent: Option<bool>,
    /// How long a call of it may take.
    pub timeout: Option<Duration>,
    /// Tools of the same server whose kept answers are worth nothing after a call of it, by names
    /// in which the server is any: `*.get_*`.
    pub invalidates: Vec<Pattern>,
    /// How long a call of it is kept for delivery while the server is away; never where absent.
    pub queue: Option<Duration>,
    /// How the server is told which call it is, so that it knows a repeated one.
    pub idempotency: Channel,
}

impl ToolRule {
    /// Returns how calls of a tool with this effect are queued, if they are. What a read gives is
    /// wanted now or not at all.
    pub(crate) fn queueing(&self, effect: Effect) -> Option<Queueing> {
        let keep = self.queue.filter(|_| effect != Effect::Read)?;
        let channel = self.idempotency.clone();
        Some(Queueing { keep, channel })
    }
}

impl ServerSpec {
    /// Returns a spec for the child `command` with every default.
    #[must_use]
    pub fn new(name: &str, command: impl Into<OsString>) -> Self {
        Self::reached(name, Reach::Child(ChildSpec::new(command)))
    }

    /// Returns a spec for a server that is part of this program: its tools are those of
    /// `executor`, and calls of them are decided, counted, cached and measured like any others. A
    /// tool that panics fails its call and nothing else. What the executor offers is asked for
    /// when the server starts, when a list older than [`relist`](Self::relist) is wanted, and by
    /// [`Host::refresh`](crate::Host::refresh).
    ///
    /// ```
    /// use bowline_host::tools::Toolbox;
    /// use bowline_host::Server;
    ///
    /// let spec = Server::in_process("clock", Toolbox::default());
    /// assert_eq!(spec.reach.transport(), "in_process");
    /// ```
    #[must_use]
    pub fn in_process(name: &str, executor: impl ToolExecutor + 'static) -> Self {
        let executor = Arc::new(executor);
        Self {
            // It needs no pings: it is here as long as we are.
            ping: None,
            ..Self::reached(name, Reach::InProcess(InProcessSpec { executor }))
        }
    }

    /// Returns a spec with every default.
    #[must_use]
    pub fn reached(name: &str, reach: Reach) -> Self {
        let spec = Self {
            name: name.into(),
            given_name: None,
            reach,
            isolation: Isolation::default(),
            speaks: Speaks::Auto,
            lazy: false,
            start_timeout: START_TIMEOUT,
            install_timeout: None,
            idle_stop: None,
            ping: Some(PING_EVERY),
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
    /// Whether a response of so many bytes is passed on whole. What a server inside this program
    /// returns is in memory as it is.
    pub(crate) const fn passes(&self, bytes: usize) -> bool {
        bytes <= self.result_max || matches!(self.reach, Reach::InProcess(_))
    }
}

/// How a server is reached.
#[derive(Clone, Debug)]
pub enum Reach {
    /// As a child process, over its standard streams.
    Child(ChildSpec),
    /// As a process that an executor runs, over its standard streams.
    Placed(PlacedSpec),
    /// Over HTTP.
    Remote(RemoteSpec),
    /// As a part of this program.
    InProcess(InProcessSpec),
    /// Through another gateway that we are connected with.
    Peer(PeerSpec),
}

/// A server that is part of this program.
#[derive(Clone)]
pub struct InProcessSpec {
    /// Has the tools.
    pub executor: Arc<dyn ToolExecutor>,
}

/// A server that runs elsewhere.
#[derive(Clone, Debug)]
pub struct RemoteSpec {
    /// Where it is.
    pub url: Endpoint,
    /// What is spoken there.
    pub transport: Transport,
    /// What proves who we are, read for every request.
    pub credentials: Arc<dyn Credentials>,
    /// Where its requests leave from; from here where absent.
    pub via: Option<Placement>,
}

/// An executor that requests leave from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Its name.
    pub executor: Arc<str>,
    /// Headers whose values only it knows.
    pub fills: Vec<Fill>,
}

/// A server that is a child process.
#[derive(Clone)]
pub struct ChildSpec {
    /// The program to run.
    pub command: OsString,
    /// Its arguments, passed literally.
    pub args: Vec<OsString>,
    /// The child's whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Where it runs; the gateway's own directory when not given.
    pub cwd: Option<PathBuf>,
    /// Our own binary and the arguments that make it a reaper; without it, descendants of a
    /// server may outlive a killed gateway.
    pub reaper: Option<(PathBuf, Vec<OsString>)>,
    /// What it may use, with all it starts.
    pub limits: ChildLimits,
    /// What it may reach, with all it starts.
    pub sandbox: Sandbox,
    /// What the kernel does not have of that.
    pub sandbox_lacks: Option<Lack>,
}

impl ChildSpec {
    /// Returns a child without arguments and environment.
    #[must_use]
    pub fn new(command: impl Into<OsString>) -> Self {
        Self {
            command: command.into(),
            args: Vec::new(),
            env: Vec::new(),
            cwd: None,
            reaper: None,
            limits: ChildLimits::default(),
            sandbox: Sandbox::off(),
            sandbox_lacks: None,
        }
    }
}

impl Reach {
    /// Returns the word used in status.
    #[must_use]
    pub const fn transport(&self) -> &'static str {
        match self {
            // Where the process runs is told by what is shown of it.
            Self::Child(_) | Self::Placed(_) => "stdio",
            Self::Remote(_) => "http",
            Self::InProcess(_) => "in_process",
            Self::Peer(_) => "peer",
        }
    }

    /// Returns the executor that the way to it leads through, if it does.
    #[must_use]
    pub fn via(&self) -> Option<&str> {
        match self {
            Self::Remote(remote) => remote.via.as_ref().map(|via| &*via.executor),
            Self::Placed(placed) => Some(&placed.executor),
            Self::Child(_) | Self::InProcess(_) | Self::Peer(_) => None,
        }
    }

    /// Whether it goes on, and its tasks with it, where the gateway ends.
    #[must_use]
    pub const fn outlives_us(&self) -> bool {
        match self {
            Self::Remote(_) | Self::Peer(_) => true,
            Self::Child(_) | Self::Placed(_) | Self::InProcess(_) => false,
        }
    }

    /// Whether it is a process that is started for us, here or elsewhere.
    #[must_use]
    pub const fn is_process(&self) -> bool {
        match self {
            Self::Child(_) | Self::Placed(_) => true,
            Self::Remote(_) | Self::InProcess(_) | Self::Peer(_) => false,
        }
    }

    /// Whether what it offered in one life of the gateway is shown in the next before it says it
    /// again. A worker offers whole servers; a hub shows what it lets us see, and that may be less
    /// by then.
    #[must_use]
    pub const fn is_remembered(&self) -> bool {
        match self {
            Self::Child(_) | Self::Placed(_) | Self::Remote(_) | Self::InProcess(_) => true,
            Self::Peer(peer) => matches!(peer.side, Side::Worker),
        }
    }

    /// Returns what people may read of it. Arguments may hold secrets and are only counted.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Child(child) => {
                let command = child.command.to_string_lossy();
                match child.args.len() {
                    0 => command.into_owned(),
                    1 => format!("{command} (1 argument)"),
                    count => format!("{command} ({count} arguments)"),
                }
            }
            Self::Placed(placed) => placed.shown(),
            Self::Remote(remote) => match &remote.via {
                None => remote.url.to_string(),
                Some(via) => format!("{} via executor:{}", remote.url, via.executor),
            },
            Self::InProcess(_) => "(in process)".to_owned(),
            Self::Peer(peer) => peer.shown(),
        }
    }
}

// Arguments and environment may hold secrets: a log line must not.
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
            .field("reach", &self.reach.shown())
            .finish_non_exhaustive()
    }
}
