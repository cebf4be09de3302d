//! Connects to real servers: child processes, and with the features `http` and `executor` servers
//! over HTTP and in other networks.

use std::fmt;
use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::client_handle::ClientHandle;
use bowline_core::era::Era;
use bowline_link::sandbox::ReaperLauncher;
use bowline_link::stderr::StderrLog;
use bowline_link::stdio::{
    self, ClientInfo, EraNegotiation, LinkConnectError, ReaperCommand, StdioLimits, StdioSpec,
};
use bowline_link::{GatewayInstance, LARGE_BYTES_MAX, LargeResponseLimits, LinkError};
use bowline_runtime::TaskTracker;
use thiserror::Error;
use tokio::time::Instant;

mod era_cache;
#[cfg(feature = "executor")]
mod executor_dial;
#[cfg(feature = "http")]
mod http_dial;

use crate::in_process_link;
use crate::spec::{ChildSpec, ServerSpec, ServerTransport};
use crate::supervisor::{Dial, DialedLink};

pub use era_cache::EraCache;
#[cfg(feature = "executor")]
pub use executor_dial::ExecutorDial;
#[cfg(feature = "http")]
pub use http_dial::HttpDial;

/// A server needs a feature of this crate that the program was built without.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("server `{server}` needs the feature `{feature}` of bowline-host, which is not built in")]
pub struct MissingFeature {
    /// The server.
    pub server: Arc<str>,
    /// The feature.
    pub feature: &'static str,
}

/// Starts child processes over stdio, and connects to the servers of two optional transports.
#[derive(Debug)]
pub struct RealDial {
    /// Spawns the tasks of links.
    pub tasks: TaskTracker,
    /// Client name and version sent to servers.
    pub client: ClientInfo,
    /// Connects to servers over HTTP: [`HttpDial`]. `None` refuses such servers.
    pub http: Option<Arc<dyn TransportDial>>,
    /// Connects to servers through executors: [`ExecutorDial`]. `None` refuses such servers.
    pub executors: Option<Arc<dyn TransportDial>>,
    /// Limits of stdio links.
    pub stdio_limits: StdioLimits,
    /// Eras spoken by servers.
    pub eras: EraCache,
    /// Starts children without access to the gateway's ports; `None` without ports.
    pub launcher: Option<ReaperLauncher>,
    /// Identifies this run in all children; `None` if no later run looks for leftovers.
    pub instance: Option<GatewayInstance>,
}

/// Connects to the servers of one optional transport.
pub trait TransportDial: fmt::Debug + Send + Sync {
    /// Connects to the server of the attempt.
    fn connect<'a>(
        &'a self,
        attempt: DialAttempt<'a>,
    ) -> BoxFuture<'a, Result<DialedLink, LinkConnectError>>;

    /// Waits until the lost path to an executor is back.
    fn wait_reconnected<'a>(&'a self, executor: &'a str) -> BoxFuture<'a, ()> {
        let _unused = executor;
        Box::pin(std::future::pending())
    }

    /// True if the path to an executor is open.
    fn is_connected(&self, executor: &str) -> bool {
        let _unused = executor;
        true
    }
}

/// One attempt to connect.
#[derive(Debug)]
pub struct DialAttempt<'a> {
    /// The server.
    pub spec: &'a ServerSpec,
    /// Receives the server's standard error.
    pub log: &'a Arc<StderrLog>,
    /// The session that owns the link; `None` for a shared link.
    pub owner: Option<Arc<dyn ClientHandle>>,
    /// Which handshakes are tried.
    pub negotiation: EraNegotiation,
    /// When the attempt ends.
    pub deadline: Instant,
    /// The connector, with what all transports share.
    pub dial: &'a RealDial,
}

/// Additional requests in flight besides calls: lists, pings, subscriptions, log levels.
const EXTRA_REQUESTS_MAX: usize = 64;

/// Returns the request limit of a link, which must exceed the server's call limit.
fn in_flight_max(limit: usize, spec: &ServerSpec) -> usize {
    limit.max(spec.calls_max.saturating_add(EXTRA_REQUESTS_MAX))
}

