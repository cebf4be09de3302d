//! Response body of the API event stream.

use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::event_stream::StreamGuard;

/// Events for a client of the API event stream.
#[derive(Debug)]
pub(crate) struct WatcherBody {
    frames: mpsc::Receiver<Bytes>,
    /// Permit of the stream.
    _permit: OwnedSemaphorePermit,
    /// Dropped with the stream.
    guards: Vec<Box<dyn StreamGuard>>,
}

impl WatcherBody {
    /// Creates the body with a permit.
    #[must_use]
    pub(crate) const fn new(frames: mpsc::Receiver<Bytes>, permit: OwnedSemaphorePermit) -> Self {
        Self {
            frames,
            _permit: permit,
            guards: Vec::new(),
        }
    }

    /// Attaches a guard dropped with the stream.
    pub(crate) fn attach_guard(&mut self, guard: Box<dyn StreamGuard>) {
        self.guards.push(guard);
    }

    /// Returns the next bytes to send; `None` at the end.
    pub(crate) fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.frames.poll_recv(cx)
    }
}
