//! A journal that forgets everything when the process ends: for tests, and for hosts without a
//! disk.

mod table;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::sync::lock;
use bytes::Bytes;

use self::table::Table;
use crate::elapsed::ElapsedTime;
use crate::engine::{
    At, BoxFuture, Delivery, Done, Draft, Entry, Expect, Filter, Health, Journal, JournalError,
    Lane, LaneView, MessageId, Order, Pending, Published, Receipt, Value, Watch,
};

/// Keeps everything in memory.
#[derive(Debug, Default)]
pub struct Memory {
    table: Mutex<Table>,
    /// By which messages expire.
    time: Mutex<ElapsedTime>,
}

impl Memory {
    /// Does one thing to the table, all of it or nothing.
    fn with<'a, T: Send + 'a>(
        &self,
        act: impl FnOnce(&mut Table) -> Result<T, JournalError>,
    ) -> Pending<'a, T> {
        let mut table = lock(&self.table);
        let outcome = match table.closed {
            true => Err(JournalError::Closed),
            false => act(&mut table),
        };
        Box::pin(std::future::ready(outcome))
    }

    /// Returns the moment by which messages expire.
    fn moment(&self, at: At) -> At {
        let unix_ms = lock(&self.time).advance(at);
        At { unix_ms, ..at }
    }
}

impl Journal for Memory {
    fn publish(&self, draft: Draft, at: At) -> Pending<'_, Published> {
        let at = self.moment(at);
        self.with(|table| table.publish(draft, at))
    }

    fn lease<'a>(
        &'a self,
        lane: &'a Lane,
        order: Order,
        max: usize,
        hold: Duration,
        at: At,
    ) -> Pending<'a, Vec<Delivery>> {
        let at = self.moment(at);
        self.with(|table| Ok(table.lease(lane, order, max, hold, at)))
    }

    fn ack(&self, receipt: Receipt, result: Option<Bytes>, at: At) -> Pending<'_, ()> {
        let at = self.moment(at);
        self.with(|table| table.ack(receipt, result, at))
    }

    fn nak(&self, receipt: Receipt, delay: Duration, at: At) -> Pending<'_, ()> {
        self.with(|table| table.nak(receipt, delay, at))
    }

    fn bury(&self, receipt: Receipt, reason: Arc<str>, _at: At) -> Pending<'_, ()> {
        self.with(|table| table.bury(receipt, reason))
    }

    fn revive(&self, id: MessageId, ttl: Option<Duration>, at: At) -> Pending<'_, ()> {
        let at = self.moment(at);
        self.with(|table| table.revive(id, ttl, at))
    }

    fn remove(&self, id: MessageId, at: At) -> Pending<'_, ()> {
        self.with(|table| table.remove(id, at))
    }

    fn withdraw(&self, receipt: Receipt, _at: At) -> Pending<'_, ()> {
        self.with(|table| table.withdraw(receipt))
    }

    fn expire<'a>(&'a self, lanes: &'a str, at: At) -> Pending<'a, Vec<Entry>> {
        let at = self.moment(at);
        self.with(|table| Ok(table.expire(lanes, at)))
    }

    fn lanes<'a>(&'a self, prefix: &'a str, _at: At) -> Pending<'a, Vec<LaneView>> {
        self.with(|table| Ok(table.lanes(prefix)))
    }

    fn lane_bytes<'a>(&'a self, prefix: &'a str) -> Pending<'a, Vec<(Lane, u64)>> {
        self.with(|table| Ok(table.lane_bytes(prefix)))
    }

    fn inspect(&self, filter: Filter, at: At) -> Pending<'_, Vec<Entry>> {
        self.with(|table| Ok(table.inspect(&filter, at)))
    }

    fn entry(&self, id: MessageId, at: At) -> Pending<'_, Option<Entry>> {
        self.with(|table| Ok(table.entry(id, at)))
    }

    fn result<'a>(&'a self, lane: &'a Lane, dedupe: &'a str) -> Pending<'a, Option<Done>> {
        self.with(|table| Ok(table.result(lane, dedupe)))
    }

    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Value>> {
        self.with(|table| Ok(table.get(key)))
    }

    fn list<'a>(&'a self, prefix: &'a str, limit: usize) -> Pending<'a, Vec<(Arc<str>, Value)>> {
        self.with(|table| Ok(table.list(prefix, limit)))
    }

    fn put<'a>(&'a self, key: &'a str, bytes: Option<Bytes>, expect: Expect) -> Pending<'a, u64> {
        self.with(|table| table.put(key, bytes, expect))
    }

    fn watch(&self, prefix: &str) -> Watch {
        lock(&self.table).watches.add(prefix)
    }

    fn health(&self) -> Health {
        Health::Good
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        lock(&self.table).closed = true;
        Box::pin(std::future::ready(()))
    }
}
