//! Connects to real servers: child processes, and addresses over HTTP.

use std::sync::Arc;

use bowline_core::caller::CallerEnd;
use bowline_core::era::{Era, Speaks};
use bowline_link::http::client::HttpClient;
use bowline_link::http::{self, HttpLimits, HttpSpec};
use bowline_link::sandbox::Launcher;
use bowline_link::stderr::StderrLog;
use bowline_link::stdio::{
    self, ClientInfo, ConnectError, Opening, Reaper, Seat, StdioLimits, StdioSpec,
};
use bowline_link::{BoxFuture, Instance, LARGE_BYTES_MAX, LargeLimits, Spawner};
use tokio::time::Instant;

mod eras;

use crate::broker::away;
use crate::executor::Executors;
use crate::inprocess;
use crate::spec::{ChildSpec, PlacedSpec, Reach, RemoteSpec, ServerSpec};
use crate::supervisor::{Dial, Dialled};

pub use eras::Eras;

/// Starts children and speaks with them over their standard streams, and reaches servers that
/// run elsewhere.
#[derive(Debug)]
pub struct RealDial<S> {
    /// Runs the tasks of links.
    pub spawner: S,
    /// How we present ourselves to servers.
    pub client: ClientInfo,
    /// Carries requests to servers that run elsewhere.
    pub http: Arc<dyn HttpClient>,
    /// Carries those that leave from somewhere else.
    pub executors: Executors,
    /// The bounds of links with children.
    pub stdio_limits: StdioLimits,
    /// The bounds of links over HTTP.
    pub http_limits: HttpLimits,
    /// How servers were found to speak.
    pub eras: Eras,
    /// Starts children to which our own ports are closed; absent where we have none.
    pub launcher: Option<Launcher>,
    /// The life of this program, which all its children carry as a mark; absent where nobody
    /// looks for what a former life left.
    pub instance: Option<Instance>,
}

/// Requests of our own that may wait beside calls: lists, pings, subscriptions, log levels.
const OWN_REQUESTS_MAX: usize = 64;

/// A link must take as many requests as its server may have calls.
fn in_flight_max(limit: usize, spec: &ServerSpec) -> usize {
    limit.max(spec.calls_max.saturating_add(OWN_REQUESTS_MAX))
}

impl<S: Spawner> RealDial<S> {
    async fn meet(
        &self,
        spec: &ServerSpec,
        log: &Arc<StderrLog>,
        whose: (Option<Arc<dyn CallerEnd>>, Opening),
        deadline: Instant,
    ) -> Result<Dialled, ConnectError> {
        match &spec.reach {
            Reach::Child(child) => {
                let log = Arc::clone(log);
                self.child(spec, child, log, whose, deadline).await
            }
            Reach::Placed(placed) => {
                let log = Arc::clone(log);
                self.placed(spec, placed, log, whose, deadline).await
            }
            Reach::Remote(remote) => self.remote(spec, remote, whose, deadline).await,
            Reach::InProcess(inside) => Ok(inprocess::connect(inside)),
            // Its host does that, which knows the time.
            Reach::Peer(peer) => Err(away(&spec.name, peer)),
        }
    }

    async fn child(
        &self,
        server: &ServerSpec,
        child: &ChildSpec,
        log: Arc<StderrLog>,
        (owner, opening): (Option<Arc<dyn CallerEnd>>, Opening),
        deadline: Instant,
    ) -> Result<Dialled, ConnectError> {
        let reaper = child.reaper.clone();
        let spec = StdioSpec {
            server: Arc::clone(&server.name),
            command: child.command.clone(),
            args: child.args.clone(),
            env: child.env.clone(),
            cwd: child.cwd.clone(),
            reaper: reaper.map(|(program, args)| Reaper { program, args }),
            child_limits: child.limits,
            sandbox: child.sandbox.clone(),
            launcher: self.launcher.clone(),
            instance: self.instance.clone(),
            owner,
            opening,
            limits: self.stdio_limits(server),
        };
        stdio::connect(&spec, log, self.client.clone(), deadline, &self.spawner).await
    }

    async fn placed(
        &self,
        server: &ServerSpec,
        placed: &PlacedSpec,
        log: Arc<StderrLog>,
        (owner, opening): (Option<Arc<dyn CallerEnd>>, Opening),
        deadline: Instant,
    ) -> Result<Dialled, ConnectError> {
        let seat = Seat {
            server: Arc::clone(&server.name),
            owner,
            opening,
            limits: self.stdio_limits(server),
        };
        let (berth, client) = (
            self.executors.spawn(&placed.executor, &placed.server),
            self.client.clone(),
        );
        stdio::connect_over(&berth, &seat, log, client, deadline, &self.spawner).await
    }

    fn stdio_limits(&self, server: &ServerSpec) -> StdioLimits {
        StdioLimits {
            in_flight_max: in_flight_max(self.stdio_limits.in_flight_max, server),
            large: large_limits(server),
            ..self.stdio_limits
        }
    }

    async fn remote(
        &self,
        server: &ServerSpec,
        remote: &RemoteSpec,
        (owner, opening): (Option<Arc<dyn CallerEnd>>, Opening),
        deadline: Instant,
    ) -> Result<Dialled, ConnectError> {
        // That it may speak the other way as well is found out as it goes.
        let speaks = match opening {
            Opening::Remembered(Era::Legacy) => Speaks::Only(Era::Legacy),
            _ => server.speaks,
        };
        let spec = HttpSpec {
            server: Arc::clone(&server.name),
            url: remote.url.clone(),
            transport: remote.transport,
            credentials: Arc::clone(&remote.credentials),
            speaks,
            owner,
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
                self.executors.client(&via.executor, &server.name, fills)
            }
        };
        http::connect(&spec, client, self.client.clone(), deadline, &self.spawner).await
    }
}

/// Returns how long responses of a server may be: what is not passed on whole is kept.
const fn large_limits(server: &ServerSpec) -> LargeLimits {
    LargeLimits {
        list_bytes_max: LARGE_BYTES_MAX,
        result_bytes_max: LARGE_BYTES_MAX,
        content_bytes_max: server.result_max,
    }
}

impl<S: Spawner + std::fmt::Debug> Dial for RealDial<S> {
    fn dial<'a>(
        &'a self,
        spec: &'a ServerSpec,
        log: &'a Arc<StderrLog>,
        owner: Option<Arc<dyn CallerEnd>>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Dialled, ConnectError>> {
        Box::pin(async move {
            let mut opening = self.eras.opening(spec);
            loop {
                let owner = owner.clone();
                let dialled = self.meet(spec, log, (owner, opening), deadline).await;
                match self.eras.learn(spec, opening, &dialled) {
                    Some(other) => opening = other,
                    None => return dialled,
                }
            }
        })
    }

    fn recall_era(&self, spec: &ServerSpec, era: Era) {
        self.eras.recall(spec, era);
    }

    fn back<'a>(&'a self, spec: &'a ServerSpec) -> BoxFuture<'a, ()> {
        Box::pin(async {
            match spec.reach.via() {
                Some(executor) => self.executors.back(executor).await,
                None => std::future::pending().await,
            }
        })
    }

    fn is_away(&self, spec: &ServerSpec) -> bool {
        let via = spec.reach.via();
        via.is_some_and(|executor| !self.executors.is_connected(executor))
    }
}

#[cfg(test)]
mod tests;
