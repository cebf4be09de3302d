//! A principal as it is written down beside what it asked for, and back again.

use std::sync::Arc;

use bowline_core::call::{Contexts, Peer, Principal, Role};
use serde::{Deserialize, Serialize};

/// A principal with all that narrows it: what is stored for it may be carried out long after its
/// connection is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Who {
    pub(crate) name: Arc<str>,
    role: As,
    #[serde(default)]
    contexts: Vec<Arc<str>>,
    #[serde(default)]
    pub(crate) credential: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum As {
    Owner,
    OwnersAgent,
    AnonymousLocal,
    None,
    Named(Arc<str>),
}

impl From<&Principal> for Who {
    fn from(principal: &Principal) -> Self {
        let Principal {
            name,
            role,
            contexts,
            credential,
            peer: _,
        } = principal;
        Self {
            name: Arc::clone(name),
            role: match role {
                Role::Owner => As::Owner,
                Role::OwnersAgent => As::OwnersAgent,
                Role::AnonymousLocal => As::AnonymousLocal,
                Role::None => As::None,
                Role::Named(name) => As::Named(Arc::clone(name)),
            },
            contexts: contexts.names().to_vec(),
            credential: Arc::clone(credential),
        }
    }
}

impl Who {
    pub(crate) fn principal(&self) -> Principal {
        Principal {
            name: Arc::clone(&self.name),
            role: match &self.role {
                As::Owner => Role::Owner,
                As::OwnersAgent => Role::OwnersAgent,
                As::AnonymousLocal => Role::AnonymousLocal,
                As::None => Role::None,
                As::Named(name) => Role::Named(Arc::clone(name)),
            },
            contexts: Contexts::new(self.contexts.iter().cloned()),
            credential: Arc::clone(&self.credential),
            peer: Peer::default(),
        }
    }
}
