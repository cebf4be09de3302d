//! Calls in flight of a session, by JSON-RPC request id.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use bowline_core::error::{CallError, ExecutionStatus};
use bowline_core::sync::lock;
use bytes::Bytes;
use foldhash::fast::RandomState;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

/// Calls in flight. Request ids are unique only within a session, so each session has its own.
#[derive(Clone, Debug, Default)]
pub struct CallsInFlight {
    calls: Arc<Mutex<HashMap<Bytes, oneshot::Sender<CancelReason>, RandomState>>>,
}

/// Reason for a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelReason {
    /// Cancelled by the client.
    Caller,
    /// The session ended.
    SessionEnd,
}

impl CancelReason {
    /// Returns the call error.
    #[must_use]
    pub const fn into_error(self, execution: ExecutionStatus) -> CallError {
        match self {
            Self::Caller => CallError::Cancelled { execution },
            Self::SessionEnd => CallError::SessionEnded { execution },
        }
    }
}

/// Registration of a call, which resolves when the call is cancelled; removed on drop.
#[derive(Debug)]
pub struct InFlightCall {
    calls: CallsInFlight,
    id: Bytes,
    pub(super) signal: oneshot::Receiver<CancelReason>,
}

impl CallsInFlight {
    /// Registers a call; `None` if the id is already in flight.
    #[must_use]
    pub fn register(&self, id: &Bytes) -> Option<InFlightCall> {
        let (cancel, signal) = oneshot::channel();
        {
            let mut calls = self.lock_calls();
            if calls.contains_key(id) {
                return None;
            }
            calls.insert(id.clone(), cancel);
        }
        Some(InFlightCall {
            calls: self.clone(),
            id: id.clone(),
            signal,
        })
    }

    /// Cancels the call with this id, if any.
    pub fn cancel(&self, id: &[u8]) {
        if let Some(cancel) = self.lock_calls().remove(id) {
            // A finished call no longer listens.
            let _ = cancel.send(CancelReason::Caller);
        }
    }

    /// Cancels every call, because the session ends.
    pub fn cancel_all(&self) {
        let calls = std::mem::take(&mut *self.lock_calls());
        for cancel in calls.into_values() {
            let _ = cancel.send(CancelReason::SessionEnd);
        }
    }

    /// Returns the number of calls in flight.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock_calls().len()
    }

    /// Returns whether no call is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock_calls().is_empty()
    }

    fn lock_calls(
        &self,
    ) -> MutexGuard<'_, HashMap<Bytes, oneshot::Sender<CancelReason>, RandomState>> {
        lock(&self.calls)
    }
}

impl Future for InFlightCall {
    type Output = Result<CancelReason, RecvError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.signal).poll(cx)
    }
}

impl Drop for InFlightCall {
    fn drop(&mut self) {
        // The id may be in use again; only our own entry has a closed receiver.
        self.signal.close();
        let mut calls = self.calls.lock_calls();
        if calls.get(&self.id).is_some_and(oneshot::Sender::is_closed) {
            calls.remove(&self.id);
        }
    }
}
