//! Callers that leave, disks that are full, gateways that go down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bowline_core::call::Origin;
use bowline_core::error::{CallError, Execution};
use bowline_journal::{
    At, BoxFuture, Delivery, Done, Draft, Entry, Expect, Filter, Health, Journal, JournalError,
    Lane, LaneView, Memory, MessageId, Order, Pending, Published, Receipt, Value, Watch,
};
use bowline_link::Exit;
use bowline_sim::{Act, Gate, Script, World, body, reaches};

use crate::rig::{Rig, doing, is_queued, server, up, write};

const ONE: &str = r#"{"n":1}"#;

/// A journal on a disk that may fill up.
#[derive(Debug, Default)]
struct Tight {
    inner: Memory,
    /// Takes nothing new.
    full: AtomicBool,
    /// Cannot write down that something was done.
    deaf: AtomicBool,
    /// Hands nothing out any more once something was done: who asks for it waits.
    last: AtomicBool,
    /// Whether something was done.
    done: AtomicBool,
    /// Its files were deleted after something was stored.
    replaced: AtomicBool,
}

impl Journal for Tight {
    fn publish(&self, draft: Draft, at: At) -> Pending<'_, Published> {
        match self.full.load(Ordering::Relaxed) {
            true => Box::pin(std::future::ready(Err(JournalError::Full))),
            false => self.inner.publish(draft, at),
        }
    }
    fn ack(&self, receipt: Receipt, result: Option<bytes::Bytes>, at: At) -> Pending<'_, ()> {
        match self.deaf.load(Ordering::Relaxed) {
            true => Box::pin(std::future::ready(Err(JournalError::Poisoned {
                reason: "gone".into(),
            }))),
            false => {
                self.done.store(true, Ordering::Relaxed);
                self.inner.ack(receipt, result, at)
            }
        }
    }
    fn lease<'a>(
        &'a self,
        lane: &'a Lane,
        order: Order,
        max: usize,
        hold: Duration,
        at: At,
    ) -> Pending<'a, Vec<Delivery>> {
        match self.last.load(Ordering::Relaxed) && self.done.load(Ordering::Relaxed) {
            true => Box::pin(std::future::pending()),
            false => self.inner.lease(lane, order, max, hold, at),
        }
    }
    fn nak(&self, receipt: Receipt, delay: Duration, at: At) -> Pending<'_, ()> {
        match self.replaced.load(Ordering::Relaxed) {
            true => Box::pin(std::future::ready(Err(JournalError::Replaced))),
            false => self.inner.nak(receipt, delay, at),
        }
    }
    fn bury(&self, receipt: Receipt, reason: Arc<str>, at: At) -> Pending<'_, ()> {
        self.inner.bury(receipt, reason, at)
    }
    fn revive(&self, id: MessageId, ttl: Option<Duration>, at: At) -> Pending<'_, ()> {
        self.inner.revive(id, ttl, at)
    }
    fn remove(&self, id: MessageId, at: At) -> Pending<'_, ()> {
        self.inner.remove(id, at)
    }
    fn withdraw(&self, receipt: Receipt, at: At) -> Pending<'_, ()> {
        self.inner.withdraw(receipt, at)
    }
    fn expire<'a>(&'a self, lanes: &'a str, at: At) -> Pending<'a, Vec<Entry>> {
        self.inner.expire(lanes, at)
    }
    fn lanes<'a>(&'a self, prefix: &'a str, at: At) -> Pending<'a, Vec<LaneView>> {
        self.inner.lanes(prefix, at)
    }

    fn lane_bytes<'a>(&'a self, prefix: &'a str) -> Pending<'a, Vec<(Lane, u64)>> {
        self.inner.lane_bytes(prefix)
    }
    fn inspect(&self, filter: Filter, at: At) -> Pending<'_, Vec<Entry>> {
        self.inner.inspect(filter, at)
    }
    fn entry(&self, id: MessageId, at: At) -> Pending<'_, Option<Entry>> {
        self.inner.entry(id, at)
    }
    fn result<'a>(&'a self, lane: &'a Lane, dedupe: &'a str) -> Pending<'a, Option<Done>> {
        self.inner.result(lane, dedupe)
    }
    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Value>> {
        self.inner.get(key)
    }
    fn list<'a>(&'a self, prefix: &'a str, limit: usize) -> Pending<'a, Vec<(Arc<str>, Value)>> {
        self.inner.list(prefix, limit)
    }
    fn put<'a>(
        &'a self,
        key: &'a str,
        bytes: Option<bytes::Bytes>,
        expect: Expect,
    ) -> Pending<'a, u64> {
        self.inner.put(key, bytes, expect)
    }
    fn watch(&self, prefix: &str) -> Watch {
        self.inner.watch(prefix)
    }
    fn health(&self) -> Health {
        self.inner.health()
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}

