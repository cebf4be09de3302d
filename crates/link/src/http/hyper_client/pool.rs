//! Connections that wait to be used again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bowline_core::sync::lock;
use bytes::Bytes;
use foldhash::fast::RandomState;
use http::Uri;
use http::response::Parts;
use http::uri::{Authority, Scheme};

use super::super::client::{Chunks, HttpError, Response};
use super::wire::{Reading, Wire};

/// A connection is let go when it was not used between so many calls of `tidy`.
const IDLE_ROUNDS_MAX: u64 = 2;

/// Where a connection leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) is_tls: bool,
    pub(super) authority: Authority,
}

impl Key {
    /// Returns where to connect to.
    pub(super) fn address(&self) -> Result<Uri, HttpError> {
        let scheme = if self.is_tls {
            Scheme::HTTPS
        } else {
            Scheme::HTTP
        };
        let address = Uri::builder().scheme(scheme).path_and_query("/");
        let address = address.authority(self.authority.clone()).build();
        address.map_err(|_| HttpError::Invalid("the address is not absolute"))
    }
}

/// Connections that carry nothing, by where they lead.
#[derive(Debug)]
pub(super) struct Pool {
    /// To one origin.
    idle_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Counts the calls of `tidy`.
    round: u64,
    /// The longest unused stands first. A list that stays empty goes with `tidy`.
    idle: HashMap<Key, Vec<Idle>, RandomState>,
}

#[derive(Debug)]
struct Idle {
    wire: Box<Wire>,
    /// The round in which it was last used.
    used: u64,
}

impl Pool {
    pub(super) fn new(idle_max: usize) -> Self {
        Self {
            idle_max,
            state: Mutex::default(),
        }
    }

    /// Returns the connection used last that is still good.
    pub(super) async fn take(&self, key: &Key) -> Option<Box<Wire>> {
        loop {
            let mut wire = self.pop(key)?;
            if wire.is_usable().await {
                return Some(wire);
            }
        }
    }

    fn pop(&self, key: &Key) -> Option<Box<Wire>> {
        let mut state = lock(&self.state);
        let last = state.idle.get_mut(key)?.pop();
        last.map(|idle| idle.wire)
    }

    fn put(&self, key: Key, wire: Box<Wire>) {
        let mut state = lock(&self.state);
        let used = state.round;
        let list = state.idle.entry(key).or_default();
        if list.len() < self.idle_max {
            list.push(Idle { wire, used });
        }
    }

    /// Lets go of what was not used for a while.
    pub(super) fn tidy(&self) {
        let mut state = lock(&self.state);
        state.round += 1;
        let round = state.round;
        state.idle.retain(|_, list| {
            list.retain(|idle| idle.used + IDLE_ROUNDS_MAX > round);
            !list.is_empty()
        });
    }

    /// Returns an answer whose connection comes back here once it is read.
    pub(super) fn response(self: &Arc<Self>, key: Key, head: Parts, reading: Reading) -> Response {
        let mut body = Kept {
            open: Some((key, reading)),
            pool: self.clone(),
        };
        body.keep_if_over();
        Response {
            status: head.status,
            headers: head.headers,
            body: Box::new(body),
        }
    }
}

/// A body whose connection is kept after its end, and closed when it is dropped before.
#[derive(Debug)]
struct Kept {
    /// Absent after the end.
    open: Option<(Key, Reading)>,
    pool: Arc<Pool>,
}

impl Kept {
    fn keep_if_over(&mut self) {
        if let Some((key, reading)) = self.open.take_if(|(_, reading)| reading.is_over()) {
            self.pool.put(key, reading.into_wire());
        }
    }
}

impl Chunks for Kept {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        let Some((_, reading)) = &mut self.open else {
            return Poll::Ready(None);
        };
        let chunk = reading.poll_chunk(cx);
        match &chunk {
            Poll::Ready(None) => {
                if let Some((key, reading)) = self.open.take() {
                    self.pool.put(key, reading.into_wire());
                }
            }
            Poll::Ready(Some(Err(_))) => self.open = None,
            Poll::Ready(Some(Ok(_))) => self.keep_if_over(),
            Poll::Pending => {}
        }
        chunk
    }
}
