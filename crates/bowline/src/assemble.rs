//! The only place where the rooms are joined: read it to know the product.

pub(crate) mod broker;
mod children;
mod credentials;
pub(crate) mod executors;
mod journal;
mod specs;

use std::net::SocketAddr;
use std::sync::Arc;

use bowline_core::lane::KeyScope;
use bowline_core::redact::Redactor;
use bowline_host::accounts::PrincipalAccounts;
use bowline_host::audit::Audit;
use bowline_host::broker::Hub;
use bowline_host::dial::{Eras, RealDial};
use bowline_host::executor::{Executors, ExecutorsOptions};
use bowline_host::ports::{Clock, SystemClock};
use bowline_host::redaction::ResultSecrets;
use bowline_host::spec::ServerSpec;
use bowline_host::tasks::Tasks;
use bowline_host::{Host, HostLimits, Ports};
use bowline_journal::sqlite::OpenError;
use bowline_journal::{Journal, JournalError};
use bowline_link::http::HttpLimits;
use bowline_link::http::hyper_client::{ClientLimits, HyperClient};
use bowline_link::sandbox::Launcher;
use bowline_link::{ClientInfo, Instance, StdioLimits};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;

pub(crate) use self::children::{Ground, child_of};
pub use self::journal::fix as fix_of_journal;
use self::specs::specs_of;
use crate::audit::{self, Auditing};
use crate::config::{self, AuditExport, Config, Env};
use crate::edge::door::{Auth, Door};
use crate::edge::session::Sessions;
use crate::edge::{About, Edge, announce, listen};
use crate::manifests::FileManifests;
use crate::pins::FilePins;
use crate::reload::{self, Reloader};
use crate::secrets::store::Store;
use crate::secrets::{self, Sources};
use crate::state::{self, Lock, Run, State, Token};
use crate::telemetry::{Exporting, Secrets, Telemetry, Tracer};
use crate::tokens::Tokens;

