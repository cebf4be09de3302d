//! Event stream of the host.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_runtime::{Clock, TaskTracker};
use serde::Serialize;
use tokio::sync::{broadcast, watch};

/// Events buffered for a slow subscriber before it misses some.
const BUFFERED_EVENTS_MAX: usize = 1_024;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// A server changed its state.
    State {
        /// The server.
        server: Arc<str>,
        /// The new state.
        state: &'static str,
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
        circuit: &'static str,
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
        kind: Option<&'static str>,
        /// The server's own name or URI; `None` if all items are concerned.
        #[serde(skip_serializing_if = "Option::is_none")]
        tool: Option<Arc<str>>,
        /// The pin state.
        state: &'static str,
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
        rule: &'static str,
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
        state: &'static str,
        /// Failure message, if undeliverable.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<Arc<str>>,
    },
    /// A broker peer joined, left, was fenced, or was refused.
    Peer {
        /// The peer's mailbox.
        mailbox: Arc<str>,
        /// `joined`, `left`, `fenced` or `refused`.
        state: &'static str,
        /// The reason, if refused.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<Arc<str>>,
    },
    /// An executor connected or disconnected.
    Executor {
        /// The executor.
        name: Arc<str>,
        /// `connected`, `lost`, `left`, `fenced` or `refused`.
        state: &'static str,
        /// The reason, if not connected.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<Arc<str>>,
    },
    /// A changed configuration was refused as a whole.
    ConfigRefused {
        /// The reason.
        reason: Arc<str>,
    },
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
        }
    }
}

/// Broadcasts events to subscribers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct EventBus {
    sender: broadcast::Sender<HostEvent>,
    seq: Arc<AtomicU64>,
    clock: Arc<dyn Clock>,
    /// Set once, after the last event.
    ended: Arc<watch::Sender<bool>>,
}

impl EventBus {
    /// Creates a bus without subscribers.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            sender: broadcast::Sender::new(BUFFERED_EVENTS_MAX),
            seq: Arc::default(),
            clock,
            ended: Arc::new(watch::Sender::new(false)),
        }
    }

    /// Publishes an event, without waiting.
    pub fn publish(&self, kind: EventKind) {
        let seq = self.seq.fetch_add(1, Ordering::Relaxed) + 1;
        let at_ms = self.clock.unix_ms();
        // Without subscribers nothing is lost.
        let _unheard = self.sender.send(HostEvent { seq, at_ms, kind });
    }

    /// Returns the sequence number of the last event.
    #[must_use]
    pub fn last_seq(&self) -> u64 {
        self.seq.load(Ordering::Relaxed)
    }

    /// Publishes catalog changes; simultaneous changes are merged.
    pub(crate) fn follow_catalog(&self, mut versions: watch::Receiver<u64>, tasks: &TaskTracker) {
        let (events, mut ended) = (self.clone(), self.ended.subscribe());
        tasks.spawn("events.catalog", async move {
            loop {
                tokio::select! {
                    changed = versions.changed() => if changed.is_err() {
                        return;
                    },
                    _ = ended.wait_for(|ended| *ended) => return,
                }
                let version = *versions.borrow_and_update();
                events.publish(EventKind::Catalog { version });
            }
        });
    }

    /// Returns the number of subscribers.
    #[must_use]
    pub fn subscriber_count(&self) -> usize {
        self.sender.receiver_count()
    }

    /// Signals the end of the stream to all subscribers.
    pub fn close(&self) {
        self.ended.send_replace(true);
    }

    /// Returns a receiver of the end signal.
    #[must_use]
    pub fn subscribe_end(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }

    /// Subscribes to all events from now on.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<HostEvent> {
        self.sender.subscribe()
    }
}
