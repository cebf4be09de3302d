//! Which sessions want news of which resources; a server is asked once for all of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::caller::SessionKey;

/// Subscriptions one session may have.
pub const SUBSCRIPTIONS_MAX: usize = 1_024;

/// Bytes of the URI of a subscription.
pub const URI_BYTES_MAX: usize = 8 * 1024;

/// Bytes of a URI that count as one subscription in the share of a principal.
const UNIT_BYTES: u64 = 512;

/// Returns what a subscription counts in the share of its principal: a long URI counts more.
#[must_use]
pub const fn units(uri: &str) -> u64 {
    1 + uri.len() as u64 / UNIT_BYTES
}

/// The subscriptions of all sessions.
#[derive(Debug, Default)]
pub struct Subscriptions {
    /// What each session has, by the URI it used.
    sessions: HashMap<SessionKey, HashMap<Arc<str>, Place>>,
    /// The same by server and the server's own URI: who wants news, and under which URI.
    wanted: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Wanting>>,
}

/// A server and its own URI of a resource.
pub type Place = (Arc<str>, Arc<str>);

/// Sessions, and the URI each of them used.
type Wanting = BTreeSet<(SessionKey, Arc<str>)>;

impl Subscriptions {
    /// Adds one; says how many there may be when the session has that many. A URI that leads
    /// elsewhere than before is news of the new place from now on.
    pub fn add(
        &mut self,
        session: SessionKey,
        server: &Arc<str>,
        uri: &Arc<str>,
        known_as: &Arc<str>,
    ) -> Result<(), usize> {
        self.remove(session, known_as);
        let places = self.sessions.entry(session).or_default();
        if places.len() >= SUBSCRIPTIONS_MAX {
            return Err(SUBSCRIPTIONS_MAX);
        }
        let place = (Arc::clone(server), Arc::clone(uri));
        places.insert(Arc::clone(known_as), place);
        let resources = self.wanted.entry(Arc::clone(server)).or_default();
        let wanting = resources.entry(Arc::clone(uri)).or_default();
        wanting.insert((session, Arc::clone(known_as)));
        Ok(())
    }

    /// Whether a session has one under this URI.
    #[must_use]
    pub fn has(&self, session: SessionKey, known_as: &str) -> bool {
        let places = self.sessions.get(&session);
        places.is_some_and(|places| places.contains_key(known_as))
    }

    /// Takes one away and returns its server and the server's own URI, if it is there.
    pub fn remove(&mut self, session: SessionKey, known_as: &str) -> Option<Place> {
        let places = self.sessions.get_mut(&session)?;
        let (known_as, place) = places.remove_entry(known_as)?;
        if places.is_empty() {
            self.sessions.remove(&session);
        }
        self.unwant(session, &known_as, &place);
        Some(place)
    }

    /// Takes all of a session away and returns the servers that had any of them.
    pub fn end(&mut self, session: SessionKey) -> BTreeSet<Arc<str>> {
        let places = self.sessions.remove(&session).unwrap_or_default();
        let mut servers = BTreeSet::new();
        for (known_as, place) in places {
            self.unwant(session, &known_as, &place);
            servers.insert(place.0);
        }
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
        let wanting = self.wanted.get(server).and_then(|all| all.get(uri));
        wanting.into_iter().flatten().cloned().collect()
    }

    fn unwant(&mut self, session: SessionKey, known_as: &Arc<str>, (server, uri): &Place) {
        let Some(resources) = self.wanted.get_mut(server) else {
            return;
        };
        if let Some(wanting) = resources.get_mut(uri) {
            wanting.remove(&(session, Arc::clone(known_as)));
            if wanting.is_empty() {
                resources.remove(uri);
            }
        }
        if resources.is_empty() {
            self.wanted.remove(server);
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
        let told = all.sessions("s", "x:1");
        assert_eq!(told, [(one, Arc::clone(&uri)), (two, other)]);
        let place = (Arc::clone(&server), Arc::clone(&uri));
        assert_eq!(all.remove(one, "x:1"), Some(place));
        assert_eq!(all.remove(one, "x:1"), None);
        assert!(all.wants("s", "x:1"));
        assert_eq!(all.end(two), BTreeSet::from([server]));
        assert!(!all.wants("s", "x:1"));
        assert!(all.sessions.is_empty() && all.wanted.is_empty());
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
        all.remove(SessionKey(1), "0");
        assert_eq!(all.add(SessionKey(1), &server, &more, &more), Ok(()));
    }
}
