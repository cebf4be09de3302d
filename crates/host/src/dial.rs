//! Connects to real servers: child processes and HTTP.

use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::client_handle::ClientHandle;
use bowline_core::era::{Era, EraSetting};
use bowline_link::http::http_client::HttpClient;
use bowline_link::http::{self, HttpLimits, HttpSpec};
use bowline_link::sandbox::ReaperLauncher;
use bowline_link::stderr::StderrLog;
use bowline_link::stdio::{
    self, ClientInfo, EraNegotiation, LinkConnectError, ReaperCommand, StdioLimits, StdioOptions,
    StdioSpec,
};
use bowline_link::{GatewayInstance, LARGE_BYTES_MAX, LargeResponseLimits, LinkError};
use bowline_runtime::TaskSpawner;
use tokio::time::Instant;

mod era_cache;

use bowline_executor::ExecutorRegistry;

use crate::in_process_link;
use crate::spec::{ChildSpec, ExecutorProcessSpec, RemoteSpec, ServerSpec, ServerTransport};
use crate::supervisor::{Dial, DialedLink};

pub use era_cache::EraCache;

/// Starts child processes over stdio, and connects to HTTP servers.
#[derive(Debug)]
pub struct RealDial<S> {
    /// Spawns the tasks of links.
    pub spawner: S,
    /// Client name and version sent to servers.
    pub client: ClientInfo,
    /// HTTP client for direct requests.
    pub http: Arc<dyn HttpClient>,
    /// Executors for indirect requests.
    pub executors: ExecutorRegistry,
    /// Limits of stdio links.
    pub stdio_limits: StdioLimits,
    /// Limits of HTTP links.
    pub http_limits: HttpLimits,
    /// Eras spoken by servers.
    pub eras: EraCache,
    /// Starts children without access to the gateway's ports; `None` without ports.
    pub launcher: Option<ReaperLauncher>,
    /// Identifies this run in all children; `None` if no later run looks for leftovers.
    pub instance: Option<GatewayInstance>,
}

/// Additional requests in flight besides calls: lists, pings, subscriptions, log levels.
const EXTRA_REQUESTS_MAX: usize = 64;

/// Returns the request limit of a link, which must exceed the server's call limit.
fn in_flight_max(limit: usize, spec: &ServerSpec) -> usize {
    limit.max(spec.calls_max.saturating_add(EXTRA_REQUESTS_MAX))
}

/// One attempt to connect.
struct DialAttempt {
    /// The session that owns the link; `None` for a shared link.
    owner: Option<Arc<dyn ClientHandle>>,
    negotiation: EraNegotiation,
    deadline: Instant,
}

impl<S: TaskSpawner> RealDial<S> {
    async fn connect(
        &self,
        spec: &ServerSpec,
        log: &Arc<StderrLog>,
        attempt: DialAttempt,
    ) -> Result<DialedLink, LinkConnectError> {
        match &spec.transport {
            ServerTransport::Child(child) => {
                let log = Arc::clone(log);
                self.connect_child(spec, child, log, attempt).await
            }
            ServerTransport::Executor(placed) => {
                let log = Arc::clone(log);
                self.connect_executor_process(spec, placed, log, attempt)
                    .await
            }
            ServerTransport::Remote(remote) => self.connect_http(spec, remote, attempt).await,
            ServerTransport::InProcess(inside) => Ok(in_process_link::connect_in_process(inside)),
            // The host connects peers, because it has a clock.
            ServerTransport::Peer(peer) => Err(LinkConnectError::Refused {
                server: Arc::clone(&spec.name),
                source: LinkError::Unreachable(format!("{} is away", peer.display_target()).into()),
            }),
        }
    }

    async fn connect_child(
        &self,
        server: &ServerSpec,
        child: &ChildSpec,
        log: Arc<StderrLog>,
        attempt: DialAttempt,
    ) -> Result<DialedLink, LinkConnectError> {
        let reaper = child.reaper.clone();
        let spec = StdioSpec {
            server: Arc::clone(&server.name),
            command: child.command.clone(),
            args: child.args.clone(),
            env: child.env.clone(),
            cwd: child.cwd.clone(),
            reaper: reaper.map(|(program, args)| ReaperCommand { program, args }),
            child_limits: child.limits,
            sandbox: child.sandbox.clone(),
            launcher: self.launcher.clone(),
            instance: self.instance.clone(),
            owner: attempt.owner,
            negotiation: attempt.negotiation,
            limits: self.stdio_limits(server),
        };
        let (client, deadline) = (self.client.clone(), attempt.deadline);
        stdio::connect(&spec, log, client, deadline, &self.spawner).await
    }

