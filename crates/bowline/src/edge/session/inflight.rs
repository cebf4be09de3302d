//! The calls of one session that are under way, by the ids their caller gave them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use bowline_core::error::{CallError, Execution};
use bowline_core::sync::lock;
use bytes::Bytes;
use foldhash::fast::RandomState;
use tokio::sync::oneshot;

/// Calls under way. Ids are unique only within a session, so each session has its own.
#[derive(Clone, Debug, Default)]
pub struct InFlight {
    calls: Arc<Mutex<HashMap<Bytes, oneshot::Sender<Withdrawal>, RandomState>>>,
}

/// Why a call was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// Its caller did not want it any more.
    Caller,
    /// Its session was ended.
    SessionEnd,
}

impl Withdrawal {
    /// Returns what the call comes to.
    #[must_use]
    pub const fn into_error(self, execution: Execution) -> CallError {
        match self {
            Self::Caller => CallError::Cancelled { execution },
            Self::SessionEnd => CallError::SessionEnded { execution },
        }
    }
}

/// One call's entry; dropped when the call ends.
#[derive(Debug)]
pub struct Cancelled {
    calls: InFlight,
    id: Bytes,
    /// Resolves when the call is taken back.
    pub signal: oneshot::Receiver<Withdrawal>,
}

impl InFlight {
    /// Enters a call; `None` when the session has a call under this id already.
    #[must_use]
    pub fn enter(&self, id: &Bytes) -> Option<Cancelled> {
        let (cancel, signal) = oneshot::channel();
        {
            let mut calls = self.lock();
            if calls.contains_key(id) {
                return None;
            }
            calls.insert(id.clone(), cancel);
        }
        Some(Cancelled {
            calls: self.clone(),
            id: id.clone(),
            signal,
        })
    }

    /// Takes back the call with this id, if there is one.
    pub fn cancel(&self, id: &[u8]) {
        if let Some(cancel) = self.lock().remove(id) {
            // A call that ended meanwhile no longer listens.
            let _ = cancel.send(Withdrawal::Caller);
        }
    }

    /// Takes back every call, because the session ends.
    pub fn cancel_all(&self) {
        let calls = std::mem::take(&mut *self.lock());
        for cancel in calls.into_values() {
            let _ = cancel.send(Withdrawal::SessionEnd);
        }
    }

    /// Returns how many calls are under way.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Whether no call is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Bytes, oneshot::Sender<Withdrawal>, RandomState>> {
        lock(&self.calls)
    }
}

impl Drop for Cancelled {
    fn drop(&mut self) {
        // The id may have been used again since; only our own entry has lost its listener.
        self.signal.close();
        let mut calls = self.calls.lock();
        if calls.get(&self.id).is_some_and(oneshot::Sender::is_closed) {
            calls.remove(&self.id);
        }
    }
}
