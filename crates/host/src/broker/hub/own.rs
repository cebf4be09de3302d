//! The hub's own mailbox: requests that it answers, and replies to what it asked.
//!
//! Senders take turns, and none has more in hand than a share, so that one that sends much, or
//! whose tools are slow, keeps nobody waiting but itself.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use bowline_core::error::Execution;
use bowline_core::mailbox::Mailbox;
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_journal::{Delivery, JournalError, Known, MessageId, Order, Published, Receipt};
use bowline_link::BoxFuture;
use bowline_wire::broker::{Answer, Draft, Letter, REPLY, REQUEST, Said};
use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::live::Words;
use super::pump::{self, DELAY_MAX, UNREADABLE};
use super::store::{fresh_id, own_stamp};
use super::{END_WAIT, Shared, mailbox, remote};
use crate::broker::{Courier, Incoming, ReplyError, failures, reply_id};

/// Requests of one sender in hand at once.
const SENDER_MAX: usize = 256;

/// Requests of all senders in hand at once.
const IN_HAND_MAX: usize = 2_048;

/// Messages that are taken of one sender at a time.
const BATCH_MAX: usize = 32;

/// A request in hand is nobody else's for so long.
const HOLD: Duration = Duration::from_secs(65 * 60);

/// How long the hub waits after the journal failed.
const FAULT_WAIT: Duration = Duration::from_secs(1);

/// Requests that were taken back before they came up, as many as are remembered.
const CANCELLED_MAX: usize = 4_096;

/// What is under way.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// Senders that may have something waiting, in turn.
    queue: VecDeque<Arc<str>>,
    queued: HashSet<Arc<str>>,
    /// What is in hand.
    hands: HashMap<MessageId, Arc<str>>,
    shares: HashMap<Arc<str>, usize>,
    /// When a sender's messages are due again that were put back.
    dues: BTreeSet<(Now, Arc<str>)>,
    /// Requests that were taken back before they came up: `SENDER/ID`.
    cancelled: HashSet<Arc<str>>,
    /// The same, oldest first; those that came up since are among them.
    cancelled_order: VecDeque<Arc<str>>,
    count: watch::Sender<usize>,
}

impl Desk {
    /// Notes that a sender may have something waiting.
    pub(super) fn note(&mut self, sender: &str) {
        if !self.queued.contains(sender) {
            let sender: Arc<str> = sender.into();
            self.queued.insert(Arc::clone(&sender));
            self.queue.push_back(sender);
        }
    }

    /// Returns whose turn it is, and how much of it may be taken.
    fn next(&mut self) -> Option<(Arc<str>, usize)> {
        let room = IN_HAND_MAX.saturating_sub(self.hands.len());
        if room == 0 {
            return None;
        }
        loop {
            let sender = self.queue.pop_front()?;
            self.queued.remove(&sender);
            let share = self.shares.get(&sender).copied().unwrap_or_default();
            // One that has its share is noted again when something of it ends.
            let max = SENDER_MAX.saturating_sub(share).min(room).min(BATCH_MAX);
            if max > 0 {
                return Some((sender, max));
            }
        }
    }

    /// Takes a message in hand; `false` where it is already.
    fn begin(&mut self, id: MessageId, sender: &Arc<str>) -> bool {
        let fresh = self.hands.insert(id, Arc::clone(sender)).is_none();
        if fresh {
            *self.shares.entry(Arc::clone(sender)).or_default() += 1;
            self.count.send_replace(self.hands.len());
        }
        fresh
    }

    fn end(&mut self, id: MessageId) {
        let Some(sender) = self.hands.remove(&id) else {
            return;
        };
        if let Some(share) = self.shares.get_mut(&sender) {
            *share = share.saturating_sub(1);
            if *share == 0 {
                self.shares.remove(&sender);
            }
        }
        self.note(&sender);
        self.count.send_replace(self.hands.len());
    }

    /// Notes those whose messages are due again, and returns when the next ones are.
    fn ripen(&mut self, now: Now) -> Option<Now> {
        while let Some((due, sender)) = self.dues.first().cloned() {
            if due > now {
                return Some(due);
            }
            self.dues.pop_first();
            self.note(&sender);
        }
        None
    }

    fn take_back(&mut self, name: Arc<str>) {
        if self.cancelled_order.len() >= CANCELLED_MAX
            && let Some(oldest) = self.cancelled_order.pop_front()
        {
            self.cancelled.remove(&oldest);
        }
        if self.cancelled.insert(Arc::clone(&name)) {
            self.cancelled_order.push_back(name);
        }
    }

    /// Whether a request was taken back before it came up.
    fn was_taken_back(&mut self, name: &str) -> bool {
        self.cancelled.remove(name)
    }

    /// Sees how many are in hand.
    pub(super) fn quiet(&self) -> watch::Receiver<usize> {
        self.count.subscribe()
    }
}

