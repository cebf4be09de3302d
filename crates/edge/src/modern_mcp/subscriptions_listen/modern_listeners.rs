//! Registry of open listen streams of clients without a session.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use bowline_core::client_handle::SessionKey;
use bowline_core::sync::lock;
use bytes::Bytes;

use super::ModernListener;

/// All open streams; bounded by stream permits.
#[derive(Debug, Default)]
pub(crate) struct ModernListeners(Mutex<ListenerTable>);

#[derive(Debug, Default)]
struct ListenerTable {
    open: HashMap<SessionKey, Arc<ModernListener>>,
    /// Set on shutdown: new streams end at once.
    closed: bool,
}

impl ModernListeners {
    /// Registers a stream.
    pub(super) fn insert(&self, listener: &Arc<ModernListener>) {
        let mut table = self.lock_table();
        table.open.insert(listener.key, Arc::clone(listener));
        if table.closed {
            listener.finish();
        }
    }

    pub(super) fn remove(&self, key: SessionKey) {
        self.lock_table().open.remove(&key);
    }

    /// Forwards a notification to a stream; `false` if no such stream is open.
    pub(crate) fn notify_listener(&self, key: SessionKey, notification: &Bytes) -> bool {
        let listener = self.lock_table().open.get(&key).cloned();
        listener.is_some_and(|listener| listener.forward_notification(notification))
    }

    /// Returns all streams.
    pub(crate) fn snapshot(&self) -> Vec<Arc<ModernListener>> {
        self.lock_table().open.values().cloned().collect()
    }

    /// Returns the number of streams.
    pub(crate) fn count(&self) -> usize {
        self.lock_table().open.len()
    }

    /// Ends the streams of a credential.
    pub(crate) fn finish_by_credential(&self, credential: &str) {
        for listener in self.snapshot() {
            if *listener.principal.credential == *credential {
                listener.finish();
            }
        }
    }

    /// Ends all streams, so that clients reconnect with their current permissions.
    pub(crate) fn finish_all(&self) {
        for listener in self.snapshot() {
            listener.finish();
        }
    }

    /// Ends all streams on shutdown.
    pub(crate) fn close(&self) {
        self.lock_table().closed = true;
        for listener in self.snapshot() {
            listener.finish();
        }
    }

    fn lock_table(&self) -> MutexGuard<'_, ListenerTable> {
        lock(&self.0)
    }
}
