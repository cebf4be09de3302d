//! Events of a simulated world, in one global order with timestamps.

use std::sync::Arc;

use bowline_host::supervisor::ServerAction;

use crate::sim::sim_ledger::{ServerInstance, ToolExecution};

/// One event with a timestamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// Milliseconds since the start of the world.
    pub at_ms: u64,
    /// The event.
    pub event: HistoryEvent,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryEvent {
    /// A process started.
    Started(ServerInstance),
    /// The handshake completed.
    Connected(ServerInstance),
    /// The host closed the link.
    Closed {
        /// The closed instance.
        instance: ServerInstance,
        /// Calls in flight on the link.
        running: usize,
    },
    /// The process ended.
    Ended(ServerInstance),
    /// A tool started.
    Executed(ToolExecution),
    /// A tool responded, failed, or was lost with the server.
    Finished(ToolExecution),
    /// A tool was cancelled.
    Cancelled(ToolExecution),
    /// A tool responded after cancellation.
    FinishedLate(ToolExecution),
    /// A client sent a call.
    Called {
        /// The server.
        server: Arc<str>,
        /// The arguments, unique per call.
        arguments: String,
        /// The circuit breaker state.
        circuit: String,
    },
    /// An operator gave an order.
    OrderGiven {
        /// The server.
        server: Arc<str>,
        /// The order.
        order: ServerAction,
    },
    /// An operator's order was accepted.
    OrderAccepted {
        /// The server.
        server: Arc<str>,
        /// The order.
        order: ServerAction,
    },
    /// A note of a test.
    Note(String),
}

impl HistoryEvent {
    /// Returns the server of the event.
    #[must_use]
    pub fn server(&self) -> Option<&Arc<str>> {
        match self {
            Self::Started(instance)
            | Self::Connected(instance)
            | Self::Closed { instance, .. }
            | Self::Ended(instance) => Some(&instance.server),
            Self::Executed(execution)
            | Self::Finished(execution)
            | Self::Cancelled(execution)
            | Self::FinishedLate(execution) => Some(&execution.server),
            Self::Called { server, .. }
            | Self::OrderGiven { server, .. }
            | Self::OrderAccepted { server, .. } => Some(server),
            Self::Note(_) => None,
        }
    }
}
