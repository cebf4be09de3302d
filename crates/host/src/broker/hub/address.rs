//! Resolves the name that a frame is addressed to: a mailbox, or an alias of the hub's own.

use std::sync::Arc;

use bowline_core::mailbox::{BadName, HUB, Mailbox};

/// Names under which peers reach the hub's own mailbox, beside `hub`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubAliases(Arc<[Arc<str>]>);

/// Where a message goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// The mailbox.
    pub(super) mailbox: Mailbox,
    /// The name that was written, where it is an alias of the hub. Clients of other systems take a
    /// reply only from the name that they asked.
    pub(super) alias: Option<Arc<str>>,
}

impl HubAliases {
    /// Whether a principal of this name would be mistaken for the hub.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|alias| **alias == *name)
    }

    /// Returns where a message goes that is addressed to `name`.
    pub(super) fn resolve(&self, name: &str) -> Result<Address, BadName> {
        if let Some(alias) = self.0.iter().find(|alias| ***alias == *name) {
            return Ok(Address {
                mailbox: Mailbox::hub(),
                alias: Some(Arc::clone(alias)),
            });
        }
        Mailbox::parse(name).map(Address::from)
    }

    /// Whether the hub itself is meant by `name`.
    pub(super) fn is_own(&self, name: &str) -> bool {
        name == HUB || self.has(name)
    }
}

impl<T: Into<Arc<str>>> FromIterator<T> for HubAliases {
    fn from_iter<I: IntoIterator<Item = T>>(names: I) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }
}

impl From<Mailbox> for Address {
    fn from(mailbox: Mailbox) -> Self {
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
        assert_eq!(address.mailbox, Mailbox::hub());
        assert_eq!(address.alias.as_deref(), Some("desk"));
        let other = aliases.resolve("desk#part").unwrap();
        assert_eq!(other.mailbox.principal(), "desk", "a part is no alias");
        assert_eq!(other.alias, None);
        assert!(aliases.resolve("no name").is_err());
        assert!(aliases.is_own("hub") && aliases.is_own("desk") && !aliases.is_own("bob"));
    }
}
