//! Delivers the writes of a lane: leases a window of the oldest, sends streams concurrently, and
//! lets parked callers send their own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::lane::{LANE_SENDS_MAX, LaneAdmission, LaneWindow, SendAction};
use bowline_core::sync::lock;
use bowline_journal::{JournalError, LaneName, LeaseOrder, LeaseReceipt, LeasedMessage};
use bowline_runtime::timer::sleep_until_due;
use tokio::task::JoinSet;

use super::OutboxShared;
use super::deliver::{SendOutcome, deliver_write};
use super::drain::expire_writes;
use super::parked_calls::{LaneSignal, SendGrant};
use super::queue_view::lane_parties;
use super::queued_reply::QueueReason;
use super::write_record::WriteRecord;
use crate::callpath::CallPath;

/// Lease duration of messages held by the worker.
const LEASE_DURATION: Duration = Duration::from_secs(2 * 60 * 60);

/// Maximum messages per lease request.
const LEASE_MAX: usize = 8;

/// Maximum bytes of leased bodies in a lane; above it, no further messages are leased.
const WINDOW_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Writes delivered from a lane before yielding to waiting lanes.
const SLICE_MAX: u64 = 64;

/// Consecutive failures before the server counts as down. A single failure may be caused by the
/// write, and must not keep other writes from showing that the server is up.
const SUSPECTS_MAX: usize = 3;

/// Maximum wait for writes in flight at shutdown.
const CLOSE_GRACE: Duration = Duration::from_millis(700);

/// Why a worker leaves its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneStop {
    /// The server is down, or the journal fails.
    ServerDown,
    /// Further lanes wait for their share.
    Yield,
    /// The gateway shuts down.
    Closing,
}

/// The worker of a lane.
#[derive(Debug)]
struct LaneWorker {
    shared: Arc<OutboxShared>,
    call_path: Arc<CallPath>,
    name: Arc<str>,
    lane: LaneName,
    signal: Arc<LaneSignal>,
    window: LaneWindow,
    /// Leased messages not sent yet.
    leased: HashMap<u64, LeasedMessage>,
    sends: JoinSet<(LeasedMessage, Result<SendOutcome, JournalError>)>,
    /// Messages in flight.
    in_flight: HashMap<u64, LeaseReceipt>,
    /// True if the journal may have more messages.
    may_have_more: bool,
    was_up: bool,
    delivered: u64,
    /// Consecutive failed writes.
    failures: usize,
    stop: Option<LaneStop>,
}

/// Delivers the writes of a lane until it is empty, and reports the end to the scheduler.
pub(super) async fn drain_lane(shared: Arc<OutboxShared>, path: Arc<CallPath>, name: Arc<str>) {
    let lane = match LaneName::new(&name) {
        Ok(lane) => lane,
        Err(error) => {
            tracing::error!(lane = %name, %error, "lane name is invalid");
            return lock(&shared.scheduler).on_drained(&name, shared.clock.now());
        }
    };
    let signal = shared.open_lane(&name);
    let mut worker = LaneWorker {
        signal,
        window: LaneWindow::default(),
        leased: HashMap::new(),
        sends: JoinSet::new(),
        in_flight: HashMap::new(),
        may_have_more: true,
        was_up: false,
        delivered: 0,
        failures: 0,
        stop: None,
        shared,
        call_path: path,
        name,
        lane,
    };
    worker.run().await;
    worker.close().await;
}

impl LaneWorker {
    async fn run(&mut self) {
        let shutdown = self.shared.shutdown.clone();
        let (signal, clock) = (Arc::clone(&self.signal), Arc::clone(&self.shared.clock));
        loop {
            self.window
                .release_grants(std::mem::take(&mut *lock(&signal)));
            self.check_admission();
            if self.stop.is_none() {
                self.fill_window().await;
                self.withdraw_abandoned().await;
                self.start_due().await;
            }
            let is_over = self.stop.is_some() || (self.window.is_empty() && !self.may_have_more);
            if (self.sends.is_empty() && is_over) || self.stop == Some(LaneStop::Closing) {
                return;
            }
            let (due, runs) = (self.window.next_due(), self.stop.is_none());
            tokio::select! {
                biased;
                () = shutdown.wait_closing(), if runs => {
                    self.stop = Some(LaneStop::Closing);
                }
                Some(sent) = self.sends.join_next(), if !self.sends.is_empty() => {
                    // A task aborted with the program has no result.
                    if let Ok((delivery, sent)) = sent {
                        self.record_outcome(delivery, sent);
                    }
                }
                () = signal.wait(), if runs => self.may_have_more = true,
                () = sleep_until_due(&*clock, due), if runs => {}
            }
        }
    }

