//! What a peer may do: decided by its credential, whatever its frames say.

use std::sync::Arc;

use bowline_core::call::Role;
use bowline_core::mailbox::{HUB, Mailbox};
use bowline_wire::broker::{From, Hello, REPLY, REQUEST, Refusal};

use super::Admitted;

/// Says that something is not allowed, in the same words whatever it was, and repeats nothing.
pub(super) fn not_allowed(id: Option<&Arc<str>>) -> Refusal {
    refusal("not_allowed", "this is not allowed", id)
}

/// Says no.
pub(super) fn refusal(code: &str, reason: &str, id: Option<&Arc<str>>) -> Refusal {
    Refusal {
        reason: reason.into(),
        id: id.cloned(),
        code: Some(code.into()),
    }
}

impl Admitted {
    /// Returns what is stamped on all that it sends.
    pub(super) fn stamp(&self) -> From {
        From {
            session_id: Arc::clone(self.mailbox.as_str()),
            role: self.role.clone(),
            principal: None,
        }
    }

    /// Whether what it claimed at first is what its credential says.
    pub(super) fn owns_up(&self, hello: &Hello) -> bool {
        let whose = &self.principal.name;
        let is_own = self.mailbox.principal() == &**whose;
        let same_mailbox = hello.session_id.is_empty()
            || Mailbox::claimed(whose, &hello.session_id).as_ref() == Some(&self.mailbox);
        let same_role = hello.role.is_none() || hello.role == self.role;
        is_own && self.mailbox.principal() != HUB && same_mailbox && same_role
    }

    /// Whether a sender that it claims is itself.
    pub(super) fn is(&self, claimed: Option<&From>) -> bool {
        claimed.is_none_or(|claimed| {
            let mailbox = self.mailbox.as_str();
            let same_mailbox = claimed.session_id.is_empty() || claimed.session_id == *mailbox;
            let same_role = claimed.role.is_none() || claimed.role == self.role;
            same_mailbox && same_role && claimed.principal.is_none()
        })
    }

    /// Whether it may know of a mailbox, and send to it.
    pub(super) fn reaches(&self, to: &Mailbox) -> bool {
        let whose = to.principal();
        let named = |name: &Arc<str>| &**name == "*" || &**name == whose;
        whose == HUB || self.principal.role == Role::Owner || self.rights.to.iter().any(named)
    }

    /// Whether it may see that somebody is there.
    pub(super) fn sees(&self, other: &Mailbox) -> bool {
        other.principal() == self.mailbox.principal() || self.reaches(other)
    }

    /// Whether it may send a message of this kind there.
    pub(super) fn sends(&self, to: &Mailbox, kind: &str) -> bool {
        let plain = matches!(kind, REQUEST | REPLY);
        let kinds = &self.rights.kinds;
        let listed = kinds.iter().any(|listed| &**listed == kind);
        let kind_fits = match to.principal() == HUB {
            true => plain || listed,
            false => listed || (kinds.is_empty() && plain) || self.principal.role == Role::Owner,
        };
        self.reaches(to) && kind_fits
    }

    /// Whether it may bring a server of this name.
    pub(super) fn brings(&self, server: &str) -> bool {
        let fits = |pattern: &bowline_core::policy::Pattern| pattern.fits(server, "*");
        self.principal.role == Role::Owner || self.rights.offers.iter().any(fits)
    }
}

#[cfg(test)]
mod tests {
    use bowline_core::call::Principal;
    use bowline_core::policy::Pattern;

    use super::super::Rights;
    use super::*;

    fn peer(role: Role, rights: Rights) -> Admitted {
        Admitted {
            principal: Arc::new(Principal::new("w", role)),
            mailbox: Mailbox::parse("w#mcp").unwrap(),
            role: Some("builder".into()),
            rights,
        }
    }

    fn from(session_id: &str, role: Option<&str>) -> From {
        From {
            session_id: session_id.into(),
            role: role.map(Into::into),
            principal: None,
        }
    }

    fn to(name: &str) -> Mailbox {
        Mailbox::parse(name).unwrap()
    }

    #[test]
    fn nothing_is_granted_by_default_but_to_reach_the_hub() {
        let plain = peer(Role::None, Rights::default());
        assert!(plain.sends(&to("hub"), REQUEST) && plain.sends(&to("hub"), REPLY));
        assert!(!plain.sends(&to("hub"), "chat"));
        assert!(!plain.sends(&to("other"), REQUEST) && !plain.sees(&to("other")));
        assert!(plain.sees(&to("w")) && !plain.brings("build-1"));
        let owner = peer(Role::Owner, Rights::default());
        assert!(owner.sends(&to("other#x"), "chat") && owner.brings("any"));
    }

    #[test]
    fn rights_name_principals_kinds_and_servers() {
        let rights = Rights {
            to: vec!["other".into()],
            kinds: vec!["chat".into()],
            offers: vec![Pattern::parse("build-*").unwrap()],
        };
        let some = peer(Role::None, rights);
        assert!(some.sends(&to("other#part"), "chat") && some.sends(&to("hub"), "chat"));
        assert!(!some.sends(&to("other"), REQUEST), "kinds are a list");
        assert!(!some.sends(&to("others"), "chat"));
        assert!(some.brings("build-1") && !some.brings("rebuild-1"));
    }

    #[test]
    fn whatever_differs_from_the_credential_is_a_claim() {
        let some = peer(Role::None, Rights::default());
        assert!(some.is(None) && some.is(Some(&from("w#mcp", Some("builder")))));
        assert!(some.is(Some(&from("", None))));
        assert!(!some.is(Some(&from("w", None))) && !some.is(Some(&from("victim", None))));
        assert!(!some.is(Some(&from("w#mcp", Some("owner")))));
        let mut lent = from("w#mcp", None);
        lent.principal = Some("ann".into());
        assert!(!some.is(Some(&lent)), "only the hub asks for others");
    }
}