/// Takes what comes until the hub goes down.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut work = JoinSet::new();
    load(&shared).await;
    let closed = shared.closed();
    tokio::pin!(closed);
    loop {
        start(&shared, &mut work).await;
        let due = lock(&shared.desk).ripen(shared.now());
        tokio::select! {
            biased;
            () = &mut closed => break,
            () = shared.desk_poke.notified() => {}
            Some(_) = work.join_next(), if !work.is_empty() => {}
            () = until(&shared, due), if due.is_some() => {}
        }
    }
    shared.serving.close(END_WAIT).await;
    let rest = async { while work.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(END_WAIT, rest).await;
}

async fn until(shared: &Shared, due: Option<Now>) {
    if let Some(due) = due {
        tokio::time::sleep_until(shared.clock().instant(due)).await;
    }
}

/// Notes what was left when the hub last went down.
async fn load(shared: &Shared) {
    match shared.journal.lanes(mailbox::OWN_LANES, shared.at()).await {
        Ok(lanes) => {
            let mut desk = lock(&shared.desk);
            for lane in lanes.iter().filter(|lane| lane.waiting > 0) {
                if let Some(sender) = mailbox::sender_of(&lane.lane) {
                    desk.note(sender);
                }
            }
        }
        Err(error) => tracing::error!(%error, "the hub's mailbox cannot be read"),
    }
}

/// Takes what may be taken, each sender in turn.
async fn start(shared: &Arc<Shared>, work: &mut JoinSet<()>) {
    loop {
        let next = lock(&shared.desk).next();
        let Some((sender, max)) = next else {
            return;
        };
        let Ok(lane) = mailbox::lane(&Mailbox::hub(), &sender) else {
            continue;
        };
        let lease = shared
            .journal
            .lease(&lane, Order::Any, max, HOLD, shared.at());
        match lease.await {
            Ok(batch) => {
                if batch.len() >= max {
                    lock(&shared.desk).note(&sender);
                }
                for delivery in batch {
                    take(shared, &sender, delivery, work).await;
                }
            }
            Err(error) => {
                tracing::error!(%lane, %error, "the hub's mailbox cannot be read");
                let due = shared.now().plus(FAULT_WAIT);
                lock(&shared.desk).dues.insert((due, sender));
                return;
            }
        }
    }
}

async fn take(shared: &Arc<Shared>, sender: &Arc<str>, delivery: Delivery, work: &mut JoinSet<()>) {
    let receipt = delivery.receipt;
    if pump::is_worn_out(shared, &delivery) {
        let times = delivery.attempts.saturating_sub(1);
        let reason = format!("it was taken up {times} times and never ended");
        return pump::bury(shared, receipt, reason.into()).await;
    }
    let Some((principal, letter)) = mailbox::read(&delivery.body) else {
        return pump::bury(shared, receipt, UNREADABLE.into()).await;
    };
    let from = letter.from.clone().unwrap_or_default();
    match &*letter.kind {
        REQUEST => {
            if !lock(&shared.desk).begin(receipt.id, sender) {
                // It runs; its end is that of this lease as well.
                return;
            }
            let left = delivery
                .expires_unix_ms
                .map(|end| end.saturating_sub(shared.clock().unix_ms()))
                .map_or(DELAY_MAX, Duration::from_millis);
            let subscriber = Mailbox::parse(&from.session_id)
                .ok()
                .and_then(|from| lock(&shared.peers).subscriber(&from));
            let incoming = Incoming {
                from,
                principal: Some(Arc::new(principal)),
                id: Arc::clone(&letter.id),
                body: letter.body.clone(),
                deadline: shared.now().plus(left),
                sink: subscriber.map(|peer| Words::to(&peer, &letter.id)),
            };
            let hand = Hand {
                shared: Arc::clone(shared),
                receipt,
                sender: Arc::clone(sender),
                request: Arc::clone(&letter.id),
                is_first: delivery.attempts == 1,
                ended: AtomicBool::new(false),
            };
            work.spawn(async move { hand.carry(incoming).await });
        }
        REPLY => remote::replied(shared, &from, &letter, receipt).await,
        _ => {
            let reason = "it is of a kind that the hub does not take";
            pump::bury(shared, receipt, reason.into()).await;
        }
    }
}

/// Takes back a stored request of a peer, whether it runs or still waits.
pub(super) fn cancel(shared: &Shared, from: &Mailbox, id: &Arc<str>) {
    if !shared.serving.cancel(from.as_str(), id) {
        let name = format!("{from}/{id}").into();
        lock(&shared.desk).take_back(name);
    }
}

/// Stores the reply again to a request that was done before, where it is remembered.
pub(super) async fn answer_again(shared: &Shared, from: &Mailbox, request: &Letter) {
    let known = shared
        .serving
        .ledger()
        .answered(from.as_str(), &request.id)
        .await;
    let Ok(Some(Some(body))) = known else {
        return;
    };
    if let Err(error) = reply(shared, from, &request.id, &body).await {
        tracing::warn!(%from, %error, "a reply cannot be stored again");
    }
}