async fn tight(script: Script) -> (Rig, Arc<Tight>) {
    let journal = Arc::new(Tight::default());
    let world = World::new([("s", script)]);
    let rig = Rig::on(world, vec![server("s")], Arc::clone(&journal) as _).await;
    (rig, journal)
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_is_an_error_and_nothing_is_sent() {
    let (rig, journal) = tight(Script::always(up())).await;
    journal.full.store(true, Ordering::Relaxed);
    let error = rig.write_as("owner", ONE).await.unwrap_err();
    assert!(matches!(error, CallError::NotStored { .. }), "{error:?}");
    assert_eq!(error.execution(), Execution::NotStarted);
    assert!(rig.ran().is_empty(), "what cannot be stored is not sent");
    journal.full.store(false, Ordering::Relaxed);
    rig.write_as("owner", ONE).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_was_done_is_told_as_done_also_where_that_cannot_be_written() {
    let (rig, journal) = tight(Script::always(up())).await;
    journal.deaf.store(true, Ordering::Relaxed);
    let reply = rig.write_as("owner", ONE).await.unwrap();
    assert_eq!(reply.origin, Origin::Live, "{}", body(&reply));
}

#[tokio::test(start_paused = true)]
async fn journal_deleted_during_outage_queues_nothing() {
    let (rig, journal) = tight(Script::always(up())).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "backoff").await);
    journal.replaced.store(true, Ordering::Relaxed);
    let error = rig.write_as("owner", ONE).await.unwrap_err();
    assert_eq!(error.execution(), Execution::NotStarted, "{error:?}");
    assert!(rig.ran().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_write_after_the_last_delivered_one_is_live_at_once() {
    let (rig, journal) = tight(Script::always(up()).then(up())).await;
    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "backoff").await);
    rig.queue(ONE).await;
    // The drain does not come to see that nothing is left.
    journal.last.store(true, Ordering::Relaxed);
    rig.drained().await;
    let reply = rig.write_as("owner", r#"{"n":2}"#).await.unwrap();
    assert_eq!(reply.origin, Origin::Live, "{}", body(&reply));
    assert_eq!(rig.done(), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_taken_back_leaves_nothing_and_blocks_nobody() {
    let gate = Gate::closed();
    let rig = Rig::new(Script::always(doing(Act::Hangs(gate.clone())))).await;
    tokio::select! {
        biased;
        outcome = rig.write_as("owner", ONE) => panic!("the call ended: {outcome:?}"),
        _ = rig.world.until(|record| record.executions.len() == 1) => {}
    }
    crate::rig::pass(Duration::from_millis(1)).await;
    assert!(rig.letters().await.is_empty());
    gate.release();
    let reply = rig.write_as("owner", ONE).await.unwrap();
    assert_eq!(reply.origin, Origin::Live);
    crate::rig::pass(Duration::from_secs(600)).await;
    assert_eq!(rig.ran(), [1, 1], "the first was not sent again");
}

#[tokio::test(start_paused = true)]
async fn a_write_in_flight_when_the_gateway_goes_down_stays_queued() {
    let hangs = doing(Act::Hangs(Gate::closed()));
    let rig = Rig::new(Script::always(hangs)).await;
    let call = rig.write_as("owner", ONE);
    let down = async {
        rig.world.until(|record| record.executions.len() == 1).await;
        rig.host.shutdown().await;
    };
    let (outcome, ()) = tokio::join!(call, down);
    is_queued(&outcome.unwrap());
    let late = rig.write_as("owner", ONE).await.unwrap_err();
    assert!(matches!(late, CallError::ShuttingDown), "{late:?}");

    let world = World::new([("s", Script::always(up()))]);
    let next = Rig::on(world, vec![server("s")], Arc::clone(&rig.journal)).await;
    next.drained().await;
    assert_eq!(next.ran(), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_cut_off_by_the_end_of_the_gateway_loses_nothing() {
    let hangs = doing(Act::Hangs(Gate::closed()));
    let rig = Rig::new(Script::always(hangs)).await;
    let mut call = Box::pin(rig.host.call(write("owner", "s__do", ONE)));
    tokio::select! {
        biased;
        outcome = &mut call => panic!("the call ended: {outcome:?}"),
        _ = rig.world.until(|record| record.executions.len() == 1) => {}
    }
    let down = rig.host.shutdown();
    // The edge cuts its callers off while the host goes down.
    let cut = async {
        crate::rig::pass(Duration::from_millis(1)).await;
        drop(call);
    };
    tokio::join!(down, cut);
    assert_eq!(rig.letters().await.len(), 1);
}
