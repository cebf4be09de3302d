//! Pushes mailbox messages to the subscriber, and returns unacknowledged messages to the mailbox.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_core::time::{MonotonicTime, to_millis};
use bowline_journal::{LaneName, LeaseOrder, LeaseReceipt, LeasedMessage};
use bowline_link::websocket::close_codes;
use bowline_runtime::{Service, Shutdown};

use super::HubShared;
use super::hub_counts::increment;
use super::peer_registry::{ConnectedPeer, PushedMessage, SubscribeOutcome};
use super::rights::refusal;
use super::stored_message;
use crate::frames::{BrokerFrame, MailboxMessage};

/// Bytes leased from a mailbox at a time, or a single message.
const BATCH_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Messages leased from a mailbox at a time.
const BATCH_MAX: usize = 32;

/// Wait after a journal error.
const JOURNAL_RETRY_WAIT: Duration = Duration::from_secs(1);

/// Longest delay of a returned message.
pub(super) const DELAY_MAX: Duration = Duration::from_secs(60 * 60);

/// Dead-letter reason of an unreadable message.
pub(super) const UNREADABLE: &str = "it is written in a form that is not known";

/// Makes a peer the subscriber of its mailbox. The former subscriber is fenced and closed.
pub(super) fn subscribe_peer(shared: &Arc<HubShared>, peer: &Arc<ConnectedPeer>) {
    let Ok(lane) = stored_message::mailbox_lane(peer.mailbox(), "") else {
        let reason = "the name of the mailbox is too long";
        peer.try_send(&BrokerFrame::Error(refusal("bad_name", reason, None)));
        return;
    };
    let SubscribeOutcome::Started(fenced) = lock(&shared.peers).subscribe(peer) else {
        return;
    };
    if let Some(old) = fenced {
        tracing::warn!(mailbox = %peer.mailbox(), "newer connection takes over a mailbox");
        increment(&shared.counters.fenced);
        shared.emit_peer_event(&old, "fenced");
        stop_delivery(shared, &old);
        let reason = "a newer connection has subscribed to this mailbox";
        old.close_with(close_codes::FENCED, refusal("fenced", reason, None));
    }
    super::remote_peer::notify_connection_change(shared, peer.mailbox());
    let pump = MailboxPump {
        shared: Arc::clone(shared),
        peer: Arc::clone(peer),
        lane,
    };
    shared.tasks().start(pump, peer.lifecycle.shutdown());
}

/// Stops pushing to a peer and returns the unacknowledged messages.
pub(super) fn stop_delivery(shared: &Arc<HubShared>, peer: &Arc<ConnectedPeer>) {
    let pushed = {
        let mut state = lock(&peer.state);
        peer.lifecycle.close();
        state.pending.clear();
        std::mem::take(&mut state.pushed)
    };
    peer.server_requests.cancel_all();
    if pushed.is_empty() {
        return;
    }
    let (shared, mailbox) = (Arc::clone(shared), peer.mailbox().clone());
    let tasks = shared.tasks().clone();
    let activity = shared.shutdown.start_activity();
    tasks.spawn("mailbox return", async move {
        for one in pushed.values() {
            return_message(&shared, one.receipt, Duration::ZERO).await;
        }
        drop(activity);
        // A newer subscriber gets the returned messages.
        shared.wake_mailbox(&mailbox, "");
    });
}

async fn return_message(shared: &HubShared, receipt: LeaseReceipt, delay: Duration) {
    let back = shared
        .journal
        .nak(receipt, delay, shared.timestamps())
        .await;
    if let Err(error) = back {
        tracing::warn!(id = receipt.id.0, %error, "cannot return a message to the mailbox");
    }
}

/// Delivers one mailbox to its subscriber, until the subscriber leaves or is fenced.
struct MailboxPump {
    shared: Arc<HubShared>,
    peer: Arc<ConnectedPeer>,
    lane: LaneName,
}

impl Service for MailboxPump {
    const NAME: &'static str = "mailbox pump";

    async fn run(self, shutdown: Shutdown) {
        run_pump(&self.shared, &self.peer, &self.lane, &shutdown).await;
    }
}

