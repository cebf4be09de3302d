//! Assembles a gateway from its components. This file shows how the whole product fits together.

mod children;
mod credential_headers;
pub(crate) mod dial_executors;
mod gateway_redactors;
mod open_journal;
mod specs;
pub(crate) mod start_broker;
mod start_host;

use std::net::SocketAddr;
use std::sync::Arc;

use bowline_core::lane::KeyScope;
use bowline_host::Host;
use bowline_host::accounts::PrincipalAccounts;
use bowline_host::broker::Hub;
use bowline_host::executor::{ExecutorRegistry, ExecutorRegistryOptions};
use bowline_host::spec::ServerSpec;
use bowline_journal::sqlite::JournalOpenError;
use bowline_journal::{Journal, JournalError};
use bowline_link::http::http1::{Http1Client, HttpClientLimits};
use bowline_runtime::{Clock, Lifecycle, Shutdown, SystemClock, TaskTracker};
use thiserror::Error;
use tokio::net::TcpListener;

pub(crate) use self::children::{ChildDefaults, ChildSpecContext, build_child_spec};
use self::gateway_redactors::GatewayRedactors;
pub use self::open_journal::suggest_fix as fix_of_journal;
use self::specs::build_server_specs;
use self::start_host::{HostDeps, begin_instance, create_launcher, start_host};
use crate::audit_export;
use crate::telemetry::{LogRedactor, SpanExportTask, Telemetry};
use bowline_config::reload::{ExecutorDialer, Reloader, watch_config_file};
use bowline_config::secrets::SecretSources;
use bowline_config::secrets::secret_store::SecretStore;
use bowline_config::secrets::secret_watch::watch_secrets;
use bowline_config::state::{self, InstanceLock, OwnerCredential, RunRecord, StateDir};
use bowline_config::{AuditExportConfig, Config, EnvVars};
use bowline_edge::{
    Announcer, AuditOpenError, AuthMode, Authenticator, CallTracer, ClientSessions, Edge, EdgeDeps,
    GatewayAudit, GatewayInfo, HttpListener, TokenStore,
};

