//! How much a server says of what it does, and how much sessions want to hear.

use std::collections::HashMap;
use std::sync::Arc;

use crate::call::Scope;
use crate::caller::SessionKey;

/// A log level of the protocol, the most verbose first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// For those who look for a fault.
    Debug,
    /// What goes on.
    Info,
    /// What is normal but worth a look.
    Notice,
    /// What may become a fault.
    Warning,
    /// A fault.
    Error,
    /// A fault of something that others need.
    Critical,
    /// Something must be done at once.
    Alert,
    /// Nothing works.
    Emergency,
}

impl Level {
    /// Every level, the most verbose first.
    pub const ALL: [Self; 8] = [
        Self::Debug,
        Self::Info,
        Self::Notice,
        Self::Warning,
        Self::Error,
        Self::Critical,
        Self::Alert,
        Self::Emergency,
    ];

    /// Returns the level of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == name)
    }

    /// Returns its name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }
}

/// What each session asked for; a server is asked for the most verbose of them.
#[derive(Debug, Default)]
pub struct Levels {
    sessions: HashMap<SessionKey, (Vec<Scope>, Level)>,
    /// How many sessions of a scope asked for each level, so that no session need be looked at.
    counts: HashMap<Scope, [u32; Level::ALL.len()]>,
}

impl Levels {
    /// Notes what a session asks for from now on. What is asked for at an endpoint of several
    /// servers is asked of every server: who hears it is decided when it is said.
    pub fn set(&mut self, session: SessionKey, scope: &Scope, level: Level) {
        let scope = if scope.is_shared() {
            &Scope::All
        } else {
            scope
        };
        self.put(session, vec![scope.clone()], level);
    }

    /// Notes what a session asks for of these servers alone, because it may see no others.
    pub fn set_of<'a>(
        &mut self,
        session: SessionKey,
        servers: impl Iterator<Item = &'a Arc<str>>,
        level: Level,
    ) {
        let scopes = servers.map(|server| Scope::Server(Arc::clone(server)));
        self.put(session, scopes.collect(), level);
    }

    fn put(&mut self, session: SessionKey, scopes: Vec<Scope>, level: Level) {
        self.end(session);
        for scope in &scopes {
            self.count(scope, level, |count| count.saturating_add(1));
        }
        self.sessions.insert(session, (scopes, level));
    }

    /// Forgets a session.
    pub fn end(&mut self, session: SessionKey) {
        if let Some((scopes, level)) = self.sessions.remove(&session) {
            for scope in &scopes {
                self.count(scope, level, |count| count.saturating_sub(1));
            }
        }
        self.counts
            .retain(|_, counts| counts.iter().any(|count| *count > 0));
    }

    /// Returns the most verbose level that anybody wants of `server`.
    #[must_use]
    pub fn of(&self, server: &Scope) -> Option<Level> {
        Level::ALL.into_iter().find(|level| {
            [&Scope::All, server].into_iter().any(|scope| {
                let counts = self.counts.get(scope);
                counts.and_then(|counts| counts.get(*level as usize)) > Some(&0)
            })
        })
    }

    /// Returns what one session wants of `server`, if it said so.
    #[must_use]
    pub fn of_session(&self, session: SessionKey, server: &Scope) -> Option<Level> {
        let (scopes, level) = self.sessions.get(&session)?;
        let mut scopes = scopes.iter();
        let is_wanted = scopes.any(|scope| *scope == Scope::All || scope == server);
        is_wanted.then_some(*level)
    }

    fn count(&mut self, scope: &Scope, level: Level, change: impl Fn(u32) -> u32) {
        let counts = self.counts.entry(scope.clone()).or_default();
        if let Some(count) = counts.get_mut(level as usize) {
            *count = change(*count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_verbose_wish_counts_and_goes_with_its_session() {
        let server = Scope::Server("s".into());
        let other = Scope::Server("t".into());
        let mut levels = Levels::default();
        assert_eq!(levels.of(&server), None);
        levels.set(SessionKey(1), &Scope::All, Level::Error);
        levels.set(SessionKey(2), &server, Level::Debug);
        assert_eq!(levels.of(&server), Some(Level::Debug));
        assert_eq!(levels.of(&other), Some(Level::Error));
        let of = |session| levels.of_session(SessionKey(session), &server);
        assert_eq!([of(1), of(2)], [Some(Level::Error), Some(Level::Debug)]);
        assert_eq!(levels.of_session(SessionKey(2), &other), None);
        levels.set(SessionKey(2), &server, Level::Alert);
        assert_eq!(levels.of(&server), Some(Level::Error));
        levels.end(SessionKey(1));
        levels.end(SessionKey(1));
        assert_eq!(levels.of(&server), Some(Level::Alert));
        levels.end(SessionKey(2));
        assert!(levels.counts.is_empty());
    }

    #[test]
    fn a_level_of_some_servers_is_wanted_of_no_other() {
        let [seen, hidden] = ["s", "h"].map(|name| Scope::Server(name.into()));
        let mut levels = Levels::default();
        levels.set_of(SessionKey(1), [Arc::from("s")].iter(), Level::Debug);
        assert_eq!(
            [levels.of(&seen), levels.of(&hidden)],
            [Some(Level::Debug), None]
        );
        assert_eq!(levels.of_session(SessionKey(1), &hidden), None);
        levels.end(SessionKey(1));
        assert!(levels.counts.is_empty());
    }

    #[test]
    fn a_level_at_a_profile_is_wanted_of_every_server() {
        let server = Scope::Server("s".into());
        let mut levels = Levels::default();
        levels.set(SessionKey(1), &Scope::Profile("p".into()), Level::Debug);
        assert_eq!(levels.of(&server), Some(Level::Debug));
        assert_eq!(
            levels.of_session(SessionKey(1), &server),
            Some(Level::Debug)
        );
        levels.end(SessionKey(1));
        assert_eq!(levels.of(&server), None);
        assert!(levels.counts.is_empty());
    }

    #[test]
    fn levels_read_back_from_their_names_and_are_ordered_by_what_they_leave_out() {
        for level in Level::ALL {
            assert_eq!(Level::parse(level.as_str()), Some(level));
        }
        assert!(Level::ALL.is_sorted());
        assert_eq!(Level::parse("Debug"), None);
    }
}
