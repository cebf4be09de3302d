//! How a server is taken into care while the host runs.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::Class;
use thiserror::Error;

use crate::card::{Card, CardError};
use crate::spec::{NameClash, ServerSpec};

/// What is said of a server when it is spawned; what is not said is as in its spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpawnOptions {
    /// Whether it waits for its first call before it is started.
    pub lazy: Option<bool>,
    /// How long it may be without a call before it is stopped until the next one.
    pub keep_alive: Option<Duration>,
    /// Where its card is: a file, or an address. See [`Card`] for what becomes of it.
    pub card: Option<String>,
    /// Failures in a row that open its breaker.
    pub circuit_threshold: Option<u32>,
    /// How long the breaker rests.
    pub circuit_reset: Option<Duration>,
    /// How often it may be restarted...
    pub max_restarts: Option<u32>,
    /// ...within this time.
    pub restart_window: Option<Duration>,
    /// Whether it takes the place of a server of its name that runs, whose calls in flight end
    /// first. Without it such a name is refused, and no server is ended by accident.
    pub replace: bool,
}

/// Why a server was not taken into care.
#[derive(Debug, Error)]
pub enum SpawnError {
    /// It has no name.
    #[error("a server needs a name")]
    NoName,
    /// A server whose given name has the same slug is in care.
    #[error(transparent)]
    NameClash(NameClash),
    /// The guard does not want it; nothing was started.
    #[error("server `{server}` is refused: {reason}")]
    Denied {
        /// The server.
        server: Arc<str>,
        /// What the guard said.
        reason: Arc<str>,
    },
    /// A server of that name runs.
    #[error("server `{0}` runs already")]
    InUse(Arc<str>),
    /// Its card cannot be used; nothing was started.
    #[error("the card of server `{server}` cannot be used")]
    Card {
        /// The server.
        server: Arc<str>,
        /// What is wrong with it.
        #[source]
        source: CardError,
    },
    /// It could not be started, and is not in care.
    #[error("server `{server}` could not be started: {reason}")]
    Start {
        /// The server.
        server: Arc<str>,
        /// The class of the failure.
        class: Class,
        /// What it failed with.
        reason: Arc<str>,
    },
    /// The host goes down.
    #[error("the host is shutting down")]
    ShuttingDown,
}

impl SpawnOptions {
    /// Puts what is said here into a spec.
    pub(crate) async fn applied(&self, mut spec: ServerSpec) -> Result<ServerSpec, SpawnError> {
        spec.lazy = self.lazy.unwrap_or(spec.lazy);
        spec.idle_stop = self.keep_alive.or(spec.idle_stop);
        let breaker = &mut spec.breaker;
        breaker.failures_max = self.circuit_threshold.unwrap_or(breaker.failures_max);
        breaker.rest = self.circuit_reset.unwrap_or(breaker.rest);
        let restart = &mut spec.restart;
        restart.restarts_max = self.max_restarts.unwrap_or(restart.restarts_max);
        restart.window = self.restart_window.unwrap_or(restart.window);
        if let Some(source) = self.card.clone() {
            let read = tokio::task::spawn_blocking(move || Card::read(&source)).await;
            let card = read.map_err(|_| SpawnError::ShuttingDown)?;
            let card = card.map_err(|source| SpawnError::Card {
                server: Arc::clone(&spec.name),
                source,
            })?;
            spec.card = Some(Arc::new(card));
        }
        Ok(spec)
    }
}
