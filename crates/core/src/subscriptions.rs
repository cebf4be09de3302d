//! Resource subscriptions of sessions; a server gets one subscription for all sessions.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::client_handle::SessionKey;

/// Subscriptions per session.
pub const SUBSCRIPTIONS_MAX: usize = 1_024;

/// Bytes of a subscribed URI.
pub const URI_BYTES_MAX: usize = 8 * 1024;

/// Bytes of a URI per share unit.
const UNIT_BYTES: u64 = 512;

/// Returns the share units of a subscription: long URIs cost more.
#[must_use]
pub const fn share_units(uri: &str) -> u64 {
    1 + uri.len() as u64 / UNIT_BYTES
}

/// The subscriptions of all sessions.
#[derive(Debug, Default)]
pub struct ResourceSubscriptions {
    /// By session and the client's URI.
    by_session: HashMap<SessionKey, HashMap<Arc<str>, ServerUri>>,
    /// By server and upstream URI.
    by_server: BTreeMap<Arc<str>, BTreeMap<Arc<str>, UriSubscribers>>,
}

/// A server and an upstream URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUri {
    /// The server.
    pub server: Arc<str>,
    /// The URI as the server knows it.
    pub uri: Arc<str>,
}

/// Sessions with their client URIs.
type UriSubscribers = BTreeSet<(SessionKey, Arc<str>)>;

impl ResourceSubscriptions {
    /// Adds a subscription, or returns the limit if reached. A client URI with a new target
    /// replaces the old subscription.
    pub fn subscribe(
        &mut self,
        session: SessionKey,
        server: &Arc<str>,
        uri: &Arc<str>,
        known_as: &Arc<str>,
    ) -> Result<(), usize> {
        self.unsubscribe(session, known_as);
        let subscriptions = self.by_session.entry(session).or_default();
        if subscriptions.len() >= SUBSCRIPTIONS_MAX {
            return Err(SUBSCRIPTIONS_MAX);
        }
        let subscription = ServerUri {
            server: Arc::clone(server),
            uri: Arc::clone(uri),
        };
        subscriptions.insert(Arc::clone(known_as), subscription);
        let resources = self.by_server.entry(Arc::clone(server)).or_default();
        let subscribers = resources.entry(Arc::clone(uri)).or_default();
        subscribers.insert((session, Arc::clone(known_as)));
        Ok(())
    }

    /// Whether a session has subscribed to this URI.
    #[must_use]
    pub fn has_subscription(&self, session: SessionKey, known_as: &str) -> bool {
        let subscriptions = self.by_session.get(&session);
        subscriptions.is_some_and(|subscriptions| subscriptions.contains_key(known_as))
    }

    /// Removes a subscription and returns its server and upstream URI.
    pub fn unsubscribe(&mut self, session: SessionKey, known_as: &str) -> Option<ServerUri> {
        let subscriptions = self.by_session.get_mut(&session)?;
        let (known_as, subscription) = subscriptions.remove_entry(known_as)?;
        if subscriptions.is_empty() {
            self.by_session.remove(&session);
        }
        self.remove_subscriber(session, &known_as, &subscription);
        Some(subscription)
    }

    /// Removes all subscriptions of a session and returns the affected servers.
    pub fn remove_session(&mut self, session: SessionKey) -> BTreeSet<Arc<str>> {
        let subscriptions = self.by_session.remove(&session).unwrap_or_default();
        let mut servers = BTreeSet::new();
        for (known_as, subscription) in subscriptions {
            self.remove_subscriber(session, &known_as, &subscription);
            servers.insert(subscription.server);
        }
        servers
    }

    /// Returns the subscribed URIs of a server.
    pub fn subscribed_uris(&self, server: &str) -> impl Iterator<Item = &Arc<str>> {
        self.by_server
            .get(server)
            .into_iter()
            .flat_map(BTreeMap::keys)
    }

    /// Whether any session subscribed to this resource.
    #[must_use]
    pub fn has_subscriber(&self, server: &str, uri: &str) -> bool {
        self.by_server
            .get(server)
            .is_some_and(|resources| resources.contains_key(uri))
    }

    /// Returns the subscribers of a resource with their client URIs.
    #[must_use]
    pub fn uri_subscribers(&self, server: &str, uri: &str) -> Vec<(SessionKey, Arc<str>)> {
        let subscribers = self.by_server.get(server).and_then(|all| all.get(uri));
        subscribers.into_iter().flatten().cloned().collect()
    }

    fn remove_subscriber(
        &mut self,
        session: SessionKey,
        known_as: &Arc<str>,
        subscription: &ServerUri,
    ) {
        let ServerUri { server, uri } = subscription;
        let Some(resources) = self.by_server.get_mut(server) else {
            return;
        };
        if let Some(subscribers) = resources.get_mut(uri) {
            subscribers.remove(&(session, Arc::clone(known_as)));
            if subscribers.is_empty() {
                resources.remove(uri);
            }
        }
        if resources.is_empty() {
            self.by_server.remove(server);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_stays_subscribed_until_last_session() {
        let mut all = ResourceSubscriptions::default();
        let (server, uri): (Arc<str>, Arc<str>) = ("s".into(), "x:1".into());
        let (one, two) = (SessionKey(1), SessionKey(2));
        let other: Arc<str> = "bowline://s/x%3A1".into();
        all.subscribe(one, &server, &uri, &uri).unwrap();
        all.subscribe(one, &server, &uri, &uri).unwrap();
        all.subscribe(two, &server, &uri, &other).unwrap();
        assert_eq!(all.subscribed_uris("s").count(), 1);
        let told = all.uri_subscribers("s", "x:1");
        assert_eq!(told, [(one, Arc::clone(&uri)), (two, other)]);
        let place = ServerUri {
            server: Arc::clone(&server),
            uri: Arc::clone(&uri),
        };
        assert_eq!(all.unsubscribe(one, "x:1"), Some(place));
        assert_eq!(all.unsubscribe(one, "x:1"), None);
        assert!(all.has_subscriber("s", "x:1"));
        assert_eq!(all.remove_session(two), BTreeSet::from([server]));
        assert!(!all.has_subscriber("s", "x:1"));
        assert!(all.by_session.is_empty() && all.by_server.is_empty());
    }

    #[test]
    fn session_subscriptions_are_bounded() {
        let mut all = ResourceSubscriptions::default();
        let server: Arc<str> = "s".into();
        for nth in 0..SUBSCRIPTIONS_MAX {
            let uri = Arc::from(nth.to_string());
            all.subscribe(SessionKey(1), &server, &uri, &uri).unwrap();
        }
        let more: Arc<str> = "more".into();
        assert_eq!(
            all.subscribe(SessionKey(1), &server, &more, &more),
            Err(SUBSCRIPTIONS_MAX)
        );
        assert!(!all.has_subscriber("s", "more"));
        assert_eq!(all.subscribe(SessionKey(2), &server, &more, &more), Ok(()));
        all.unsubscribe(SessionKey(1), "0");
        assert_eq!(all.subscribe(SessionKey(1), &server, &more, &more), Ok(()));
    }
}
