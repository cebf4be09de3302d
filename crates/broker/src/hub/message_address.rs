//! Resolves the addressee of a frame: a mailbox, or an alias of the hub's own mailbox.

use std::sync::Arc;

use crate::mailbox::{HUB, MailboxName, MailboxNameError};

/// Names of the hub's own mailbox, beside `hub`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubAliases(Arc<[Arc<str>]>);

/// Destination of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MessageAddress {
    /// The mailbox.
    pub(super) mailbox: MailboxName,
    /// The alias of the hub used by the sender. Clients of foreign systems accept a reply only from
    /// the exact name they addressed.
    pub(super) alias: Option<Arc<str>>,
}

impl HubAliases {
    /// Whether a principal of this name would be mistaken for the hub.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.iter().any(|alias| **alias == *name)
    }

    /// Resolves `name` to a destination.
    pub(super) fn resolve(&self, name: &str) -> Result<MessageAddress, MailboxNameError> {
        if let Some(alias) = self.0.iter().find(|alias| ***alias == *name) {
            return Ok(MessageAddress {
                mailbox: MailboxName::new_hub(),
                alias: Some(Arc::clone(alias)),
            });
        }
        MailboxName::parse(name).map(MessageAddress::from)
    }

    /// Whether `name` means the hub itself.
    pub(super) fn is_hub_name(&self, name: &str) -> bool {
        name == HUB || self.contains(name)
    }
}

impl<T: Into<Arc<str>>> FromIterator<T> for HubAliases {
    fn from_iter<I: IntoIterator<Item = T>>(names: I) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }
}

impl From<MailboxName> for MessageAddress {
    fn from(mailbox: MailboxName) -> Self {
        let alias = None;
        Self { mailbox, alias }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alias_resolves_to_hub_and_keeps_name() {
        let aliases: HubAliases = ["desk"].into_iter().collect();
        let address = aliases.resolve("desk").unwrap();
        assert_eq!(address.mailbox, MailboxName::new_hub());
        assert_eq!(address.alias.as_deref(), Some("desk"));
        let other = aliases.resolve("desk#part").unwrap();
        assert_eq!(other.mailbox.principal(), "desk", "a part is no alias");
        assert_eq!(other.alias, None);
        assert!(aliases.resolve("no name").is_err());
        assert!(
            aliases.is_hub_name("hub")
                && aliases.is_hub_name("desk")
                && !aliases.is_hub_name("bob")
        );
    }
}
