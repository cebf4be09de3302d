//! Which server gave a session the address of a resource that is in no list.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::caller::SessionKey;

/// Addresses remembered for one session; the oldest goes first.
pub const LINKS_MAX: usize = 256;

/// Sessions for which addresses are remembered.
const SESSIONS_MAX: usize = 65_536;

/// A longer address is not remembered.
const URI_BYTES_MAX: usize = 8 * 1024;

/// The addresses seen by each session.
#[derive(Debug, Default)]
pub struct Seen(HashMap<SessionKey, VecDeque<Shown>>);

/// A URI and the server that showed it.
type Shown = (Arc<str>, Arc<str>);

impl Seen {
    /// Remembers that `server` showed `uri` to `session`; a later server takes it over.
    pub fn note(&mut self, session: SessionKey, server: &Arc<str>, uri: &str) {
        let full = self.0.len() >= SESSIONS_MAX && !self.0.contains_key(&session);
        if full || uri.len() > URI_BYTES_MAX {
            return;
        }
        let links = self.0.entry(session).or_default();
        links.retain(|(known, _)| **known != *uri);
        if links.len() >= LINKS_MAX {
            links.pop_front();
        }
        links.push_back((uri.into(), Arc::clone(server)));
    }

    /// Returns the server that showed `uri` to `session`.
    #[must_use]
    pub fn server(&self, session: SessionKey, uri: &str) -> Option<Arc<str>> {
        let links = self.0.get(&session)?;
        let (_, server) = links.iter().find(|(known, _)| **known == *uri)?;
        Some(Arc::clone(server))
    }

    /// Forgets what a session saw.
    pub fn end(&mut self, session: SessionKey) {
        self.0.remove(&session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_remembers_its_own_links_and_the_latest_ones_only() {
        let (one, two) = (SessionKey(1), SessionKey(2));
        let server: Arc<str> = "s".into();
        let mut seen = Seen::default();
        for nth in 0..=LINKS_MAX {
            seen.note(one, &server, &format!("x:{nth}"));
        }
        assert_eq!(seen.server(one, "x:0"), None, "the oldest has gone");
        assert_eq!(seen.server(one, "x:1"), Some(Arc::clone(&server)));
        assert_eq!(seen.server(two, "x:1"), None);
        seen.note(one, &"t".into(), "x:1");
        assert_eq!(seen.server(one, "x:1"), Some("t".into()));
        seen.end(one);
        assert_eq!(seen.server(one, "x:1"), None);
    }
}