/// Why a gateway could not be put together.
#[derive(Debug, Error)]
pub enum AssembleError {
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] state::Error),
    /// The audit trail cannot be kept.
    #[error(transparent)]
    Audit(#[from] audit::OpenError),
    /// An address cannot be served on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Authentication may be switched off on this machine only.
    #[error("--insecure-no-auth is refused: {0} can be reached from other machines")]
    Exposed(SocketAddr),
    /// Servers cannot be reached over TLS.
    #[error("cannot set up TLS")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// What remembers queued calls cannot be opened.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// The broker cannot be started.
    #[error("cannot start the broker")]
    Broker(#[source] JournalError),
    /// No thread for what starts servers.
    #[error("cannot start a thread")]
    Launcher(#[source] std::io::Error),
    /// Our own binary cannot be found, which children are started with.
    #[error("cannot find the path of this program")]
    OwnPath(#[source] std::io::Error),
}

/// A gateway that serves.
#[derive(Debug)]
pub struct Gateway {
    /// What others need to reach it.
    pub run: Run,
    edge: Arc<Edge>,
    state: State,
    stop: watch::Sender<bool>,
    exporting: Exporting,
    /// Closed when nobody uses it any more.
    journal: Arc<dyn Journal>,
    /// Held as long as the gateway runs.
    _lock: Lock,
}

/// Encrypts a secret store that an older version wrote in the clear.
fn seal_store(state: &State) {
    if let Err(error) = Store::of(state.path()).seal_plain(state) {
        // Servers that need it say so themselves; all others are served.
        let error = &error as &dyn std::error::Error;
        tracing::warn!(error, "secret store not encrypted");
    }
}

fn open_sessions(
    state: &State,
    accounts: &PrincipalAccounts,
    unix_ms: u64,
) -> Result<Arc<Sessions>, AssembleError> {
    let sessions = Sessions::new(&state.session_key()?).with_accounts(accounts.clone());
    let sessions = sessions.keep_contexts(state)?;
    Ok(Arc::new(sessions.keep_ended(state, unix_ms)?))
}

/// Returns what turns a configuration into servers, and knows their secrets from then on.
fn translator(
    ground: Ground,
    env: Env,
    token: Token,
    (secrets, results): (Secrets, Arc<ResultSecrets>),
) -> impl Fn(&Config) -> Vec<ServerSpec> + Send + Sync + 'static {
    move |config: &Config| {
        let specs = specs_of(config, &ground, &env, (&secrets, &results));
        config.sources.vault().watch(&config.watched);
        keep_secrets((&secrets, &results), &token, config, &specs);
        specs
    }
}

/// Hides a new owner token as the first one is hidden, in logs and in results.
fn follow_owner_token(
    door: Door,
    state: &State,
    (secrets, results): (Secrets, Arc<ResultSecrets>),
) -> Door {
    door.with_owner_file(state.token_file(), move |token| {
        secrets.learn("owner token", token);
        results.learn("owner token", token);
    })
}

fn dialled_executors(
    tasks: &Tasks,
    clock: &Arc<dyn Clock>,
    config: &Config,
    secrets: &Secrets,
) -> Executors {
    let options = ExecutorsOptions::default();
    let executors = Executors::new(tasks.clone(), Arc::clone(clock), options);
    executors::dial(&executors, &config.executors, secrets);
    executors
}

/// Starts the broker, and brings back what workers offered.
async fn start_hub(
    host: &Host,
    config: &Config,
    tokens: &Arc<Tokens>,
    telemetry: &Telemetry,
) -> Result<Hub, AssembleError> {
    let tracer = telemetry.traced().tracer;
    let hub = broker::start(host, &config.broker, tokens, tracer).map_err(AssembleError::Broker)?;
    broker::restore(&hub, &config.policy).await;
    Ok(hub)
}

/// Sends rows of the trail elsewhere, where the configuration says so.
fn ship_audit(
    edge: &Arc<Edge>,
    (export, telemetry): (Option<AuditExport>, config::Telemetry),
    stopped: watch::Receiver<bool>,
) -> Result<(), AssembleError> {
    if let Some(to) = export {
        let auditing = edge.about.audit.clone();
        let shipping = auditing.ship(to, telemetry, http_client()?, stopped);
        edge.host.tasks().spawn("audit export", shipping);
    }
    Ok(())
}

impl Gateway {
    /// Joins the rooms and begins to serve; servers start in the background.
    pub async fn start(
        config: Config,
        state: State,
        auth: Auth,
        env: &Env,
        telemetry: Telemetry,
    ) -> Result<Self, AssembleError> {
        check_exposure(&config, auth)?;
        let lock = state.lock()?;
        let token = state.token()?;
        seal_store(&state);
        let journal = journal::open(config.journal, &state)?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let tokens = Arc::new(Tokens::open(&state, Arc::clone(&clock))?);
        let accounts = PrincipalAccounts::new(config.limits.shares);
        let sessions = open_sessions(&state, &accounts, clock.unix_ms())?;
        let listeners = bind(config.addresses()).await?;
        let url = url_of(&listeners);
        let run = run_of(&url, &state, clock.unix_ms());
        // Found once: after an update the path may lead to another program.
        let own = std::env::current_exe().map_err(AssembleError::OwnPath)?;
        let ground = Ground::new(own, state.path());
        let landlock_abi = ground.landlock_abi();
        let hiding = (telemetry.secrets.clone(), Arc::default());
        let translate = translator(ground, env.clone(), token.clone(), hiding.clone());
        let specs = translate(&config);
        let auditing = Auditing::open(&state, config.audit, &clock, &telemetry.secrets)?
            .exporting(config.audit_export.as_ref());
        let export = (config.audit_export.clone(), config.telemetry.clone());
        let doors = Doors {
            clock,
            audience: Arc::clone(&sessions),
            accounts,
            journal: Arc::clone(&journal),
            audit: auditing.port(),
            keys: KeyScope::derived(&state.session_key()?),
        };
        let tasks = Tasks::default();
        let executors = dialled_executors(&tasks, &doors.clock, &config, &telemetry.secrets);
        let processes = (launcher(&listeners)?, begin_instance(&state).await?);
        let host = (doors, &executors, tasks, processes);
        let host = start_host(specs, config.limits, &state, host)?;
        executors.report_to(host.events().clone());
        host.set_policy(config.policy.policy());
        host.narrow_credentials(tokens.narrowings());
        let hub = start_hub(&host, &config, &tokens, &telemetry).await?;
        let about = about(url, &config, auditing, landlock_abi);
        let sources = config.sources.clone();
        let reloader = Reloader::new(&config, env, Box::new(translate))
            .dialling(executors.clone(), telemetry.secrets.clone());
        let door = follow_owner_token(Door::new(auth, token.expose()), &state, hiding)
            .with_tokens(tokens)
            .with_names(config.names);
        let edge = Edge::new(
            door,
            sessions,
            (host, hub, executors),
            about,
            reloader,
            telemetry.traced(),
            config.connections,
        );
        let (stop, stopped) = watch::channel(false);
        serve(&edge, listeners, sources, &stopped);
        ship_audit(&edge, export, stopped)?;
        let exporting = telemetry.export(http_client()?, edge.host.tasks());
        state.write_run(&run)?;
        Ok(Self {
            run,
            edge,
            state,
            stop,
            exporting,
            journal,
            _lock: lock,
        })
    }

    /// Returns what decides where calls stand in traces.
    pub(crate) fn tracer(&self) -> Tracer {
        self.edge.traces.tracer
    }

    /// Returns the host, for those who run a gateway inside their own program.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.edge.host
    }

    /// Returns what remembers, for what else serves beside it.
    #[must_use]
    pub fn journal(&self) -> &Arc<dyn Journal> {
        &self.journal
    }

    /// Returns what brings a changed config file into force.
    #[must_use]
    pub fn reloader(&self) -> &Reloader {
        &self.edge.reloader
    }

    /// Takes no more requests, stops every server, and takes the record of this gateway back.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        self.edge.sessions.close_streams();
        // Peers are told while what they asked for can still end.
        self.edge.hub.close().await;
        self.edge.host.shutdown().await;
        // Servers that run there were stopped in order.
        self.edge.executors.close();
        self.edge.about.audit.close(&self.edge.host).await;
        self.exporting.finish().await;
        // Last of all: whoever comes before may still have something to remember.
        self.journal.close().await;
        if let Err(error) = self.state.remove_run() {
            tracing::warn!(error = &error as &dyn std::error::Error, "run.json stays");
        }
    }
}

