//! The config file: found, read, checked, and turned into values without options.

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
mod name;
pub(crate) mod policy;
mod reach;
mod resolve;
mod secrets;
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
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::era::Speaks;
use bowline_host::HostLimits;
use bowline_host::pins::PinMode;
use bowline_host::spec::{self, Isolation, ToolRule};
use bowline_link::http::endpoint::Endpoint;

use crate::clients::Client;
use crate::reload::digest;
use crate::secrets::follow::Watched;
use crate::secrets::{SecretsConfig, Sources, Vault};
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
pub use self::policy::{Mention, PolicyConfig, ProfileConfig, RoleConfig, WhenConfig};
pub use self::reach::{Child, Reach, Remote, Template};
pub use self::secrets::Secrets;
pub use self::tokens::TokenLifetime;
pub use self::via::{Placed, Via};
pub(crate) use self::warn::sharing;

/// Largest config file.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

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
    /// How it speaks, as far as that is said.
    pub speaks: Speaks,
    /// Who shares a link to it.
    pub isolation: Isolation,
    /// Calls it has in flight at most.
    pub calls_max: u32,
    /// Calls that wait for one of those places at most.
    pub queue_max: u32,
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
            speaks: Speaks::Auto,
            isolation: Isolation::default(),
            calls_max: u32::try_from(spec::CALLS_MAX).unwrap_or(u32::MAX),
            queue_max: u32::try_from(spec::QUEUE_MAX).unwrap_or(u32::MAX),
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

/// Finds the file (`explicit`, or the usual places) and reads it.
pub fn load(explicit: Option<&Path>, env: &Env) -> Result<Config, Error> {
    load_with(explicit, env, &Vault::empty(env))
}

/// The same with secrets of a store.
pub fn load_with(explicit: Option<&Path>, env: &Env, vault: &Arc<Vault>) -> Result<Config, Error> {
    let path = find(explicit, env)?;
    let text = read(&path)?;
    parse_with(&text, &path, env, vault)
}

/// Turns the text of a file into a config; `path` says how it is written and where it stands.
pub fn parse(text: &str, path: &Path, env: &Env) -> Result<Config, Error> {
    parse_with(text, path, env, &Vault::empty(env))
}

/// What a file says of secrets, and which servers use them, by pairs of secret and server. No
/// program is run, and no secret is read.
pub(crate) fn secrets(
    explicit: Option<&Path>,
    env: &Env,
) -> Result<(SecretsConfig, Vec<(String, String)>), Error> {
    let path = find(explicit, env)?;
    let text = read(&path)?;
    let (file, mut problems) = outline(&text, &path)?;
    let absolute = std::path::absolute(&path).unwrap_or_else(|_error| path.clone());
    let directory = absolute.parent().unwrap_or_else(|| Path::new("/"));
    let source = expand::Source {
        env,
        directory,
        secrets: None,
    };
    let found = sources::sources(&file, source, &Vault::empty(env), &mut problems);
    if problems.is_empty() {
        Ok((found.config().clone(), sources::uses(&file)))
    } else {
        Err(Error::Invalid {
            path,
            text,
            problems,
        })
    }
}

fn outline(text: &str, path: &Path) -> Result<(file::File, Vec<Problem>), Error> {
    let syntax = tree::Syntax::of(path, text);
    let root = tree::parse(text, syntax).map_err(|problems| Error::Invalid {
        path: path.to_owned(),
        text: text.to_owned(),
        problems,
    })?;
    Ok(file::read(&root, syntax))
}

/// The same as [`parse`], with secrets of a store.
pub fn parse_with(text: &str, path: &Path, env: &Env, vault: &Arc<Vault>) -> Result<Config, Error> {
    let invalid = |mut problems: Vec<Problem>| {
        problems.sort_by_key(|problem| problem.span.start);
        Error::Invalid {
            path: path.to_owned(),
            text: text.to_owned(),
            problems,
        }
    };
    let syntax = tree::Syntax::of(path, text);
    let (file, mut problems) = outline(text, path)?;
    let absolute = std::path::absolute(path).unwrap_or_else(|_error| path.to_owned());
    let directory = absolute.parent().unwrap_or_else(|| Path::new("/"));
    let source = expand::Source {
        env,
        directory,
        secrets: None,
    };
    let origin = resolve::Origin {
        text,
        syntax,
        source,
    };
    match resolve::resolve(file, origin, vault) {
        Ok(config) if problems.is_empty() => Ok(Config {
            path: Some(absolute),
            digest: digest(text),
            ..config
        }),
        Ok(_) => Err(invalid(problems)),
        Err(more) => {
            problems.extend(more);
            Err(invalid(problems))
        }
    }
}

/// Reads the text of a config file.
pub(crate) fn read(path: &Path) -> Result<String, Error> {
    read_up_to(path, FILE_BYTES_MAX)
}

/// Reads the text of a file that only its owner may write.
fn read_up_to(path: &Path, bytes_max: u64) -> Result<String, Error> {
    let failed = |source| Error::Read {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions());
    // The file says which programs are started, so whoever may write it may run them.
    if metadata.is_file() && mode & 0o002 != 0 {
        return Err(Error::Exposed {
            path: path.to_owned(),
        });
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Error::NotText {
            path: path.to_owned(),
        });
    }
    String::from_utf8(bytes).map_err(|_source| Error::NotText {
        path: path.to_owned(),
    })
}
