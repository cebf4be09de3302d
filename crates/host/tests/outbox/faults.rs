//! Leaving callers, full disks and shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::call::{CallReply, ReplyOrigin};
use bowline_core::error::{CallError, ExecutionStatus};
use bowline_journal::{
    CompletedMessage, ExpectedRevision, Journal, JournalError, JournalFuture, JournalHealth,
    LaneName, LaneStats, LeaseOrder, LeaseReceipt, LeasedMessage, MemoryJournal, MessageDraft,
    MessageFilter, MessageId, MessageView, PublishOutcome, RevisionWatch, Timestamps,
    VersionedValue,
};
use bowline_link::LinkExit;
use bowline_testkit::{
    ReleaseGate, ServerScript, SimWorld, ToolBehaviour, advance_clock, reply_body, wait_for_state,
};
use tokio::sync::watch;

use crate::rig::{
    OutboxRig, expect_queued, healthy_server, queued_server, server_doing, write_call,
};

const ONE: &str = r#"{"n":1}"#;

/// A journal with injectable faults.
#[derive(Debug, Default)]
struct FaultyJournal {
    inner: MemoryJournal,
    /// Refuses new messages.
    is_full: AtomicBool,
    /// Fails to record completions.
    fails_completions: AtomicBool,
    /// Blocks leases once a message was completed.
    blocks_leases: AtomicBool,
    /// True once a message was completed.
    has_completed: AtomicBool,
    /// Its files were deleted after a message was stored.
    replaced: AtomicBool,
    /// Holds new messages back while true.
    holds_messages: watch::Sender<bool>,
}

impl Journal for FaultyJournal {
    fn publish(&self, draft: MessageDraft, at: Timestamps) -> JournalFuture<'_, PublishOutcome> {
        match self.is_full.load(Ordering::Relaxed) {
            true => Box::pin(std::future::ready(Err(JournalError::DiskFull))),
            false => Box::pin(async move {
                // The sender is owned here, so the channel cannot close.
                let _ = self.holds_messages.subscribe().wait_for(|held| !held).await;
                self.inner.publish(draft, at).await
            }),
        }
    }
    fn ack(
        &self,
        receipt: LeaseReceipt,
        result: Option<bytes::Bytes>,
        at: Timestamps,
    ) -> JournalFuture<'_, ()> {
        match self.fails_completions.load(Ordering::Relaxed) {
            true => Box::pin(std::future::ready(Err(JournalError::Poisoned {
                reason: "gone".into(),
            }))),
            false => {
                self.has_completed.store(true, Ordering::Relaxed);
                self.inner.ack(receipt, result, at)
            }
        }
    }
    fn lease<'a>(
        &'a self,
        lane: &'a LaneName,
        order: LeaseOrder,
        max: usize,
        hold: Duration,
        at: Timestamps,
    ) -> JournalFuture<'a, Vec<LeasedMessage>> {
        match self.blocks_leases.load(Ordering::Relaxed)
            && self.has_completed.load(Ordering::Relaxed)
        {
            true => Box::pin(std::future::pending()),
            false => self.inner.lease(lane, order, max, hold, at),
        }
    }
    fn nak(&self, receipt: LeaseReceipt, delay: Duration, at: Timestamps) -> JournalFuture<'_, ()> {
        match self.replaced.load(Ordering::Relaxed) {
            true => Box::pin(std::future::ready(Err(JournalError::Replaced))),
            false => self.inner.nak(receipt, delay, at),
        }
    }
    fn dead_letter(
        &self,
        receipt: LeaseReceipt,
        reason: Arc<str>,
        at: Timestamps,
    ) -> JournalFuture<'_, ()> {
        self.inner.dead_letter(receipt, reason, at)
    }
    fn requeue(
        &self,
        id: MessageId,
        ttl: Option<Duration>,
        at: Timestamps,
    ) -> JournalFuture<'_, ()> {
        self.inner.requeue(id, ttl, at)
    }
    fn remove_message(&self, id: MessageId, at: Timestamps) -> JournalFuture<'_, ()> {
        self.inner.remove_message(id, at)
    }
    fn discard_leased(&self, receipt: LeaseReceipt, at: Timestamps) -> JournalFuture<'_, ()> {
        self.inner.discard_leased(receipt, at)
    }
    fn expire_messages<'a>(
        &'a self,
        lanes: &'a str,
        at: Timestamps,
    ) -> JournalFuture<'a, Vec<MessageView>> {
        self.inner.expire_messages(lanes, at)
    }
    fn lane_stats<'a>(
        &'a self,
        prefix: &'a str,
        at: Timestamps,
    ) -> JournalFuture<'a, Vec<LaneStats>> {
        self.inner.lane_stats(prefix, at)
    }

    fn lane_bytes<'a>(&'a self, prefix: &'a str) -> JournalFuture<'a, Vec<(LaneName, u64)>> {
        self.inner.lane_bytes(prefix)
    }
    fn list_messages(
        &self,
        filter: MessageFilter,
        at: Timestamps,
    ) -> JournalFuture<'_, Vec<MessageView>> {
        self.inner.list_messages(filter, at)
    }
    fn get_message(&self, id: MessageId, at: Timestamps) -> JournalFuture<'_, Option<MessageView>> {
        self.inner.get_message(id, at)
    }
    fn get_result<'a>(
        &'a self,
        lane: &'a LaneName,
        dedupe: &'a str,
    ) -> JournalFuture<'a, Option<CompletedMessage>> {
        self.inner.get_result(lane, dedupe)
    }
    fn get_value<'a>(&'a self, key: &'a str) -> JournalFuture<'a, Option<VersionedValue>> {
        self.inner.get_value(key)
    }
    fn list_values<'a>(
        &'a self,
        prefix: &'a str,
        limit: usize,
    ) -> JournalFuture<'a, Vec<(Arc<str>, VersionedValue)>> {
        self.inner.list_values(prefix, limit)
    }
    fn put_value<'a>(
        &'a self,
        key: &'a str,
        bytes: Option<bytes::Bytes>,
        expect: ExpectedRevision,
    ) -> JournalFuture<'a, u64> {
        self.inner.put_value(key, bytes, expect)
    }
    fn watch_prefix(&self, prefix: &str) -> RevisionWatch {
        self.inner.watch_prefix(prefix)
    }
    fn health(&self) -> JournalHealth {
        self.inner.health()
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}

