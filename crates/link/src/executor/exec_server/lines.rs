//! The answers that a connection with an exec-server waits for, and the room that they share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use bowline_wire::FrameError;
use bowline_wire::execserver::{Delta, Id, Refusal};
use bytes::Bytes;
use foldhash::fast::RandomState;

use super::exchange::{Budget, Exchange, Kind, READ_GRACE, Took};
use super::{FIRST, ask, unsent};
use crate::executor::{Carried, faults};
use crate::http::client::HttpError;
use crate::http::clock;
use crate::websocket::Ended;

/// Requests that wait for their answer, and streams that are open.
const STREAMS_MAX: usize = 1_024;

/// What the reader knows of.
#[derive(Debug, Default)]
pub(super) struct Lines {
    table: Mutex<Table>,
    budget: Arc<Budget>,
    received_bytes: AtomicU64,
}

#[derive(Debug)]
struct Table {
    /// The number of the last request.
    last: i64,
    /// The number of the last stream.
    last_stream: u64,
    /// Who waits for an answer.
    calls: HashMap<i64, Arc<Exchange>, RandomState>,
    /// Of whose answers more comes.
    streams: HashMap<u64, Arc<Exchange>, RandomState>,
    /// Whose answers are here, and not read to their end.
    unread: HashMap<u64, Arc<Exchange>, RandomState>,
    ended: Option<Ended>,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            last: FIRST,
            last_stream: 0,
            calls: HashMap::default(),
            streams: HashMap::default(),
            unread: HashMap::default(),
            ended: None,
        }
    }
}

impl Lines {
    /// Adds a request that is about to be sent: what comes for it is kept from now on.
    pub(super) fn add(&self, kind: Kind) -> Result<(i64, Arc<Exchange>), HttpError> {
        let mut table = lock(&self.table);
        if let Some(ended) = &table.ended {
            return Err(unsent(ended));
        }
        let unread = table.streams.len() + table.unread.len();
        let open = unread.max(table.calls.len());
        if open >= STREAMS_MAX {
            return Err(faults::busy("too many answers are not read yet"));
        }
        table.last += 1;
        let call = table.last;
        let stream = match kind {
            Kind::Streamed => {
                table.last_stream += 1;
                table.last_stream
            }
            Kind::Whole => 0,
        };
        let exchange = Arc::new(Exchange::new(stream, Arc::clone(&self.budget)));
        table.calls.insert(call, Arc::clone(&exchange));
        if kind == Kind::Streamed {
            table.streams.insert(stream, Arc::clone(&exchange));
        }
        Ok((call, exchange))
    }

    /// Nobody waits for a request any more: what comes for it is nobody's.
    pub(super) fn forget(&self, call: i64, stream: u64) {
        let mut table = lock(&self.table);
        let gone = (
            table.calls.remove(&call),
            table.streams.remove(&stream),
            table.unread.remove(&stream),
        );
        drop(table);
        drop(gone);
    }

    /// Hands over the answer to a request, or that there is none.
    pub(super) fn answer(&self, id: &Id, answer: Result<Bytes, Refusal>) {
        let Id::Number(number) = id else {
            return;
        };
        let exchange = {
            let mut table = lock(&self.table);
            let exchange = table.calls.remove(number);
            if let (Some(exchange), Err(_)) = (&exchange, &answer) {
                table.streams.remove(&exchange.stream());
            }
            exchange
        };
        if let Some(exchange) = exchange {
            exchange.answer(answer);
        }
    }

    /// Hands over a piece of a body, once there is room for it.
    pub(super) async fn delta(&self, params: &Bytes) -> Result<(), FrameError> {
        let delta = Delta::read(params)?;
        let Some(stream) = ask::stream_of(&delta.request_id) else {
            return Ok(());
        };
        let exchange = lock(&self.table).streams.get(&stream).cloned();
        let Some(exchange) = exchange else {
            return Ok(());
        };
        let count = u64::try_from(delta.len()).unwrap_or(u64::MAX);
        self.received_bytes.fetch_add(count, Ordering::Relaxed);
        loop {
            match exchange.take(&delta)? {
                Took::More => return Ok(()),
                Took::NoRoom => self.make_room().await,
                Took::Stalled => self.await_reader(&exchange).await,
                Took::Over => {
                    self.retire(stream);
                    return Ok(());
                }
            }
        }
    }

    /// Nothing more comes for a stream; what waits of it still counts.
    fn retire(&self, stream: u64) {
        let mut table = lock(&self.table);
        let exchange = table.streams.remove(&stream);
        if let Some(exchange) = exchange
            && exchange.waiting_bytes() > 0
        {
            table.unread.insert(stream, exchange);
        }
    }

    /// Waits until something was read, or ends the answer that holds most for being read too
    /// slowly.
    async fn make_room(&self) {
        let largest = {
            let table = lock(&self.table);
            let all = table.streams.values().chain(table.unread.values());
            let largest = all.max_by_key(|exchange| exchange.waiting_bytes()).cloned();
            let open = table.streams.len() + table.unread.len() + table.calls.len();
            largest.map(|exchange| (exchange, open <= 1))
        };
        let now = clock::now();
        let grace = now + READ_GRACE;
        let Some((largest, is_alone)) = largest else {
            // The bytes that wait belong to answers that are being dropped.
            self.budget.wait_until(grace).await;
            return;
        };
        let is_read = self.budget.wait_until(largest.stalls_at().max(grace)).await;
        let waited = clock::now().saturating_duration_since(now);
        if !is_read || (!is_alone && largest.hold_up(waited)) {
            self.give_up(&largest);
        }
    }

    /// Waits a moment for a reader that seems to have stopped; gives its answer up if it has.
    async fn await_reader(&self, exchange: &Exchange) {
        let grace = clock::now() + READ_GRACE;
        while exchange.is_stalled() {
            if !self.budget.wait_until(grace).await {
                return self.give_up(exchange);
            }
        }
    }

    /// Ends an answer that is not read fast enough.
    fn give_up(&self, exchange: &Exchange) {
        exchange.overflow();
        let stream = exchange.stream();
        let mut table = lock(&self.table);
        let gone = (table.streams.remove(&stream), table.unread.remove(&stream));
        drop(table);
        drop(gone);
    }

    /// Tells everybody that the connection is lost.
    pub(super) fn cut(&self, ended: &Ended) {
        let (calls, streams) = {
            let mut table = lock(&self.table);
            if table.ended.is_some() {
                return;
            }
            table.ended = Some(ended.clone());
            let calls = std::mem::take(&mut table.calls);
            table.unread.clear();
            (calls, std::mem::take(&mut table.streams))
        };
        for exchange in calls.into_values().chain(streams.into_values()) {
            exchange.cut(ended);
        }
    }

    /// Returns what came over the connection.
    pub(super) fn carried(&self, sent_bytes: u64) -> Carried {
        let table = lock(&self.table);
        Carried {
            streams: u64::try_from(table.streams.len()).unwrap_or(u64::MAX),
            opened: table.last_stream,
            sent_bytes,
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
        }
    }
}
