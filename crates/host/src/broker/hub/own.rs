//! The hub's own mailbox: requests that it answers, and replies to what it asked.
//!
//! Senders take turns, and none has more in hand than a share, so that one that sends much, or
//! whose tools are slow, keeps nobody waiting but itself.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use bowline_core::error::Execution;
use bowline_core::mailbox::Mailbox;
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_journal::{
    At, Delivery, Journal, JournalError, Known, MessageId, Order, Pending, Published, Receipt,
};
use bowline_link::BoxFuture;
use bowline_wire::broker::{Answer, Draft, Letter, REPLY, REQUEST, Said};
use bytes::Bytes;

use super::desk::Found;
use super::live::Words;
use super::pump::{self, DELAY_MAX, UNREADABLE};
use super::store::{StoreError, fresh_id, own_stamp};
use super::{END_WAIT, Shared, mailbox, remote};
use crate::broker::{Courier, Incoming, ReplyError, failures, reply_id};

/// A request in hand is nobody else's for so long.
const HOLD: Duration = Duration::from_secs(65 * 60);

/// How long the hub waits after the journal failed.
const FAULT_WAIT: Duration = Duration::from_secs(1);

/// Takes what comes until the hub goes down.
pub(super) async fn run(shared: Arc<Shared>) {
    load(&shared).await;
    let closed = shared.closed();
    tokio::pin!(closed);
    loop {
        let due = lock(&shared.desk).ripen(shared.now());
        start(&shared);
        tokio::select! {
            biased;
            () = &mut closed => break,
            () = shared.desk_poke.notified() => {}
            () = until(&shared, due), if due.is_some() => {}
        }
    }
    shared.serving.close(END_WAIT).await;
}

async fn until(shared: &Shared, due: Option<Now>) {
    if let Some(due) = due {
        tokio::time::sleep_until(shared.clock().instant(due)).await;
    }
}

/// Notes what was left when the hub last went down.
async fn load(shared: &Shared) {
    let bytes = shared.journal.lane_bytes(mailbox::OWN_LANES).await;
    match shared.journal.lanes(mailbox::OWN_LANES, shared.at()).await {
        Ok(lanes) => {
            let mut desk = lock(&shared.desk);
            for (lane, bytes) in bytes.unwrap_or_default() {
                if let Some(sender) = mailbox::sender_of(&lane) {
                    // No message is larger than all together.
                    desk.note_bytes(sender, bytes);
                }
            }
            for lane in lanes.iter().filter(|lane| lane.waiting > 0) {
                if let Some(sender) = mailbox::sender_of(&lane.lane) {
                    desk.note(sender);
                }
            }
        }
        Err(error) => tracing::error!(%error, "the hub's mailbox cannot be read"),
    }
}

/// Looks at the messages of those whose turn it is, side by side, so that the journal writes
/// together that they are taken.
fn start(shared: &Arc<Shared>) {
    loop {
        let next = lock(&shared.desk).next();
        let Some((sender, max)) = next else {
            return;
        };
        let owned = Arc::clone(shared);
        shared.tasks().spawn("hub look", async move {
            let found = look(&owned, &sender, max).await;
            lock(&owned.desk).looked(&sender, found);
            owned.desk_poke.notify_one();
        });
    }
}

async fn look(shared: &Arc<Shared>, sender: &Arc<str>, max: usize) -> Found {
    let Ok(lane) = mailbox::lane(&Mailbox::hub(), sender) else {
        return Found::All;
    };
    let at = shared.at();
    let batch = match shared.journal.lease(&lane, Order::Any, max, HOLD, at).await {
        Ok(batch) => batch,
        Err(error) => {
            tracing::error!(%lane, %error, "the hub's mailbox cannot be read");
            lock(&shared.desk).is_due(sender, at.now.plus(FAULT_WAIT));
            return Found::All;
        }
    };
    let found = match batch.len() >= max {
        true => Found::More,
        false => Found::All,
    };
    for delivery in batch {
        take(shared, sender, delivery).await;
    }
    found
}

