//! Which sessions want news of which resources; a server is asked once for all of them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::caller::SessionKey;

/// Subscriptions one session may have.
pub const SUBSCRIPTIONS_MAX: usize = 1_024;

/// The subscriptions of all sessions, by server and the server's own URI.
#[derive(Debug, Default)]
pub struct Subscriptions {
    /// Who wants news, and under which URI each knows the resource.
    wanted: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Wanting>>,
    /// How many each session has.
    counts: HashMap<SessionKey, usize>,
}

/// The URIs under which each session knows a resource.
type Wanting = HashMap<SessionKey, HashSet<Arc<str>>>;

impl Subscriptions {
    /// Adds one; says how many there may be when the session has that many.
    pub fn add(
        &mut self,
        session: SessionKey,
        server: &Arc<str>,
        uri: &Arc<str>,
        known_as: &Arc<str>,
    ) -> Result<(), usize> {
        let count = self.counts.entry(session).or_default();
        let resources = self.wanted.entry(Arc::clone(server)).or_default();
        let sessions = resources.entry(Arc::clone(uri)).or_default();
        let names = sessions.entry(session).or_default();
        if names.contains(known_as) {
            return Ok(());
        }
        if *count < SUBSCRIPTIONS_MAX {
            *count += 1;
            names.insert(Arc::clone(known_as));
            return Ok(());
        }
        self.sweep(server, uri);
        Err(SUBSCRIPTIONS_MAX)
    }

    /// Takes one away, if it is there.
    pub fn remove(&mut self, session: SessionKey, server: &str, uri: &str, known_as: &str) {
        let sessions = self.wanted.get_mut(server).and_then(|all| all.get_mut(uri));
        let names = sessions.and_then(|sessions| sessions.get_mut(&session));
        if names.is_some_and(|names| names.remove(known_as)) {
            self.uncount(session);
        }
        self.sweep(server, uri);
    }

    /// Takes all of a session away and returns the servers that had any of them.
    pub fn end(&mut self, session: SessionKey) -> Vec<Arc<str>> {
        if self.counts.remove(&session).is_none() {
            return Vec::new();
        }
        let mut servers = Vec::new();
        for (server, resources) in &mut self.wanted {
            let mut had = false;
            resources.retain(|_, sessions| {
                had |= sessions.remove(&session).is_some();
                !sessions.is_empty()
            });
            if had {
                servers.push(Arc::clone(server));
            }
        }
        self.wanted.retain(|_, resources| !resources.is_empty());
        servers
    }

    /// Returns the URIs of a server of which anybody wants news.
    pub fn wanted(&self, server: &str) -> impl Iterator<Item = &Arc<str>> {
        self.wanted.get(server).into_iter().flat_map(BTreeMap::keys)
    }

    /// Whether anybody wants news of this resource.
    #[must_use]
    pub fn wants(&self, server: &str, uri: &str) -> bool {
        self.wanted
            .get(server)
            .is_some_and(|resources| resources.contains_key(uri))
    }

    /// Returns who wants news of a resource, and under which URI each knows it.
    #[must_use]
    pub fn sessions(&self, server: &str, uri: &str) -> Vec<(SessionKey, Arc<str>)> {
        let sessions = self.wanted.get(server).and_then(|all| all.get(uri));
        let sessions = sessions.into_iter().flatten();
        sessions
            .flat_map(|(session, names)| names.iter().map(|name| (*session, Arc::clone(name))))
            .collect()
    }

    fn uncount(&mut self, session: SessionKey) {
        if let Some(count) = self.counts.get_mut(&session) {
            *count = count.saturating_sub(1);
        }
        self.counts.retain(|_, count| *count > 0);
    }

    /// Drops what nobody wants any more.
    fn sweep(&mut self, server: &str, uri: &str) {
        if let Some(resources) = self.wanted.get_mut(server) {
            if let Some(sessions) = resources.get_mut(uri) {
                sessions.retain(|_, names| !names.is_empty());
                if sessions.is_empty() {
                    resources.remove(uri);
                }
            }
            if resources.is_empty() {
                self.wanted.remove(server);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_wanted_until_the_last_session_leaves_it() {
        let mut all = Subscriptions::default();
        let (server, uri): (Arc<str>, Arc<str>) = ("s".into(), "x:1".into());
        let (one, two) = (SessionKey(1), SessionKey(2));
        let other: Arc<str> = "bowline://s/x%3A1".into();
        all.add(one, &server, &uri, &uri).unwrap();
        all.add(one, &server, &uri, &uri).unwrap();
        all.add(two, &server, &uri, &other).unwrap();
        assert_eq!(all.wanted("s").count(), 1);
        let mut told = all.sessions("s", "x:1");
        told.sort();
        assert_eq!(told, [(one, Arc::clone(&uri)), (two, other)]);
        all.remove(one, "s", "x:1", "x:1");
        all.remove(one, "s", "x:1", "x:1");
        assert!(all.wants("s", "x:1"));
        assert_eq!(all.end(two), [server]);
        assert!(!all.wants("s", "x:1"));
        assert!(all.counts.is_empty() && all.wanted.is_empty());
    }

    #[test]
    fn a_session_has_so_many_subscriptions_and_no_more() {
        let mut all = Subscriptions::default();
        let server: Arc<str> = "s".into();
        for nth in 0..SUBSCRIPTIONS_MAX {
            let uri = Arc::from(nth.to_string());
            all.add(SessionKey(1), &server, &uri, &uri).unwrap();
        }
        let more: Arc<str> = "more".into();
        assert_eq!(
            all.add(SessionKey(1), &server, &more, &more),
            Err(SUBSCRIPTIONS_MAX)
        );
        assert!(!all.wants("s", "more"));
        assert_eq!(all.add(SessionKey(2), &server, &more, &more), Ok(()));
        all.remove(SessionKey(1), "s", "0", "0");
        assert_eq!(all.add(SessionKey(1), &server, &more, &more), Ok(()));
    }
}
