//! Resource links shown to each session, with the server of each link.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::client_handle::SessionKey;

/// Links per session; the oldest is dropped first.
pub const LINKS_MAX: usize = 256;

/// Sessions with links.
const SESSIONS_MAX: usize = 65_536;

/// Longer URIs are ignored.
const URI_BYTES_MAX: usize = 8 * 1024;

/// The links seen by each session.
#[derive(Debug, Default)]
pub struct ResourceLinks(HashMap<SessionKey, VecDeque<ResourceLink>>);

/// A URI with the server.
type ResourceLink = (Arc<str>, Arc<str>);

impl ResourceLinks {
    /// Records that `server` showed `uri` to `session`; a later server replaces an earlier server.
    pub fn record_link(&mut self, session: SessionKey, server: &Arc<str>, uri: &str) {
        let full = self.0.len() >= SESSIONS_MAX && !self.0.contains_key(&session);
        if full || uri.len() > URI_BYTES_MAX {
            return;
        }
        let links = self.0.entry(session).or_default();
        links.retain(|(link_uri, _)| **link_uri != *uri);
        if links.len() >= LINKS_MAX {
            links.pop_front();
        }
        links.push_back((uri.into(), Arc::clone(server)));
    }

    /// Returns the server that showed `uri` to `session`.
    #[must_use]
    pub fn server_for(&self, session: SessionKey, uri: &str) -> Option<Arc<str>> {
        let links = self.0.get(&session)?;
        let (_, server) = links.iter().find(|(link_uri, _)| **link_uri == *uri)?;
        Some(Arc::clone(server))
    }

    /// Removes the links of a session.
    pub fn remove_session(&mut self, session: SessionKey) {
        self.0.remove(&session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_keeps_its_latest_links() {
        let (one, two) = (SessionKey(1), SessionKey(2));
        let server: Arc<str> = "s".into();
        let mut seen = ResourceLinks::default();
        for nth in 0..=LINKS_MAX {
            seen.record_link(one, &server, &format!("x:{nth}"));
        }
        assert_eq!(seen.server_for(one, "x:0"), None, "the oldest has gone");
        assert_eq!(seen.server_for(one, "x:1"), Some(Arc::clone(&server)));
        assert_eq!(seen.server_for(two, "x:1"), None);
        seen.record_link(one, &"t".into(), "x:1");
        assert_eq!(seen.server_for(one, "x:1"), Some("t".into()));
        seen.remove_session(one);
        assert_eq!(seen.server_for(one, "x:1"), None);
    }
}
