//! Who listens without a session: one entry for each open stream.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use bowline_core::caller::SessionKey;
use bowline_core::sync::lock;
use bytes::Bytes;

use super::Listener;

/// All open streams; as many as there are seats for.
#[derive(Debug, Default)]
pub(in crate::edge) struct Listeners(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    open: HashMap<SessionKey, Arc<Listener>>,
    /// Set when the gateway goes down: whoever comes then is told so at once.
    closed: bool,
}

impl Listeners {
    /// Begins to tell one more.
    pub(super) fn add(&self, listener: &Arc<Listener>) {
        let mut table = self.table();
        table.open.insert(listener.key, Arc::clone(listener));
        if table.closed {
            listener.finish();
        }
    }

    pub(super) fn remove(&self, key: SessionKey) {
        self.table().open.remove(&key);
    }

    /// Hands a notification to one; `false` when it does not listen.
    pub(in crate::edge) fn tell(&self, key: SessionKey, notification: &Bytes) -> bool {
        let listener = self.table().open.get(&key).cloned();
        listener.is_some_and(|listener| listener.tell(notification))
    }

    /// Returns all.
    pub(in crate::edge) fn all(&self) -> Vec<Arc<Listener>> {
        self.table().open.values().cloned().collect()
    }

    /// Returns how many there are.
    pub(in crate::edge) fn count(&self) -> usize {
        self.table().open.len()
    }

    /// Ends those that came with this credential.
    pub(in crate::edge) fn dismiss(&self, credential: &str) {
        for listener in self.all() {
            if *listener.principal.credential == *credential {
                listener.finish();
            }
        }
    }

    /// Ends all, so that they come back as those who they are by now.
    pub(in crate::edge) fn renew(&self) {
        for listener in self.all() {
            listener.finish();
        }
    }

    /// Ends all, because the gateway goes down.
    pub(in crate::edge) fn close(&self) {
        self.table().closed = true;
        for listener in self.all() {
            listener.finish();
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.0)
    }
}
