//! Settings of a server, with defaults.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::era::EraSetting;
use bowline_host::pins::PinMode;
use bowline_host::spec::{self, Isolation, ToolRule};

use super::defaults;
use super::server_secrets::ServerSecrets;
use super::upstream_config::UpstreamConfig;

/// Whether child arguments, readable by every user of the machine, may hold secrets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArgvSecrets {
    /// The file is refused.
    #[default]
    Refuse,
    /// Permitted, for programs that accept secrets only as arguments.
    Allow,
}

/// Settings of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// `[a-z0-9][a-z0-9-]{0,31}`, unique.
    pub name: Arc<str>,
    /// Connection to the server; Debug shows no secrets.
    pub upstream: UpstreamConfig,
    /// Maximum duration of a call.
    pub call_timeout: Duration,
    /// Maximum duration of the handshake.
    pub start_timeout: Duration,
    /// Maximum duration of the first start, for commands with an installation step.
    pub install_timeout: Option<Duration>,
    /// Maximum wait for running calls at a reload.
    pub drain_timeout: Duration,
    /// Start at the first call instead of at `up`.
    pub lazy: bool,
    /// Idle time before the server is stopped until the next call.
    pub idle_stop: Option<Duration>,
    /// Ping interval while idle.
    pub ping: Option<Duration>,
    /// Maximum age of lists before a refetch, for servers that announce neither changes nor a list
    /// lifetime.
    pub relist: Option<Duration>,
    /// Configured protocol era.
    pub era_setting: EraSetting,
    /// Sharing of links among principals and sessions.
    pub isolation: Isolation,
    /// Maximum calls in flight.
    pub calls_max: u32,
    /// Maximum calls queued for a permit.
    pub queue_max: u32,
    /// Maximum offered entries of a list.
    pub list_max: u32,
    /// Maximum bytes of a response buffered whole.
    pub result_max: usize,
    /// Budget of automatic restarts.
    pub restart: RestartConfig,
    /// Circuit breaker settings.
    pub breaker: BreakerConfig,
    /// Handling of tools with an unapproved definition.
    pub pin: PinMode,
    /// Whether responses are cached for the lifetime stated by the server.
    pub cache: bool,
    /// Whether structured content is validated against the tool's output schema.
    pub check_output: bool,
    /// Whether known secrets are redacted in results.
    pub redact_results: bool,
    /// Whether arguments may hold secrets.
    pub argv_secrets: ArgvSecrets,
    /// Tool settings, by the server's own tool names.
    pub tools: BTreeMap<String, ToolRule>,
    /// Secrets to redact.
    pub secrets: ServerSecrets,
}

impl ServerConfig {
    /// Creates a server with defaults.
    #[must_use]
    pub fn new(name: &str, upstream: UpstreamConfig) -> Self {
        Self {
            name: name.into(),
            install_timeout: default_install_timeout(&upstream),
            upstream,
            call_timeout: spec::CALL_TIMEOUT,
            start_timeout: spec::START_TIMEOUT,
            drain_timeout: spec::DRAIN_TIMEOUT,
            lazy: false,
            idle_stop: None,
            ping: Some(spec::PING_INTERVAL),
            relist: Some(spec::RELIST_AFTER),
            era_setting: EraSetting::Auto,
            isolation: Isolation::default(),
            calls_max: u32::try_from(spec::CALLS_MAX).unwrap_or(u32::MAX),
            queue_max: u32::try_from(spec::QUEUE_MAX).unwrap_or(u32::MAX),
            list_max: u32::try_from(spec::LIST_MAX).unwrap_or(u32::MAX),
            result_max: spec::RESULT_MAX,
            restart: RestartConfig {
                budget: defaults::RESTART_BUDGET,
                window: defaults::RESTART_WINDOW,
                backoff_min: defaults::BACKOFF.0,
                backoff_max: defaults::BACKOFF.1,
            },
            breaker: BreakerConfig {
                failures: defaults::BREAKER_FAILURES,
                open_time: defaults::BREAKER_REST,
            },
            pin: PinMode::default(),
            cache: true,
            check_output: true,
            redact_results: true,
            argv_secrets: ArgvSecrets::default(),
            tools: BTreeMap::new(),
            secrets: ServerSecrets::default(),
        }
    }
}

/// Returns the install timeout of commands with an installation step.
fn default_install_timeout(upstream: &UpstreamConfig) -> Option<Duration> {
    let UpstreamConfig::Child(child) = upstream else {
        return None;
    };
    let program = Path::new(&child.command).file_name()?.to_str()?;
    let may_install = defaults::INSTALLERS.contains(&program);
    may_install.then_some(spec::INSTALL_TIMEOUT)
}

/// The restart budget and backoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartConfig {
    /// Restarts allowed inside `window`.
    pub budget: u32,
    /// Counting period of restarts.
    pub window: Duration,
    /// Minimum wait before a restart.
    pub backoff_min: Duration,
    /// Maximum wait before a restart.
    pub backoff_max: Duration,
}

/// Circuit breaker settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Consecutive failures that open the breaker.
    pub failures: u32,
    /// Time the breaker stays open.
    pub open_time: Duration,
}
