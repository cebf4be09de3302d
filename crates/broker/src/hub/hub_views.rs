//! Status and administration of a hub: peers, mailboxes and dead letters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_journal::{JournalError, MessageFilter, MessageId, MessageStatus, MessageView};
use bowline_wire::splice::write_string;
use bytes::Bytes;
use thiserror::Error;

use super::stored_message::{self, LANE_PREFIX};
use super::{AdmittedPeer, Hub, HubShared};
use crate::mailbox::MailboxName;

/// Dead letters per page.
const DEAD_LETTERS_MAX: usize = 1_000;

/// Status of a peer.
#[derive(Clone, Debug)]
pub struct PeerView {
    /// The mailbox.
    pub mailbox: MailboxName,
    /// The role.
    pub role: Option<Arc<str>>,
    /// Connection time, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Whether the peer receives messages.
    pub subscribed: bool,
    /// Servers of the peer in the hub's catalog.
    pub offers: Vec<Arc<str>>,
    /// Unacknowledged messages.
    pub unacked: usize,
    /// Notifications dropped because the peer read too slowly.
    pub events_dropped: u64,
}

/// Status of a mailbox. Empty mailboxes are not listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailboxView {
    /// The name.
    pub mailbox: MailboxName,
    /// Pending and leased messages.
    pub waiting: u64,
    /// Dead letters.
    pub dead: u64,
    /// Store time of the oldest pending message, in milliseconds since 1970.
    pub oldest_unix_ms: Option<u64>,
    /// Whether the mailbox has a subscriber now.
    pub subscribed: bool,
}

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterView {
    /// The number.
    pub number: u64,
    /// The mailbox.
    pub mailbox: MailboxName,
    /// The message id; empty if unreadable.
    pub id: Arc<str>,
    /// The sender; empty if unreadable.
    pub from: Arc<str>,
    /// The message kind; empty if unreadable.
    pub kind: Arc<str>,
    /// The reason.
    pub reason: Arc<str>,
    /// Number of deliveries.
    pub attempts: u32,
    /// Store time, in milliseconds since 1970.
    pub stored_unix_ms: u64,
    /// The message, one JSON object; empty if unreadable.
    pub raw: Bytes,
}

/// Why an operation on a dead letter failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DeadLetterError {
    /// No dead letter has this number.
    #[error("there is no dead letter of this number")]
    Unknown,
    /// The journal failed.
    #[error("the journal cannot do it")]
    Journal(#[source] JournalError),
}

impl Hub {
    /// Returns the connected peers, by mailbox.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerView> {
        let mut list: Vec<_> = {
            let peers = lock(&self.shared.peers);
            peers.iter_connected().map(|peer| peer_view(peer)).collect()
        };
        list.sort_by(|a, b| (&a.mailbox, a.since_unix_ms).cmp(&(&b.mailbox, b.since_unix_ms)));
        list
    }

    /// Returns the mailboxes with any message, by name.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn mailboxes(&self) -> Result<Vec<MailboxView>, DeadLetterError> {
        let shared = &self.shared;
        let lanes = shared
            .journal
            .lane_stats(LANE_PREFIX, shared.timestamps())
            .await;
        let mut list: BTreeMap<MailboxName, MailboxView> = BTreeMap::new();
        for lane in lanes.map_err(DeadLetterError::Journal)? {
            let Some(mailbox) = stored_message::lane_mailbox(&lane.lane) else {
                continue;
            };
            let subscribed = mailbox == MailboxName::new_hub()
                || lock(&shared.peers).subscriber(&mailbox).is_some();
            let view = list.entry(mailbox.clone()).or_insert(MailboxView {
                mailbox,
                waiting: 0,
                dead: 0,
                oldest_unix_ms: None,
                subscribed,
            });
            view.waiting = view.waiting.saturating_add(lane.queued);
            view.dead = view.dead.saturating_add(lane.dead_letters);
            let oldest = view.oldest_unix_ms.into_iter().chain(lane.oldest_unix_ms);
            view.oldest_unix_ms = oldest.min();
        }
        Ok(list.into_values().collect())
    }

    /// Returns dead letters after number `after`, oldest first, at most `limit`.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn dead_letters(
        &self,
        after: u64,
        limit: usize,
    ) -> Result<Vec<DeadLetterView>, DeadLetterError> {
        let limit = limit.min(DEAD_LETTERS_MAX);
        let entries = list_dead(&self.shared, LANE_PREFIX, after, limit).await;
        let entries = entries.map_err(DeadLetterError::Journal)?;
        Ok(entries.iter().filter_map(to_dead_letter_view).collect())
    }

    /// Returns a dead letter.
    ///
    /// # Errors
    /// The dead letter is missing, or the journal cannot be read.
    pub async fn dead_letter(&self, number: u64) -> Result<DeadLetterView, DeadLetterError> {
        let entry = find_dead_letter(&self.shared, number).await?;
        to_dead_letter_view(&entry).ok_or(DeadLetterError::Unknown)
    }

    /// Returns a dead letter to its mailbox, for another delivery.
    ///
    /// # Errors
    /// The dead letter is missing, or the journal cannot be written.
    pub async fn requeue(&self, number: u64) -> Result<(), DeadLetterError> {
        let shared = &self.shared;
        let entry = find_dead_letter(shared, number).await?;
        let (ttl, at) = (Some(self.requeue_ttl(&entry)), shared.timestamps());
        let done = shared.journal.requeue(entry.id, ttl, at).await;
        done.map_err(DeadLetterError::Journal)?;
        if let Some(mailbox) = stored_message::lane_mailbox(&entry.lane) {
            let sender = stored_message::lane_sender(&entry.lane).unwrap_or_default();
            shared.wake_mailbox(&mailbox, sender);
        }
        Ok(())
    }

    /// Deletes a dead letter.
    ///
    /// # Errors
    /// The dead letter is missing, or the journal cannot be written.
    pub async fn discard(&self, number: u64) -> Result<(), DeadLetterError> {
        let shared = &self.shared;
        let entry = find_dead_letter(shared, number).await?;
        let done = shared
            .journal
            .remove_message(entry.id, shared.timestamps())
            .await;
        done.map_err(DeadLetterError::Journal)
    }

    /// Returns the TTL of a requeued message: the original TTL.
    fn requeue_ttl(&self, entry: &MessageView) -> Duration {
        let whole = entry
            .expires_unix_ms
            .map(|end| end.saturating_sub(entry.stored_unix_ms));
        whole.map_or(self.shared.limits.ttl, Duration::from_millis)
    }
}

