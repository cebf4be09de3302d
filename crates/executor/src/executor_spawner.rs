//! Starts the process of a server on an executor, over the executor's current connection.

use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_link::LinkError;
use bowline_link::stdio::{LinkConnectError, ProcessSpawner};

use crate::connection::{EXECUTOR_AWAY, ExecutorConnection as _, RemoteProcess, to_link_error};
use tokio::time::Instant;

use super::ExecutorRegistry;

/// Where a server process runs: an executor, and the server name on the executor.
#[derive(Clone, Debug)]
pub struct ExecutorSpawner {
    registry: ExecutorRegistry,
    executor: Arc<str>,
    server: Arc<str>,
}

impl ExecutorRegistry {
    /// Returns a spawner for a server on an executor, connected or not.
    #[must_use]
    pub fn spawner(&self, executor: &str, server: &str) -> ExecutorSpawner {
        ExecutorSpawner {
            registry: self.clone(),
            executor: executor.into(),
            server: server.into(),
        }
    }
}

impl ExecutorSpawner {
    async fn start_process(&self, deadline: Instant) -> Result<RemoteProcess, LinkError> {
        loop {
            let tunnel = self.registry.tunnel(&self.executor, Some(deadline)).await;
            let tunnel = tunnel.map_err(to_link_error)?;
            match tunnel.start_server(&self.server, deadline).await {
                // The connection was lost before the executor confirmed the start. `tunnel` waits
                // for the next connection and fails if none comes.
                Err(LinkError::RemoteFailure(failure))
                    if &*failure.code == EXECUTOR_AWAY && tunnel.disconnect_reason().is_some() => {}
                outcome => return outcome,
            }
        }
    }
}

impl ProcessSpawner for ExecutorSpawner {
    type ServerProcess = RemoteProcess;

    fn spawn(&self, deadline: Instant) -> BoxFuture<'_, Result<RemoteProcess, LinkConnectError>> {
        Box::pin(async move {
            let started = self.start_process(deadline).await;
            started.map_err(|source| LinkConnectError::Refused {
                server: Arc::clone(&self.server),
                source,
            })
        })
    }
}
