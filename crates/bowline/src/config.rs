//! The configuration of a gateway, as values without options; [`load`] reads it from a file.

mod audit;
mod broker;
mod clients;
pub(crate) mod duration;
mod env;
mod error;
pub(crate) mod executor;
mod expand;
mod exposure;
mod file;
mod find;
mod frame;
mod limits;
mod load;
mod name;
pub(crate) mod policy;
mod reach;
mod resolve;
mod secrets;
mod server_config;
mod size;
mod sources;
pub(crate) mod suggest;
mod tokens;
mod tree;
mod via;
mod warn;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bowline_host::HostLimits;
use bowline_link::http::endpoint::Endpoint;

use crate::clients::Client;
use crate::secrets::Sources;
use crate::secrets::follow::Watched;
use crate::trust::TrustStore;

pub use self::audit::{AuditExport, SyslogTo};
pub use self::broker::{BrokerConfig, PeerConfig};
pub use self::clients::{ClientConfig, Direct};
pub use self::env::Env;
pub use self::error::Error;
pub use self::executor::{ExecutorConfig, HeldSecret, Protocol, ServantConfig};
pub(crate) use self::expand::read_secret_file;
pub(crate) use self::find::FILE_NAME;
pub use self::find::find;
pub use self::frame::{Place, Problem, place};
pub use self::limits::ConnectionLimits;
pub use self::load::{load, load_with, parse, parse_with};
pub(crate) use self::load::{read, secrets};
pub use self::policy::{Mention, PolicyConfig, ProfileConfig, RoleConfig, WhenConfig};
pub use self::reach::{Child, Reach, Remote, Template};
pub use self::secrets::Secrets;
pub use self::server_config::{ArgvSecrets, Breaker, Restart, ServerConfig};
pub use self::tokens::TokenLifetime;
pub use self::via::{Placed, Via};
pub(crate) use self::warn::sharing;

/// What a value is when the file does not say.
pub(crate) mod defaults {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use std::time::Duration;

    pub(crate) const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7331);
    /// Part of calls that are traced where traces are sent.
    pub(crate) const SAMPLE: f64 = 1.0;
    pub(crate) const SERVICE_NAME: &str = "bowline";
    /// Commands that may have to install what they run: these get time for it once.
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

/// Everything the gateway runs with.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Addresses to serve on, at least one.
    pub listen: Vec<SocketAddr>,
    /// Names by which others may address it, beside its own addresses.
    pub names: Vec<Arc<str>>,
    /// How much all servers together take on.
    pub limits: HostLimits,
    /// How many connections are kept that have not proved who they are.
    pub connections: ConnectionLimits,
    /// What is told of calls, and where.
    pub telemetry: Telemetry,
    /// What remembers queued writes.
    pub journal: Engine,
    /// What the broker takes on.
    pub broker: BrokerConfig,
    /// Executors that are dialled, by name.
    pub executors: BTreeMap<Arc<str>, ExecutorConfig>,
    /// What this machine does where it is an executor.
    pub servant: ServantConfig,
    /// Where secrets come from.
    pub sources: Sources,
    /// What servers take from places that may change.
    pub watched: Vec<Watched>,
    /// What is written down of calls.
    pub audit: Audit,
    /// Where rows of it are shipped to.
    pub audit_export: Option<AuditExport>,
    /// Who may do what.
    pub policy: PolicyConfig,
    /// Every pattern of the policy and where it stands, in file order.
    pub mentions: Vec<Mention>,
    /// What is said of programs that are started with `run`.
    pub clients: BTreeMap<Client, ClientConfig>,
    /// The variables that hold credentials of servers.
    pub credentials: BTreeSet<String>,
    /// Servers that can be run, in file order.
    pub servers: Vec<ServerConfig>,
    /// Servers that this machine cannot run, and why; the others are not affected.
    pub broken: Vec<Broken>,
    /// What is allowed but should be looked at.
    pub warnings: Vec<Warning>,
    /// The file all this was read from.
    pub path: Option<PathBuf>,
    /// Tells its text from others.
    pub digest: u64,
    /// Set where the file is read only because its directory is trusted: another text of it must
    /// be trusted as well.
    pub trust: Option<TrustStore>,
    /// Addresses to serve on instead, where the command line names some.
    pub listen_instead: Vec<SocketAddr>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![defaults::LISTEN],
            names: Vec::new(),
            limits: HostLimits::default(),
            connections: ConnectionLimits::default(),
            telemetry: Telemetry::default(),
            journal: Engine::default(),
            broker: BrokerConfig::default(),
            executors: BTreeMap::new(),
            servant: ServantConfig::default(),
            sources: Sources::default(),
            watched: Vec::new(),
            audit: Audit::default(),
            audit_export: None,
            policy: PolicyConfig::default(),
            mentions: Vec::new(),
            clients: BTreeMap::new(),
            credentials: BTreeSet::new(),
            servers: Vec::new(),
            broken: Vec::new(),
            warnings: Vec::new(),
            path: None,
            digest: 0,
            trust: None,
            listen_instead: Vec::new(),
        }
    }
}

impl Config {
    /// Returns the addresses to serve on.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        match self.listen_instead.as_slice() {
            [] => &self.listen,
            instead => instead,
        }
    }
}

/// What remembers queued writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// A file of the state directory: what is acknowledged is never lost.
    #[default]
    Sqlite,
    /// Nothing but memory: everything queued is lost with the process.
    Memory,
}

impl Engine {
    /// Returns the word used in configuration and API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Memory => "memory",
        }
    }
}

/// What is told of calls, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct Telemetry {
    /// Where traces are sent, as OTLP over HTTP; nowhere when absent.
    pub otlp: Option<Endpoint>,
    /// What the gateway is called there.
    pub service_name: String,
    /// The part of calls that is traced, from 0.0 to 1.0.
    pub sample: f64,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            otlp: None,
            service_name: defaults::SERVICE_NAME.to_owned(),
            sample: defaults::SAMPLE,
        }
    }
}

/// What is written down of calls, for as long as it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Whether each call leaves a row.
    pub calls: bool,
    /// Whether rows hold arguments and results, and not only their hashes.
    pub payload: bool,
    /// Size at which a file of rows is followed by the next.
    pub max_bytes: u64,
    /// Files that are kept.
    pub keep: u32,
    /// Size at which a file of refusals is followed by the next; as many are kept.
    pub denials_max_bytes: u64,
    /// Rows that are younger are kept until there is four times as much as may be.
    pub min_age: Duration,
    /// Rows that are older are let go; never where absent.
    pub max_age: Option<Duration>,
}

impl Default for Audit {
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

/// A server that is configured but cannot be run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Its name.
    pub name: Arc<str>,
    /// What is missing, as one clause.
    pub reason: String,
}

/// Something that is allowed but should be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Where in the file, when it is about one place.
    pub place: Option<Place>,
    /// What, as one clause.
    pub message: String,
}
