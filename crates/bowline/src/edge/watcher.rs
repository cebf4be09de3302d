//! The stream of one who watches, as the body of an answer.

use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::stream::Guard;

/// What a watcher is sent, as it comes.
#[derive(Debug)]
pub struct Watcher {
    frames: mpsc::Receiver<Bytes>,
    /// One of the few places that there are.
    _place: OwnedSemaphorePermit,
    /// Dropped with the stream; whatever must end with it.
    guards: Vec<Box<dyn Guard>>,
}

impl Watcher {
    /// Returns the stream of these frames, on this place.
    #[must_use]
    pub const fn new(frames: mpsc::Receiver<Bytes>, place: OwnedSemaphorePermit) -> Self {
        Self {
            frames,
            _place: place,
            guards: Vec::new(),
        }
    }

    /// Keeps one more thing that ends with the stream.
    pub fn keep(&mut self, guard: Box<dyn Guard>) {
        self.guards.push(guard);
    }

    /// Returns the next bytes to send, `None` at the end.
    pub fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.frames.poll_recv(cx)
    }
}