async fn run_pump(
    shared: &HubShared,
    peer: &Arc<ConnectedPeer>,
    lane: &LaneName,
    shutdown: &Shutdown,
) {
    // Messages with the same id as an unacknowledged message: ids are unique only per sender, and
    // an ack names only the id.
    let mut deferred = Vec::new();
    let mut batch = 1;
    loop {
        let waited = std::mem::take(&mut deferred);
        for (pushed, message) in waited {
            push_message(shared, peer, pushed, message, &mut deferred).await;
        }
        let room = {
            let mut state = lock(&peer.state);
            // Expired leases are free for redelivery.
            let now = shared.now();
            state.pushed.retain(|_, one| one.lease_until > now);
            let unacked = state.pushed.len().saturating_add(deferred.len());
            (!shutdown.is_closing()).then(|| shared.limits.unacked_max.saturating_sub(unacked))
        };
        let Some(room) = room else {
            break;
        };
        let max = room.min(batch);
        if max > 0 {
            let got = push_batch(shared, peer, lane, max, &mut deferred).await;
            match got {
                Some((got, largest)) if got >= max => {
                    // Double the batch, unless the messages are large.
                    let fits = BATCH_BYTES_MAX / largest.max(1);
                    batch = (batch * 2).min(fits).clamp(1, BATCH_MAX);
                    continue;
                }
                Some(_) => {}
                None => tokio::time::sleep(JOURNAL_RETRY_WAIT).await,
            }
        }
        let due = next_wakeup(shared, peer);
        tokio::select! {
            biased;
            () = shutdown.wait_closing() => {}
            () = peer.state.wait_until(&**shared.clock(), due) => {}
        }
    }
    for (pushed, _) in deferred {
        return_message(shared, pushed.receipt, Duration::ZERO).await;
    }
    // Messages leased during the disconnect may be the only work for a newer subscriber.
    shared.wake_mailbox(peer.mailbox(), "");
}

/// Returns the next time when a push may be possible.
fn next_wakeup(shared: &HubShared, peer: &ConnectedPeer) -> Option<MonotonicTime> {
    let later = lock(&shared.peers).next_due(peer.mailbox(), shared.now());
    let lease_end = lock(&peer.state)
        .pushed
        .values()
        .map(|one| one.lease_until)
        .min();
    later.into_iter().chain(lease_end).min()
}

/// Leases messages and pushes them; returns the count and the size of the largest message, or
/// `None` after a journal error.
async fn push_batch(
    shared: &HubShared,
    peer: &Arc<ConnectedPeer>,
    lane: &LaneName,
    max: usize,
    deferred: &mut Vec<(PushedMessage, MailboxMessage)>,
) -> Option<(usize, usize)> {
    let (hold, at) = (shared.limits.ack_wait, shared.timestamps());
    let until = at.now.plus(hold);
    let lease = shared.journal.lease(lane, LeaseOrder::Any, max, hold, at);
    let batch = match lease.await {
        Ok(batch) => batch,
        Err(error) => {
            tracing::error!(%lane, %error, "cannot read a mailbox");
            return None;
        }
    };
    let count = batch.len();
    let largest = batch.iter().map(|delivery| delivery.body.len()).max();
    for delivery in batch {
        let receipt = delivery.receipt;
        increment(&shared.counters.pushed);
        if delivery.attempts > 1 {
            increment(&shared.counters.redelivered);
        }
        match check_delivery(shared, &delivery) {
            Ok(message) => {
                push_message(
                    shared,
                    peer,
                    PushedMessage {
                        receipt,
                        lease_until: until,
                    },
                    message,
                    deferred,
                )
                .await
            }
            Err(reason) => dead_letter_message(shared, receipt, reason).await,
        }
    }
    Some((count, largest.unwrap_or_default()))
}

/// Decodes a leased message for the push, or returns the dead-letter reason.
fn check_delivery(
    shared: &HubShared,
    delivery: &LeasedMessage,
) -> Result<MailboxMessage, Arc<str>> {
    if is_delivery_limit_reached(shared, delivery) {
        let times = delivery.attempts.saturating_sub(1);
        return Err(format!("it was handed out {times} times and never acknowledged").into());
    }
    let message = stored_message::decode_message(&delivery.body)
        .ok_or(UNREADABLE)?
        .message;
    Ok(match delivery.remaining {
        Some(left) => message.with_ttl(to_millis(left)),
        None => message,
    })
}

