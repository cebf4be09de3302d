//! The sessions for which a server of a peer was asked, by the names under which the peer knows
//! them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use bowline_core::caller::SessionKey;
use bowline_core::hex::hex;
use bowline_core::sync::lock;

/// Sessions that are remembered; of more the peer is not told when they end, and forgets them when
/// they are not used.
const SESSIONS_MAX: usize = 4_096;

/// Which sessions a peer knows. Outlives the links to its server, as the sessions do.
#[derive(Debug)]
pub(crate) struct Acquainted {
    /// Drawn once, so that the sessions of another start of this gateway are others.
    start: Box<str>,
    known: Mutex<HashSet<SessionKey>>,
}

impl Acquainted {
    /// Returns what knows nobody yet.
    pub(crate) fn new() -> Self {
        let mut random = [0; 8];
        // Without random numbers two starts may be taken for one, which the peer's idle limit ends.
        let drawn = getrandom::fill(&mut random);
        debug_assert!(drawn.is_ok(), "the kernel gives random bytes");
        Self {
            start: hex(&random).into(),
            known: Mutex::default(),
        }
    }

    /// Returns the name of a session, and remembers that the peer knows it.
    pub(super) fn introduce(&self, session: SessionKey) -> Option<Arc<str>> {
        if session == SessionKey(0) {
            return None;
        }
        let mut known = lock(&self.known);
        if known.len() < SESSIONS_MAX {
            known.insert(session);
        }
        drop(known);
        Some(self.name(session))
    }

    /// Returns the name of a session that is over, if the peer knows it.
    pub(super) fn part(&self, session: SessionKey) -> Option<Arc<str>> {
        lock(&self.known)
            .remove(&session)
            .then(|| self.name(session))
    }

    /// Returns the name of a session, if the peer knows it.
    pub(super) fn known(&self, session: SessionKey) -> Option<Arc<str>> {
        lock(&self.known)
            .contains(&session)
            .then(|| self.name(session))
    }

    /// Returns the session of that name.
    pub(super) fn session(&self, name: &str) -> Option<SessionKey> {
        let (start, number) = name.split_once('-')?;
        let session = SessionKey(number.parse().ok()?);
        (*start == *self.start).then_some(session)
    }

    fn name(&self, session: SessionKey) -> Arc<str> {
        format!("{}-{}", self.start, session.0).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_known_by_a_name_of_this_start_until_it_is_over() {
        let (here, other) = (Acquainted::new(), Acquainted::new());
        assert_eq!(here.introduce(SessionKey(0)), None, "no session has this");
        let name = here.introduce(SessionKey(7)).unwrap();
        assert_eq!(here.session(&name), Some(SessionKey(7)));
        assert_eq!(
            other.session(&name),
            None,
            "another start has other sessions"
        );
        assert_eq!(here.known(SessionKey(7)).as_ref(), Some(&name));
        assert_eq!(here.part(SessionKey(7)), Some(name));
        assert_eq!(here.part(SessionKey(7)), None);
        assert_eq!(here.known(SessionKey(7)), None);
        for bad in ["", "7", "-7", "x-7"] {
            assert_eq!(here.session(bad), None, "{bad}");
        }
    }
}
