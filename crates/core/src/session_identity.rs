//! Current principal and endpoint of each session, used to authorize notifications.

use std::collections::HashMap;
use std::sync::Arc;

use crate::call::{EndpointScope, Principal};
use crate::client_handle::SessionKey;

/// Sessions in the table; sessions beyond get no notifications outside calls.
pub const SESSIONS_MAX: usize = 65_536;

/// Principal and endpoint of one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionIdentity {
    /// The current principal.
    pub principal: Arc<Principal>,
    /// The endpoint of the session.
    pub scope: EndpointScope,
}

/// The sessions that receive notifications outside calls.
#[derive(Debug, Default)]
pub struct SessionIdentities(HashMap<SessionKey, SessionIdentity>);

impl SessionIdentities {
    /// Sets the identity of a session and replaces any earlier identity.
    pub fn set_identity(
        &mut self,
        session: SessionKey,
        principal: &Arc<Principal>,
        scope: &EndpointScope,
    ) {
        if self.0.len() >= SESSIONS_MAX && !self.0.contains_key(&session) {
            return;
        }
        let asker = SessionIdentity {
            principal: Arc::clone(principal),
            scope: scope.clone(),
        };
        self.0.insert(session, asker);
    }

    /// Sets the principal of a known session.
    pub fn set_principal(&mut self, session: SessionKey, principal: &Arc<Principal>) {
        if let Some(asker) = self.0.get_mut(&session) {
            asker.principal = Arc::clone(principal);
        }
    }

    /// Returns the identity of a session.
    #[must_use]
    pub fn get(&self, session: SessionKey) -> Option<&SessionIdentity> {
        self.0.get(&session)
    }

    /// Removes a session.
    pub fn remove_session(&mut self, session: SessionKey) {
        self.0.remove(&session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Role;

    #[test]
    fn session_identity_is_latest_until_removed() {
        let mut askers = SessionIdentities::default();
        let who = |name| Arc::new(Principal::new(name, Role::None));
        askers.set_principal(SessionKey(1), &who("nobody"));
        assert_eq!(askers.get(SessionKey(1)), None);
        askers.set_identity(SessionKey(1), &who("ann"), &EndpointScope::All);
        askers.set_principal(SessionKey(1), &who("ann-narrowed"));
        let known = askers.get(SessionKey(1)).unwrap();
        assert_eq!(&*known.principal.name, "ann-narrowed");
        askers.remove_session(SessionKey(1));
        assert_eq!(askers.get(SessionKey(1)), None);
        for nth in 0..=SESSIONS_MAX as u64 {
            askers.set_identity(SessionKey(nth), &who("ann"), &EndpointScope::All);
        }
        assert_eq!(askers.get(SessionKey(SESSIONS_MAX as u64)), None);
    }
}