/// Reason why a gateway failed to start.
#[derive(Debug, Error)]
pub enum AssembleError {
    /// The state directory is unusable.
    #[error(transparent)]
    State(#[from] state::StateError),
    /// The audit trail is unusable.
    #[error(transparent)]
    Audit(#[from] AuditOpenError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// Authentication may be off only while the gateway listens on loopback addresses.
    #[error("--insecure-no-auth is refused: {0} can be reached from other machines")]
    Exposed(SocketAddr),
    /// TLS for upstream servers cannot be set up.
    #[error("cannot set up TLS")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The journal of queued calls cannot be opened.
    #[error(transparent)]
    Journal(#[from] JournalOpenError),
    /// The broker cannot be started.
    #[error("cannot start the broker")]
    Broker(#[source] JournalError),
    /// The thread that starts servers cannot be created.
    #[error("cannot start a thread")]
    Launcher(#[source] std::io::Error),
    /// The path of the `bowline` binary, needed to start children, cannot be found.
    #[error("cannot find the path of this program")]
    OwnPath(#[source] std::io::Error),
}

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    /// The contents of `run.json`: how other processes reach the gateway.
    pub run: RunRecord,
    edge: Arc<Edge>,
    state: StateDir,
    /// Closes the services.
    lifecycle: Lifecycle,
    span_export: SpanExportTask,
    /// Closed last, when no component uses the journal any more.
    journal: Arc<dyn Journal>,
    /// Held for the lifetime of the gateway.
    _lock: InstanceLock,
}

/// Encrypts a secret store written in the clear by an older version.
fn seal_store(state: &StateDir) {
    if let Err(error) = SecretStore::in_directory(state.path()).encrypt_plain_store(state) {
        // Servers that need the store report the error themselves; all other servers run.
        let error = &error as &dyn std::error::Error;
        tracing::warn!(error, "secret store not encrypted");
    }
}

/// Resolves the path of this program once: after an update the path may lead to a different
/// program.
fn find_child_defaults(state: &StateDir) -> Result<ChildDefaults, AssembleError> {
    let own_path = std::env::current_exe().map_err(AssembleError::OwnPath)?;
    Ok(ChildDefaults::new(own_path, state.path()))
}

/// Stores opened from the state directory, with the clock and the accounts that sessions and
/// tokens need.
struct GatewayStores {
    /// Queued calls and broker messages.
    journal: Arc<dyn Journal>,
    /// The clock of every component.
    clock: Arc<dyn Clock>,
    /// Tokens of principals other than the owner.
    tokens: Arc<TokenStore>,
    /// Resource accounts per principal.
    accounts: PrincipalAccounts,
    /// Sessions of legacy clients.
    sessions: Arc<ClientSessions>,
}

impl GatewayStores {
    fn open(config: &Config, state: &StateDir) -> Result<Self, AssembleError> {
        let journal = open_journal::open_journal(config.journal, state)?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let tokens = Arc::new(TokenStore::open(state, Arc::clone(&clock))?);
        let accounts = PrincipalAccounts::new(config.limits.shares);
        let sessions = open_sessions(state, &accounts, clock.unix_ms())?;
        Ok(Self {
            journal,
            clock,
            tokens,
            accounts,
            sessions,
        })
    }
}

fn open_sessions(
    state: &StateDir,
    accounts: &PrincipalAccounts,
    unix_ms: u64,
) -> Result<Arc<ClientSessions>, AssembleError> {
    let sessions = ClientSessions::new(&state.session_key()?).with_accounts(accounts.clone());
    let sessions = sessions.with_contexts_file(state)?;
    Ok(Arc::new(sessions.with_ended_file(state, unix_ms)?))
}

/// Returns the function that translates a configuration into server specs and registers the
/// configuration's secrets for redaction.
fn make_spec_translator(
    child_defaults: ChildDefaults,
    env: &EnvVars,
    token: &OwnerCredential,
    redactors: &GatewayRedactors,
) -> impl Fn(&Config) -> Vec<ServerSpec> + Send + Sync + use<> {
    let (env, token, redactors) = (env.clone(), token.clone(), redactors.clone());
    move |config: &Config| {
        let specs = build_server_specs(config, &child_defaults, &env, &redactors);
        config
            .secrets
            .vault()
            .watch_templates(&config.watched_templates);
        redactors.redact_secrets(&token, config, &specs);
        specs
    }
}

fn dial_configured_executors(
    tasks: &TaskTracker,
    clock: &Arc<dyn Clock>,
    config: &Config,
    secrets: &LogRedactor,
) -> ExecutorRegistry {
    let options = ExecutorRegistryOptions::default();
    let executors = ExecutorRegistry::new(tasks.clone(), Arc::clone(clock), options);
    dial_executors::dial_executors(&executors, &config.executors, secrets);
    executors
}

/// Dials the executors of a reloaded configuration.
fn executor_dialer(executors: ExecutorRegistry, secrets: LogRedactor) -> Box<ExecutorDialer> {
    Box::new(move |configs| dial_executors::dial_executors(&executors, configs, &secrets))
}

/// Starts the broker and restores the servers offered by workers.
async fn start_hub(
    host: &Host,
    config: &Config,
    tokens: &Arc<TokenStore>,
    telemetry: &Telemetry,
) -> Result<Hub, AssembleError> {
    let tracer = telemetry.edge_tracing().tracer;
    let hub = start_broker::start_hub(host, &config.broker, tokens, tracer)
        .map_err(AssembleError::Broker)?;
    start_broker::restore_offers(&hub, &config.policy).await;
    Ok(hub)
}

/// Opens the audit trail, whose rows are written without secrets.
fn open_audit(
    state: &StateDir,
    config: bowline_config::AuditConfig,
    clock: &Arc<dyn Clock>,
    secrets: &LogRedactor,
) -> Result<GatewayAudit, AuditOpenError> {
    GatewayAudit::open(state, config, clock, &secrets.to_redact_fn())
}

/// Starts shipping audit rows to the configured export target, if any.
fn start_audit_export(
    edge: &Arc<Edge>,
    export: Option<AuditExportConfig>,
    telemetry: bowline_config::TelemetryConfig,
    shutdown: &Shutdown,
) -> Result<(), AssembleError> {
    if let Some(to) = export {
        let audit = edge.info.audit.clone();
        let http = create_http_client()?;
        let export_task = audit_export::export_rows(audit, to, telemetry, http, shutdown.clone());
        edge.host.tasks().spawn("audit export", export_task);
    }
    Ok(())
}

impl Gateway {
    /// Assembles the components and starts to serve; servers start in the background.
    pub async fn start(
        config: Config,
        state: StateDir,
        auth: AuthMode,
        env: &EnvVars,
        telemetry: Telemetry,
    ) -> Result<Self, AssembleError> {
        check_exposure(&config, auth)?;
        let lock = state.lock_gateway()?;
        let token = state.owner_token()?;
        seal_store(&state);
        let stores = GatewayStores::open(&config, &state)?;
        let listeners = bind_listeners(config.listen_addresses()).await?;
        let url = display_url(&listeners);
        let run = build_run_record(&url, &state, stores.clock.unix_ms());
        let child_defaults = find_child_defaults(&state)?;
        let landlock_abi = child_defaults.landlock_abi();
        let redactors = GatewayRedactors::new(telemetry.redactor.clone());
        let translate = make_spec_translator(child_defaults, env, &token, &redactors);
        let specs = translate(&config);
        let audit = open_audit(&state, config.audit, &stores.clock, &telemetry.redactor)?
            .with_export_counts(config.audit_export.as_ref());
        let key_scope = KeyScope::from_shared_secret(&state.session_key()?);
        let tasks = TaskTracker::default();
        let executors =
            dial_configured_executors(&tasks, &stores.clock, &config, &telemetry.redactor);
        let host_deps = HostDeps {
            clock: stores.clock,
            tasks,
            executors: executors.clone(),
            sessions: Arc::clone(&stores.sessions),
            accounts: stores.accounts,
            journal: Arc::clone(&stores.journal),
            audit: audit.audit_sink(),
            key_scope,
            launcher: create_launcher(&listeners)?,
            instance: begin_instance(&state).await?,
        };
        let host = start_host(specs, config.limits, &state, host_deps)?;
        executors.report_to(Arc::new(host.events().clone()));
        host.set_policy(config.policy.compile());
        host.restrict_credentials(stores.tokens.added_contexts());
        let hub = start_hub(&host, &config, &stores.tokens, &telemetry).await?;
        let info = build_about(url, &config, audit, landlock_abi);
        let dialer = executor_dialer(executors.clone(), telemetry.redactor.clone());
        let reloader = Reloader::new(&config, env, Box::new(translate)).with_executors(dialer);
        let authenticator = redactors
            .redact_rotated_owner_token(Authenticator::new(auth, token.expose()), &state)
            .with_tokens(stores.tokens)
            .with_names(config.names);
        let edge = Edge::new(EdgeDeps {
            authenticator,
            sessions: stores.sessions,
            host,
            hub,
            executors,
            info,
            reloader: Arc::new(reloader),
            call_tracing: telemetry.edge_tracing(),
            connections: config.connections,
        });
        let lifecycle = start_services(&edge, listeners, config.secrets);
        let shutdown = lifecycle.shutdown();
        start_audit_export(&edge, config.audit_export, config.telemetry, shutdown)?;
        let exporting = telemetry.start_export(create_http_client()?, edge.host.tasks());
        state.write_run(&run)?;
        Ok(Self {
            run,
            edge,
            state,
            lifecycle,
            span_export: exporting,
            journal: stores.journal,
            _lock: lock,
        })
    }

    /// Returns the tracer that decides how calls appear in traces.
    pub(crate) fn tracer(&self) -> CallTracer {
        self.edge.call_tracing.tracer
    }

    /// Returns the host, for programs that embed a gateway.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.edge.host
    }

    /// Returns the journal, for services that run beside the gateway.
    #[must_use]
    pub fn journal(&self) -> &Arc<dyn Journal> {
        &self.journal
    }

    /// Returns the reloader of the config file.
    #[must_use]
    pub fn reloader(&self) -> &Reloader {
        &self.edge.reloader
    }

    /// Stops accepting requests, stops every server and removes `run.json`.
    pub async fn stop(self) {
        self.lifecycle.close();
        self.edge.sessions.close_streams();
        // Peers hear of the end while their requests can still complete.
        self.edge.hub.close().await;
        self.edge.host.shutdown().await;
        // Servers on executors were stopped in order by the host.
        self.edge.executors.close();
        self.edge.info.audit.close(&self.edge.host).await;
        self.span_export.finish().await;
        // The journal closes last: every earlier step may still write to the journal.
        self.journal.close().await;
        if let Err(error) = self.state.remove_run() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "run.json was not removed"
            );
        }
    }
}

/// Checks that a gateway without authentication listens on loopback addresses only.
fn check_exposure(config: &Config, auth: AuthMode) -> Result<(), AssembleError> {
    let exposed = config
        .listen_addresses()
        .iter()
        .find(|at| !at.ip().is_loopback());
    match (auth, exposed) {
        (AuthMode::NotForMcp, Some(exposed)) => Err(AssembleError::Exposed(*exposed)),
        _ => Ok(()),
    }
}

fn build_about(
    url: String,
    config: &Config,
    audit: GatewayAudit,
    landlock_abi: u32,
) -> GatewayInfo {
    GatewayInfo {
        url,
        config: config.path.as_ref().map(|path| path.display().to_string()),
        journal: config.journal.as_str(),
        landlock_abi,
        audit,
    }
}

/// Builds the record written to `run.json`.
fn build_run_record(url: &str, state: &StateDir, started_at_ms: u64) -> RunRecord {
    RunRecord {
        v: 1,
        pid: std::process::id(),
        started_at_ms,
        url: url.to_owned(),
        mcp: format!("{url}/mcp"),
        token_file: state.token_file(),
    }
}

/// Starts the listeners and the tasks that watch for changes: announcer, audit, secrets, config.
fn start_services(
    edge: &Arc<Edge>,
    listeners: Vec<TcpListener>,
    sources: SecretSources,
) -> Lifecycle {
    let lifecycle = Lifecycle::default();
    let shutdown = lifecycle.shutdown();
    let tasks = edge.host.tasks();
    for listener in listeners {
        let edge = Arc::clone(edge);
        tasks.start(HttpListener { edge, listener }, shutdown);
    }
    tasks.start(Announcer(Arc::clone(edge)), shutdown);
    let audit = edge.info.audit.clone();
    tasks.spawn("denials", audit.write_counted_denials(shutdown.clone()));
    let (reloader, host) = (&edge.reloader, &edge.host);
    let secret_watcher = watch_secrets(
        Arc::clone(reloader),
        host.clone(),
        sources,
        shutdown.clone(),
    );
    tasks.spawn("secrets", secret_watcher);
    tasks.spawn(
        "config",
        watch_config_file(Arc::clone(reloader), host.clone(), shutdown.clone()),
    );
    lifecycle
}

/// Binds every address, or fails.
async fn bind_listeners(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, AssembleError> {
    let mut listeners = Vec::new();
    for &address in addresses {
        let bound = TcpListener::bind(address).await;
        listeners.push(bound.map_err(|source| AssembleError::Listen { address, source })?);
    }
    Ok(listeners)
}

/// Creates the HTTP client for servers and collectors.
fn create_http_client() -> Result<Arc<Http1Client>, AssembleError> {
    let client = Http1Client::new(HttpClientLimits::default());
    let client = client.map_err(|error| AssembleError::Tls(Box::new(error)))?;
    Ok(Arc::new(client))
}

/// Returns the URL shown to people; an unspecified address is shown as loopback.
fn display_url(listeners: &[TcpListener]) -> String {
    let address = listeners.first().and_then(|first| first.local_addr().ok());
    let Some(mut address) = address else {
        return String::new();
    };
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    format!("http://{address}")
}