/// Without authentication, only this machine may reach the gateway.
fn check_exposure(config: &Config, auth: Auth) -> Result<(), AssembleError> {
    let exposed = config.addresses().iter().find(|at| !at.ip().is_loopback());
    match (auth, exposed) {
        (Auth::NotForMcp, Some(exposed)) => Err(AssembleError::Exposed(*exposed)),
        _ => Ok(()),
    }
}

fn about(url: String, config: &Config, audit: Auditing, landlock_abi: u32) -> About {
    About {
        url,
        config: config.path.as_ref().map(|path| path.display().to_string()),
        journal: config.journal.as_str(),
        landlock_abi,
        audit,
    }
}

/// Returns what others need to reach a gateway.
fn run_of(url: &str, state: &State, started_at_ms: u64) -> Run {
    Run {
        v: 1,
        pid: std::process::id(),
        started_at_ms,
        url: url.to_owned(),
        mcp: format!("{url}/mcp"),
        token_file: state.token_file(),
    }
}

/// Starts everything that serves, and what follows changes from outside.
fn serve(
    edge: &Arc<Edge>,
    listeners: Vec<TcpListener>,
    sources: Sources,
    stopped: &watch::Receiver<bool>,
) {
    let tasks = edge.host.tasks();
    for listener in listeners {
        let serving = listen::serve(Arc::clone(edge), listener, stopped.clone());
        tasks.spawn("listener", serving);
    }
    let announcer = announce::run(Arc::clone(edge), stopped.clone());
    tasks.spawn("announcer", announcer);
    let auditing = edge.about.audit.clone();
    tasks.spawn("denials", auditing.sweep(stopped.clone()));
    let follower = secrets::follow::follow(Arc::clone(edge), sources, stopped.clone());
    tasks.spawn("secrets", follower);
    tasks.spawn("config", reload::follow(Arc::clone(edge), stopped.clone()));
}