impl RealDial {
    async fn connect(&self, attempt: DialAttempt<'_>) -> Result<DialedLink, LinkConnectError> {
        let spec = attempt.spec;
        let refused = |reason: String| LinkConnectError::Refused {
            server: Arc::clone(&spec.name),
            source: LinkError::Unreachable(reason.into()),
        };
        match &spec.transport {
            ServerTransport::Child(child) => self.connect_child(child, attempt).await,
            ServerTransport::Executor(_) | ServerTransport::Remote(_) => {
                match self.transport_dial(spec) {
                    Ok(transport) => transport.connect(attempt).await,
                    Err(missing) => Err(refused(missing.to_string())),
                }
            }
            ServerTransport::InProcess(inside) => Ok(in_process_link::connect_in_process(inside)),
            // The host connects peers, because it has a clock.
            ServerTransport::Peer(peer) => {
                Err(refused(format!("{} is away", peer.display_target())))
            }
        }
    }

    async fn connect_child(
        &self,
        child: &ChildSpec,
        attempt: DialAttempt<'_>,
    ) -> Result<DialedLink, LinkConnectError> {
        let reaper = child.reaper.clone();
        let spec = StdioSpec {
            server: Arc::clone(&attempt.spec.name),
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
            limits: self.stdio_limits(attempt.spec),
        };
        let (log, client) = (Arc::clone(attempt.log), self.client.clone());
        stdio::connect(&spec, log, client, attempt.deadline, &self.tasks).await
    }

    fn stdio_limits(&self, server: &ServerSpec) -> StdioLimits {
        StdioLimits {
            in_flight_max: in_flight_max(self.stdio_limits.in_flight_max, server),
            large: large_limits(server),
            ..self.stdio_limits
        }
    }

    /// Returns the connector to a server over HTTP or through an executor.
    fn transport_dial(&self, spec: &ServerSpec) -> Result<&dyn TransportDial, MissingFeature> {
        let (dial, feature) = match spec.transport.executor() {
            Some(_) => (&self.executors, "executor"),
            None => (&self.http, "http"),
        };
        dial.as_deref().ok_or_else(|| MissingFeature {
            server: Arc::clone(spec.display_name()),
            feature,
        })
    }

    /// Returns the executor of a server, with the connector that knows it.
    fn executor_of<'a>(&'a self, spec: &'a ServerSpec) -> Option<(&'a str, &'a dyn TransportDial)> {
        spec.transport.executor().zip(self.executors.as_deref())
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

impl Dial for RealDial {
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
                    spec,
                    log,
                    owner: owner.clone(),
                    negotiation: opening,
                    deadline,
                    dial: self,
                };
                let dialled = self.connect(attempt).await;
                match self.eras.record_handshake(spec, opening, &dialled) {
                    Some(other) => opening = other,
                    None => return dialled,
                }
            }
        })
    }

    fn check_transport(&self, spec: &ServerSpec) -> Result<(), MissingFeature> {
        match &spec.transport {
            ServerTransport::Executor(_) | ServerTransport::Remote(_) => {
                self.transport_dial(spec).map(|_| ())
            }
            ServerTransport::Child(_)
            | ServerTransport::InProcess(_)
            | ServerTransport::Peer(_) => Ok(()),
        }
    }

    fn restore_era(&self, spec: &ServerSpec, era: Era) {
        self.eras.restore(spec, era);
    }

    fn wait_reachable<'a>(&'a self, spec: &'a ServerSpec) -> BoxFuture<'a, ()> {
        match self.executor_of(spec) {
            Some((executor, dial)) => dial.wait_reconnected(executor),
            None => Box::pin(std::future::pending()),
        }
    }

    fn is_unreachable(&self, spec: &ServerSpec) -> bool {
        let via = self.executor_of(spec);
        via.is_some_and(|(executor, dial)| !dial.is_connected(executor))
    }
}

#[cfg(test)]
#[cfg(feature = "executor")]
mod tests;