async fn faulty_rig(script: ServerScript) -> (OutboxRig, Arc<FaultyJournal>) {
    let journal = Arc::new(FaultyJournal::default());
    let world = SimWorld::new([("s", script)]);
    let rig =
        OutboxRig::start_on_journal(world, vec![queued_server("s")], Arc::clone(&journal) as _)
            .await;
    (rig, journal)
}

#[tokio::test(start_paused = true)]
async fn full_disk_fails_without_sending() {
    let (rig, journal) = faulty_rig(ServerScript::always(healthy_server())).await;
    journal.is_full.store(true, Ordering::Relaxed);
    let error = rig.write_as("owner", ONE).await.unwrap_err();
    assert!(matches!(error, CallError::NotStored { .. }), "{error:?}");
    assert_eq!(error.execution_status(), ExecutionStatus::NotStarted);
    assert!(
        rig.executed_numbers().is_empty(),
        "what cannot be stored is not sent"
    );
    journal.is_full.store(false, Ordering::Relaxed);
    rig.write_as("owner", ONE).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unrecorded_completion_is_still_reported() {
    let (rig, journal) = faulty_rig(ServerScript::always(healthy_server())).await;
    journal.fails_completions.store(true, Ordering::Relaxed);
    let reply = rig.write_as("owner", ONE).await.unwrap();
    assert_eq!(reply.origin, ReplyOrigin::Live, "{}", reply_body(&reply));
}

#[tokio::test(start_paused = true)]
async fn journal_deleted_during_outage_queues_nothing() {
    let (rig, journal) = faulty_rig(ServerScript::always(healthy_server())).await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "backoff").await);
    journal.replaced.store(true, Ordering::Relaxed);
    let error = rig.write_as("owner", ONE).await.unwrap_err();
    assert_eq!(
        error.execution_status(),
        ExecutionStatus::NotStarted,
        "{error:?}"
    );
    assert!(rig.executed_numbers().is_empty());
}

#[tokio::test(start_paused = true)]
async fn write_after_drained_lane_is_live() {
    let (rig, journal) =
        faulty_rig(ServerScript::always(healthy_server()).then(healthy_server())).await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "backoff").await);
    rig.queue_write(ONE).await;
    // The drain does not get to see that the lane is empty.
    journal.blocks_leases.store(true, Ordering::Relaxed);
    rig.wait_drained().await;
    let reply = rig.write_as("owner", r#"{"n":2}"#).await.unwrap();
    assert_eq!(reply.origin, ReplyOrigin::Live, "{}", reply_body(&reply));
    assert_eq!(rig.deduplicated_numbers(), [1, 2]);
}

