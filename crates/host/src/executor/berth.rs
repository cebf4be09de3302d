//! Has the process of one server started by an executor, whichever connection it has.

use std::sync::Arc;

use bowline_link::executor::{Carrier as _, Distant, EXECUTOR_AWAY, trouble};
use bowline_link::stdio::{ConnectError, Spawn};
use bowline_link::{BoxFuture, LinkError};
use tokio::time::Instant;

use super::Executors;

/// Where the process of a server runs: an executor, and what the server is called there.
#[derive(Clone, Debug)]
pub struct Berth {
    executors: Executors,
    executor: Arc<str>,
    server: Arc<str>,
}

impl Executors {
    /// Returns what has a server started by an executor, whether that is connected now or not.
    #[must_use]
    pub fn spawn(&self, executor: &str, server: &str) -> Berth {
        Berth {
            executors: self.clone(),
            executor: executor.into(),
            server: server.into(),
        }
    }
}

impl Berth {
    async fn start(&self, deadline: Instant) -> Result<Distant, LinkError> {
        loop {
            let tunnel = self.executors.tunnel(&self.executor, Some(deadline)).await;
            let tunnel = tunnel.map_err(trouble)?;
            match tunnel.start(&self.server, deadline).await {
                // The connection was lost before the executor said that it runs. Another one is
                // waited for, and says when it does not come.
                Err(LinkError::Elsewhere(failure))
                    if &*failure.code == EXECUTOR_AWAY && tunnel.ended().is_some() => {}
                outcome => return outcome,
            }
        }
    }
}

impl Spawn for Berth {
    type Process = Distant;

    fn spawn(&self, deadline: Instant) -> BoxFuture<'_, Result<Distant, ConnectError>> {
        Box::pin(async move {
            let started = self.start(deadline).await;
            started.map_err(|source| ConnectError::Refused {
                server: Arc::clone(&self.server),
                source,
            })
        })
    }
}
