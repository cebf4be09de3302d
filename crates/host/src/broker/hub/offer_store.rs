//! Remembers what workers offer over a restart of the hub, in values of the journal.
//!
//! One task writes, so that the newest offer of a mailbox is the one that stays. What a worker
//! offered goes when it is gone for so long that its servers go from the catalog.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::call::Principal;
use bowline_core::mailbox::Mailbox;
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_journal::{Expect, JournalError};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;

use super::{Admitted, Rights, Shared, offer};
use crate::who::Who;

/// How the keys of remembered offers begin; the mailbox follows.
const PREFIX: &str = "broker/offer/";

/// Workers whose offers are remembered.
const OFFERS_MAX: usize = 256;

/// The largest offer that is remembered, in bytes.
const OFFER_BYTES_MAX: usize = 512 * 1024;

/// The form in which offers are written.
const VERSION: u32 = 1;

/// What is remembered, and what is still to be written of it.
#[derive(Debug, Default)]
pub(super) struct OfferStore {
    state: Mutex<State>,
    /// Wakes the task that writes.
    poke: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// What the journal holds, or will hold.
    kept: HashMap<Mailbox, Kept>,
    /// The newest offer of each mailbox that is not written yet; nothing where it is forgotten.
    unwritten: HashMap<Mailbox, Option<Bytes>>,
}

#[derive(Debug)]
struct Kept {
    /// Tells two offers apart.
    digest: [u8; 32],
    /// Since when the worker is away.
    away_since: Option<Now>,
}

/// The first line of a remembered offer: who made it. The servers follow as they were offered.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    v: u32,
    who: Who,
    role: Option<Arc<str>>,
}

impl OfferStore {
    /// Remembers an offer in place of the one before.
    pub(super) fn remember(&self, peer: &Admitted, servers: &Bytes) {
        let mailbox = &peer.mailbox;
        let mut state = lock(&self.state);
        if servers.len() > OFFER_BYTES_MAX {
            tracing::warn!(peer = %mailbox, bytes = servers.len(), "an offer is not remembered");
            return self.forget(&mut state, mailbox);
        }
        let is_new = !state.kept.contains_key(mailbox);
        if is_new && state.kept.len() >= OFFERS_MAX {
            tracing::warn!(peer = %mailbox, max = OFFERS_MAX, "an offer is not remembered");
            return;
        }
        let bytes = write(peer, servers);
        let kept = Kept {
            digest: Sha256::digest(&bytes).into(),
            away_since: None,
        };
        let digest = kept.digest;
        let before = state.kept.insert(mailbox.clone(), kept);
        if before.is_none_or(|before| before.digest != digest) {
            state.unwritten.insert(mailbox.clone(), Some(bytes));
            self.poke.notify_one();
        }
    }

    /// Notes that a worker is away.
    pub(super) fn note_away(&self, mailbox: &Mailbox, now: Now) {
        if let Some(kept) = lock(&self.state).kept.get_mut(mailbox) {
            kept.away_since.get_or_insert(now);
        }
    }

    /// Forgets the offers of workers that are away for longer than `keep`.
    pub(super) fn sweep(&self, now: Now, keep: Duration) {
        let mut state = lock(&self.state);
        let is_over = |kept: &Kept| kept.away_since.is_some_and(|away| away.plus(keep) <= now);
        let over = state.kept.iter().filter(|(_, kept)| is_over(kept));
        let over: Vec<Mailbox> = over.map(|(mailbox, _)| mailbox.clone()).collect();
        for mailbox in over {
            self.forget(&mut state, &mailbox);
        }
    }

    fn forget(&self, state: &mut State, mailbox: &Mailbox) {
        if state.kept.remove(mailbox).is_some() {
            state.unwritten.insert(mailbox.clone(), None);
            self.poke.notify_one();
        }
    }

    fn take_unwritten(&self) -> Option<(Mailbox, Option<Bytes>)> {
        let mut state = lock(&self.state);
        let mailbox = state.unwritten.keys().next()?.clone();
        let bytes = state.unwritten.remove(&mailbox)?;
        Some((mailbox, bytes))
    }

    /// Has the next offer of a mailbox written, whatever it is.
    fn lose(&self, mailbox: &Mailbox) {
        lock(&self.state).kept.remove(mailbox);
    }
}

/// Writes what is to be remembered until the hub goes down.
pub(super) async fn run(shared: Arc<Shared>) {
    let closed = shared.closed();
    tokio::pin!(closed);
    loop {
        flush(&shared).await;
        tokio::select! {
            biased;
            () = shared.offer_store.poke.notified() => {}
            () = &mut closed => return,
        }
    }
}

async fn flush(shared: &Shared) {
    while let Some((mailbox, bytes)) = shared.offer_store.take_unwritten() {
        let key = format!("{PREFIX}{mailbox}");
        if let Err(error) = shared.journal.put(&key, bytes, Expect::Any).await {
            tracing::warn!(peer = %mailbox, %error, "an offer is not remembered");
            shared.offer_store.lose(&mailbox);
        }
    }
}

/// Brings back the servers of workers that were there when the hub went down, as far as `rights`
/// still lets their principals bring them.
pub(super) async fn restore(
    shared: &Arc<Shared>,
    rights: impl Fn(&Principal) -> Option<Rights> + Send,
) -> Result<(), JournalError> {
    let remembered = shared.journal.list(PREFIX, OFFERS_MAX).await?;
    for (key, value) in remembered {
        let mailbox = key.strip_prefix(PREFIX).map(Mailbox::parse);
        let Some(Ok(mailbox)) = mailbox else {
            continue;
        };
        let known = read(&mailbox, &value.bytes, &rights);
        let kept = Kept {
            digest: Sha256::digest(&value.bytes).into(),
            away_since: Some(shared.now()),
        };
        let mut state = lock(&shared.offer_store.state);
        state.kept.insert(mailbox.clone(), kept);
        match known {
            Some((peer, servers)) => {
                drop(state);
                offer::bring(shared, &peer, 0, &servers);
            }
            None => shared.offer_store.forget(&mut state, &mailbox),
        }
    }
    Ok(())
}

fn write(peer: &Admitted, servers: &Bytes) -> Bytes {
    let head = Head {
        v: VERSION,
        who: Who::from(&*peer.principal),
        role: peer.role.clone(),
    };
    // Text and lists of it can always be written, and never hold a bare line end.
    let mut out = serde_json::to_vec(&head).unwrap_or_default();
    out.push(b'\n');
    out.extend_from_slice(servers);
    out.into()
}

/// Reads an offer; nothing where it is of another form, or its principal is no peer any more.
fn read(
    mailbox: &Mailbox,
    bytes: &Bytes,
    rights: impl Fn(&Principal) -> Option<Rights>,
) -> Option<(Admitted, Bytes)> {
    let end = memchr::memchr(b'\n', bytes)?;
    let head: Head = serde_json::from_slice(bytes.get(..end)?).ok()?;
    if head.v != VERSION {
        return None;
    }
    let principal = head.who.principal();
    let rights = rights(&principal)?;
    let peer = Admitted {
        principal: Arc::new(principal),
        mailbox: mailbox.clone(),
        role: head.role,
        rights,
    };
    Some((peer, bytes.slice(end + 1..)))
}
