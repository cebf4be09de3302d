//! What a hub shows of itself: peers, mailboxes and dead letters, and what can be done with them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bowline_core::mailbox::Mailbox;
use bowline_core::sync::lock;
use bowline_journal::{Entry, Filter, JournalError, MessageId, Standing};
use bowline_wire::splice::write_string;
use bytes::Bytes;
use thiserror::Error;

use super::mailbox::{self, LANES};
use super::{Admitted, Hub, Shared};

/// Dead letters that are shown at a time.
const LETTERS_MAX: usize = 1_000;

/// A peer as it is shown.
#[derive(Clone, Debug)]
pub struct PeerView {
    /// Its mailbox.
    pub mailbox: Mailbox,
    /// Its role.
    pub role: Option<Arc<str>>,
    /// Since when it is here, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Whether it takes messages.
    pub subscribed: bool,
    /// Its servers in our catalog.
    pub offers: Vec<Arc<str>>,
    /// Messages that it was given and has not acknowledged.
    pub unacked: usize,
    /// Words of tools that it did not read in time.
    pub events_dropped: u64,
}

/// A mailbox as it is shown; one in which nothing is is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailboxView {
    /// Its name.
    pub mailbox: Mailbox,
    /// Messages that wait, or that somebody was given.
    pub waiting: u64,
    /// Its dead letters.
    pub dead: u64,
    /// When the oldest that waits was stored, in milliseconds since 1970.
    pub oldest_unix_ms: Option<u64>,
    /// Whether somebody takes its messages now.
    pub subscribed: bool,
}

/// A dead letter as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterView {
    /// Its number.
    pub number: u64,
    /// The mailbox in which it is.
    pub mailbox: Mailbox,
    /// Its id, sender and kind; empty where it cannot be read.
    pub id: Arc<str>,
    /// Who sent it.
    pub from: Arc<str>,
    /// What it is.
    pub kind: Arc<str>,
    /// Why it is dead.
    pub reason: Arc<str>,
    /// How often it was handed out.
    pub attempts: u32,
    /// When it was stored, in milliseconds since 1970.
    pub stored_unix_ms: u64,
    /// The message, one JSON object; empty where it cannot be read.
    pub raw: Bytes,
}

/// Why something cannot be done with a letter.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum HubError {
    /// There is no dead letter of this number.
    #[error("there is no dead letter of this number")]
    Unknown,
    /// The journal failed.
    #[error("the journal cannot do it")]
    Journal(#[source] JournalError),
}

impl Hub {
    /// Returns who is here, by their mailboxes.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerView> {
        let mut list: Vec<_> = {
            let peers = lock(&self.shared.peers);
            peers.here().map(|peer| view(peer)).collect()
        };
        list.sort_by(|a, b| (&a.mailbox, a.since_unix_ms).cmp(&(&b.mailbox, b.since_unix_ms)));
        list
    }

    /// Returns the mailboxes in which anything is, by name.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn mailboxes(&self) -> Result<Vec<MailboxView>, HubError> {
        let shared = &self.shared;
        let lanes = shared.journal.lanes(LANES, shared.at()).await;
        let mut list: BTreeMap<Mailbox, MailboxView> = BTreeMap::new();
        for lane in lanes.map_err(HubError::Journal)? {
            let Some(mailbox) = mailbox::mailbox_of(&lane.lane) else {
                continue;
            };
            let subscribed =
                mailbox == Mailbox::hub() || lock(&shared.peers).subscriber(&mailbox).is_some();
            let view = list.entry(mailbox.clone()).or_insert(MailboxView {
                mailbox,
                waiting: 0,
                dead: 0,
                oldest_unix_ms: None,
                subscribed,
            });
            view.waiting = view.waiting.saturating_add(lane.waiting);
            view.dead = view.dead.saturating_add(lane.dead);
            let oldest = view.oldest_unix_ms.into_iter().chain(lane.oldest_unix_ms);
            view.oldest_unix_ms = oldest.min();
        }
        Ok(list.into_values().collect())
    }

    /// Returns dead letters behind the one of this number, oldest first, `limit` at most.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn dead(&self, after: u64, limit: usize) -> Result<Vec<LetterView>, HubError> {
        let limit = limit.min(LETTERS_MAX);
        let entries = dead(&self.shared, LANES, after, limit).await;
        let entries = entries.map_err(HubError::Journal)?;
        Ok(entries.iter().filter_map(letter).collect())
    }

    /// Returns one dead letter.
    ///
    /// # Errors
    /// There is none, or the journal cannot be read.
    pub async fn letter(&self, number: u64) -> Result<LetterView, HubError> {
        let entry = find(&self.shared, number).await?;
        letter(&entry).ok_or(HubError::Unknown)
    }

    /// Puts a dead letter back into its mailbox, to be delivered once more.
    ///
    /// # Errors
    /// There is none, or the journal cannot be written.
    pub async fn revive(&self, number: u64) -> Result<(), HubError> {
        let shared = &self.shared;
        let entry = find(shared, number).await?;
        let (ttl, at) = (Some(self.again(&entry)), shared.at());
        let done = shared.journal.revive(entry.id, ttl, at).await;
        done.map_err(HubError::Journal)?;
        if let Some(mailbox) = mailbox::mailbox_of(&entry.lane) {
            let sender = mailbox::sender_of(&entry.lane).unwrap_or_default();
            shared.wake(&mailbox, sender);
        }
        Ok(())
    }

    /// Forgets a dead letter.
    ///
    /// # Errors
    /// There is none, or the journal cannot be written.
    pub async fn discard(&self, number: u64) -> Result<(), HubError> {
        let shared = &self.shared;
        let entry = find(shared, number).await?;
        let done = shared.journal.remove(entry.id, shared.at()).await;
        done.map_err(HubError::Journal)
    }

    /// Returns for how long a letter is worth delivering that is put back: as long as at first.
    fn again(&self, entry: &Entry) -> Duration {
        let whole = entry
            .expires_unix_ms
            .map(|end| end.saturating_sub(entry.stored_unix_ms));
        whole.map_or(self.shared.limits.ttl, Duration::from_millis)
    }
}

