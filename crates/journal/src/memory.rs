//! In-memory journal for tests and hosts without a disk; all state is lost at process exit.

mod memory_table;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::sync::lock;
use bytes::Bytes;

use self::memory_table::MemoryTable;
use crate::elapsed::ElapsedTime;
use crate::engine::{
    CompletedMessage, ExpectedRevision, Journal, JournalError, JournalFuture, JournalHealth,
    LaneName, LaneStats, LeaseOrder, LeaseReceipt, LeasedMessage, MessageDraft, MessageFilter,
    MessageId, MessageView, PublishOutcome, RevisionWatch, Timestamps, VersionedValue,
};

/// Journal in memory.
#[derive(Debug, Default)]
pub struct MemoryJournal {
    table: Mutex<MemoryTable>,
    /// Clock for message expiry.
    time: Mutex<ElapsedTime>,
}

impl MemoryJournal {
    /// Runs an operation on the table, unless closed.
    fn with_table<'a, T: Send + 'a>(
        &self,
        act: impl FnOnce(&mut MemoryTable) -> Result<T, JournalError>,
    ) -> JournalFuture<'a, T> {
        let mut table = lock(&self.table);
        let outcome = match table.is_closed {
            true => Err(JournalError::Closed),
            false => act(&mut table),
        };
        Box::pin(std::future::ready(outcome))
    }

    /// Returns `at` with elapsed time in place of the wall clock.
    fn elapsed_timestamps(&self, at: Timestamps) -> Timestamps {
        let unix_ms = lock(&self.time).advance(at);
        Timestamps { unix_ms, ..at }
    }
}

impl Journal for MemoryJournal {
    fn publish(&self, draft: MessageDraft, at: Timestamps) -> JournalFuture<'_, PublishOutcome> {
        let at = self.elapsed_timestamps(at);
        self.with_table(|table| table.publish(draft, at))
    }

    fn lease<'a>(
        &'a self,
        lane: &'a LaneName,
        order: LeaseOrder,
        max: usize,
        hold: Duration,
        at: Timestamps,
    ) -> JournalFuture<'a, Vec<LeasedMessage>> {
        let at = self.elapsed_timestamps(at);
        self.with_table(|table| Ok(table.lease(lane, order, max, hold, at)))
    }

    fn ack(
        &self,
        receipt: LeaseReceipt,
        result: Option<Bytes>,
        at: Timestamps,
    ) -> JournalFuture<'_, ()> {
        let at = self.elapsed_timestamps(at);
        self.with_table(|table| table.ack(receipt, result, at))
    }

    fn nak(&self, receipt: LeaseReceipt, delay: Duration, at: Timestamps) -> JournalFuture<'_, ()> {
        self.with_table(|table| table.nak(receipt, delay, at))
    }

    fn dead_letter(
        &self,
        receipt: LeaseReceipt,
        reason: Arc<str>,
        _at: Timestamps,
    ) -> JournalFuture<'_, ()> {
        self.with_table(|table| table.dead_letter(receipt, reason))
    }

    fn requeue(
        &self,
        id: MessageId,
        ttl: Option<Duration>,
        at: Timestamps,
    ) -> JournalFuture<'_, ()> {
        let at = self.elapsed_timestamps(at);
        self.with_table(|table| table.requeue(id, ttl, at))
    }

    fn remove_message(&self, id: MessageId, at: Timestamps) -> JournalFuture<'_, ()> {
        self.with_table(|table| table.remove_message(id, at))
    }

    fn discard_leased(&self, receipt: LeaseReceipt, _at: Timestamps) -> JournalFuture<'_, ()> {
        self.with_table(|table| table.discard_leased(receipt))
    }

    fn expire_messages<'a>(
        &'a self,
        lanes: &'a str,
        at: Timestamps,
    ) -> JournalFuture<'a, Vec<MessageView>> {
        let at = self.elapsed_timestamps(at);
        self.with_table(|table| Ok(table.expire_messages(lanes, at)))
    }

    fn lane_stats<'a>(
        &'a self,
        prefix: &'a str,
        _at: Timestamps,
    ) -> JournalFuture<'a, Vec<LaneStats>> {
        self.with_table(|table| Ok(table.lane_stats(prefix)))
    }

    fn lane_bytes<'a>(&'a self, prefix: &'a str) -> JournalFuture<'a, Vec<(LaneName, u64)>> {
        self.with_table(|table| Ok(table.lane_bytes(prefix)))
    }

    fn list_messages(
        &self,
        filter: MessageFilter,
        at: Timestamps,
    ) -> JournalFuture<'_, Vec<MessageView>> {
        self.with_table(|table| Ok(table.list_messages(&filter, at)))
    }

    fn get_message(&self, id: MessageId, at: Timestamps) -> JournalFuture<'_, Option<MessageView>> {
        self.with_table(|table| Ok(table.get_message(id, at)))
    }

    fn get_result<'a>(
        &'a self,
        lane: &'a LaneName,
        dedupe: &'a str,
    ) -> JournalFuture<'a, Option<CompletedMessage>> {
        self.with_table(|table| Ok(table.get_result(lane, dedupe)))
    }

    fn get_value<'a>(&'a self, key: &'a str) -> JournalFuture<'a, Option<VersionedValue>> {
        self.with_table(|table| Ok(table.get_value(key)))
    }

    fn list_values<'a>(
        &'a self,
        prefix: &'a str,
        limit: usize,
    ) -> JournalFuture<'a, Vec<(Arc<str>, VersionedValue)>> {
        self.with_table(|table| Ok(table.list_values(prefix, limit)))
    }

    fn put_value<'a>(
        &'a self,
        key: &'a str,
        bytes: Option<Bytes>,
        expect: ExpectedRevision,
    ) -> JournalFuture<'a, u64> {
        self.with_table(|table| table.put_value(key, bytes, expect))
    }

    fn watch_prefix(&self, prefix: &str) -> RevisionWatch {
        lock(&self.table).watches.add_watch(prefix)
    }

    fn health(&self) -> JournalHealth {
        JournalHealth::Good
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        lock(&self.table).is_closed = true;
        Box::pin(std::future::ready(()))
    }
}
