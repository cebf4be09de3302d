//! Cache keys: a hash over all inputs of a result.

use sha2::{Digest as _, Sha256};

use super::CacheSubject;
use crate::call::FeatureKind;

/// The key of a cached result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResultKey([u8; 32]);

/// The inputs of a result except the principal.
#[derive(Clone, Debug)]
pub struct ResultKeyBase(Sha256);

impl ResultKeyBase {
    /// Hashes the subject, the definition hash and the arguments in canonical form.
    #[must_use]
    pub fn new(subject: CacheSubject<'_>, definition: &[u8; 32], arguments: &[u8]) -> Self {
        let kind = match subject.kind {
            FeatureKind::Tool => 0,
            FeatureKind::Prompt => 1,
            FeatureKind::Resource => 2,
            FeatureKind::Task => 3,
        };
        let mut base = Self(Sha256::new_with_prefix([kind]));
        base.add_part(subject.server.as_bytes());
        base.add_part(subject.name.as_bytes());
        base.0.update(definition);
        base.add_part(arguments);
        base
    }

    /// Adds a text with a length prefix, so that two sequences of texts never hash alike.
    pub fn add_part(&mut self, text: &[u8]) {
        let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
        self.0.update(length.to_le_bytes());
        self.0.update(text);
    }

    /// Returns the key of a public result.
    #[must_use]
    pub fn public_key(&self) -> ResultKey {
        let mut whole = self.0.clone();
        whole.update([0]);
        ResultKey(whole.finalize().into())
    }

    /// Returns the key of a private result of one principal.
    #[must_use]
    pub fn private_key(&self, principal: &str) -> ResultKey {
        let mut whole = self.clone();
        whole.0.update([1]);
        whole.add_part(principal.as_bytes());
        ResultKey(whole.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;

    fn base(
        server: &str,
        kind: FeatureKind,
        name: &str,
        definition: u8,
        arguments: &str,
    ) -> ResultKeyBase {
        let (server, name) = (Arc::from(server), Arc::from(name));
        let subject = CacheSubject {
            server: &server,
            kind,
            name: &name,
        };
        ResultKeyBase::new(subject, &[definition; 32], arguments.as_bytes())
    }

    #[test]
    fn sec_34_every_input_changes_key() {
        let bases = [
            base("s", FeatureKind::Tool, "t", 0, "{}"),
            base("s2", FeatureKind::Tool, "t", 0, "{}"),
            base("s", FeatureKind::Prompt, "t", 0, "{}"),
            base("s", FeatureKind::Resource, "t", 0, "{}"),
            base("s", FeatureKind::Tool, "t2", 0, "{}"),
            base("s", FeatureKind::Tool, "t", 1, "{}"),
            base("s", FeatureKind::Tool, "t", 0, "{\"a\":1}"),
            base("s", FeatureKind::Tool, "t", 0, "{\"a\":1.0}"),
            // The same letters, split in another place.
            base("st", FeatureKind::Tool, "", 0, "{}"),
        ];
        let mut keys = BTreeSet::new();
        for base in &bases {
            keys.insert(base.public_key());
            keys.insert(base.private_key("ann"));
            keys.insert(base.private_key("bob"));
            keys.insert(base.private_key(""));
        }
        assert_eq!(keys.len(), bases.len() * 4);
        let again = base("s", FeatureKind::Tool, "t", 0, "{}");
        assert_eq!(again.public_key(), bases[0].public_key());
        assert_eq!(again.private_key("ann"), bases[0].private_key("ann"));
    }
}