fn peer_view(peer: &super::peer_registry::ConnectedPeer) -> PeerView {
    let state = lock(&peer.state);
    PeerView {
        mailbox: peer.mailbox().clone(),
        role: peer.admitted.role.clone(),
        since_unix_ms: peer.since_unix_ms,
        subscribed: state.is_subscribed && !peer.is_over(),
        offers: state.offered_servers.clone(),
        unacked: state.pushed.len(),
        events_dropped: peer.events_dropped.load(Ordering::Relaxed),
    }
}

async fn list_dead(
    shared: &HubShared,
    lanes: &str,
    after: u64,
    limit: usize,
) -> Result<Vec<MessageView>, JournalError> {
    let filter = MessageFilter {
        lanes: lanes.to_owned(),
        after: (after > 0).then_some(MessageId(after)),
        dead: Some(true),
        limit,
    };
    shared
        .journal
        .list_messages(filter, shared.timestamps())
        .await
}

async fn find_dead_letter(shared: &HubShared, number: u64) -> Result<MessageView, DeadLetterError> {
    let entry = shared
        .journal
        .get_message(MessageId(number), shared.timestamps())
        .await;
    let entry = entry.map_err(DeadLetterError::Journal)?;
    let is_ours = |entry: &MessageView| {
        let dead = matches!(entry.status, MessageStatus::DeadLetter(_));
        dead && entry.lane.as_str().starts_with(LANE_PREFIX)
    };
    entry.filter(is_ours).ok_or(DeadLetterError::Unknown)
}

fn to_dead_letter_view(entry: &MessageView) -> Option<DeadLetterView> {
    let mailbox = stored_message::lane_mailbox(&entry.lane)?;
    let reason = match &entry.status {
        MessageStatus::DeadLetter(reason) => Arc::clone(reason),
        MessageStatus::Damaged => "it is damaged on the disk".into(),
        MessageStatus::Queued | MessageStatus::Leased => return None,
    };
    let decoded = stored_message::decode_message(&entry.body).map(|stored| stored.message);
    let from = decoded.as_ref().and_then(|message| message.sender.as_ref());
    Some(DeadLetterView {
        number: entry.id.0,
        mailbox,
        from: from
            .map(|from| Arc::clone(&from.session_id))
            .unwrap_or_default(),
        id: decoded
            .as_ref()
            .map(|one| Arc::clone(&one.id))
            .unwrap_or_default(),
        kind: decoded
            .as_ref()
            .map(|one| Arc::clone(&one.kind))
            .unwrap_or_default(),
        reason,
        attempts: entry.attempts,
        stored_unix_ms: entry.stored_unix_ms,
        raw: decoded.map(|message| message.raw).unwrap_or_default(),
    })
}

/// Returns the subscribers visible to a peer.
pub(super) fn visible_subscribers(
    shared: &HubShared,
    viewer: &AdmittedPeer,
    role: Option<&str>,
) -> Vec<Arc<str>> {
    let peers = lock(&shared.peers);
    let mut ids: Vec<_> = peers
        .iter_subscribers()
        .filter(|peer| viewer.can_see(peer.mailbox()))
        .filter(|peer| role.is_none_or(|role| peer.admitted.role.as_deref() == Some(role)))
        .map(|peer| Arc::clone(peer.mailbox().as_str()))
        .collect();
    ids.sort();
    ids
}

/// Writes `[{message, reason}]`: the dead letters of one mailbox.
pub(super) async fn dead_letters_json(
    shared: &HubShared,
    mailbox: &MailboxName,
    limit: usize,
) -> Bytes {
    let mut list = vec![b'['];
    let lanes = format!("{LANE_PREFIX}{mailbox}");
    let mut after = 0;
    let mut count = 0;
    // The prefix also matches lanes with longer names.
    while count < limit {
        let entries = match list_dead(shared, &lanes, after, limit).await {
            Ok(entries) => entries,
            Err(error) => {
                tracing::error!(%error, "cannot read dead letters");
                break;
            }
        };
        let Some(last) = entries.last() else {
            break;
        };
        after = last.id.0;
        let own = entries.iter().filter(|entry| entry.lane.as_str() == lanes);
        for view in own.filter_map(to_dead_letter_view).take(limit - count) {
            if count > 0 {
                list.push(b',');
            }
            count += 1;
            write_dead_letter(&view, &mut list);
        }
    }
    list.push(b']');
    list.into()
}

fn write_dead_letter(view: &DeadLetterView, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"message\":");
    match view.raw.is_empty() {
        true => out.extend_from_slice(b"null"),
        false => out.extend_from_slice(&view.raw),
    }
    out.extend_from_slice(b",\"reason\":");
    write_string(out, &view.reason);
    out.push(b'}');
}
