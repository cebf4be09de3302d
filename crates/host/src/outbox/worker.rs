//! Delivers the writes of one lane: a window of the oldest is leased, streams go side by side, and
//! callers that wait send their own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::lane::{Admission, LANE_SENDS_MAX, Turn, Window};
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_journal::{Delivery, JournalError, Lane, Order, Receipt};
use tokio::task::JoinSet;

use super::Shared;
use super::answer::Reason;
use super::deliver::{Sent, deliver};
use super::drain::expire;
use super::letter::parties;
use super::parked::{Grant, LaneSignal};
use super::record::Record;
use crate::callpath::CallPath;

/// A message that the drain has is nobody else's for so long.
const HOLD: Duration = Duration::from_secs(2 * 60 * 60);

/// Messages that are leased by one request at most.
const LEASE_MAX: usize = 8;

/// Bodies of leased messages of one lane, from which on no more are leased, in bytes.
const WINDOW_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Writes that the drain delivers from one lane before it looks whether others wait.
const SLICE_MAX: u64 = 64;

/// Writes of a lane that fail in a row before its server is taken to be away. One may be the fault
/// of the write, and must not keep others from showing that the server serves.
const SUSPECTS_MAX: usize = 3;

/// How long what is in flight may take to end when the gateway goes down.
const CLOSE_GRACE: Duration = Duration::from_millis(700);

/// Why the drain leaves a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The server is away, or the journal fails.
    Away,
    /// Other lanes wait for their share.
    Yield,
    /// The gateway goes down.
    Closing,
}

/// One lane that is being drained.
#[derive(Debug)]
struct LaneWorker {
    shared: Arc<Shared>,
    path: Arc<CallPath>,
    name: Arc<str>,
    lane: Lane,
    signal: Arc<LaneSignal>,
    window: Window,
    /// The messages of the window that are leased and not sent.
    leased: HashMap<u64, Delivery>,
    sends: JoinSet<(Delivery, Result<Sent, JournalError>)>,
    /// The messages that are sent.
    sent: HashMap<u64, Receipt>,
    /// Whether the journal may have more.
    looks: bool,
    was_up: bool,
    delivered: u64,
    /// Writes that failed in a row.
    suspects: usize,
    stop: Option<Stop>,
}

/// Delivers what waits in a lane until it is empty, and notes on the board how it ended.
pub(super) async fn drain_lane(shared: Arc<Shared>, path: Arc<CallPath>, name: Arc<str>) {
    let lane = match Lane::new(&name) {
        Ok(lane) => lane,
        Err(error) => {
            tracing::error!(lane = %name, %error, "a lane has no name");
            return lock(&shared.board).emptied(&name, shared.clock.now());
        }
    };
    let signal = shared.open_lane(&name);
    let mut worker = LaneWorker {
        signal,
        window: Window::default(),
        leased: HashMap::new(),
        sends: JoinSet::new(),
        sent: HashMap::new(),
        looks: true,
        was_up: false,
        delivered: 0,
        suspects: 0,
        stop: None,
        shared,
        path,
        name,
        lane,
    };
    worker.run().await;
    worker.close().await;
}