    /// Checks whether the lane may continue.
    fn check_admission(&mut self) {
        let board = lock(&self.shared.scheduler);
        let is_up = board.lane_admission(&self.name) == LaneAdmission::WaitTurn;
        let is_wanted = self.delivered >= SLICE_MAX && board.should_yield(self.shared.clock.now());
        if self.stop.is_none() && self.was_up && !is_up {
            self.stop = Some(LaneStop::ServerDown);
        }
        if self.stop.is_none() && is_wanted {
            self.stop = Some(LaneStop::Yield);
        }
        self.was_up = is_up;
    }

    fn on_journal_error(&mut self, error: &JournalError) {
        tracing::error!(lane = %self.name, %error, "lane cannot be read or written");
        self.back_off_server(None);
    }

    /// Leases more messages while the window has room.
    async fn fill_window(&mut self) {
        while self.stop.is_none() {
            let woken = self.window.due_messages(self.shared.clock.now());
            let bytes: usize = self.leased.values().map(|one| one.body.len()).sum();
            let room = match bytes < WINDOW_BYTES_MAX {
                true => self.window.free_slots().min(LEASE_MAX),
                false => 0,
            };
            if woken.is_empty() && (!self.may_have_more || room == 0) {
                return;
            }
            if let Err(error) = self.lease_messages(&woken, woken.len() + room).await {
                self.on_journal_error(&error);
            }
        }
    }

    async fn lease_messages(&mut self, woken: &[u64], max: usize) -> Result<(), JournalError> {
        let shared = Arc::clone(&self.shared);
        // A delayed message is released and leased again, so that its attempts are counted.
        for id in woken {
            if let Some(delivery) = self.leased.remove(id) {
                shared.release_message(delivery.receipt).await?;
            }
        }
        lock(&shared.scheduler).mark_seen(&self.name);
        let hold = LEASE_DURATION.max(shared.parked.longest_lease(&self.lane));
        let messages = {
            // Excludes picking messages from the lane meanwhile.
            let _order = shared.order_permits.acquire().await;
            let at = shared.timestamps();
            shared
                .journal
                .lease(&self.lane, LeaseOrder::Any, max, hold, at)
                .await?
        };
        self.may_have_more = messages.len() == max;
        if messages.is_empty() && expire_writes(&shared, &self.name).await > 0 {
            self.may_have_more = true;
        }
        for delivery in messages {
            let id = delivery.receipt.id.0;
            let record = WriteRecord::parse(&delivery.body);
            self.window
                .push(id, record.and_then(|record| record.head.stream()));
            self.leased.insert(id, delivery);
        }
        // A message not leased again is expired or was dropped.
        for id in woken.iter().filter(|id| !self.leased.contains_key(id)) {
            self.window.remove(*id);
        }
        Ok(())
    }

    /// Withdraws the writes of callers that left before their turn.
    async fn withdraw_abandoned(&mut self) {
        for id in self.window.unsent_messages() {
            let Some(delivery) = self.leased.get(&id) else {
                continue;
            };
            if self
                .shared
                .parked
                .is_abandoned(&self.lane, &delivery.dedupe)
            {
                self.withdraw_write(id).await;
            }
        }
    }

    async fn withdraw_write(&mut self, id: u64) {
        self.window.remove(id);
        let Some(delivery) = self.leased.remove(&id) else {
            return;
        };
        let shared = &self.shared;
        let discarded = shared
            .journal
            .discard_leased(delivery.receipt, shared.timestamps())
            .await;
        if let Err(error) = discarded {
            tracing::warn!(id, %error, "write could not be withdrawn");
        }
        shared.parked.remove_abandoned(&self.lane, &delivery.dedupe);
    }

    /// Starts every write due.
    async fn start_due(&mut self) {
        let width = match self.was_up {
            true => self.call_path.concurrency_limit(lane_parties(&self.name).1),
            false => 1,
        };
        loop {
            let (parked, lane) = (&self.shared.parked, &self.lane);
            let is_parked = |id| {
                let delivery = self.leased.get(&id);
                delivery.is_some_and(|one| parked.is_parked(lane, &one.dedupe))
            };
            match self.window.next_action(width, is_parked) {
                None => break,
                Some(SendAction::Grant(id)) => self.grant_turn(id),
                Some(SendAction::Replay(id)) => self.replay_write(id).await,
            }
        }
        // Callers behind a delayed write would wait too long.
        for id in self.window.blocked_messages() {
            if let Some(delivery) = self.leased.get(&id) {
                let parked = &self.shared.parked;
                parked.release_caller(&self.lane, &delivery.dedupe, QueueReason::Behind);
            }
        }
    }

