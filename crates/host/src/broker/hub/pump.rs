//! Pushes what waits in a mailbox to whoever subscribed to it, and takes back what was not done.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_core::time::{Now, millis};
use bowline_journal::{Delivery, Lane, Order, Receipt};
use bowline_wire::broker::{Frame, Letter};

use super::counts::one;
use super::mailbox;
use super::peers::{Peer, Pushed, Subscribed};
use super::rights::refusal;
use super::{FENCED, Shared};

/// Bytes that are taken out of a mailbox at a time, or one message.
const BATCH_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Messages that are taken out of a mailbox at a time.
const BATCH_MAX: usize = 32;

/// How long a pump waits after the journal failed.
const FAULT_WAIT: Duration = Duration::from_secs(1);

/// The longest that a message may be put off.
pub(super) const DELAY_MAX: Duration = Duration::from_secs(60 * 60);

/// Why a message is a dead letter that cannot be read.
pub(super) const UNREADABLE: &str = "it is written in a form that is not known";

/// Gives a peer the messages of its mailbox. Whoever had them is told, and closed.
pub(super) fn subscribe(shared: &Arc<Shared>, peer: &Arc<Peer>) {
    let Ok(lane) = mailbox::lane(peer.mailbox(), "") else {
        let reason = "the name of the mailbox is too long";
        peer.try_send(&Frame::Error(refusal("bad_name", reason, None)));
        return;
    };
    let Subscribed::First(fenced) = lock(&shared.peers).subscribe(peer) else {
        return;
    };
    if let Some(old) = fenced {
        tracing::warn!(mailbox = %peer.mailbox(), "a newer connection takes over a mailbox");
        one(&shared.counts.fenced);
        shared.tell(&old, "fenced");
        stop(shared, &old);
        let reason = "a newer connection has subscribed to this mailbox";
        old.end(FENCED, refusal("fenced", reason, None));
    }
    super::remote::tell(shared, peer.mailbox());
    let (shared, peer) = (Arc::clone(shared), Arc::clone(peer));
    let tasks = shared.tasks().clone();
    tasks.spawn(
        "mailbox pump",
        async move { run(&shared, &peer, &lane).await },
    );
}

/// Pushes nothing more to a peer, and gives back what it has not acknowledged.
pub(super) fn stop(shared: &Arc<Shared>, peer: &Arc<Peer>) {
    let pushed = {
        let mut books = lock(&peer.books);
        books.over = true;
        books.asked.clear();
        std::mem::take(&mut books.pushed)
    };
    peer.put.end();
    peer.poke.notify_one();
    if pushed.is_empty() {
        return;
    }
    let (shared, mailbox) = (Arc::clone(shared), peer.mailbox().clone());
    let tasks = shared.tasks().clone();
    shared.returning.send_modify(|left| *left += 1);
    tasks.spawn("mailbox return", async move {
        for one in pushed.values() {
            give_back(&shared, one.receipt, Duration::ZERO).await;
        }
        shared
            .returning
            .send_modify(|left| *left = left.saturating_sub(1));
        // A newer subscriber is given them.
        shared.wake(&mailbox, "");
    });
}

async fn give_back(shared: &Shared, receipt: Receipt, delay: Duration) {
    let back = shared.journal.nak(receipt, delay, shared.at()).await;
    if let Err(error) = back {
        tracing::warn!(id = receipt.id.0, %error, "a message cannot be given back yet");
    }
}

async fn run(shared: &Shared, peer: &Arc<Peer>, lane: &Lane) {
    // Messages that have the id of another that is not acknowledged yet: ids are unique for each
    // sender only, and an acknowledgement names nothing else.
    let mut aside = Vec::new();
    let mut batch = 1;
    loop {
        let waited = std::mem::take(&mut aside);
        for (pushed, letter) in waited {
            push(shared, peer, pushed, letter, &mut aside).await;
        }
        let room = {
            let mut books = lock(&peer.books);
            // What was not acknowledged for so long is anybody's again.
            let now = shared.now();
            books.pushed.retain(|_, one| one.until > now);
            let taken = books.pushed.len().saturating_add(aside.len());
            (!books.over).then(|| shared.limits.unacked_max.saturating_sub(taken))
        };
        let Some(room) = room else {
            break;
        };
        let max = room.min(batch);
        if max > 0 {
            let got = take(shared, peer, lane, max, &mut aside).await;
            match got {
                Some((got, largest)) if got >= max => {
                    // Twice as many as before, unless they are large.
                    let fits = BATCH_BYTES_MAX / largest.max(1);
                    batch = (batch * 2).min(fits).clamp(1, BATCH_MAX);
                    continue;
                }
                Some(_) => {}
                None => tokio::time::sleep(FAULT_WAIT).await,
            }
        }
        let due = due(shared, peer);
        tokio::select! {
            () = peer.poke.notified() => {}
            () = until(shared, due), if due.is_some() => {}
        }
    }
    for (pushed, _) in aside {
        give_back(shared, pushed.receipt, Duration::ZERO).await;
    }
    // What was taken out when the peer went, here or above, may be all that a newer subscriber
    // waits for.
    shared.wake(peer.mailbox(), "");
}

async fn until(shared: &Shared, due: Option<Now>) {
    if let Some(due) = due {
        tokio::time::sleep_until(shared.clock().instant(due)).await;
    }
}

