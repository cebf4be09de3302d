//! Storage format of a principal.

use std::sync::Arc;

use bowline_core::call::{ContextSet, PeerAddress, Principal, Role};
use serde::{Deserialize, Serialize};

/// A principal with all restrictions: a stored call may run long after its connection ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrincipalRecord {
    /// The name.
    pub name: Arc<str>,
    role: RoleRecord,
    #[serde(default)]
    contexts: Vec<Arc<str>>,
    #[serde(default)]
    /// The credential.
    pub credential: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RoleRecord {
    Owner,
    OwnersAgent,
    AnonymousLocal,
    None,
    Named(Arc<str>),
}

impl From<&Principal> for PrincipalRecord {
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
                Role::Owner => RoleRecord::Owner,
                Role::OwnersAgent => RoleRecord::OwnersAgent,
                Role::AnonymousLocal => RoleRecord::AnonymousLocal,
                Role::None => RoleRecord::None,
                Role::Named(name) => RoleRecord::Named(Arc::clone(name)),
            },
            contexts: contexts.names().to_vec(),
            credential: Arc::clone(credential),
        }
    }
}

impl PrincipalRecord {
    /// Returns the principal; its address is not stored.
    #[must_use]
    pub fn to_principal(&self) -> Principal {
        Principal {
            name: Arc::clone(&self.name),
            role: match &self.role {
                RoleRecord::Owner => Role::Owner,
                RoleRecord::OwnersAgent => Role::OwnersAgent,
                RoleRecord::AnonymousLocal => Role::AnonymousLocal,
                RoleRecord::None => Role::None,
                RoleRecord::Named(name) => Role::Named(Arc::clone(name)),
            },
            contexts: ContextSet::new(self.contexts.iter().cloned()),
            credential: Arc::clone(&self.credential),
            peer: PeerAddress::default(),
        }
    }
}
