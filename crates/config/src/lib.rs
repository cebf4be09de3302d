//! What a gateway reads about itself: the config file ([`load_config`]), secrets, trusted
//! directories, and the private files of the state directory.

mod audit_config;
mod broker_config;
mod client_config;
pub mod client_programs;
mod config_names;
mod config_problem;
mod env;
mod error;
pub mod executor_config;
mod expand;
mod exposed_secrets;
mod file;
mod find_file;
mod limits_config;
mod load_file;
pub mod policy_check;
pub(crate) mod policy_config;
mod principal_name;
pub mod reload;
mod resolve;
mod resolve_server;
mod secret_origins;
pub mod secrets;
mod server_config;
mod server_secrets;
mod size;
pub mod state;
mod token_config;
mod tree;
pub mod trust;
mod upstream_config;
mod via_config;
mod warnings;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bowline_api::servers::BrokenServer;
use bowline_host::HostLimits;
use bowline_link::http::endpoint::HttpEndpoint;

use crate::client_programs::ClientProgram;
use crate::secrets::SecretSources;
use crate::secrets::secret_watch::WatchedTemplates;
use crate::trust::TrustStore;

pub use self::audit_config::{AuditExportConfig, SyslogAddress};
pub use self::broker_config::{BrokerConfig, PeerConfig};
pub use self::client_config::{ClientConfig, DirectEndpoint};
pub use self::config_problem::{ConfigProblem, FilePosition, position_at};
pub use self::env::EnvVars;
pub use self::error::ConfigError;
pub use self::executor_config::{
    ExecutorConfig, ExecutorOfferConfig, ExecutorProtocol, OfferedSecret,
};
pub(crate) use self::expand::read_secret_file;
pub use self::file::key_reference;
pub use self::find_file::CONFIG_FILE_NAME;
pub use self::find_file::find_config;
pub use self::limits_config::ConnectionLimits;
pub use self::load_file::{load_config, load_config_with, parse_config, parse_config_with};
pub use self::load_file::{load_secrets_config, read_config_text};
pub use self::policy_config::{
    PatternMention, PolicyConfig, ProfileConfig, RoleConfig, WhenConfig,
};
pub use self::principal_name::{is_principal_name, is_run_name};
pub use self::server_config::{ArgvSecrets, BreakerConfig, RestartConfig, ServerConfig};
pub use self::server_secrets::ServerSecrets;
pub use self::token_config::TokenLifetime;
pub use self::upstream_config::{ChildConfig, ConfigTemplate, RemoteConfig, UpstreamConfig};
pub use self::via_config::{PlacementConfig, ViaConfig};
pub(crate) use self::warnings::sharing_warning;
pub use bowline_core::duration;

/// Defaults of keys absent from the file.
pub mod defaults {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use std::time::Duration;

    pub const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7331);
    /// Fraction of calls traced when a collector is configured.
    pub(crate) const SAMPLE: f64 = 1.0;
    pub(crate) const SERVICE_NAME: &str = "bowline";
    /// Commands with an installation step before the first run, which needs extra time.
    pub(crate) const INSTALLERS: [&str; 9] = [
        "npx", "uvx", "bunx", "pnpm", "yarn", "pipx", "uv", "docker", "podman",
    ];
    pub(crate) const AUDIT_BYTES: u64 = 256 * 1024 * 1024;
    pub(crate) const AUDIT_FILES: u32 = 4;
    pub(crate) const AUDIT_DENIALS_BYTES: u64 = 64 * 1024 * 1024;
    pub(crate) const AUDIT_MIN_AGE: Duration = Duration::from_secs(7 * 24 * 3_600);
    pub(crate) const RESTART_BUDGET: u32 = 5;
    pub(crate) const RESTART_WINDOW: Duration = Duration::from_secs(300);
    pub(crate) const BACKOFF: (Duration, Duration) =
        (Duration::from_millis(100), Duration::from_secs(5));
    pub(crate) const BREAKER_FAILURES: u32 = 5;
    pub(crate) const BREAKER_REST: Duration = Duration::from_secs(30);
}