impl LaneWorker {
    async fn run(&mut self) {
        let mut closing = self.shared.closing.clone();
        let signal = Arc::clone(&self.signal);
        loop {
            self.window.returned(signal.take_returned());
            self.check();
            if self.stop.is_none() {
                self.fill().await;
                self.drop_left().await;
                self.start().await;
            }
            let is_over = self.stop.is_some() || (self.window.is_empty() && !self.looks);
            if (self.sends.is_empty() && is_over) || self.stop == Some(Stop::Closing) {
                return;
            }
            let (due, runs) = (self.window.due(), self.stop.is_none());
            tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing), if runs => {
                    self.stop = Some(Stop::Closing);
                }
                Some(sent) = self.sends.join_next(), if !self.sends.is_empty() => {
                    // A task that was ended with the program has nothing to say.
                    if let Ok((delivery, sent)) = sent {
                        self.settle(delivery, sent);
                    }
                }
                () = signal.changed.notified(), if runs => self.looks = true,
                () = until(&self.shared, due), if runs && due.is_some() => {}
            }
        }
    }

    /// Sees whether the lane may go on.
    fn check(&mut self) {
        let board = lock(&self.shared.board);
        let is_up = board.admission(&self.name) == Admission::Turn;
        let is_wanted = self.delivered >= SLICE_MAX && board.is_wanted(self.shared.clock.now());
        if self.stop.is_none() && self.was_up && !is_up {
            self.stop = Some(Stop::Away);
        }
        if self.stop.is_none() && is_wanted {
            self.stop = Some(Stop::Yield);
        }
        self.was_up = is_up;
    }

    fn fail(&mut self, error: &JournalError) {
        tracing::error!(lane = %self.name, %error, "a lane cannot be read or written");
        self.rest_server(None);
    }

    /// Leases more, where there may be more and there is room.
    async fn fill(&mut self) {
        while self.stop.is_none() {
            let woken = self.window.wake(self.shared.clock.now());
            let bytes: usize = self.leased.values().map(|one| one.body.len()).sum();
            let room = match bytes < WINDOW_BYTES_MAX {
                true => self.window.room().min(LEASE_MAX),
                false => 0,
            };
            if woken.is_empty() && (!self.looks || room == 0) {
                return;
            }
            if let Err(error) = self.lease(&woken, woken.len() + room).await {
                self.fail(&error);
            }
        }
    }

    async fn lease(&mut self, woken: &[u64], max: usize) -> Result<(), JournalError> {
        let shared = Arc::clone(&self.shared);
        // One that rested is given back and leased again, so that its tries are counted.
        for id in woken {
            if let Some(delivery) = self.leased.remove(id) {
                shared.give_back(delivery.receipt).await?;
            }
        }
        lock(&shared.board).look(&self.name);
        let hold = HOLD.max(shared.parked.hold(&self.lane));
        let given = {
            // Nobody picks messages out of the lane meanwhile.
            let _order = shared.order.acquire().await;
            let at = shared.at();
            shared
                .journal
                .lease(&self.lane, Order::Any, max, hold, at)
                .await?
        };
        self.looks = given.len() == max;
        if given.is_empty() && expire(&shared, &self.name).await > 0 {
            self.looks = true;
        }
        for delivery in given {
            let id = delivery.receipt.id.0;
            let record = Record::read(&delivery.body);
            self.window
                .push(id, record.and_then(|record| record.head.stream()));
            self.leased.insert(id, delivery);
        }
        // One that did not come back is over its time, or was dropped.
        for id in woken.iter().filter(|id| !self.leased.contains_key(id)) {
            self.window.finish(*id);
        }
        Ok(())
    }

    /// Withdraws the writes whose callers left before their turn came.
    async fn drop_left(&mut self) {
        for id in self.window.unsent() {
            let Some(delivery) = self.leased.get(&id) else {
                continue;
            };
            if self.shared.parked.is_left(&self.lane, &delivery.dedupe) {
                self.withdraw(id).await;
            }
        }
    }

    async fn withdraw(&mut self, id: u64) {
        self.window.finish(id);
        let Some(delivery) = self.leased.remove(&id) else {
            return;
        };
        let shared = &self.shared;
        let gone = shared.journal.withdraw(delivery.receipt, shared.at()).await;
        if let Err(error) = gone {
            tracing::warn!(id, %error, "a write was not withdrawn");
        }
        shared.parked.forget_left(&self.lane, &delivery.dedupe);
    }

    /// Starts every write whose turn has come.
    async fn start(&mut self) {
        let width = match self.was_up {
            true => self.path.places_of(parties(&self.name).1),
            false => 1,
        };
        loop {
            let (parked, lane) = (&self.shared.parked, &self.lane);
            let is_parked = |id| {
                let delivery = self.leased.get(&id);
                delivery.is_some_and(|one| parked.is_parked(lane, &one.dedupe))
            };
            match self.window.next(width, is_parked) {
                None => break,
                Some(Turn::Grant(id)) => self.grant(id),
                Some(Turn::Replay(id)) => self.replay(id).await,
            }
        }
        // Whoever waits behind a write that rests waits too long.
        for id in self.window.behind_rest() {
            if let Some(delivery) = self.leased.get(&id) {
                let parked = &self.shared.parked;
                parked.release_one(&self.lane, &delivery.dedupe, Reason::Behind);
            }
        }
    }

    fn grant(&mut self, id: u64) {
        let Some(delivery) = self.leased.get(&id) else {
            return self.window.finish(id);
        };
        let grant = || Grant::new(Arc::clone(&self.shared), delivery.receipt, &self.signal);
        let parked = &self.shared.parked;
        // One that waits no more is replayed.
        if parked.grant(&self.lane, &delivery.dedupe, grant) {
            self.window.grant(id);
            self.leased.remove(&id);
        }
    }

    async fn replay(&mut self, id: u64) {
        let is_left = |one: &Delivery| self.shared.parked.is_left(&self.lane, &one.dedupe);
        match self.leased.get(&id).map(is_left) {
            None => self.window.finish(id),
            Some(true) => self.withdraw(id).await,
            Some(false) => {
                let Some(delivery) = self.leased.remove(&id) else {
                    return;
                };
                self.window.send(id);
                self.sent.insert(id, delivery.receipt);
                let (shared, path) = (Arc::clone(&self.shared), Arc::clone(&self.path));
                let lane = self.lane.clone();
                self.sends.spawn(async move {
                    let sent = deliver(&shared, &path, &lane, &delivery).await;
                    (delivery, sent)
                });
            }
        }
    }

    /// Notes what came of a replay.
    fn settle(&mut self, delivery: Delivery, sent: Result<Sent, JournalError>) {
        let id = delivery.receipt.id.0;
        let now = self.shared.clock.now();
        self.sent.remove(&id);
        match sent {
            Ok(Sent::Answered) => {
                self.delivered += 1;
                self.suspects = 0;
                self.window.finish(id);
                lock(&self.shared.board).answered(&self.name, now);
            }
            Ok(Sent::Passed) => self.window.finish(id),
            Ok(Sent::Rests(rest)) => {
                self.window.rest(id, now.plus(rest));
                self.leased.insert(id, delivery);
            }
            Ok(Sent::Suspect { rest, after }) => {
                self.window.rest(id, now.plus(rest));
                self.leased.insert(id, delivery);
                self.suspects += 1;
                let has_others = self.window.next(LANE_SENDS_MAX, |_| false).is_some();
                if self.suspects >= SUSPECTS_MAX || !has_others {
                    self.rest_server(after);
                    lock(&self.shared.board).suspect(&self.name);
                }
            }
            Ok(Sent::Away(after)) => {
                self.window.finish(id);
                self.rest_server(after);
            }
            Err(error) => {
                self.window.finish(id);
                self.fail(&error);
            }
        }
    }

    /// Lets lane and server rest.
    fn rest_server(&mut self, after: Option<Duration>) {
        let (now, jitter) = (self.shared.clock.now(), self.shared.jitter(&self.name));
        lock(&self.shared.board).failed(&self.name, after, now, jitter);
        self.stop = Some(Stop::Away);
        // Whoever waits is told at once, and not when all that is in flight has ended.
        self.shared.parked.release(&self.lane, Reason::Away);
    }

    /// Gives back what was not sent, and leaves the lane. What did not end in time is given back
    /// as well: the next gateway sends it under the same key.
    async fn close(mut self) {
        let shared = Arc::clone(&self.shared);
        let ends = async {
            while let Some(sent) = self.sends.join_next().await {
                if let Ok((delivery, sent)) = sent {
                    self.settle(delivery, sent);
                }
            }
        };
        let in_time = tokio::time::timeout(CLOSE_GRACE, ends).await.is_ok();
        if !in_time {
            self.sends.shutdown().await;
        }
        self.drop_left().await;
        let left = self.leased.values().map(|one| one.receipt);
        for receipt in left.chain(self.sent.values().copied()) {
            if let Err(error) = shared.give_back(receipt).await {
                tracing::error!(lane = %self.name, %error, "a message was not given back");
            }
        }
        shared.close_lane(&self.name);
        let now = shared.clock.now();
        match self.stop {
            None => lock(&shared.board).emptied(&self.name, now),
            Some(stop) => {
                lock(&shared.board).ended(&self.name, now);
                if stop != Stop::Yield {
                    shared.parked.release(&self.lane, Reason::Away);
                }
            }
        }
    }
}

async fn until(shared: &Shared, due: Option<Now>) {
    if let Some(due) = due {
        tokio::time::sleep_until(shared.clock.instant(due)).await;
    }
}
