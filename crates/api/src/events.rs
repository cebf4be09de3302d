//! `/api/v1/events`: the stream of changes, as server-sent events. The SSE name of an event is the
//! `event` of its data.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Word;
use crate::outbox::QueuedCallState;
use crate::servers::ServerStatus;

/// First event of a stream: all servers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HelloEvent {
    /// API version.
    pub v: u8,
    /// Always `hello`.
    pub event: Word,
    /// Sequence number of the last event before the stream.
    pub seq: u64,
    /// Configured servers, sorted by name.
    pub servers: Vec<ServerStatus>,
}

/// Event of a client that read too slowly.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MissedEvents {
    /// Always `missed`.
    pub event: Word,
    /// Number of missed events.
    pub missed: u64,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostEvent {
    /// Sequence number; a gap means missed events.
    pub seq: u64,
    /// Wall-clock time.
    pub at_ms: u64,
    /// The event data.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// Kind and data of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// A server changed its state.
    State {
        /// The server.
        server: Arc<str>,
        /// The new state.
        state: Word,
        /// Number of starts.
        generation: u64,
        /// Failure message, if failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<Arc<str>>,
    },
    /// The breaker of a server opened, closed or became half-open.
    Circuit {
        /// The server.
        server: Arc<str>,
        /// The circuit state.
        circuit: Word,
    },
    /// The catalog changed.
    Catalog {
        /// The catalog version.
        version: u64,
    },
    /// A definition changed, was accepted, or the pins of a server are unreliable.
    Pin {
        /// The server.
        server: Arc<str>,
        /// The kind; `None` if all items are concerned.
        #[serde(skip_serializing_if = "Option::is_none")]
        kind: Option<Word>,
        /// The server's own name or URI; `None` if all items are concerned.
        #[serde(skip_serializing_if = "Option::is_none")]
        tool: Option<Arc<str>>,
        /// The pin state.
        state: Word,
        /// Failure message, if failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<Arc<str>>,
    },
    /// A configuration was applied.
    Config {
        /// Added servers.
        added: Vec<Arc<str>>,
        /// Servers restarted because of a changed entry.
        changed: Vec<Arc<str>>,
        /// Removed servers.
        removed: Vec<Arc<str>>,
    },
    /// An access was denied. A flood of denials is reported in part.
    Denied {
        /// The principal.
        principal: Arc<str>,
        /// The server.
        server: Arc<str>,
        /// The server's own name.
        name: Arc<str>,
        /// The rule source.
        rule: Word,
        /// The reason.
        reason: Arc<str>,
        /// Unreported denials before this event.
        untold: u64,
    },
    /// A write was queued, delivered, or dead-lettered.
    Outbox {
        /// Number of the write.
        id: Arc<str>,
        /// The principal.
        principal: Arc<str>,
        /// The target server.
        server: Arc<str>,
        /// The server's own tool name.
        tool: Arc<str>,
        /// State of the write.
        state: QueuedCallState,
        /// Failure message, if undeliverable.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<Arc<str>>,
    },
    /// A broker peer joined, left, was fenced, or was refused.
    Peer {
        /// The peer's mailbox.
        mailbox: Arc<str>,
        /// `joined`, `left`, `fenced` or `refused`.
        state: Word,
        /// The reason, if refused.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<Arc<str>>,
    },
    /// An executor connected or disconnected.
    Executor {
        /// The executor.
        name: Arc<str>,
        /// `connected`, `lost`, `left`, `fenced` or `refused`.
        state: Word,
        /// The reason, if not connected.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<Arc<str>>,
    },
    /// A changed configuration was refused as a whole.
    ConfigRefused {
        /// The reason.
        reason: Arc<str>,
    },
    /// An event that this version does not know.
    #[serde(other)]
    Unknown,
}

impl EventKind {
    /// Returns the event name in the stream.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::State { .. } => "state",
            Self::Circuit { .. } => "circuit",
            Self::Catalog { .. } => "catalog",
            Self::Pin { .. } => "pin",
            Self::Config { .. } => "config",
            Self::Denied { .. } => "denied",
            Self::Outbox { .. } => "outbox",
            Self::Peer { .. } => "peer",
            Self::Executor { .. } => "executor",
            Self::ConfigRefused { .. } => "config_refused",
            Self::Unknown => "unknown",
        }
    }
}