    fn grant_turn(&mut self, id: u64) {
        let Some(delivery) = self.leased.get(&id) else {
            return self.window.remove(id);
        };
        let grant = || SendGrant::new(Arc::clone(&self.shared), delivery.receipt, &self.signal);
        let parked = &self.shared.parked;
        // If no caller waits, the write is replayed.
        if parked.grant_turn(&self.lane, &delivery.dedupe, grant) {
            self.window.grant_to_caller(id);
            self.leased.remove(&id);
        }
    }

    async fn replay_write(&mut self, id: u64) {
        let is_left =
            |one: &LeasedMessage| self.shared.parked.is_abandoned(&self.lane, &one.dedupe);
        match self.leased.get(&id).map(is_left) {
            None => self.window.remove(id),
            Some(true) => self.withdraw_write(id).await,
            Some(false) => {
                let Some(delivery) = self.leased.remove(&id) else {
                    return;
                };
                self.window.mark_sending(id);
                self.in_flight.insert(id, delivery.receipt);
                let (shared, path) = (Arc::clone(&self.shared), Arc::clone(&self.call_path));
                let lane = self.lane.clone();
                self.sends.spawn(async move {
                    let outcome = deliver_write(&shared, &path, &lane, &delivery).await;
                    (delivery, outcome)
                });
            }
        }
    }

    /// Records the outcome of a replay.
    fn record_outcome(
        &mut self,
        delivery: LeasedMessage,
        outcome: Result<SendOutcome, JournalError>,
    ) {
        let id = delivery.receipt.id.0;
        let now = self.shared.clock.now();
        self.in_flight.remove(&id);
        match outcome {
            Ok(SendOutcome::Responded) => {
                self.delivered += 1;
                self.failures = 0;
                self.window.remove(id);
                lock(&self.shared.scheduler).on_delivered(&self.name, now);
            }
            Ok(SendOutcome::Finished) => self.window.remove(id),
            Ok(SendOutcome::Delayed(rest)) => {
                self.window.delay_until(id, now.plus(rest));
                self.leased.insert(id, delivery);
            }
            Ok(SendOutcome::Suspect { rest, after }) => {
                self.window.delay_until(id, now.plus(rest));
                self.leased.insert(id, delivery);
                self.failures += 1;
                let has_others = self.window.next_action(LANE_SENDS_MAX, |_| false).is_some();
                if self.failures >= SUSPECTS_MAX || !has_others {
                    self.back_off_server(after);
                    lock(&self.shared.scheduler).mark_suspect(&self.name);
                }
            }
            Ok(SendOutcome::ServerDown(after)) => {
                self.window.remove(id);
                self.back_off_server(after);
            }
            Err(error) => {
                self.window.remove(id);
                self.on_journal_error(&error);
            }
        }
    }

    /// Backs off lane and server.
    fn back_off_server(&mut self, after: Option<Duration>) {
        let now = self.shared.clock.now();
        lock(&self.shared.scheduler).on_unreachable(&self.name, after, now);
        self.stop = Some(LaneStop::ServerDown);
        // Waiting callers are released at once, not after the writes in flight.
        self.shared
            .parked
            .release_lane(&self.lane, QueueReason::Unreachable);
    }

    /// Releases unsent messages and leaves the lane. Writes that did not end in time are released
    /// as well: the next gateway sends them with the same key.
    async fn close(mut self) {
        let shared = Arc::clone(&self.shared);
        let ends = async {
            while let Some(outcome) = self.sends.join_next().await {
                if let Ok((delivery, outcome)) = outcome {
                    self.record_outcome(delivery, outcome);
                }
            }
        };
        let in_time = tokio::time::timeout(CLOSE_GRACE, ends).await.is_ok();
        if !in_time {
            self.sends.shutdown().await;
        }
        self.withdraw_abandoned().await;
        let left = self.leased.values().map(|one| one.receipt);
        for receipt in left.chain(self.in_flight.values().copied()) {
            if let Err(error) = shared.release_message(receipt).await {
                tracing::error!(lane = %self.name, %error, "message could not be released");
            }
        }
        shared.close_lane(&self.name);
        let now = shared.clock.now();
        match self.stop {
            None => lock(&shared.scheduler).on_drained(&self.name, now),
            Some(stop) => {
                lock(&shared.scheduler).release_lane(&self.name, now);
                if stop != LaneStop::Yield {
                    shared
                        .parked
                        .release_lane(&self.lane, QueueReason::Unreachable);
                }
            }
        }
    }
}
