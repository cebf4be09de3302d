//! Who is at the other end of a session: what is said to it later is decided for whoever it is
//! then.

use std::collections::HashMap;
use std::sync::Arc;

use crate::call::{Principal, Scope};
use crate::caller::SessionKey;

/// Sessions that are known; beyond, nothing is told outside calls.
pub const SESSIONS_MAX: usize = 65_536;

/// Who asks at which endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Who.
    pub principal: Arc<Principal>,
    /// Where.
    pub scope: Scope,
}

/// The sessions that are told anything outside calls.
#[derive(Debug, Default)]
pub struct Askers(HashMap<SessionKey, Asker>);

impl Askers {
    /// Notes who a session is; what was known of it before is gone.
    pub fn note(&mut self, session: SessionKey, principal: &Arc<Principal>, scope: &Scope) {
        if self.0.len() >= SESSIONS_MAX && !self.0.contains_key(&session) {
            return;
        }
        let asker = Asker {
            principal: Arc::clone(principal),
            scope: scope.clone(),
        };
        self.0.insert(session, asker);
    }

    /// Changes who a session is, where it is known.
    pub fn narrow(&mut self, session: SessionKey, principal: &Arc<Principal>) {
        if let Some(asker) = self.0.get_mut(&session) {
            asker.principal = Arc::clone(principal);
        }
    }

    /// Returns who a session is.
    #[must_use]
    pub fn get(&self, session: SessionKey) -> Option<&Asker> {
        self.0.get(&session)
    }

    /// Forgets a session.
    pub fn end(&mut self, session: SessionKey) {
        self.0.remove(&session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Role;

    #[test]
    fn a_session_is_who_it_was_last_said_to_be_until_it_ends() {
        let mut askers = Askers::default();
        let who = |name| Arc::new(Principal::new(name, Role::None));
        askers.narrow(SessionKey(1), &who("nobody"));
        assert_eq!(askers.get(SessionKey(1)), None);
        askers.note(SessionKey(1), &who("ann"), &Scope::All);
        askers.narrow(SessionKey(1), &who("ann-narrowed"));
        let known = askers.get(SessionKey(1)).unwrap();
        assert_eq!(&*known.principal.name, "ann-narrowed");
        askers.end(SessionKey(1));
        assert_eq!(askers.get(SessionKey(1)), None);
        for nth in 0..=SESSIONS_MAX as u64 {
            askers.note(SessionKey(nth), &who("ann"), &Scope::All);
        }
        assert_eq!(askers.get(SessionKey(SESSIONS_MAX as u64)), None);
    }
}