/// Whether a message was delivered too often. The count continues after a manual requeue, which
/// grants the same number of deliveries again.
pub(super) const fn is_delivery_limit_reached(
    shared: &HubShared,
    delivery: &LeasedMessage,
) -> bool {
    let round = shared.limits.deliveries_max.saturating_add(1);
    delivery.attempts > 0 && delivery.attempts.is_multiple_of(round)
}

/// Turns a leased message into a dead letter.
pub(super) async fn dead_letter_message(
    shared: &HubShared,
    receipt: LeaseReceipt,
    reason: Arc<str>,
) {
    increment(&shared.counters.dead);
    tracing::warn!(id = receipt.id.0, %reason, "message becomes a dead letter");
    if let Err(error) = shared
        .journal
        .dead_letter(receipt, reason, shared.timestamps())
        .await
    {
        tracing::error!(id = receipt.id.0, %error, "cannot store a dead letter");
    }
}

async fn push_message(
    shared: &HubShared,
    peer: &Arc<ConnectedPeer>,
    pushed: PushedMessage,
    message: MailboxMessage,
    deferred: &mut Vec<(PushedMessage, MailboxMessage)>,
) {
    enum PushStep {
        Send,
        Wait,
        GiveBack,
    }
    let step = {
        let mut state = lock(&peer.state);
        match state.pushed.get(&message.id) {
            _ if peer.is_over() => PushStep::GiveBack,
            Some(other) if other.receipt.id != pushed.receipt.id => PushStep::Wait,
            Some(_) | None => {
                state.pushed.insert(Arc::clone(&message.id), pushed);
                PushStep::Send
            }
        }
    };
    match step {
        // After a disconnect, `stop_delivery` returns every pushed message.
        PushStep::Send => drop(peer.send(&BrokerFrame::Message(message)).await),
        PushStep::Wait => deferred.push((pushed, message)),
        PushStep::GiveBack => return_message(shared, pushed.receipt, Duration::ZERO).await,
    }
}

/// Result of an ack.
pub(super) enum AckOutcome {
    /// The message was removed.
    Removed,
    /// The peer holds no message of this id.
    Unknown,
    /// The journal failed.
    Failed,
}

/// Removes an acknowledged message.
pub(super) async fn ack_message(shared: &HubShared, peer: &ConnectedPeer, id: &str) -> AckOutcome {
    let Some(pushed) = take_pushed(peer, id) else {
        return AckOutcome::Unknown;
    };
    let result = shared
        .journal
        .ack(pushed.receipt, None, shared.timestamps())
        .await;
    peer.state.wake();
    match result {
        Ok(()) => AckOutcome::Removed,
        Err(bowline_journal::JournalError::LeaseLost) => AckOutcome::Unknown,
        Err(error) => {
            tracing::error!(%error, "cannot store an acknowledgement");
            AckOutcome::Failed
        }
    }
}

/// Returns a pushed message to the mailbox, or turns it into a dead letter.
pub(super) async fn nak_message(shared: &HubShared, peer: &ConnectedPeer, id: &str, mode: NakMode) {
    let Some(pushed) = take_pushed(peer, id) else {
        return;
    };
    match mode {
        NakMode::Later(delay) => {
            let delay = delay.min(DELAY_MAX);
            return_message(shared, pushed.receipt, delay).await;
            let due = shared.now().plus(delay);
            lock(&shared.peers).schedule_delivery(peer.mailbox(), due);
        }
        NakMode::Dead(reason) => dead_letter_message(shared, pushed.receipt, reason).await,
    }
    peer.state.wake();
}

/// What a nak does with the message.
pub(super) enum NakMode {
    Later(Duration),
    Dead(Arc<str>),
}

fn take_pushed(peer: &ConnectedPeer, id: &str) -> Option<PushedMessage> {
    lock(&peer.state).pushed.remove(id)
}
