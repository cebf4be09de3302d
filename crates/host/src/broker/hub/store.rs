//! Puts messages into mailboxes; what is said to be stored is durable.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Principal, Role};
use bowline_core::hex::hex;
use bowline_core::mailbox::{HUB, Mailbox};
use bowline_core::sync::lock;
use bowline_journal::{Draft, Expect, JournalError, Published};
use bowline_wire::broker::{From, Letter, REPLY, REQUEST};
use bytes::Bytes;

use super::address::Address;
use super::mailbox::{self, digest, lane};
use super::{Shared, rights};
use crate::broker::REQUEST_TTL;
use bowline_wire::broker::Refusal;

/// How long a reply is kept that says nothing.
const REPLY_TTL: Duration = Duration::from_secs(60 * 60);

/// The longest that any message is kept.
const TTL_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Where in the journal stands which store this is.
const IDENTITY: &str = "broker/id";

/// Why a message of the hub is not stored.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    /// The journal did not take it.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Whom it is for has as many bytes in the journal as it may have.
    #[error("the principal has as many bytes in the journal as it may have")]
    OverShare,
}

impl Shared {
    /// Stores a message that a peer sent, and wakes whoever takes it.
    pub(super) async fn store(
        &self,
        to: &Address,
        principal: &Principal,
        letter: &Letter,
    ) -> Result<Published, JournalError> {
        self.put(to, principal, letter, digest(letter)).await
    }

    /// Stores a message of the hub itself. Only the first of one id counts, whatever others say.
    pub(super) async fn say(&self, to: &Mailbox, letter: &Letter) -> Result<Published, StoreError> {
        let hub = Principal::new(HUB, Role::None);
        let (whose, bytes): (Arc<str>, _) = (to.principal().into(), letter.raw.len());
        if !self.make_room(&whose, bytes).await? {
            return Err(StoreError::OverShare);
        }
        let to = Address::from(to.clone());
        Ok(self.put(&to, &hub, letter, [0; 32]).await?)
    }

    async fn put(
        &self,
        Address { mailbox: to, alias }: &Address,
        principal: &Principal,
        letter: &Letter,
        digest: [u8; 32],
    ) -> Result<Published, JournalError> {
        let from = letter.from.as_ref().map_or("", |from| &from.session_id);
        let draft = Draft {
            lane: lane(to, from)?,
            dedupe: format!("{from}/{}", letter.id).into(),
            digest,
            body: mailbox::write(principal, letter, alias.as_ref()),
            ttl: Some(self.ttl(letter)),
            hold: None,
        };
        let bytes = draft.body.len() as u64;
        let published = self.journal.publish(draft, self.at()).await?;
        if matches!(published, Published::Stored { .. }) {
            if to.principal() == HUB {
                lock(&self.desk).note_bytes(from, bytes);
            }
            self.wake(to, from);
        }
        Ok(published)
    }

    /// Wakes whoever takes the messages of a mailbox.
    pub(super) fn wake(&self, to: &Mailbox, from: &str) {
        if to.principal() == HUB {
            lock(&self.desk).note(from);
            self.desk_poke.notify_one();
        } else if let Some(peer) = lock(&self.peers).subscriber(to) {
            peer.poke.notify_one();
        }
    }

    /// Returns how long a message is kept.
    fn ttl(&self, letter: &Letter) -> Duration {
        let usual = match &*letter.kind {
            REQUEST => REQUEST_TTL,
            REPLY => REPLY_TTL,
            _ => self.limits.ttl,
        };
        let said = letter.ttl_ms.map(Duration::from_millis);
        said.unwrap_or(usual).min(TTL_MAX)
    }

    /// Returns which store this is: made once, and the same ever after.
    pub(super) async fn identity(&self) -> Result<Arc<str>, JournalError> {
        let identity = self.identity.get_or_try_init(|| async {
            loop {
                if let Some(value) = self.journal.get(IDENTITY).await? {
                    return Ok(String::from_utf8_lossy(&value.bytes).as_ref().into());
                }
                let fresh = Bytes::from(fresh_id("")?.to_string());
                // Somebody may have been faster; theirs it is, then.
                match self
                    .journal
                    .put(IDENTITY, Some(fresh), Expect::Absent)
                    .await
                {
                    Ok(_) | Err(JournalError::Changed) => {}
                    Err(error) => return Err(error),
                }
            }
        });
        identity.await.map(Arc::clone)
    }
}

/// Returns what the hub stamps on its own messages, under one of its names.
pub(super) fn own_stamp(alias: Option<&Arc<str>>) -> From {
    From {
        session_id: alias.map_or_else(|| HUB.into(), Arc::clone),
        role: None,
        principal: None,
    }
}

/// Returns an id that nobody has: a random UUID behind a prefix.
pub(super) fn fresh_id(prefix: &str) -> Result<Arc<str>, JournalError> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| JournalError::Poisoned {
        reason: error.to_string().into(),
    })?;
    let mut id = hex(&random);
    // Version 4, and the variant that goes with it.
    id.replace_range(12..13, "4");
    id.replace_range(16..17, "a");
    for at in [20, 16, 12, 8] {
        id.insert(at, '-');
    }
    Ok(format!("{prefix}{id}").into())
}

/// Says that a principal has as many bytes in the journal as it may have.
pub(super) fn storage_full(id: &Arc<str>) -> Refusal {
    let reason = "the journal holds as many bytes of this principal as it may; take what waits";
    rights::refusal("storage_full", reason, Some(id))
}

/// Says why a message is not stored, in a peer's words.
pub(super) fn unstored(error: &JournalError, id: &Arc<str>) -> Refusal {
    let (code, reason) = match error {
        JournalError::LaneFull { .. } => ("mailbox_full", "the mailbox is full"),
        JournalError::TooLarge { .. } => ("too_large", "the message is too large"),
        JournalError::Conflict => (
            "conflict",
            "a message of this id was sent before, and says something else",
        ),
        JournalError::BadName => ("bad_name", "the name of the mailbox is too long"),
        JournalError::Changed
        | JournalError::Lapsed
        | JournalError::Unknown
        | JournalError::Full
        | JournalError::Damaged { .. }
        | JournalError::Poisoned { .. }
        | JournalError::Replaced
        | JournalError::Closed => ("not_stored", "the message could not be stored"),
    };
    rights::refusal(code, reason, Some(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_id_is_a_uuid_that_nobody_has() {
        let (one, other) = (fresh_id("").unwrap(), fresh_id("").unwrap());
        assert_ne!(one, other);
        let parts: Vec<_> = one.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert_eq!((one.get(14..15), one.get(19..20)), (Some("4"), Some("a")));
        assert_eq!(bowline_core::mailbox::check_id(&one), Ok(()));
    }
}