    async fn connect_executor_process(
        &self,
        server: &ServerSpec,
        placed: &ExecutorProcessSpec,
        log: Arc<StderrLog>,
        attempt: DialAttempt,
    ) -> Result<DialedLink, LinkConnectError> {
        let options = StdioOptions {
            server: Arc::clone(&server.name),
            owner: attempt.owner,
            negotiation: attempt.negotiation,
            limits: self.stdio_limits(server),
        };
        let deadline = attempt.deadline;
        let (process_spawner, client) = (
            self.executors.spawner(&placed.executor, &placed.server),
            self.client.clone(),
        );
        stdio::connect_process(
            &process_spawner,
            &options,
            log,
            client,
            deadline,
            &self.spawner,
        )
        .await
    }

    fn stdio_limits(&self, server: &ServerSpec) -> StdioLimits {
        StdioLimits {
            in_flight_max: in_flight_max(self.stdio_limits.in_flight_max, server),
            large: large_limits(server),
            ..self.stdio_limits
        }
    }

    async fn connect_http(
        &self,
        server: &ServerSpec,
        remote: &RemoteSpec,
        attempt: DialAttempt,
    ) -> Result<DialedLink, LinkConnectError> {
        // Support for a second era is detected at run time.
        let speaks = match attempt.negotiation {
            EraNegotiation::Remembered(Era::Legacy) => EraSetting::Only(Era::Legacy),
            _ => server.era,
        };
        let spec = HttpSpec {
            server: Arc::clone(&server.name),
            url: remote.url.clone(),
            transport: remote.transport,
            credentials: Arc::clone(&remote.credentials),
            era_setting: speaks,
            owner: attempt.owner,
            limits: HttpLimits {
                in_flight_max: in_flight_max(self.http_limits.in_flight_max, server),
                large: large_limits(server),
                ..self.http_limits
            },
        };
        let client = match &remote.via {
            None => Arc::clone(&self.http),
            Some(via) => {
                let fills = via.fills.clone();
                self.executors
                    .http_client(&via.executor, &server.name, fills)
            }
        };
        let (info, deadline) = (self.client.clone(), attempt.deadline);
        http::connect(&spec, client, info, deadline, &self.spawner).await
    }
}

/// Returns the response size limits of a server: results over the content limit are stored.
const fn large_limits(server: &ServerSpec) -> LargeResponseLimits {
    LargeResponseLimits {
        list_bytes_max: LARGE_BYTES_MAX,
        result_bytes_max: LARGE_BYTES_MAX,
        content_bytes_max: server.result_max,
    }
}

impl<S: TaskSpawner + std::fmt::Debug> Dial for RealDial<S> {
    fn dial<'a>(
        &'a self,
        spec: &'a ServerSpec,
        log: &'a Arc<StderrLog>,
        owner: Option<Arc<dyn ClientHandle>>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<DialedLink, LinkConnectError>> {
        Box::pin(async move {
            let mut opening = self.eras.opening(spec);
            loop {
                let attempt = DialAttempt {
                    owner: owner.clone(),
                    negotiation: opening,
                    deadline,
                };
                let dialled = self.connect(spec, log, attempt).await;
                match self.eras.record_handshake(spec, opening, &dialled) {
                    Some(other) => opening = other,
                    None => return dialled,
                }
            }
        })
    }

    fn restore_era(&self, spec: &ServerSpec, era: Era) {
        self.eras.restore(spec, era);
    }

    fn wait_reachable<'a>(&'a self, spec: &'a ServerSpec) -> BoxFuture<'a, ()> {
        Box::pin(async {
            match spec.transport.executor() {
                Some(executor) => self.executors.wait_reconnected(executor).await,
                None => std::future::pending().await,
            }
        })
    }

    fn is_unreachable(&self, spec: &ServerSpec) -> bool {
        let via = spec.transport.executor();
        via.is_some_and(|executor| !self.executors.is_connected(executor))
    }
}

#[cfg(test)]
mod tests;
