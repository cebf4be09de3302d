//! Encodes a message for the journal: the message and the local principal of the sender.

use std::sync::Arc;

use bowline_core::call::Principal;
use bowline_journal::{JournalError, LaneName};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::frames::MailboxMessage;
use crate::mailbox::{HUB, MailboxName};

use bowline_journal::PrincipalRecord;

/// Lane prefix of all mailboxes.
pub(super) const LANE_PREFIX: &str = "mbx/";

/// Lane prefix of the hub's own mailbox.
pub(super) const HUB_LANE_PREFIX: &str = "mbx/hub/";

/// Returns the lane for messages to `to`. The hub has one lane per sender.
pub(super) fn mailbox_lane(to: &MailboxName, from: &str) -> Result<LaneName, JournalError> {
    match to.principal() == HUB {
        true => LaneName::new(&format!("{HUB_LANE_PREFIX}{from}")),
        false => LaneName::new(&format!("{LANE_PREFIX}{to}")),
    }
}

/// Returns the mailbox of a lane.
pub(super) fn lane_mailbox(lane: &LaneName) -> Option<MailboxName> {
    let name = lane.as_str().strip_prefix(LANE_PREFIX)?;
    match name.split_once('/') {
        Some(_) => Some(MailboxName::new_hub()),
        None => MailboxName::parse(name).ok(),
    }
}

/// Returns the sender of a lane of the hub's own mailbox.
pub(super) fn lane_sender(lane: &LaneName) -> Option<&str> {
    lane.as_str().strip_prefix(HUB_LANE_PREFIX)
}

/// Returns the principal charged for the messages of a lane: the mailbox owner, or the sender for
/// the hub's own mailbox.
pub(super) fn lane_account(lane: &LaneName) -> Option<Arc<str>> {
    let name = match lane_sender(lane) {
        Some(sender) => sender,
        None => lane.as_str().strip_prefix(LANE_PREFIX)?,
    };
    Some(name.split('#').next().unwrap_or(name).into())
}

/// Digest of the parts that two messages of one id must share.
pub(super) fn message_digest(message: &MailboxMessage) -> [u8; 32] {
    let mut sum = Sha256::new();
    let correlation = message.correlation_id.as_deref().unwrap_or_default();
    for part in [
        message.kind.as_bytes(),
        correlation.as_bytes(),
        &message.body,
    ] {
        sum.update(part.len().to_le_bytes());
        sum.update(part);
    }
    sum.finalize().into()
}

/// First line of a stored message: the sender, and the alias of the hub used as the address.
#[derive(Debug, Serialize, Deserialize)]
struct StoredMessageHead {
    v: u32,
    who: PrincipalRecord,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    alias: Option<Arc<str>>,
}

/// A message read from the journal.
#[derive(Debug)]
pub(super) struct StoredMessage {
    /// The sender.
    pub(super) principal: Principal,
    /// The alias of the hub used as the address; the reply names the alias as the sender.
    pub(super) alias: Option<Arc<str>>,
    /// The message.
    pub(super) message: MailboxMessage,
}

/// Version of the stored form.
const FORMAT_VERSION: u32 = 1;

/// Encodes a message for the journal.
pub(super) fn encode_message(
    principal: &Principal,
    message: &MailboxMessage,
    alias: Option<&Arc<str>>,
) -> Bytes {
    let head = StoredMessageHead {
        v: FORMAT_VERSION,
        who: PrincipalRecord::from(principal),
        alias: alias.cloned(),
    };
    // Strings and string lists always serialize, and JSON escapes line ends.
    let mut out = serde_json::to_vec(&head).unwrap_or_default();
    out.reserve_exact(message.text_capacity() + 1);
    out.push(b'\n');
    message.write(&mut out);
    out.shrink_to_fit();
    out.into()
}

/// Decodes the output of [`encode_message`]; `None` for an unknown form.
pub(super) fn decode_message(body: &Bytes) -> Option<StoredMessage> {
    let end = memchr::memchr(b'\n', body)?;
    let head: StoredMessageHead = serde_json::from_slice(body.get(..end)?).ok()?;
    if head.v != FORMAT_VERSION {
        return None;
    }
    Some(StoredMessage {
        principal: head.who.to_principal(),
        alias: head.alias,
        message: MailboxMessage::parse(&body.slice(end + 1..)).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use crate::frames::{MessageBody, MessageDraft, MessageSender, REQUEST_KIND};
    use bowline_core::call::{ContextSet, PeerAddress, Role};

    use super::*;

    fn sample_message() -> MailboxMessage {
        let draft = MessageDraft {
            id: "m1",
            kind: REQUEST_KIND,
            body: MessageBody::Json(br#"{"op": "manifest", "n": 1.50}"#),
            correlation_id: None,
            ttl_ms: Some(5),
            created_at_ms: 0,
        };
        MailboxMessage::new(&draft).with_sender(MessageSender {
            session_id: "w".into(),
            ..MessageSender::default()
        })
    }

    #[test]
    fn stored_message_keeps_sender_restrictions() {
        for role in [Role::Owner, Role::None, Role::Named("r\n\"".into())] {
            let principal = Principal {
                name: "w".into(),
                role,
                contexts: ContextSet::new(["b", "a"]),
                credential: "c1".into(),
                peer: PeerAddress::default(),
            };
            let alias = Some("desk".into());
            let stored = encode_message(&principal, &sample_message(), alias.as_ref());
            let read = decode_message(&stored).unwrap();
            assert_eq!((read.principal, read.alias), (principal, alias));
            assert_eq!(read.message, sample_message());
        }
        assert!(decode_message(&Bytes::from_static(b"{}\n{}")).is_none());
        assert!(decode_message(&Bytes::from_static(b"none")).is_none());
    }

    #[test]
    fn hub_has_one_lane_per_sender() {
        let to = |name: &str| MailboxName::parse(name).unwrap();
        let own = mailbox_lane(&MailboxName::new_hub(), "w#mcp").unwrap();
        assert_eq!(own.as_str(), "mbx/hub/w#mcp");
        assert_eq!(
            (lane_mailbox(&own), lane_sender(&own)),
            (Some(MailboxName::new_hub()), Some("w#mcp"))
        );
        let other = mailbox_lane(&to("a#b"), "w").unwrap();
        assert_eq!(other.as_str(), "mbx/a#b");
        assert_eq!(
            (lane_mailbox(&other), lane_sender(&other)),
            (Some(to("a#b")), None)
        );
    }

    #[test]
    fn digest_covers_kind_correlation_and_body() {
        let one = sample_message();
        assert_eq!(
            message_digest(&one),
            message_digest(&one.clone().with_ttl(9))
        );
        let mut other = sample_message();
        other.body = Bytes::from_static(b"{}");
        assert_ne!(message_digest(&one), message_digest(&other));
        let mut other = sample_message();
        other.correlation_id = Some("x".into());
        assert_ne!(message_digest(&one), message_digest(&other));
    }
}
