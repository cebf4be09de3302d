//! Event stream of the host.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use bowline_api::events::{EventKind, HostEvent};
use bowline_runtime::{Clock, Lifecycle, Shutdown, TaskTracker};
use tokio::sync::{broadcast, watch};

use crate::pins::{PinEvent, PinEvents};

/// Events buffered for a slow subscriber before it misses some.
const BUFFERED_EVENTS_MAX: usize = 1_024;

/// Broadcasts events to subscribers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct EventBus {
    sender: broadcast::Sender<HostEvent>,
    seq: Arc<AtomicU64>,
    clock: Arc<dyn Clock>,
    /// Closed after the last event.
    lifecycle: Arc<Lifecycle>,
}

impl PinEvents for EventBus {
    fn on_pin(&self, event: PinEvent<'_>) {
        self.publish(EventKind::Pin {
            server: Arc::clone(event.server),
            kind: event.entry.map(|(kind, _)| kind.as_str().into()),
            tool: event.entry.map(|(_, name)| Arc::clone(name)),
            state: event.state.into(),
            reason: event.reason.cloned(),
        });
    }
}

impl EventBus {
    /// Creates a bus without subscribers.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            sender: broadcast::Sender::new(BUFFERED_EVENTS_MAX),
            seq: Arc::default(),
            clock,
            lifecycle: Arc::default(),
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
        let (events, shutdown) = (self.clone(), self.shutdown().clone());
        tasks.spawn("events.catalog", async move {
            loop {
                tokio::select! {
                    changed = versions.changed() => if changed.is_err() {
                        return;
                    },
                    () = shutdown.wait_closing() => return,
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
        self.lifecycle.close();
    }

    /// Returns the end of the stream.
    #[must_use]
    pub fn shutdown(&self) -> &Shutdown {
        self.lifecycle.shutdown()
    }

    /// Subscribes to all events from now on.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<HostEvent> {
        self.sender.subscribe()
    }
}
