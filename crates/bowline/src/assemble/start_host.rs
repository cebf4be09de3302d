//! Starts the host of a gateway: its ports, and the dial that starts and reaches servers.

use std::sync::Arc;

use bowline_core::lane::KeyScope;
use bowline_host::accounts::PrincipalAccounts;
use bowline_host::audit::AuditSink;
use bowline_host::dial::{EraCache, ExecutorDial, HttpDial, RealDial};
use bowline_host::executor::ExecutorRegistry;
use bowline_host::spec::ServerSpec;
use bowline_host::{Host, HostLimits, HostPorts};
use bowline_journal::Journal;
use bowline_link::http::HttpLimits;
use bowline_link::sandbox::ReaperLauncher;
use bowline_link::{ClientInfo, GatewayInstance, StdioLimits};
use bowline_runtime::{Clock, TaskTracker};
use tokio::net::TcpListener;

use super::{AssembleError, create_http_client};
use crate::file_pins::FilePins;
use crate::manifests::FileManifests;
use bowline_config::state::StateDir;
use bowline_edge::ClientSessions;

/// Components that exist before the host and that the host depends on.
pub(super) struct HostDeps {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) tasks: TaskTracker,
    pub(super) executors: ExecutorRegistry,
    pub(super) sessions: Arc<ClientSessions>,
    pub(super) accounts: PrincipalAccounts,
    pub(super) journal: Arc<dyn Journal>,
    pub(super) audit: Arc<dyn AuditSink>,
    /// Derived from the session key, so servers see the same idempotency keys after a restart.
    pub(super) key_scope: KeyScope,
    /// Starts the processes of servers.
    pub(super) launcher: ReaperLauncher,
    /// Marks the processes of this gateway.
    pub(super) instance: GatewayInstance,
}

/// Starts the host; servers start in the background.
pub(super) fn start_host(
    specs: Vec<ServerSpec>,
    limits: HostLimits,
    state: &StateDir,
    host_deps: HostDeps,
) -> Result<Host, AssembleError> {
    let client = ClientInfo {
        name: "bowline".into(),
        version: env!("CARGO_PKG_VERSION").into(),
    };
    let dial = RealDial {
        tasks: host_deps.tasks.clone(),
        client,
        http: Some(Arc::new(HttpDial {
            client: create_http_client()?,
            limits: HttpLimits::default(),
        })),
        executors: Some(Arc::new(ExecutorDial::new(host_deps.executors))),
        stdio_limits: StdioLimits::default(),
        eras: EraCache::default(),
        launcher: Some(host_deps.launcher),
        instance: Some(host_deps.instance),
    };
    let ports = HostPorts {
        dial: Arc::new(dial),
        clock: host_deps.clock,
        tasks: host_deps.tasks,
        notifications: host_deps.sessions,
        manifests: Arc::new(FileManifests::open(state)?),
        pins: Arc::new(FilePins::open(state)?),
        journal: host_deps.journal,
        audit: host_deps.audit,
        keys: host_deps.key_scope,
    };
    Ok(Host::start_with_accounts(
        specs,
        limits,
        ports,
        host_deps.accounts,
    ))
}

/// Ends processes left by a killed gateway before new servers start.
pub(super) async fn begin_instance(state: &StateDir) -> Result<GatewayInstance, AssembleError> {
    let state = state.clone();
    let instance = tokio::task::spawn_blocking(move || state.begin_instance()).await;
    let instance =
        instance.map_err(|error| AssembleError::Launcher(std::io::Error::other(error)))?;
    Ok(instance?)
}

/// Creates the launcher, which keeps servers from connecting to the gateway's own ports.
pub(super) fn create_launcher(listeners: &[TcpListener]) -> Result<ReaperLauncher, AssembleError> {
    let addresses = listeners
        .iter()
        .filter_map(|listener| listener.local_addr().ok());
    let ports: Vec<u16> = addresses.map(|address| address.port()).collect();
    ReaperLauncher::new(ports).map_err(AssembleError::Launcher)
}
