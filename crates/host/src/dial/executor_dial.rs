//! Connects to servers through executors: processes and HTTP servers in another network.

use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_executor::{ExecutorEvents, ExecutorRegistry};
use bowline_link::LinkConnectError;
use bowline_link::http::HttpLimits;
use bowline_link::stdio::{self, StdioOptions};

use super::http_dial::{connect_remote, wrong_transport};
use super::{DialAttempt, TransportDial};
use crate::events::{EventBus, EventKind};
use crate::spec::{ExecutorProcessSpec, ServerTransport};
use crate::supervisor::DialedLink;

/// Connects to servers through the executors of a registry.
#[derive(Debug)]
pub struct ExecutorDial {
    /// The executors.
    pub registry: ExecutorRegistry,
    /// Limits of the links over HTTP.
    pub http_limits: HttpLimits,
}

impl ExecutorDial {
    /// Creates a connector with default limits.
    #[must_use]
    pub fn new(registry: ExecutorRegistry) -> Self {
        Self {
            registry,
            http_limits: HttpLimits::default(),
        }
    }

    async fn connect_process(
        &self,
        placed: &ExecutorProcessSpec,
        attempt: DialAttempt<'_>,
    ) -> Result<DialedLink, LinkConnectError> {
        let dial = attempt.dial;
        let options = StdioOptions {
            server: Arc::clone(&attempt.spec.name),
            owner: attempt.owner,
            negotiation: attempt.negotiation,
            limits: dial.stdio_limits(attempt.spec),
        };
        let spawner = self.registry.spawner(&placed.executor, &placed.server);
        let (log, client) = (Arc::clone(attempt.log), dial.client.clone());
        let deadline = attempt.deadline;
        stdio::connect_process(&spawner, &options, log, client, deadline, &dial.tasks).await
    }
}

impl TransportDial for ExecutorDial {
    fn connect<'a>(
        &'a self,
        attempt: DialAttempt<'a>,
    ) -> BoxFuture<'a, Result<DialedLink, LinkConnectError>> {
        Box::pin(async move {
            let server = attempt.spec;
            match &server.transport {
                ServerTransport::Executor(placed) => self.connect_process(placed, attempt).await,
                ServerTransport::Remote(remote) => {
                    let Some(via) = &remote.via else {
                        return Err(wrong_transport(&attempt));
                    };
                    let (executor, fills) = (&via.executor, via.fills.clone());
                    let client = self.registry.http_client(executor, &server.name, fills);
                    connect_remote(remote, client, self.http_limits, attempt).await
                }
                ServerTransport::Child(_)
                | ServerTransport::InProcess(_)
                | ServerTransport::Peer(_) => Err(wrong_transport(&attempt)),
            }
        })
    }

    fn wait_reconnected<'a>(&'a self, executor: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(self.registry.wait_reconnected(executor))
    }

    fn is_connected(&self, executor: &str) -> bool {
        self.registry.is_connected(executor)
    }
}

impl ExecutorEvents for EventBus {
    fn on_executor_state(&self, name: &Arc<str>, state: &'static str, reason: Option<Arc<str>>) {
        self.publish(EventKind::Executor {
            name: Arc::clone(name),
            state: state.into(),
            reason,
        });
    }
}