/// Takes every address, or none.
async fn bind(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, AssembleError> {
    let mut listeners = Vec::new();
    for &address in addresses {
        let bound = TcpListener::bind(address).await;
        listeners.push(bound.map_err(|source| AssembleError::Listen { address, source })?);
    }
    Ok(listeners)
}

/// What the host is given of what was opened before it.
struct Doors {
    clock: Arc<dyn Clock>,
    audience: Arc<Sessions>,
    accounts: PrincipalAccounts,
    journal: Arc<dyn Journal>,
    audit: Arc<dyn Audit>,
    /// Servers see the same idempotency keys after a restart.
    keys: KeyScope,
}

/// What a host needs beside its servers and the state directory.
type Found<'a> = (Doors, &'a Executors, Tasks, (Launcher, Instance));

/// Ends what a killed gateway left, before a server is started in its place.
async fn begin_instance(state: &State) -> Result<Instance, AssembleError> {
    let state = state.clone();
    let begun = tokio::task::spawn_blocking(move || state.begin_instance()).await;
    let begun = begun.map_err(|error| AssembleError::Launcher(std::io::Error::other(error)))?;
    Ok(begun?)
}

fn start_host(
    specs: Vec<ServerSpec>,
    limits: HostLimits,
    state: &State,
    (doors, executors, tasks, (launcher, instance)): Found<'_>,
) -> Result<Host, AssembleError> {
    let client = ClientInfo {
        name: "bowline".into(),
        version: env!("CARGO_PKG_VERSION").into(),
    };
    let dial = RealDial {
        spawner: tasks.clone(),
        client,
        http: http_client()?,
        executors: executors.clone(),
        stdio_limits: StdioLimits::default(),
        http_limits: HttpLimits::default(),
        eras: Eras::default(),
        launcher: Some(launcher),
        instance: Some(instance),
    };
    let ports = Ports {
        dial: Arc::new(dial),
        clock: doors.clock,
        tasks,
        audience: doors.audience,
        manifests: Arc::new(FileManifests::open(state)?),
        pins: Arc::new(FilePins::open(state)?),
        journal: doors.journal,
        audit: doors.audit,
        keys: doors.keys,
    };
    Ok(Host::start_with(specs, limits, ports, doors.accounts))
}

/// Returns what starts servers that cannot connect to our own ports.
fn launcher(listeners: &[TcpListener]) -> Result<Launcher, AssembleError> {
    let addresses = listeners.iter().filter_map(|one| one.local_addr().ok());
    let ports: Vec<u16> = addresses.map(|address| address.port()).collect();
    Launcher::new(ports).map_err(AssembleError::Launcher)
}

/// Keeps our own token and the secrets of these servers out of logs, traces and results from now
/// on.
fn keep_secrets(
    (secrets, results): (&Secrets, &ResultSecrets),
    token: &Token,
    config: &Config,
    servers: &[ServerSpec],
) {
    let own = ("owner token", token.expose());
    let known = config.servers.iter().flat_map(|one| one.secrets.known());
    results.replace(known.chain([own]));
    let theirs = servers.iter().map(|server| &*server.secrets);
    let token = Redactor::new([own]);
    secrets.replace(Redactor::union(theirs.chain([&token])));
}

/// Returns what carries requests to servers and to a collector.
fn http_client() -> Result<Arc<HyperClient>, AssembleError> {
    let client = HyperClient::new(ClientLimits::default());
    let client = client.map_err(|error| AssembleError::Tls(Box::new(error)))?;
    Ok(Arc::new(client))
}

/// Returns the address people are told; one that means "all" is told as this machine's own.
fn url_of(listeners: &[TcpListener]) -> String {
    let address = listeners.first().and_then(|first| first.local_addr().ok());
    let Some(mut address) = address else {
        return String::new();
    };
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    format!("http://{address}")
}
