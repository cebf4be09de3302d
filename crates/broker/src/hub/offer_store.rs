//! Remembers worker offers across a restart of the hub, as journal values.
//!
//! A single task writes, so the newest offer of a mailbox wins. An offer is removed together with
//! the worker's servers, after the retention time of an absent worker.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::Principal;
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_journal::{ExpectedRevision, JournalError};
use bowline_runtime::{Service, Shutdown, Work};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{AdmittedPeer, HubShared, PeerRights, peer_offers};
use crate::mailbox::MailboxName;
use bowline_journal::PrincipalRecord;

/// Key prefix of stored offers; the mailbox follows.
const KEY_PREFIX: &str = "broker/offer/";

/// Workers with a stored offer.
const OFFERS_MAX: usize = 256;

/// Largest stored offer, in bytes.
const STORED_OFFER_BYTES_MAX: usize = 512 * 1024;

/// Version of the stored form.
const FORMAT_VERSION: u32 = 1;

/// Stored offers and pending writes.
#[derive(Debug, Default)]
pub(super) struct OfferStore {
    state: Work<OfferStoreState>,
}

#[derive(Debug, Default)]
struct OfferStoreState {
    /// Offers that the journal holds or will hold.
    offers: HashMap<MailboxName, StoredOffer>,
    /// Newest unwritten value of each mailbox; `None` deletes the offer.
    unwritten: HashMap<MailboxName, Option<Bytes>>,
}

#[derive(Debug)]
struct StoredOffer {
    /// Digest of the offer, to detect changes.
    digest: [u8; 32],
    /// Start of the worker's absence.
    away_since: Option<MonotonicTime>,
}

/// First line of a stored offer: the offering peer. The servers follow as received.
#[derive(Debug, Serialize, Deserialize)]
struct StoredOfferHead {
    v: u32,
    who: PrincipalRecord,
    role: Option<Arc<str>>,
}

impl OfferStore {
    /// Stores an offer in place of the previous offer.
    pub(super) fn store_offer(&self, peer: &AdmittedPeer, servers: &Bytes) {
        let mailbox = &peer.mailbox;
        let mut state = lock(&self.state);
        if servers.len() > STORED_OFFER_BYTES_MAX {
            tracing::warn!(peer = %mailbox, bytes = servers.len(), "offer too large to store");
            return self.forget_offer(&mut state, mailbox);
        }
        let is_new = !state.offers.contains_key(mailbox);
        if is_new && state.offers.len() >= OFFERS_MAX {
            tracing::warn!(peer = %mailbox, max = OFFERS_MAX, "too many stored offers");
            return;
        }
        let bytes = encode_offer(peer, servers);
        let stored = StoredOffer {
            digest: Sha256::digest(&bytes).into(),
            away_since: None,
        };
        let digest = stored.digest;
        let previous = state.offers.insert(mailbox.clone(), stored);
        if previous.is_none_or(|previous| previous.digest != digest) {
            state.unwritten.insert(mailbox.clone(), Some(bytes));
            self.state.wake();
        }
    }

    /// Marks a worker as absent.
    pub(super) fn mark_away(&self, mailbox: &MailboxName, now: MonotonicTime) {
        if let Some(offer) = lock(&self.state).offers.get_mut(mailbox) {
            offer.away_since.get_or_insert(now);
        }
    }

    /// Removes the offers of workers absent for longer than `keep`.
    pub(super) fn sweep(&self, now: MonotonicTime, keep: Duration) {
        let mut state = lock(&self.state);
        let is_expired =
            |offer: &StoredOffer| offer.away_since.is_some_and(|away| away.plus(keep) <= now);
        let expired = state.offers.iter().filter(|(_, offer)| is_expired(offer));
        let expired: Vec<MailboxName> = expired.map(|(mailbox, _)| mailbox.clone()).collect();
        for mailbox in expired {
            self.forget_offer(&mut state, &mailbox);
        }
    }

    fn forget_offer(&self, state: &mut OfferStoreState, mailbox: &MailboxName) {
        if state.offers.remove(mailbox).is_some() {
            state.unwritten.insert(mailbox.clone(), None);
            self.state.wake();
        }
    }

