//! Stores messages in mailboxes; a receipt is sent only for a durable message.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Principal, Role};
use bowline_core::hex::to_hex;
use bowline_core::sync::lock;
use bowline_journal::{ExpectedRevision, JournalError, MessageDraft, PublishOutcome};
use bytes::Bytes;

use super::message_address::MessageAddress;
use super::stored_message::{self, mailbox_lane, message_digest};
use super::{HubShared, rights};
use crate::REQUEST_TTL;
use crate::frames::BrokerRefusal;
use crate::frames::{MailboxMessage, MessageSender, REPLY_KIND, REQUEST_KIND};
use crate::mailbox::{HUB, MailboxName};

/// TTL of a reply without an explicit TTL.
const REPLY_TTL: Duration = Duration::from_secs(60 * 60);

/// Longest TTL of any message.
const TTL_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Journal key of the store identity.
const IDENTITY_KEY: &str = "broker/id";

/// Why a message of the hub is not stored.
#[derive(Debug, thiserror::Error)]
pub(super) enum MessageStoreError {
    /// The journal rejected the message.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The receiving principal is at the journal byte limit.
    #[error("the principal has as many bytes in the journal as it may have")]
    OverShare,
}

impl HubShared {
    /// Stores a message of a peer and wakes the receiver.
    pub(super) async fn store_message(
        &self,
        to: &MessageAddress,
        principal: &Principal,
        message: &MailboxMessage,
    ) -> Result<PublishOutcome, JournalError> {
        self.publish_message(to, principal, message, message_digest(message))
            .await
    }

    /// Stores a message of the hub itself. The first message of an id wins, regardless of content.
    pub(super) async fn store_hub_message(
        &self,
        to: &MailboxName,
        message: &MailboxMessage,
    ) -> Result<PublishOutcome, MessageStoreError> {
        let hub = Principal::new(HUB, Role::None);
        let (principal, bytes): (Arc<str>, _) = (to.principal().into(), message.raw.len());
        if !self.reserve_bytes(&principal, bytes).await? {
            return Err(MessageStoreError::OverShare);
        }
        let to = MessageAddress::from(to.clone());
        Ok(self.publish_message(&to, &hub, message, [0; 32]).await?)
    }

    async fn publish_message(
        &self,
        MessageAddress { mailbox: to, alias }: &MessageAddress,
        principal: &Principal,
        message: &MailboxMessage,
        digest: [u8; 32],
    ) -> Result<PublishOutcome, JournalError> {
        let from = message.sender.as_ref().map_or("", |from| &from.session_id);
        let draft = MessageDraft {
            lane: mailbox_lane(to, from)?,
            dedupe: format!("{from}/{}", message.id).into(),
            digest,
            body: stored_message::encode_message(principal, message, alias.as_ref()),
            ttl: Some(self.message_ttl(message)),
            lease: None,
        };
        let bytes = draft.body.len() as u64;
        let published = self.journal.publish(draft, self.timestamps()).await?;
        if matches!(published, PublishOutcome::Stored { .. }) {
            if to.principal() == HUB {
                lock(&self.inbox).record_size(from, bytes);
            }
            self.wake_mailbox(to, from);
        }
        Ok(published)
    }

    /// Wakes the subscriber of a mailbox.
    pub(super) fn wake_mailbox(&self, to: &MailboxName, from: &str) {
        if to.principal() == HUB {
            lock(&self.inbox).mark_pending(from);
            self.inbox.wake();
        } else if let Some(peer) = lock(&self.peers).subscriber(to) {
            peer.state.wake();
        }
    }

    /// Returns the TTL of a message.
    fn message_ttl(&self, message: &MailboxMessage) -> Duration {
        let usual = match &*message.kind {
            REQUEST_KIND => REQUEST_TTL,
            REPLY_KIND => REPLY_TTL,
            _ => self.limits.ttl,
        };
        let requested = message.ttl_ms.map(Duration::from_millis);
        requested.unwrap_or(usual).min(TTL_MAX)
    }

    /// Returns the identity of the store: created once and constant afterwards.
    pub(super) async fn store_identity(&self) -> Result<Arc<str>, JournalError> {
        let identity = self.identity.get_or_try_init(|| async {
            loop {
                if let Some(value) = self.journal.get_value(IDENTITY_KEY).await? {
                    return Ok(String::from_utf8_lossy(&value.bytes).as_ref().into());
                }
                let fresh = Bytes::from(random_id("")?.to_string());
                // On a race, the identity written first wins.
                match self
                    .journal
                    .put_value(IDENTITY_KEY, Some(fresh), ExpectedRevision::Absent)
                    .await
                {
                    Ok(_) | Err(JournalError::RevisionMismatch) => {}
                    Err(error) => return Err(error),
                }
            }
        });
        identity.await.map(Arc::clone)
    }
}

/// Returns the sender stamp of the hub, under the given alias.
pub(super) fn hub_stamp(alias: Option<&Arc<str>>) -> MessageSender {
    MessageSender {
        session_id: alias.map_or_else(|| HUB.into(), Arc::clone),
        role: None,
        principal: None,
    }
}

/// Returns a random UUID behind a prefix.
pub(super) fn random_id(prefix: &str) -> Result<Arc<str>, JournalError> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| JournalError::Poisoned {
        reason: error.to_string().into(),
    })?;
    let mut id = to_hex(&random);
    // UUID version 4 and variant.
    id.replace_range(12..13, "4");
    id.replace_range(16..17, "a");
    for at in [20, 16, 12, 8] {
        id.insert(at, '-');
    }
    Ok(format!("{prefix}{id}").into())
}

/// Returns the refusal for a principal at the journal byte limit.
pub(super) fn storage_full(id: &Arc<str>) -> BrokerRefusal {
    let reason = "the journal holds as many bytes of this principal as it may; take what waits";
    rights::refusal("storage_full", reason, Some(id))
}

/// Converts a journal error to a refusal for peers.
pub(super) fn store_refusal(error: &JournalError, id: &Arc<str>) -> BrokerRefusal {
    let (code, reason) = match error {
        JournalError::LaneFull { .. } => ("mailbox_full", "the mailbox is full"),
        JournalError::TooLarge { .. } => ("too_large", "the message is too large"),
        JournalError::Conflict => (
            "conflict",
            "a message of this id was sent before, and says something else",
        ),
        JournalError::BadName => ("bad_name", "the name of the mailbox is too long"),
        JournalError::RevisionMismatch
        | JournalError::LeaseLost
        | JournalError::NotFound
        | JournalError::DiskFull
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
    fn random_id_is_a_unique_uuid() {
        let (one, other) = (random_id("").unwrap(), random_id("").unwrap());
        assert_ne!(one, other);
        let parts: Vec<_> = one.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert_eq!((one.get(14..15), one.get(19..20)), (Some("4"), Some("a")));
        assert_eq!(crate::mailbox::check_message_id(&one), Ok(()));
    }
}
