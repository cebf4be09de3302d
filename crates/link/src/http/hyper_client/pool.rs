//! Connections that wait to be used again.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bowline_core::sync::lock;
use bytes::Bytes;
use foldhash::fast::RandomState;
use tokio::time::Instant;

use super::super::client::{Body, Chunks, HttpError, Response};
use super::super::clock;
use super::super::endpoint::Origin;
use super::wire::{Answered, Reading, Wire};

/// A connection is let go when it was not used for so long.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Connections that carry nothing, by where they lead.
#[derive(Debug)]
pub(super) struct Pool {
    /// To one origin.
    idle_max: usize,
    /// The longest unused stands first. A list that stays empty goes with `tidy`.
    idle: Mutex<HashMap<Arc<Origin>, Vec<Idle>, RandomState>>,
}

#[derive(Debug)]
struct Idle {
    wire: Box<Wire>,
    /// When it was last used.
    used: Instant,
}

impl Pool {
    pub(super) fn new(idle_max: usize) -> Self {
        Self {
            idle_max,
            idle: Mutex::default(),
        }
    }

    /// Returns the connection used last that is still good.
    pub(super) async fn take(&self, to: &Origin) -> Option<Box<Wire>> {
        poll_fn(|cx| {
            let mut last = self.pop(to);
            while last.as_mut().is_some_and(|wire| !wire.is_usable(cx)) {
                last = self.pop(to);
            }
            Poll::Ready(last)
        })
        .await
    }

    fn pop(&self, to: &Origin) -> Option<Box<Wire>> {
        let last = lock(&self.idle).get_mut(to)?.pop();
        last.map(|idle| idle.wire)
    }

    /// Keeps a connection whose answer was read, where it can be used again.
    fn keep(&self, to: &Arc<Origin>, reading: Reading) {
        let Some(wire) = reading.into_wire() else {
            return;
        };
        let used = clock::now();
        let mut idle = lock(&self.idle);
        let list = match idle.get_mut(to) {
            Some(list) => list,
            None => idle.entry(Arc::clone(to)).or_default(),
        };
        if list.len() < self.idle_max {
            list.push(Idle { wire, used });
        }
    }

    /// Lets go of all connections to where one broke: what broke it may have broken the others, and
    /// that is not always known yet. Who tries again then does so over a new one.
    pub(super) fn failed(&self, to: &Origin, error: &HttpError) {
        if matches!(error, HttpError::Lost(_)) {
            let gone = lock(&self.idle).get_mut(to).map(std::mem::take);
            // Closed without the lock.
            drop(gone);
        }
    }

    /// Lets go of what was not used for a while.
    pub(super) fn tidy(&self) {
        let now = clock::now();
        lock(&self.idle).retain(|_, list| {
            list.retain(|idle| now.saturating_duration_since(idle.used) < IDLE_MAX);
            !list.is_empty()
        });
    }

    /// Returns an answer whose connection comes back here once it is read.
    pub(super) fn response(self: &Arc<Self>, to: &Arc<Origin>, answered: Answered) -> Response {
        let mut reading = answered.reading;
        let first = reading.here();
        let body = if reading.is_over() && !reading.has_trailers() {
            self.keep(to, reading);
            Body::from(first.unwrap_or_default())
        } else {
            Body::open(Box::new(Kept {
                first,
                open: Some(reading),
                trailers: Bytes::new(),
                wants_nothing: false,
                to: Arc::clone(to),
                pool: Arc::clone(self),
            }))
        };
        Response {
            status: answered.status,
            headers: answered.headers,
            body,
        }
    }
}

/// A body whose connection is kept after its end, and closed when it is dropped before.
#[derive(Debug)]
struct Kept {
    /// What came with the head.
    first: Option<Bytes>,
    /// Absent after the end.
    open: Option<Reading>,
    /// What followed the body, once it is over.
    trailers: Bytes,
    /// Whether only the rest of the request goes on.
    wants_nothing: bool,
    to: Arc<Origin>,
    pool: Arc<Pool>,
}

impl Chunks for Kept {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        if self.wants_nothing && (self.first.is_some() || self.open.is_some()) {
            let sent = self.open.as_mut().map(|reading| reading.send_on(cx));
            return match sent {
                Some(Err(error)) => Poll::Ready(Some(Err(error))),
                Some(Ok(())) | None => Poll::Pending,
            };
        }
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        let Some(reading) = &mut self.open else {
            return Poll::Ready(None);
        };
        let chunk = reading.poll_chunk(cx);
        if let Poll::Ready(Some(Err(error))) = &chunk {
            self.open = None;
            self.pool.failed(&self.to, error);
        } else if let Some(mut reading) = self.open.take_if(|reading| reading.is_over()) {
            self.trailers = reading.trailers();
            self.pool.keep(&self.to, reading);
        }
        chunk
    }

    fn trailers(&mut self) -> Bytes {
        std::mem::take(&mut self.trailers)
    }

    fn want(&mut self, bytes_max: usize) {
        self.wants_nothing = bytes_max == 0;
        if let Some(reading) = &mut self.open {
            reading.want(bytes_max);
        }
    }
}