fn view(peer: &super::peers::Peer) -> PeerView {
    let books = lock(&peer.books);
    PeerView {
        mailbox: peer.mailbox().clone(),
        role: peer.admitted.role.clone(),
        since_unix_ms: peer.since_unix_ms,
        subscribed: books.subscribed && !books.over,
        offers: books.offers.clone(),
        unacked: books.pushed.len(),
        events_dropped: peer.events_dropped.load(Ordering::Relaxed),
    }
}

async fn dead(
    shared: &Shared,
    lanes: &str,
    after: u64,
    limit: usize,
) -> Result<Vec<Entry>, JournalError> {
    let filter = Filter {
        lanes: lanes.to_owned(),
        after: (after > 0).then_some(MessageId(after)),
        dead: Some(true),
        limit,
    };
    shared.journal.inspect(filter, shared.at()).await
}

async fn find(shared: &Shared, number: u64) -> Result<Entry, HubError> {
    let entry = shared.journal.entry(MessageId(number), shared.at()).await;
    let entry = entry.map_err(HubError::Journal)?;
    let is_ours = |entry: &Entry| {
        let dead = matches!(entry.standing, Standing::Dead(_));
        dead && entry.lane.as_str().starts_with(LANES)
    };
    entry.filter(is_ours).ok_or(HubError::Unknown)
}

fn letter(entry: &Entry) -> Option<LetterView> {
    let mailbox = mailbox::mailbox_of(&entry.lane)?;
    let reason = match &entry.standing {
        Standing::Dead(reason) => Arc::clone(reason),
        Standing::Damaged => "it is damaged on the disk".into(),
        Standing::Waiting | Standing::Held => return None,
    };
    let read = mailbox::read(&entry.body).map(|stored| stored.letter);
    let from = read.as_ref().and_then(|letter| letter.from.as_ref());
    Some(LetterView {
        number: entry.id.0,
        mailbox,
        from: from
            .map(|from| Arc::clone(&from.session_id))
            .unwrap_or_default(),
        id: read
            .as_ref()
            .map(|one| Arc::clone(&one.id))
            .unwrap_or_default(),
        kind: read
            .as_ref()
            .map(|one| Arc::clone(&one.kind))
            .unwrap_or_default(),
        reason,
        attempts: entry.attempts,
        stored_unix_ms: entry.stored_unix_ms,
        raw: read.map(|letter| letter.raw).unwrap_or_default(),
    })
}

/// Returns who takes messages now, as far as a peer may know.
pub(super) fn connected(shared: &Shared, who: &Admitted, role: Option<&str>) -> Vec<Arc<str>> {
    let peers = lock(&shared.peers);
    let mut ids: Vec<_> = peers
        .subscribers()
        .filter(|peer| who.sees(peer.mailbox()))
        .filter(|peer| role.is_none_or(|role| peer.admitted.role.as_deref() == Some(role)))
        .map(|peer| Arc::clone(peer.mailbox().as_str()))
        .collect();
    ids.sort();
    ids
}

/// Returns `[{message, reason}]`: the dead letters of one mailbox.
pub(super) async fn own_dead(shared: &Shared, mailbox: &Mailbox, limit: usize) -> Bytes {
    let mut list = vec![b'['];
    let lanes = format!("{LANES}{mailbox}");
    let mut after = 0;
    let mut shown = 0;
    // Lanes of longer names begin alike.
    while shown < limit {
        let entries = match dead(shared, &lanes, after, limit).await {
            Ok(entries) => entries,
            Err(error) => {
                tracing::error!(%error, "dead letters cannot be read");
                break;
            }
        };
        let Some(last) = entries.last() else {
            break;
        };
        after = last.id.0;
        let own = entries.iter().filter(|entry| entry.lane.as_str() == lanes);
        for view in own.filter_map(letter).take(limit - shown) {
            if shown > 0 {
                list.push(b',');
            }
            shown += 1;
            write(&view, &mut list);
        }
    }
    list.push(b']');
    list.into()
}

fn write(view: &LetterView, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"message\":");
    match view.raw.is_empty() {
        true => out.extend_from_slice(b"null"),
        false => out.extend_from_slice(&view.raw),
    }
    out.extend_from_slice(b",\"reason\":");
    write_string(out, &view.reason);
    out.push(b'}');
}
