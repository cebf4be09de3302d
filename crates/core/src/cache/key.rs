//! Under what an answer is kept: everything that it may depend on, hashed.

use sha2::{Digest as _, Sha256};

use super::About;
use crate::call::Kind;

/// Names one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u8; 32]);

/// What the answer to a call depends on beside who asked.
#[derive(Clone, Debug)]
pub struct KeyBase(Sha256);

impl KeyBase {
    /// Returns what the answer depends on: the thing, the hash of its definition, and the
    /// arguments in canonical form.
    #[must_use]
    pub fn new(about: About<'_>, definition: &[u8; 32], arguments: &[u8]) -> Self {
        let kind = match about.kind {
            Kind::Tool => 0,
            Kind::Prompt => 1,
            Kind::Resource => 2,
            Kind::Task => 3,
        };
        let mut base = Self(Sha256::new_with_prefix([kind]));
        base.add(about.server.as_bytes());
        base.add(about.name.as_bytes());
        base.0.update(definition);
        base.add(arguments);
        base
    }

    /// Adds a text, and its length: no two rows of texts may read the same.
    pub fn add(&mut self, text: &[u8]) {
        let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
        self.0.update(length.to_le_bytes());
        self.0.update(text);
    }

    /// Returns the key of an answer for all.
    #[must_use]
    pub fn public(&self) -> Key {
        let mut whole = self.0.clone();
        whole.update([0]);
        Key(whole.finalize().into())
    }

    /// Returns the key of an answer for one principal.
    #[must_use]
    pub fn private(&self, principal: &str) -> Key {
        let mut whole = self.clone();
        whole.0.update([1]);
        whole.add(principal.as_bytes());
        Key(whole.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;

    fn base(server: &str, kind: Kind, name: &str, definition: u8, arguments: &str) -> KeyBase {
        let (server, name) = (Arc::from(server), Arc::from(name));
        let about = About {
            server: &server,
            kind,
            name: &name,
        };
        KeyBase::new(about, &[definition; 32], arguments.as_bytes())
    }

    #[test]
    fn sec_34_whatever_differs_makes_another_key() {
        let bases = [
            base("s", Kind::Tool, "t", 0, "{}"),
            base("s2", Kind::Tool, "t", 0, "{}"),
            base("s", Kind::Prompt, "t", 0, "{}"),
            base("s", Kind::Resource, "t", 0, "{}"),
            base("s", Kind::Tool, "t2", 0, "{}"),
            base("s", Kind::Tool, "t", 1, "{}"),
            base("s", Kind::Tool, "t", 0, "{\"a\":1}"),
            base("s", Kind::Tool, "t", 0, "{\"a\":1.0}"),
            // The same letters, split in another place.
            base("st", Kind::Tool, "", 0, "{}"),
        ];
        let mut keys = BTreeSet::new();
        for base in &bases {
            keys.insert(base.public());
            keys.insert(base.private("ann"));
            keys.insert(base.private("bob"));
            keys.insert(base.private(""));
        }
        assert_eq!(keys.len(), bases.len() * 4);
        let again = base("s", Kind::Tool, "t", 0, "{}");
        assert_eq!(again.public(), bases[0].public());
        assert_eq!(again.private("ann"), bases[0].private("ann"));
    }
}
