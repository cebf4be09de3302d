//! Checks of a peer's rights: the credential decides, never the claims in frames.

use std::sync::Arc;

use bowline_core::call::Role;

use super::AdmittedPeer;
use crate::frames::{BrokerHello, BrokerRefusal, MessageSender, REPLY_KIND, REQUEST_KIND};
use crate::mailbox::{HUB, MailboxName};

/// Returns the uniform refusal for anything not allowed; echoes no details.
pub(super) fn not_allowed(id: Option<&Arc<str>>) -> BrokerRefusal {
    refusal("not_allowed", "this is not allowed", id)
}

/// Builds a refusal.
pub(super) fn refusal(code: &str, reason: &str, id: Option<&Arc<str>>) -> BrokerRefusal {
    BrokerRefusal {
        reason: reason.into(),
        id: id.cloned(),
        code: Some(code.into()),
    }
}

impl AdmittedPeer {
    /// Returns the sender stamped on every message of the peer.
    pub(super) fn sender_stamp(&self) -> MessageSender {
        MessageSender {
            session_id: Arc::clone(self.mailbox.as_str()),
            role: self.role.clone(),
            principal: None,
        }
    }

    /// Whether the claims in `hello` match the credential.
    pub(super) fn matches_hello(&self, hello: &BrokerHello) -> bool {
        let principal_name = &self.principal.name;
        let is_own = self.mailbox.principal() == &**principal_name;
        let same_mailbox = hello.claimed_mailbox.is_empty()
            || MailboxName::from_claim(principal_name, &hello.claimed_mailbox).as_ref()
                == Some(&self.mailbox);
        let same_role = hello.claimed_role.is_none() || hello.claimed_role == self.role;
        is_own && self.mailbox.principal() != HUB && same_mailbox && same_role
    }

    /// Whether a claimed sender is the peer itself.
    pub(super) fn matches_sender(&self, claimed: Option<&MessageSender>) -> bool {
        claimed.is_none_or(|claimed| {
            let mailbox = self.mailbox.as_str();
            let same_mailbox = claimed.session_id.is_empty() || claimed.session_id == *mailbox;
            let same_role = claimed.role.is_none() || claimed.role == self.role;
            same_mailbox && same_role && claimed.principal.is_none()
        })
    }

    /// Whether the peer may see a mailbox and send to it.
    pub(super) fn can_reach(&self, to: &MailboxName) -> bool {
        let principal = to.principal();
        let named = |name: &Arc<str>| &**name == "*" || &**name == principal;
        principal == HUB || self.principal.role == Role::Owner || self.rights.to.iter().any(named)
    }

    /// Whether the peer may see that the mailbox is connected.
    pub(super) fn can_see(&self, other: &MailboxName) -> bool {
        other.principal() == self.mailbox.principal() || self.can_reach(other)
    }

    /// Whether the peer may send a message of this kind.
    pub(super) fn can_send(&self, to: &MailboxName, kind: &str) -> bool {
        let plain = matches!(kind, REQUEST_KIND | REPLY_KIND);
        let kinds = &self.rights.kinds;
        let listed = kinds.iter().any(|listed| &**listed == kind);
        let kind_fits = match to.principal() == HUB {
            true => plain || listed,
            false => listed || (kinds.is_empty() && plain) || self.principal.role == Role::Owner,
        };
        self.can_reach(to) && kind_fits
    }

    /// Whether the peer may offer a server of this name.
    pub(super) fn can_offer(&self, server: &str) -> bool {
        let fits =
            |pattern: &bowline_core::policy::FeaturePattern| pattern.matches_feature(server, "*");
        self.principal.role == Role::Owner || self.rights.offers.iter().any(fits)
    }
}

#[cfg(test)]
mod tests {
    use bowline_core::call::Principal;
    use bowline_core::policy::FeaturePattern;

    use super::super::PeerRights;
    use super::*;

    fn peer(role: Role, rights: PeerRights) -> AdmittedPeer {
        AdmittedPeer {
            principal: Arc::new(Principal::new("w", role)),
            mailbox: MailboxName::parse("w#mcp").unwrap(),
            role: Some("builder".into()),
            rights,
        }
    }

    fn sender(session_id: &str, role: Option<&str>) -> MessageSender {
        MessageSender {
            session_id: session_id.into(),
            role: role.map(Into::into),
            principal: None,
        }
    }

    fn mailbox(name: &str) -> MailboxName {
        MailboxName::parse(name).unwrap()
    }

    #[test]
    fn default_rights_reach_only_the_hub() {
        let plain = peer(Role::None, PeerRights::default());
        assert!(
            plain.can_send(&mailbox("hub"), REQUEST_KIND)
                && plain.can_send(&mailbox("hub"), REPLY_KIND)
        );
        assert!(!plain.can_send(&mailbox("hub"), "chat"));
        assert!(
            !plain.can_send(&mailbox("other"), REQUEST_KIND) && !plain.can_see(&mailbox("other"))
        );
        assert!(plain.can_see(&mailbox("w")) && !plain.can_offer("build-1"));
        let owner = peer(Role::Owner, PeerRights::default());
        assert!(owner.can_send(&mailbox("other#x"), "chat") && owner.can_offer("any"));
    }

    #[test]
    fn rights_restrict_principals_kinds_and_servers() {
        let rights = PeerRights {
            to: vec!["other".into()],
            kinds: vec!["chat".into()],
            offers: vec![FeaturePattern::parse("build-*").unwrap()],
        };
        let some = peer(Role::None, rights);
        assert!(
            some.can_send(&mailbox("other#part"), "chat") && some.can_send(&mailbox("hub"), "chat")
        );
        assert!(
            !some.can_send(&mailbox("other"), REQUEST_KIND),
            "kinds are a list"
        );
        assert!(!some.can_send(&mailbox("others"), "chat"));
        assert!(some.can_offer("build-1") && !some.can_offer("rebuild-1"));
    }

    #[test]
    fn claims_must_match_the_credential() {
        let some = peer(Role::None, PeerRights::default());
        assert!(
            some.matches_sender(None)
                && some.matches_sender(Some(&sender("w#mcp", Some("builder"))))
        );
        assert!(some.matches_sender(Some(&sender("", None))));
        assert!(
            !some.matches_sender(Some(&sender("w", None)))
                && !some.matches_sender(Some(&sender("victim", None)))
        );
        assert!(!some.matches_sender(Some(&sender("w#mcp", Some("owner")))));
        let mut lent = sender("w#mcp", None);
        lent.principal = Some("ann".into());
        assert!(
            !some.matches_sender(Some(&lent)),
            "only the hub asks for others"
        );
    }
}