/// The complete configuration of a gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Addresses to listen on, at least one.
    pub listen: Vec<SocketAddr>,
    /// Host names accepted besides the gateway's own addresses.
    pub names: Vec<Arc<str>>,
    /// Limits of the host over all servers.
    pub limits: HostLimits,
    /// Limits of unauthenticated connections.
    pub connections: ConnectionLimits,
    /// Settings of traces.
    pub telemetry: TelemetryConfig,
    /// Engine of the journal for queued writes.
    pub journal: JournalEngine,
    /// Settings of the broker.
    pub broker: BrokerConfig,
    /// Executors to dial, by name.
    pub executors: BTreeMap<Arc<str>, ExecutorConfig>,
    /// Settings of this machine as an executor.
    pub executor_offer: ExecutorOfferConfig,
    /// The secrets of this configuration.
    pub secrets: SecretSources,
    /// Templates of servers to watch for changes.
    pub watched_templates: Vec<WatchedTemplates>,
    /// Settings of the audit trail.
    pub audit: AuditConfig,
    /// Export target of audit rows.
    pub audit_export: Option<AuditExportConfig>,
    /// The policy.
    pub policy: PolicyConfig,
    /// Every pattern of the policy with a position, in file order.
    pub pattern_mentions: Vec<PatternMention>,
    /// Settings of client programs started with `run`.
    pub clients: BTreeMap<ClientProgram, ClientConfig>,
    /// Environment variables with credentials of servers.
    pub credential_variables: BTreeSet<String>,
    /// Runnable servers, in file order.
    pub servers: Vec<ServerConfig>,
    /// Servers unable to run on this machine, with reasons; other servers are not affected.
    pub broken_servers: Vec<BrokenServer>,
    /// Warnings about permitted but questionable settings.
    pub warnings: Vec<ConfigWarning>,
    /// Path of the config file.
    pub path: Option<PathBuf>,
    /// Digest of the file's text.
    pub digest: u64,
    /// Set when the file counts only because of a trusted directory: a changed text must be
    /// trusted as well.
    pub trust: Option<TrustStore>,
    /// Addresses from the command line, which replace `listen`.
    pub listen_override: Vec<SocketAddr>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![defaults::LISTEN],
            names: Vec::new(),
            limits: HostLimits::default(),
            connections: ConnectionLimits::default(),
            telemetry: TelemetryConfig::default(),
            journal: JournalEngine::default(),
            broker: BrokerConfig::default(),
            executors: BTreeMap::new(),
            executor_offer: ExecutorOfferConfig::default(),
            secrets: SecretSources::default(),
            watched_templates: Vec::new(),
            audit: AuditConfig::default(),
            audit_export: None,
            policy: PolicyConfig::default(),
            pattern_mentions: Vec::new(),
            clients: BTreeMap::new(),
            credential_variables: BTreeSet::new(),
            servers: Vec::new(),
            broken_servers: Vec::new(),
            warnings: Vec::new(),
            path: None,
            digest: 0,
            trust: None,
            listen_override: Vec::new(),
        }
    }
}

impl Config {
    /// Returns the addresses to listen on.
    #[must_use]
    pub fn listen_addresses(&self) -> &[SocketAddr] {
        match self.listen_override.as_slice() {
            [] => &self.listen,
            instead => instead,
        }
    }
}

/// Engine of the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournalEngine {
    /// A file of the state directory: acknowledged writes are durable.
    #[default]
    Sqlite,
    /// Memory only: queued writes are lost with the process.
    Memory,
}

impl JournalEngine {
    /// Returns the word used in configuration and API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Memory => "memory",
        }
    }
}

/// Settings of traces.
#[derive(Clone, Debug, PartialEq)]
pub struct TelemetryConfig {
    /// OTLP/HTTP endpoint of the collector; traces are off when absent.
    pub otlp: Option<HttpEndpoint>,
    /// Service name of the gateway in traces.
    pub service_name: String,
    /// Fraction of calls to trace, from 0.0 to 1.0.
    pub sample: f64,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            otlp: None,
            service_name: defaults::SERVICE_NAME.to_owned(),
            sample: defaults::SAMPLE,
        }
    }
}

/// Settings of the audit trail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    /// Whether each call is recorded as a row.
    pub calls: bool,
    /// Whether rows hold arguments and results instead of hashes only.
    pub payload: bool,
    /// Size at which a new file of rows begins.
    pub max_bytes: u64,
    /// Number of retained files.
    pub keep: u32,
    /// Size at which a new file of denials begins; the same number of files is retained.
    pub denials_max_bytes: u64,
    /// Younger rows are retained up to four times the usual size.
    pub min_age: Duration,
    /// Older rows are removed; never when absent.
    pub max_age: Option<Duration>,
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self {
            calls: true,
            payload: false,
            max_bytes: defaults::AUDIT_BYTES,
            keep: defaults::AUDIT_FILES,
            denials_max_bytes: defaults::AUDIT_DENIALS_BYTES,
            min_age: defaults::AUDIT_MIN_AGE,
            max_age: None,
        }
    }
}

/// A permitted but questionable setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigWarning {
    /// Position in the file, if the warning concerns one place.
    pub position: Option<FilePosition>,
    /// The warning, as one clause.
    pub message: String,
}