    fn take_unwritten(&self) -> Option<(MailboxName, Option<Bytes>)> {
        let mut state = lock(&self.state);
        let mailbox = state.unwritten.keys().next()?.clone();
        let bytes = state.unwritten.remove(&mailbox)?;
        Some((mailbox, bytes))
    }

    /// Forgets a failed write, so that the next offer of the mailbox is written again.
    fn mark_unstored(&self, mailbox: &MailboxName) {
        lock(&self.state).offers.remove(mailbox);
    }
}

/// Writes pending offers until the hub shuts down.
pub(super) struct OfferWriter(pub(super) Arc<HubShared>);

impl Service for OfferWriter {
    const NAME: &'static str = "hub offers";

    async fn run(self, shutdown: Shutdown) {
        let Self(shared) = self;
        loop {
            write_pending(&shared).await;
            tokio::select! {
                biased;
                () = shared.offer_store.state.wait() => {}
                () = shutdown.wait_closing() => return,
            }
        }
    }
}

async fn write_pending(shared: &HubShared) {
    while let Some((mailbox, bytes)) = shared.offer_store.take_unwritten() {
        let key = format!("{KEY_PREFIX}{mailbox}");
        if let Err(error) = shared
            .journal
            .put_value(&key, bytes, ExpectedRevision::Any)
            .await
        {
            tracing::warn!(peer = %mailbox, %error, "cannot store offer");
            shared.offer_store.mark_unstored(&mailbox);
        }
    }
}

/// Restores the servers of workers connected at the last shutdown, as far as `rights` still allows
/// the principal to offer each server.
pub(super) async fn restore_offers(
    shared: &Arc<HubShared>,
    rights: impl Fn(&Principal) -> Option<PeerRights> + Send,
) -> Result<(), JournalError> {
    let values = shared.journal.list_values(KEY_PREFIX, OFFERS_MAX).await?;
    for (key, value) in values {
        let mailbox = key.strip_prefix(KEY_PREFIX).map(MailboxName::parse);
        let Some(Ok(mailbox)) = mailbox else {
            continue;
        };
        let decoded = decode_offer(&mailbox, &value.bytes, &rights);
        let stored = StoredOffer {
            digest: Sha256::digest(&value.bytes).into(),
            away_since: Some(shared.now()),
        };
        let mut state = lock(&shared.offer_store.state);
        state.offers.insert(mailbox.clone(), stored);
        match decoded {
            Some((peer, servers)) => {
                drop(state);
                peer_offers::apply_offer(shared, &peer, 0, &servers);
            }
            None => shared.offer_store.forget_offer(&mut state, &mailbox),
        }
    }
    Ok(())
}

fn encode_offer(peer: &AdmittedPeer, servers: &Bytes) -> Bytes {
    let head = StoredOfferHead {
        v: FORMAT_VERSION,
        who: PrincipalRecord::from(&*peer.principal),
        role: peer.role.clone(),
    };
    // Strings and string lists always serialize, and JSON escapes line ends.
    let mut out = serde_json::to_vec(&head).unwrap_or_default();
    out.push(b'\n');
    out.extend_from_slice(servers);
    out.into()
}

/// Decodes an offer; `None` for an unknown form or a principal that is no peer any more.
fn decode_offer(
    mailbox: &MailboxName,
    bytes: &Bytes,
    rights: impl Fn(&Principal) -> Option<PeerRights>,
) -> Option<(AdmittedPeer, Bytes)> {
    let end = memchr::memchr(b'\n', bytes)?;
    let head: StoredOfferHead = serde_json::from_slice(bytes.get(..end)?).ok()?;
    if head.v != FORMAT_VERSION {
        return None;
    }
    let principal = head.who.to_principal();
    let rights = rights(&principal)?;
    let peer = AdmittedPeer {
        principal: Arc::new(principal),
        mailbox: mailbox.clone(),
        role: head.role,
        rights,
    };
    Some((peer, bytes.slice(end + 1..)))
}
