//! The settings of one server, with the defaults of those that the file leaves out.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::era::Speaks;
use bowline_host::pins::PinMode;
use bowline_host::spec::{self, Isolation, ToolRule};

use super::defaults;
use super::reach::Reach;
use super::secrets::Secrets;

/// Whether secrets may stand among the arguments of a child, which every user of the machine can
/// read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArgvSecrets {
    /// The file is refused.
    #[default]
    Refuse,
    /// The program takes them nowhere else.
    Allow,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// `[a-z0-9][a-z0-9-]{0,31}`, unique.
    pub name: Arc<str>,
    /// How it is reached. Shows no secrets.
    pub reach: Reach,
    /// Longest a call may take.
    pub call_timeout: Duration,
    /// Longest the handshake may take.
    pub start_timeout: Duration,
    /// Longest it may take until it has served once, where its command may install it first.
    pub install_timeout: Option<Duration>,
    /// Longest that calls in flight go on when it is reloaded.
    pub drain_timeout: Duration,
    /// Start at the first call instead of at `up`.
    pub lazy: bool,
    /// Longest it may be without a call before it is stopped until the next one.
    pub idle_stop: Option<Duration>,
    /// How often it is asked, while it is quiet, whether it is still there.
    pub ping: Option<Duration>,
    /// Lists older than this are asked for again when they are wanted, where the server announces
    /// neither their changes nor how long they are good.
    pub relist: Option<Duration>,
    /// How it speaks, as far as that is said.
    pub speaks: Speaks,
    /// Who shares a link to it.
    pub isolation: Isolation,
    /// Calls it has in flight at most.
    pub calls_max: u32,
    /// Calls that wait for one of those places at most.
    pub queue_max: u32,
    /// Entries of one of its lists that are offered at most.
    pub list_max: u32,
    /// Bytes of a response of it that is passed on whole.
    pub result_max: usize,
    /// How often it may be started again by itself.
    pub restart: Restart,
    /// When calls to it rest.
    pub breaker: Breaker,
    /// What happens to a tool whose definition is not the approved one.
    pub pin: PinMode,
    /// Whether its answers are kept as long as it says that they stay good.
    pub cache: bool,
    /// Whether structured content is checked against the schema of its tool.
    pub check_output: bool,
    /// Whether secrets that the gateway holds are taken out of its results.
    pub redact_results: bool,
    /// Whether secrets may stand among its arguments.
    pub argv_secrets: ArgvSecrets,
    /// What the file says of tools, by the server's own names.
    pub tools: BTreeMap<String, ToolRule>,
    /// What nobody should read.
    pub secrets: Secrets,
}

impl ServerConfig {
    /// Returns a server with every default.
    #[must_use]
    pub fn new(name: &str, reach: Reach) -> Self {
        Self {
            name: name.into(),
            install_timeout: install_timeout(&reach),
            reach,
            call_timeout: spec::CALL_TIMEOUT,
            start_timeout: spec::START_TIMEOUT,
            drain_timeout: spec::DRAIN_TIMEOUT,
            lazy: false,
            idle_stop: None,
            ping: Some(spec::PING_EVERY),
            relist: Some(spec::RELIST_AFTER),
            speaks: Speaks::Auto,
            isolation: Isolation::default(),
            calls_max: u32::try_from(spec::CALLS_MAX).unwrap_or(u32::MAX),
            queue_max: u32::try_from(spec::QUEUE_MAX).unwrap_or(u32::MAX),
            list_max: u32::try_from(spec::LIST_MAX).unwrap_or(u32::MAX),
            result_max: spec::RESULT_MAX,
            restart: Restart {
                budget: defaults::RESTART_BUDGET,
                window: defaults::RESTART_WINDOW,
                backoff_min: defaults::BACKOFF.0,
                backoff_max: defaults::BACKOFF.1,
            },
            breaker: Breaker {
                failures: defaults::BREAKER_FAILURES,
                rest: defaults::BREAKER_REST,
            },
            pin: PinMode::default(),
            cache: true,
            check_output: true,
            redact_results: true,
            argv_secrets: ArgvSecrets::default(),
            tools: BTreeMap::new(),
            secrets: Secrets::default(),
        }
    }
}

/// A command that may install what it runs gets time for it.
fn install_timeout(reach: &Reach) -> Option<Duration> {
    let Reach::Child(child) = reach else {
        return None;
    };
    let program = Path::new(&child.command).file_name()?.to_str()?;
    let may_install = defaults::INSTALLERS.contains(&program);
    may_install.then_some(spec::INSTALL_TIMEOUT)
}

/// The restart budget and its backoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    /// Restarts allowed inside `window`.
    pub budget: u32,
    /// How far back restarts are counted.
    pub window: Duration,
    /// First wait before a restart.
    pub backoff_min: Duration,
    /// Longest wait before a restart.
    pub backoff_max: Duration,
}

/// When the breaker opens and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// Failures in a row that open it.
    pub failures: u32,
    /// How long it stays open.
    pub rest: Duration,
}
