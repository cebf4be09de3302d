//! Names of the sessions that use a peer's server, as known to the peer.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use bowline_core::client_handle::SessionKey;
use bowline_core::hex::to_hex;
use bowline_core::sync::lock;

/// Remembered sessions; beyond the limit the peer gets no end event and times out idle sessions.
const SESSIONS_MAX: usize = 4_096;

/// Sessions known to a peer. Outlives the links to the server, like the sessions.
#[derive(Debug)]
pub(crate) struct SessionNames {
    /// Random prefix, so that sessions of another start of this gateway have other names.
    instance: Box<str>,
    known: Mutex<HashSet<SessionKey>>,
}

impl SessionNames {
    /// Returns an empty registry.
    pub(crate) fn new() -> Self {
        let mut random = [0; 8];
        // Without entropy two starts may share names until the peer's idle timeout.
        let drawn = getrandom::fill(&mut random);
        debug_assert!(drawn.is_ok(), "the kernel gives random bytes");
        Self {
            instance: to_hex(&random).into(),
            known: Mutex::default(),
        }
    }

    /// Returns the name of a session, and records that the peer knows the session.
    pub(super) fn register(&self, session: SessionKey) -> Option<Arc<str>> {
        if session == SessionKey(0) {
            return None;
        }
        let mut sessions = lock(&self.known);
        if sessions.len() < SESSIONS_MAX {
            sessions.insert(session);
        }
        drop(sessions);
        Some(self.session_name(session))
    }

    /// Removes an ended session and returns the name, if known to the peer.
    pub(super) fn remove(&self, session: SessionKey) -> Option<Arc<str>> {
        lock(&self.known)
            .remove(&session)
            .then(|| self.session_name(session))
    }

    /// Returns the name of a session, if known to the peer.
    pub(super) fn known_name(&self, session: SessionKey) -> Option<Arc<str>> {
        lock(&self.known)
            .contains(&session)
            .then(|| self.session_name(session))
    }

    /// Parses a session name.
    pub(super) fn parse_session(&self, name: &str) -> Option<SessionKey> {
        let (start, number) = name.split_once('-')?;
        let session = SessionKey(number.parse().ok()?);
        (*start == *self.instance).then_some(session)
    }

    fn session_name(&self, session: SessionKey) -> Arc<str> {
        format!("{}-{}", self.instance, session.0).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_name_resolves_until_session_ends() {
        let (here, other) = (SessionNames::new(), SessionNames::new());
        assert_eq!(here.register(SessionKey(0)), None, "no session has this");
        let name = here.register(SessionKey(7)).unwrap();
        assert_eq!(here.parse_session(&name), Some(SessionKey(7)));
        assert_eq!(
            other.parse_session(&name),
            None,
            "another start has other sessions"
        );
        assert_eq!(here.known_name(SessionKey(7)).as_ref(), Some(&name));
        assert_eq!(here.remove(SessionKey(7)), Some(name));
        assert_eq!(here.remove(SessionKey(7)), None);
        assert_eq!(here.known_name(SessionKey(7)), None);
        for bad in ["", "7", "-7", "x-7"] {
            assert_eq!(here.parse_session(bad), None, "{bad}");
        }
    }
}