async fn take(shared: &Arc<Shared>, sender: &Arc<str>, delivery: Delivery) {
    let receipt = delivery.receipt;
    if pump::is_worn_out(shared, &delivery) {
        let times = delivery.attempts.saturating_sub(1);
        let reason = format!("it was taken up {times} times and never ended");
        return pump::bury(shared, receipt, reason.into()).await;
    }
    let Some(stored) = mailbox::read(&delivery.body) else {
        return pump::bury(shared, receipt, UNREADABLE.into()).await;
    };
    let mailbox::StoredMessage {
        principal,
        alias,
        letter,
    } = stored;
    let from = letter.from.clone().unwrap_or_default();
    match &*letter.kind {
        REQUEST => {
            let bytes = delivery.body.len() as u64;
            if !lock(&shared.desk).begin(receipt, sender, bytes) {
                // It runs; its end is that of this lease as well.
                return;
            }
            let left = delivery.left.unwrap_or(DELAY_MAX);
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
                message: receipt.id,
                sender: Arc::clone(sender),
                request: Arc::clone(&letter.id),
                alias,
                is_first: delivery.attempts == 1,
                ended: AtomicBool::new(false),
            };
            let tasks = shared.tasks();
            tasks.spawn("hub request", async move { hand.carry(incoming).await });
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
pub(super) async fn answer_again(
    shared: &Shared,
    from: &Mailbox,
    (request, alias): (&Letter, Option<&Arc<str>>),
) {
    let known = shared
        .serving
        .ledger()
        .answered(from.as_str(), &request.id)
        .await;
    let Ok(Some(Some(body))) = known else {
        return;
    };
    if let Err(error) = reply(shared, from, (&request.id, alias), &body).await {
        tracing::warn!(%from, %error, "a reply cannot be stored again");
    }
}

/// Stores a reply of the hub, under the name that the request was addressed to. The first of
/// several to one request counts for as long as it was not acknowledged.
pub(super) async fn reply(
    shared: &Shared,
    to: &Mailbox,
    (request, alias): (&str, Option<&Arc<str>>),
    body: &Bytes,
) -> Result<(), StoreError> {
    let letter = |id: &str| {
        let draft = Draft {
            id,
            kind: REPLY,
            body,
            correlation_id: Some(request),
            ttl_ms: None,
            created_at_ms: shared.clock().unix_ms(),
        };
        Letter::new(&draft).stamped(&own_stamp(alias))
    };
    // What is answered is charged as what is delivered is.
    shared.charge_bytes(&to.principal().into(), body.len());
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
    message: MessageId,
    sender: Arc<str>,
    request: Arc<str>,
    /// The alias of the hub that it is addressed to.
    alias: Option<Arc<str>>,
    /// Whether it was never handed out before.
    is_first: bool,
    /// Whether the journal knows what became of it.
    ended: AtomicBool,
}

impl Drop for Hand {
    fn drop(&mut self) {
        let shared = &self.shared;
        let receipt = self.receipt();
        lock(&shared.desk).end(self.message);
        shared.desk_poke.notify_one();
        let Some(receipt) = receipt.filter(|_| !self.ended.load(Ordering::Relaxed)) else {
            return;
        };
        let due = shared.now().plus(FAULT_WAIT);
        lock(&shared.desk).is_due(&self.sender, due);
        let owned = Arc::clone(shared);
        shared.tasks().spawn("request return", async move {
            let back = owned.journal.nak(receipt, FAULT_WAIT, owned.at()).await;
            if let Err(error) = back {
                tracing::warn!(%error, "a request cannot be given back yet");
            }
        });
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

    fn receipt(&self) -> Option<Receipt> {
        lock(&self.shared.desk).receipt(self.message)
    }

    /// Tells the journal what became of it.
    async fn tell<'a>(
        &'a self,
        how: impl FnOnce(&'a dyn Journal, Receipt, At) -> Pending<'a, ()> + Send,
    ) {
        if let Some(receipt) = self.receipt() {
            let told = how(&*self.shared.journal, receipt, self.shared.at()).await;
            self.told(told);
        }
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
            let request = (&*self.request, self.alias.as_ref());
            let stored = reply(&self.shared, &to, request, &body.into()).await;
            stored.map_err(|error| match error {
                StoreError::Journal(JournalError::TooLarge { .. }) => ReplyError::TooLarge,
                StoreError::Journal(JournalError::LaneFull { .. }) | StoreError::OverShare => {
                    ReplyError::Refused("the mailbox of whoever asked is full".into())
                }
                StoreError::Journal(JournalError::BadName) => {
                    ReplyError::Refused(error.to_string().into())
                }
                StoreError::Journal(_) => ReplyError::Lost,
            })
        })
    }

    fn ack(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.tell(|journal, receipt, at| journal.ack(receipt, None, at)))
    }

    fn put_back(&self, delay: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.tell(move |journal, receipt, at| journal.nak(receipt, delay, at))
                .await;
            let due = self.shared.now().plus(delay);
            lock(&self.shared.desk).is_due(&self.sender, due);
            self.shared.desk_poke.notify_one();
        })
    }

    fn bury(&self, reason: Arc<str>) -> BoxFuture<'_, ()> {
        Box::pin(self.tell(move |journal, receipt, at| journal.bury(receipt, reason, at)))
    }
}