/// When there may be something to push again.
fn due(shared: &Shared, peer: &Peer) -> Option<Now> {
    let later = lock(&shared.peers).next_due(peer.mailbox(), shared.now());
    let lapse = lock(&peer.books).pushed.values().map(|one| one.until).min();
    later.into_iter().chain(lapse).min()
}

/// Takes messages out of the mailbox and pushes them; returns how many, and the bytes of the
/// largest, or nothing where the journal failed.
async fn take(
    shared: &Shared,
    peer: &Arc<Peer>,
    lane: &Lane,
    max: usize,
    aside: &mut Vec<(Pushed, Letter)>,
) -> Option<(usize, usize)> {
    let (hold, at) = (shared.limits.hold, shared.at());
    let until = at.now.plus(hold);
    let lease = shared.journal.lease(lane, Order::Any, max, hold, at);
    let batch = match lease.await {
        Ok(batch) => batch,
        Err(error) => {
            tracing::error!(%lane, %error, "a mailbox cannot be read");
            return None;
        }
    };
    let count = batch.len();
    let largest = batch.iter().map(|delivery| delivery.body.len()).max();
    for delivery in batch {
        let receipt = delivery.receipt;
        one(&shared.counts.pushed);
        if delivery.attempts > 1 {
            one(&shared.counts.redelivered);
        }
        match sound(shared, &delivery) {
            Ok(letter) => push(shared, peer, Pushed { receipt, until }, letter, aside).await,
            Err(reason) => bury(shared, receipt, reason).await,
        }
    }
    Some((count, largest.unwrap_or_default()))
}

/// Returns the letter of a delivery as it is pushed, or why it is none.
fn sound(shared: &Shared, delivery: &Delivery) -> Result<Letter, Arc<str>> {
    if is_worn_out(shared, delivery) {
        let times = delivery.attempts.saturating_sub(1);
        return Err(format!("it was handed out {times} times and never acknowledged").into());
    }
    let letter = mailbox::read(&delivery.body).ok_or(UNREADABLE)?.letter;
    Ok(match delivery.left {
        Some(left) => letter.lasting(millis(left)),
        None => letter,
    })
}

/// Whether a message was handed out too often. One that a person put back is given as many tries
/// again, for the count goes on.
pub(super) const fn is_worn_out(shared: &Shared, delivery: &Delivery) -> bool {
    let round = shared.limits.deliveries_max.saturating_add(1);
    delivery.attempts > 0 && delivery.attempts.is_multiple_of(round)
}

/// Makes a dead letter of a message that is held.
pub(super) async fn bury(shared: &Shared, receipt: Receipt, reason: Arc<str>) {
    one(&shared.counts.dead);
    tracing::warn!(id = receipt.id.0, %reason, "a message becomes a dead letter");
    if let Err(error) = shared.journal.bury(receipt, reason, shared.at()).await {
        tracing::error!(id = receipt.id.0, %error, "a message cannot be made a dead letter");
    }
}

async fn push(
    shared: &Shared,
    peer: &Arc<Peer>,
    pushed: Pushed,
    letter: Letter,
    aside: &mut Vec<(Pushed, Letter)>,
) {
    enum Step {
        Send,
        Wait,
        Return,
    }
    let step = {
        let mut books = lock(&peer.books);
        match books.pushed.get(&letter.id) {
            _ if books.over => Step::Return,
            Some(other) if other.receipt.id != pushed.receipt.id => Step::Wait,
            Some(_) | None => {
                books.pushed.insert(Arc::clone(&letter.id), pushed);
                Step::Send
            }
        }
    };
    match step {
        // Where it is gone, whoever notices gives back what is on its books.
        Step::Send => drop(peer.send(&Frame::Message(letter)).await),
        Step::Wait => aside.push((pushed, letter)),
        Step::Return => give_back(shared, pushed.receipt, Duration::ZERO).await,
    }
}

/// What became of a message that a peer says was dealt with.
pub(super) enum Outcome {
    /// It was removed.
    Removed,
    /// There is nothing of that id on its books.
    Unknown,
    /// The journal failed.
    Failed,
}

/// Ends a message that was pushed.
pub(super) async fn ack(shared: &Shared, peer: &Peer, id: &str) -> Outcome {
    let Some(pushed) = take_off(peer, id) else {
        return Outcome::Unknown;
    };
    let ended = shared.journal.ack(pushed.receipt, None, shared.at()).await;
    peer.poke.notify_one();
    match ended {
        Ok(()) => Outcome::Removed,
        Err(bowline_journal::JournalError::Lapsed) => Outcome::Unknown,
        Err(error) => {
            tracing::error!(%error, "an acknowledgement is not stored");
            Outcome::Failed
        }
    }
}

/// Gives a message back that was pushed, or makes it a dead letter.
pub(super) async fn nak(shared: &Shared, peer: &Peer, id: &str, how: Return) {
    let Some(pushed) = take_off(peer, id) else {
        return;
    };
    match how {
        Return::Later(delay) => {
            let delay = delay.min(DELAY_MAX);
            give_back(shared, pushed.receipt, delay).await;
            let due = shared.now().plus(delay);
            lock(&shared.peers).is_due(peer.mailbox(), due);
        }
        Return::Dead(reason) => bury(shared, pushed.receipt, reason).await,
    }
    peer.poke.notify_one();
}

/// How a message is given back.
pub(super) enum Return {
    Later(Duration),
    Dead(Arc<str>),
}

fn take_off(peer: &Peer, id: &str) -> Option<Pushed> {
    lock(&peer.books).pushed.remove(id)
}
