//! Exchanges of a connection with an exec-server, and the shared buffer budget.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use bowline_link::http::http_client::HttpError;
use bowline_link::websocket::DisconnectReason;
use bowline_runtime::timer;
use bowline_wire::FrameError;

use crate::execserver::{BodyDelta, ExecRefusal, ExecRequestId};
use bytes::Bytes;
use foldhash::fast::RandomState;

use super::exec_exchange::{BufferBudget, DeltaOutcome, ExecExchange, READ_GRACE, ResponseMode};
use super::{FIRST_REQUEST_ID, not_connected_error, request_message};
use crate::connection::{ExecutorTraffic, fault_map};

/// Pending requests and open streams per connection.
const STREAMS_MAX: usize = 1_024;

/// Table of exchanges, shared with the reader task.
#[derive(Debug, Default)]
pub(super) struct ExchangeTable {
    table: Mutex<ExchangeTableState>,
    budget: Arc<BufferBudget>,
    received_bytes: AtomicU64,
}

#[derive(Debug)]
struct ExchangeTableState {
    /// Number of the last request.
    last_call: i64,
    /// Number of the last stream.
    last_stream: u64,
    /// Exchanges without a response.
    calls: HashMap<i64, Arc<ExecExchange>, RandomState>,
    /// Exchanges with more deltas to come.
    streams: HashMap<u64, Arc<ExecExchange>, RandomState>,
    /// Complete exchanges with unread bytes.
    unread: HashMap<u64, Arc<ExecExchange>, RandomState>,
    disconnect_reason: Option<DisconnectReason>,
}

impl Default for ExchangeTableState {
    fn default() -> Self {
        Self {
            last_call: FIRST_REQUEST_ID,
            last_stream: 0,
            calls: HashMap::default(),
            streams: HashMap::default(),
            unread: HashMap::default(),
            disconnect_reason: None,
        }
    }
}

impl ExchangeTable {
    /// Adds the exchange of a request before sending, so no early delta is lost.
    pub(super) fn add_exchange(
        &self,
        kind: ResponseMode,
    ) -> Result<(i64, Arc<ExecExchange>), HttpError> {
        let mut table = lock(&self.table);
        if let Some(reason) = &table.disconnect_reason {
            return Err(not_connected_error(reason));
        }
        let unread = table.streams.len() + table.unread.len();
        let open = unread.max(table.calls.len());
        if open >= STREAMS_MAX {
            return Err(fault_map::busy_error("too many answers are not read yet"));
        }
        table.last_call += 1;
        let call = table.last_call;
        let stream = match kind {
            ResponseMode::Streamed => {
                table.last_stream += 1;
                table.last_stream
            }
            ResponseMode::Whole => 0,
        };
        let exchange = Arc::new(ExecExchange::new(stream, Arc::clone(&self.budget)));
        table.calls.insert(call, Arc::clone(&exchange));
        if kind == ResponseMode::Streamed {
            table.streams.insert(stream, Arc::clone(&exchange));
        }
        Ok((call, exchange))
    }

    /// Removes an exchange without a caller; later data is ignored.
    pub(super) fn remove_exchange(&self, call: i64, stream: u64) {
        let mut table = lock(&self.table);
        let removed = (
            table.calls.remove(&call),
            table.streams.remove(&stream),
            table.unread.remove(&stream),
        );
        drop(table);
        drop(removed);
    }

    /// Delivers the response to a request, or the refusal.
    pub(super) fn deliver_response(
        &self,
        id: &ExecRequestId,
        response: Result<Bytes, ExecRefusal>,
    ) {
        let ExecRequestId::Number(number) = id else {
            return;
        };
        let exchange = {
            let mut table = lock(&self.table);
            let exchange = table.calls.remove(number);
            if let (Some(exchange), Err(_)) = (&exchange, &response) {
                table.streams.remove(&exchange.stream_id());
            }
            exchange
        };
        if let Some(exchange) = exchange {
            exchange.set_response(response);
        }
    }

