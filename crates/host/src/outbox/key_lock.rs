//! Locks idempotency keys: a single write in progress per key.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use bowline_journal::LaneName;
use tokio::sync::watch;

use super::OutboxShared;

/// Name of a write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WriteName {
    pub(super) lane: LaneName,
    pub(super) dedupe: Arc<str>,
}

/// The locked keys; at most as many as calls in flight.
#[derive(Debug, Default)]
pub(super) struct KeyLocks(Mutex<HashMap<WriteName, watch::Sender<()>>>);

/// Exclusive use of a key, released on drop.
#[derive(Debug)]
pub(super) struct KeyGuard {
    shared: Arc<OutboxShared>,
    name: WriteName,
}

impl KeyLocks {
    /// Waits for the exclusive use of a key.
    pub(super) async fn acquire(shared: &Arc<OutboxShared>, name: WriteName) -> KeyGuard {
        loop {
            let mut other = {
                let mut flights = lock(&shared.key_locks.0);
                match flights.get(&name) {
                    Some(other) => other.subscribe(),
                    None => {
                        flights.insert(name.clone(), watch::Sender::new(()));
                        let shared = Arc::clone(shared);
                        return KeyGuard { shared, name };
                    }
                }
            };
            // Ends when the holder drops the sender; no values are sent.
            while other.changed().await.is_ok() {}
        }
    }
}

impl Drop for KeyGuard {
    fn drop(&mut self) {
        lock(&self.shared.key_locks.0).remove(&self.name);
    }
}