/// Queues write 1 under key `k` during an outage. While the write gets its turn after the outage,
/// a call with the same key and `repeated` arguments is about to be stored. Returns the outcome of
/// that call; write 1 must still run.
async fn repeat_key_during_turn(repeated: &str) -> Result<CallReply, CallError> {
    let (rig, journal) =
        faulty_rig(ServerScript::always(healthy_server()).then(healthy_server())).await;
    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "backoff").await);
    rig.queue_write(r#"{"n":1,"key":"k"}"#).await;
    journal.holds_messages.send_replace(true);
    let turn = async {
        // Longer than the backoff of the server.
        advance_clock(Duration::from_secs(10)).await;
        journal.holds_messages.send_replace(false);
    };
    let (outcome, ()) = tokio::join!(rig.write_as("owner", repeated), turn);
    rig.wait_drained().await;
    assert_eq!(rig.deduplicated_numbers(), [1]);
    outcome
}

#[tokio::test(start_paused = true)]
async fn repeated_key_during_turn_loses_nothing() {
    let reply = repeat_key_during_turn(r#"{"n":1,"key":"k"}"#).await;
    expect_queued(&reply.unwrap());
}

#[tokio::test(start_paused = true)]
async fn conflicting_key_during_turn_loses_nothing() {
    let error = repeat_key_during_turn(r#"{"n":2,"key":"k"}"#).await;
    let error = error.unwrap_err();
    assert!(matches!(error, CallError::KeyConflict { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn cancelled_call_leaves_no_message() {
    let gate = ReleaseGate::new_closed();
    let rig = OutboxRig::new(ServerScript::always(server_doing(ToolBehaviour::BlockOn(
        gate.clone(),
    ))))
    .await;
    tokio::select! {
        biased;
        outcome = rig.write_as("owner", ONE) => panic!("the call ended: {outcome:?}"),
        _ = rig.world.wait_until(|record| record.executions.len() == 1) => {}
    }
    advance_clock(Duration::from_millis(1)).await;
    assert!(rig.queued_calls().await.is_empty());
    gate.release();
    let reply = rig.write_as("owner", ONE).await.unwrap();
    assert_eq!(reply.origin, ReplyOrigin::Live);
    advance_clock(Duration::from_secs(600)).await;
    assert_eq!(
        rig.executed_numbers(),
        [1, 1],
        "the first was not sent again"
    );
}

#[tokio::test(start_paused = true)]
async fn write_in_flight_at_shutdown_stays_queued() {
    let hangs = server_doing(ToolBehaviour::BlockOn(ReleaseGate::new_closed()));
    let rig = OutboxRig::new(ServerScript::always(hangs)).await;
    let call = rig.write_as("owner", ONE);
    let down = async {
        rig.world
            .wait_until(|record| record.executions.len() == 1)
            .await;
        rig.host.shutdown().await;
    };
    let (outcome, ()) = tokio::join!(call, down);
    expect_queued(&outcome.unwrap());
    let late = rig.write_as("owner", ONE).await.unwrap_err();
    assert!(matches!(late, CallError::ShuttingDown), "{late:?}");

    let world = SimWorld::new([("s", ServerScript::always(healthy_server()))]);
    let next =
        OutboxRig::start_on_journal(world, vec![queued_server("s")], Arc::clone(&rig.journal))
            .await;
    next.wait_drained().await;
    assert_eq!(next.executed_numbers(), [1]);
}

#[tokio::test(start_paused = true)]
async fn caller_cut_off_at_shutdown_loses_nothing() {
    let hangs = server_doing(ToolBehaviour::BlockOn(ReleaseGate::new_closed()));
    let rig = OutboxRig::new(ServerScript::always(hangs)).await;
    let mut call = Box::pin(rig.host.call(write_call("owner", "s__do", ONE)));
    tokio::select! {
        biased;
        outcome = &mut call => panic!("the call ended: {outcome:?}"),
        _ = rig.world.wait_until(|record| record.executions.len() == 1) => {}
    }
    let down = rig.host.shutdown();
    // The edge cuts off its callers during shutdown.
    let cut = async {
        advance_clock(Duration::from_millis(1)).await;
        drop(call);
    };
    tokio::join!(down, cut);
    assert_eq!(rig.queued_calls().await.len(), 1);
}
