//! Pool of idle connections.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_runtime::timer;
use bytes::Bytes;
use foldhash::fast::RandomState;
use tokio::time::Instant;

use super::super::endpoint::HttpOrigin;
use super::super::http_client::{BodyChunks, HttpBody, HttpError, HttpResponse};
use super::http1_connection::{BodyReader, Http1Connection, Http1Response};

/// Idle connections are closed after this time.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Idle connections by origin.
#[derive(Debug)]
pub(super) struct ConnectionPool {
    /// Limit per origin.
    idle_max: usize,
    /// Oldest first. `close_idle` removes empty lists.
    idle: Mutex<HashMap<Arc<HttpOrigin>, Vec<IdleConnection>, RandomState>>,
}

#[derive(Debug)]
struct IdleConnection {
    connection: Box<Http1Connection>,
    /// Time of the last use.
    used_at: Instant,
}

impl ConnectionPool {
    pub(super) fn new(idle_max: usize) -> Self {
        Self {
            idle_max,
            idle: Mutex::default(),
        }
    }

    /// Takes the most recently used usable connection.
    pub(super) async fn take_usable(&self, origin: &HttpOrigin) -> Option<Box<Http1Connection>> {
        poll_fn(|cx| {
            let mut last = self.pop_idle(origin);
            while last.as_mut().is_some_and(|wire| !wire.is_usable(cx)) {
                last = self.pop_idle(origin);
            }
            Poll::Ready(last)
        })
        .await
    }

    fn pop_idle(&self, origin: &HttpOrigin) -> Option<Box<Http1Connection>> {
        let last = lock(&self.idle).get_mut(origin)?.pop();
        last.map(|idle| idle.connection)
    }

    /// Returns a connection to the pool after a complete response, if reusable.
    fn return_connection(&self, origin: &Arc<HttpOrigin>, reading: BodyReader) {
        let Some(wire) = reading.into_connection() else {
            return;
        };
        let used = timer::now();
        let mut idle = lock(&self.idle);
        let list = match idle.get_mut(origin) {
            Some(list) => list,
            None => idle.entry(Arc::clone(origin)).or_default(),
        };
        if list.len() < self.idle_max {
            list.push(IdleConnection {
                connection: wire,
                used_at: used,
            });
        }
    }

    /// Closes all connections to an origin after a break: the same cause may have broken the rest
    /// undetected. A retry then dials.
    pub(super) fn drop_after_error(&self, origin: &HttpOrigin, error: &HttpError) {
        if matches!(error, HttpError::Lost(_)) {
            let removed = lock(&self.idle).get_mut(origin).map(std::mem::take);
            // Closed outside the lock.
            drop(removed);
        }
    }

    /// Closes idle connections.
    pub(super) fn close_idle(&self) {
        let now = timer::now();
        lock(&self.idle).retain(|_, list| {
            list.retain(|idle| now.saturating_duration_since(idle.used_at) < IDLE_MAX);
            !list.is_empty()
        });
    }

    /// Returns a response with return of the connection to the pool after the last chunk.
    pub(super) fn to_response(
        self: &Arc<Self>,
        origin: &Arc<HttpOrigin>,
        received: Http1Response,
    ) -> HttpResponse {
        let mut reading = received.reading;
        let first = reading.take_buffered();
        let body = if reading.is_finished() && !reading.has_trailers() {
            self.return_connection(origin, reading);
            HttpBody::from(first.unwrap_or_default())
        } else {
            HttpBody::from_chunks(Box::new(PooledBody {
                first,
                open: Some(reading),
                trailers: Bytes::new(),
                wants_nothing: false,
                origin: Arc::clone(origin),
                pool: Arc::clone(self),
            }))
        };
        HttpResponse {
            status: received.status,
            headers: received.headers,
            body,
        }
    }
}

/// A body with a pooled connection; an early drop closes the connection.
#[derive(Debug)]
struct PooledBody {
    /// Bytes received with the head.
    first: Option<Bytes>,
    /// Absent after the end.
    open: Option<BodyReader>,
    /// Trailer lines, after the end.
    trailers: Bytes,
    /// Whether only the upload is polled.
    wants_nothing: bool,
    origin: Arc<HttpOrigin>,
    pool: Arc<ConnectionPool>,
}

impl BodyChunks for PooledBody {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        if self.wants_nothing && (self.first.is_some() || self.open.is_some()) {
            let upload_result = self.open.as_mut().map(|reading| reading.poll_upload(cx));
            return match upload_result {
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
            self.pool.drop_after_error(&self.origin, error);
        } else if let Some(mut reading) = self.open.take_if(|reading| reading.is_finished()) {
            self.trailers = reading.take_trailers();
            self.pool.return_connection(&self.origin, reading);
        }
        chunk
    }

    fn take_trailers(&mut self) -> Bytes {
        std::mem::take(&mut self.trailers)
    }

    fn set_read_max(&mut self, bytes_max: usize) {
        self.wants_nothing = bytes_max == 0;
        if let Some(reading) = &mut self.open {
            reading.set_read_max(bytes_max);
        }
    }
}
