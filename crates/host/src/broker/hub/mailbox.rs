//! A message as it is stored: the letter, and who sent it as a principal of this gateway.

use std::sync::Arc;

use bowline_core::call::Principal;
use bowline_core::mailbox::{HUB, Mailbox};
use bowline_journal::{JournalError, Lane};
use bowline_wire::broker::Letter;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::who::Who;

/// How the names of all mailboxes begin.
pub(super) const LANES: &str = "mbx/";

/// How the names of the lanes begin that make up the hub's own mailbox.
pub(super) const OWN_LANES: &str = "mbx/hub/";

/// Returns where messages wait that one mailbox sends to another. The hub has a lane for each of
/// its senders.
pub(super) fn lane(to: &Mailbox, from: &str) -> Result<Lane, JournalError> {
    match to.principal() == HUB {
        true => Lane::new(&format!("{OWN_LANES}{from}")),
        false => Lane::new(&format!("{LANES}{to}")),
    }
}

/// Returns the mailbox of a lane.
pub(super) fn mailbox_of(lane: &Lane) -> Option<Mailbox> {
    let name = lane.as_str().strip_prefix(LANES)?;
    match name.split_once('/') {
        Some(_) => Some(Mailbox::hub()),
        None => Mailbox::parse(name).ok(),
    }
}

/// Returns the sender of a lane of the hub's own mailbox.
pub(super) fn sender_of(lane: &Lane) -> Option<&str> {
    lane.as_str().strip_prefix(OWN_LANES)
}

/// Returns the principal on whose account the messages of a lane are: whose mailbox it is, or who
/// sent them where that is the hub.
pub(super) fn account_of(lane: &Lane) -> Option<Arc<str>> {
    let name = match sender_of(lane) {
        Some(sender) => sender,
        None => lane.as_str().strip_prefix(LANES)?,
    };
    Some(name.split('#').next().unwrap_or(name).into())
}

/// What two messages of one id must agree on.
pub(super) fn digest(letter: &Letter) -> [u8; 32] {
    let mut sum = Sha256::new();
    let correlation = letter.correlation_id.as_deref().unwrap_or_default();
    for part in [letter.kind.as_bytes(), correlation.as_bytes(), &letter.body] {
        sum.update(part.len().to_le_bytes());
        sum.update(part);
    }
    sum.finalize().into()
}

/// What is stored of a message beside the letter itself, as its first line: who sent it, and
/// under which alias of the hub.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    v: u32,
    who: Who,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    alias: Option<Arc<str>>,
}

/// A message out of the journal.
#[derive(Debug)]
pub(super) struct StoredMessage {
    /// Who sent it.
    pub(super) principal: Principal,
    /// The alias of the hub that it is addressed to: the reply names it as its sender.
    pub(super) alias: Option<Arc<str>>,
    /// The message.
    pub(super) letter: Letter,
}

/// The form in which messages are written.
const VERSION: u32 = 1;

/// Returns the bytes that are stored.
pub(super) fn write(principal: &Principal, letter: &Letter, alias: Option<&Arc<str>>) -> Bytes {
    let head = Head {
        v: VERSION,
        who: Who::from(principal),
        alias: alias.cloned(),
    };
    // Text and lists of it can always be written, and never hold a bare line end.
    let mut out = serde_json::to_vec(&head).unwrap_or_default();
    out.reserve_exact(letter.raw.len() + 1);
    out.push(b'\n');
    out.extend_from_slice(&letter.raw);
    out.into()
}

/// Reads what [`write`] wrote; nothing where it is of another form.
pub(super) fn read(body: &Bytes) -> Option<StoredMessage> {
    let end = memchr::memchr(b'\n', body)?;
    let head: Head = serde_json::from_slice(body.get(..end)?).ok()?;
    if head.v != VERSION {
        return None;
    }
    Some(StoredMessage {
        principal: head.who.principal(),
        alias: head.alias,
        letter: Letter::read(&body.slice(end + 1..)).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use bowline_core::call::{Contexts, Peer, Role};
    use bowline_wire::broker::{Draft, From, REQUEST};

    use super::*;

    fn letter() -> Letter {
        let draft = Draft {
            id: "m1",
            kind: REQUEST,
            body: br#"{"op": "manifest", "n": 1.50}"#,
            correlation_id: None,
            ttl_ms: Some(5),
            created_at_ms: 0,
        };
        Letter::new(&draft).stamped(&From {
            session_id: "w".into(),
            ..From::default()
        })
    }

    #[test]
    fn a_stored_message_reads_back_with_all_that_narrows_its_sender() {
        for role in [Role::Owner, Role::None, Role::Named("r\n\"".into())] {
            let principal = Principal {
                name: "w".into(),
                role,
                contexts: Contexts::new(["b", "a"]),
                credential: "c1".into(),
                peer: Peer::default(),
            };
            let alias = Some("desk".into());
            let stored = write(&principal, &letter(), alias.as_ref());
            let read = read(&stored).unwrap();
            assert_eq!((read.principal, read.alias), (principal, alias));
            assert_eq!(read.letter.raw, letter().raw);
        }
        assert!(read(&Bytes::from_static(b"{}\n{}")).is_none());
        assert!(read(&Bytes::from_static(b"none")).is_none());
    }

    #[test]
    fn the_hub_has_a_lane_for_each_sender_and_others_have_one() {
        let to = |name: &str| Mailbox::parse(name).unwrap();
        let own = lane(&Mailbox::hub(), "w#mcp").unwrap();
        assert_eq!(own.as_str(), "mbx/hub/w#mcp");
        assert_eq!(
            (mailbox_of(&own), sender_of(&own)),
            (Some(Mailbox::hub()), Some("w#mcp"))
        );
        let other = lane(&to("a#b"), "w").unwrap();
        assert_eq!(other.as_str(), "mbx/a#b");
        assert_eq!(
            (mailbox_of(&other), sender_of(&other)),
            (Some(to("a#b")), None)
        );
    }

    #[test]
    fn two_messages_agree_only_where_kind_correlation_and_body_do() {
        let one = letter();
        assert_eq!(digest(&one), digest(&one.lasting(9)));
        let mut other = letter();
        other.body = Bytes::from_static(b"{}");
        assert_ne!(digest(&one), digest(&other));
        let mut other = letter();
        other.correlation_id = Some("x".into());
        assert_ne!(digest(&one), digest(&other));
    }
}