/// Stores a reply of the hub. The first of several to one request counts for as long as it was not
/// acknowledged.
pub(super) async fn reply(
    shared: &Shared,
    to: &Mailbox,
    request: &str,
    body: &Bytes,
) -> Result<(), JournalError> {
    let letter = |id: &str| {
        let draft = Draft {
            id,
            kind: REPLY,
            body,
            correlation_id: Some(request),
            ttl_ms: None,
            created_at_ms: shared.clock().unix_ms(),
        };
        Letter::new(&draft).stamped(&own_stamp())
    };
    let said = shared
        .say(to, &letter(&reply_id(to.as_str(), request)))
        .await?;
    if matches!(said, Published::Known(Known::Done(_))) {
        shared.say(to, &letter(&fresh_id("")?)).await?;
    }
    Ok(())
}

/// One request in hand, until this is dropped; and its way back.
#[derive(Debug)]
struct Hand {
    shared: Arc<Shared>,
    receipt: Receipt,
    sender: Arc<str>,
    request: Arc<str>,
    /// Whether it was never handed out before.
    is_first: bool,
    /// Whether the journal knows what became of it.
    ended: AtomicBool,
}

impl Drop for Hand {
    fn drop(&mut self) {
        lock(&self.shared.desk).end(self.receipt.id);
        self.shared.desk_poke.notify_one();
        if !self.ended.load(Ordering::Relaxed) {
            let (shared, receipt) = (Arc::clone(&self.shared), self.receipt);
            let due = (shared.now().plus(FAULT_WAIT), Arc::clone(&self.sender));
            lock(&shared.desk).dues.insert(due);
            let tasks = shared.tasks().clone();
            tasks.spawn("request return", async move {
                let back = shared.journal.nak(receipt, FAULT_WAIT, shared.at()).await;
                if let Err(error) = back {
                    tracing::warn!(%error, "a request cannot be given back yet");
                }
            });
        }
    }
}

impl Hand {
    async fn carry(self, incoming: Incoming) {
        let (caller, id) = (
            Arc::clone(&incoming.from.session_id),
            Arc::clone(&incoming.id),
        );
        let name = format!("{caller}/{id}");
        if self.is_first && lock(&self.shared.desk).was_taken_back(&name) {
            let answer = Answer::Failed(failures::cancelled(Execution::NotStarted));
            // Nobody waits for it; that it is ended is what matters.
            let _ = self.reply(&answer).await;
            return self.ack().await;
        }
        let mut served = Box::pin(self.shared.serving.stored(incoming, &self));
        // Once, so that it is in hand and can be taken back.
        let begun = poll_fn(|context| Poll::Ready(served.as_mut().poll(context))).await;
        if begun.is_ready() {
            return;
        }
        if lock(&self.shared.desk).was_taken_back(&name) {
            self.shared.serving.cancel(&caller, &id);
        }
        served.await;
    }

    /// Notes what the journal was told.
    fn told(&self, what: Result<(), JournalError>) {
        match what {
            Ok(()) => self.ended.store(true, Ordering::Relaxed),
            Err(error) => tracing::error!(%error, "the end of a request is not stored"),
        }
    }
}

impl Courier for Hand {
    fn reply<'a>(&'a self, answer: &'a Answer) -> BoxFuture<'a, Result<(), ReplyError>> {
        Box::pin(async move {
            let mut body = Vec::new();
            answer.write(Said::Whole, &mut body);
            let to = Mailbox::parse(&self.sender)
                .map_err(|bad| ReplyError::Refused(bad.to_string().into()))?;
            let stored = reply(&self.shared, &to, &self.request, &body.into()).await;
            stored.map_err(|error| match error {
                JournalError::TooLarge { .. } => ReplyError::TooLarge,
                JournalError::LaneFull { .. } => {
                    ReplyError::Refused("the mailbox of whoever asked is full".into())
                }
                JournalError::BadName => ReplyError::Refused(error.to_string().into()),
                _ => ReplyError::Lost,
            })
        })
    }

    fn ack(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let ack = self
                .shared
                .journal
                .ack(self.receipt, None, self.shared.at());
            self.told(ack.await);
        })
    }

    fn put_back(&self, delay: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let at = self.shared.at();
            self.told(self.shared.journal.nak(self.receipt, delay, at).await);
            let due = (at.now.plus(delay), Arc::clone(&self.sender));
            lock(&self.shared.desk).dues.insert(due);
            self.shared.desk_poke.notify_one();
        })
    }

    fn bury(&self, reason: Arc<str>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let bury = self
                .shared
                .journal
                .bury(self.receipt, reason, self.shared.at());
            self.told(bury.await);
        })
    }
}