    /// Delivers a body delta, once the buffer has room.
    pub(super) async fn deliver_delta(&self, params: &Bytes) -> Result<(), FrameError> {
        let delta = BodyDelta::parse(params)?;
        let Some(stream) = request_message::parse_stream_id(&delta.request_id) else {
            return Ok(());
        };
        let exchange = lock(&self.table).streams.get(&stream).cloned();
        let Some(exchange) = exchange else {
            return Ok(());
        };
        let count = u64::try_from(delta.len()).unwrap_or(u64::MAX);
        self.received_bytes.fetch_add(count, Ordering::Relaxed);
        loop {
            match exchange.push_delta(&delta)? {
                DeltaOutcome::Open => return Ok(()),
                DeltaOutcome::NoRoom => self.make_room().await,
                DeltaOutcome::Stalled => self.wait_for_reader(&exchange).await,
                DeltaOutcome::Closed => {
                    self.retire_stream(stream);
                    return Ok(());
                }
            }
        }
    }

    /// Moves a completed stream to the unread exchanges while bytes are buffered.
    fn retire_stream(&self, stream: u64) {
        let mut table = lock(&self.table);
        let exchange = table.streams.remove(&stream);
        if let Some(exchange) = exchange
            && exchange.waiting_bytes() > 0
        {
            table.unread.insert(stream, exchange);
        }
    }

    /// Waits until bytes were read; otherwise fails the exchange with the most buffered bytes.
    async fn make_room(&self) {
        let largest = {
            let table = lock(&self.table);
            let all = table.streams.values().chain(table.unread.values());
            let largest = all.max_by_key(|exchange| exchange.waiting_bytes()).cloned();
            let open = table.streams.len() + table.unread.len() + table.calls.len();
            largest.map(|exchange| (exchange, open <= 1))
        };
        let now = timer::now();
        let grace = now + READ_GRACE;
        let Some((largest, is_alone)) = largest else {
            // The buffered bytes belong to dropped exchanges.
            self.budget.wait_released(grace).await;
            return;
        };
        let is_read = self
            .budget
            .wait_released(largest.stall_deadline().max(grace))
            .await;
        let waited = timer::now().saturating_duration_since(now);
        if !is_read || (!is_alone && largest.record_hold_up(waited)) {
            self.give_up_exchange(&largest);
        }
    }

    /// Waits briefly for a seemingly stopped reader; then fails the exchange.
    async fn wait_for_reader(&self, exchange: &ExecExchange) {
        let grace = timer::now() + READ_GRACE;
        while exchange.is_stalled() {
            if !self.budget.wait_released(grace).await {
                return self.give_up_exchange(exchange);
            }
        }
    }

    /// Fails an exchange with a slow reader.
    fn give_up_exchange(&self, exchange: &ExecExchange) {
        exchange.fail_overflow();
        let stream = exchange.stream_id();
        let mut table = lock(&self.table);
        let removed = (table.streams.remove(&stream), table.unread.remove(&stream));
        drop(table);
        drop(removed);
    }

    /// Disconnects all exchanges.
    pub(super) fn disconnect(&self, reason: &DisconnectReason) {
        let (calls, streams) = {
            let mut table = lock(&self.table);
            if table.disconnect_reason.is_some() {
                return;
            }
            table.disconnect_reason = Some(reason.clone());
            let calls = std::mem::take(&mut table.calls);
            table.unread.clear();
            (calls, std::mem::take(&mut table.streams))
        };
        for exchange in calls.into_values().chain(streams.into_values()) {
            exchange.disconnect(reason);
        }
    }

    /// Returns the traffic counters.
    pub(super) fn traffic(&self, sent_bytes: u64) -> ExecutorTraffic {
        let table = lock(&self.table);
        ExecutorTraffic {
            streams: u64::try_from(table.streams.len()).unwrap_or(u64::MAX),
            opened: table.last_stream,
            sent_bytes,
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
        }
    }
}
