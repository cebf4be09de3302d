//! Log levels requested by sessions, aggregated per server.

use std::collections::HashMap;
use std::sync::Arc;

use crate::call::EndpointScope;
use crate::client_handle::SessionKey;

/// A log level of the protocol, most verbose first (RFC 5424 severities).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogLevel {
    /// Debugging detail.
    Debug,
    /// Normal operation.
    Info,
    /// Normal but significant.
    Notice,
    /// Possible fault.
    Warning,
    /// Fault.
    Error,
    /// Fault of a critical component.
    Critical,
    /// Immediate action required.
    Alert,
    /// System unusable.
    Emergency,
}

impl LogLevel {
    /// Every level, most verbose first.
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

    /// Parses the wire name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == name)
    }

    /// Returns the wire name.
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

/// The level of each session; a server gets the most verbose level.
#[derive(Debug, Default)]
pub struct SessionLogLevels {
    sessions: HashMap<SessionKey, (Vec<EndpointScope>, LogLevel)>,
    /// Sessions per scope and level, so that lookups need no scan.
    counts: HashMap<EndpointScope, [u32; LogLevel::ALL.len()]>,
}

impl SessionLogLevels {
    /// Sets the level of a session. A level set at a multi-server endpoint applies to every server;
    /// recipients are filtered at delivery.
    pub fn set_for_scope(&mut self, session: SessionKey, scope: &EndpointScope, level: LogLevel) {
        let scope = if scope.is_multi_server() {
            &EndpointScope::All
        } else {
            scope
        };
        self.replace_session(session, vec![scope.clone()], level);
    }

    /// Sets the level of a session for the visible servers only.
    pub fn set_for_servers<'a>(
        &mut self,
        session: SessionKey,
        servers: impl Iterator<Item = &'a Arc<str>>,
        level: LogLevel,
    ) {
        let scopes = servers.map(|server| EndpointScope::Server(Arc::clone(server)));
        self.replace_session(session, scopes.collect(), level);
    }

    fn replace_session(
        &mut self,
        session: SessionKey,
        scopes: Vec<EndpointScope>,
        level: LogLevel,
    ) {
        self.remove_session(session);
        for scope in &scopes {
            self.adjust_count(scope, level, |count| count.saturating_add(1));
        }
        self.sessions.insert(session, (scopes, level));
    }

    /// Removes a session.
    pub fn remove_session(&mut self, session: SessionKey) {
        if let Some((scopes, level)) = self.sessions.remove(&session) {
            for scope in &scopes {
                self.adjust_count(scope, level, |count| count.saturating_sub(1));
            }
        }
        self.counts
            .retain(|_, counts| counts.iter().any(|count| *count > 0));
    }

    /// Returns the most verbose level requested from `server`.
    #[must_use]
    pub fn server_level(&self, server: &EndpointScope) -> Option<LogLevel> {
        LogLevel::ALL.into_iter().find(|level| {
            [&EndpointScope::All, server].into_iter().any(|scope| {
                let counts = self.counts.get(scope);
                counts.and_then(|counts| counts.get(*level as usize)) > Some(&0)
            })
        })
    }

    /// Returns the level of one session for `server`, if set.
    #[must_use]
    pub fn session_level(&self, session: SessionKey, server: &EndpointScope) -> Option<LogLevel> {
        let (scopes, level) = self.sessions.get(&session)?;
        let mut scopes = scopes.iter();
        let is_wanted = scopes.any(|scope| *scope == EndpointScope::All || scope == server);
        is_wanted.then_some(*level)
    }

    fn adjust_count(
        &mut self,
        scope: &EndpointScope,
        level: LogLevel,
        change: impl Fn(u32) -> u32,
    ) {
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
    fn most_verbose_level_wins_until_session_ends() {
        let server = EndpointScope::Server("s".into());
        let other = EndpointScope::Server("t".into());
        let mut levels = SessionLogLevels::default();
        assert_eq!(levels.server_level(&server), None);
        levels.set_for_scope(SessionKey(1), &EndpointScope::All, LogLevel::Error);
        levels.set_for_scope(SessionKey(2), &server, LogLevel::Debug);
        assert_eq!(levels.server_level(&server), Some(LogLevel::Debug));
        assert_eq!(levels.server_level(&other), Some(LogLevel::Error));
        let of = |session| levels.session_level(SessionKey(session), &server);
        assert_eq!(
            [of(1), of(2)],
            [Some(LogLevel::Error), Some(LogLevel::Debug)]
        );
        assert_eq!(levels.session_level(SessionKey(2), &other), None);
        levels.set_for_scope(SessionKey(2), &server, LogLevel::Alert);
        assert_eq!(levels.server_level(&server), Some(LogLevel::Error));
        levels.remove_session(SessionKey(1));
        levels.remove_session(SessionKey(1));
        assert_eq!(levels.server_level(&server), Some(LogLevel::Alert));
        levels.remove_session(SessionKey(2));
        assert!(levels.counts.is_empty());
    }

    #[test]
    fn level_of_some_servers_skips_others() {
        let [seen, hidden] = ["s", "h"].map(|name| EndpointScope::Server(name.into()));
        let mut levels = SessionLogLevels::default();
        levels.set_for_servers(SessionKey(1), [Arc::from("s")].iter(), LogLevel::Debug);
        assert_eq!(
            [levels.server_level(&seen), levels.server_level(&hidden)],
            [Some(LogLevel::Debug), None]
        );
        assert_eq!(levels.session_level(SessionKey(1), &hidden), None);
        levels.remove_session(SessionKey(1));
        assert!(levels.counts.is_empty());
    }

    #[test]
    fn profile_level_applies_to_every_server() {
        let server = EndpointScope::Server("s".into());
        let mut levels = SessionLogLevels::default();
        levels.set_for_scope(
            SessionKey(1),
            &EndpointScope::Profile("p".into()),
            LogLevel::Debug,
        );
        assert_eq!(levels.server_level(&server), Some(LogLevel::Debug));
        assert_eq!(
            levels.session_level(SessionKey(1), &server),
            Some(LogLevel::Debug)
        );
        levels.remove_session(SessionKey(1));
        assert_eq!(levels.server_level(&server), None);
        assert!(levels.counts.is_empty());
    }

    #[test]
    fn level_names_round_trip_in_order() {
        for level in LogLevel::ALL {
            assert_eq!(LogLevel::parse(level.as_str()), Some(level));
        }
        assert!(LogLevel::ALL.is_sorted());
        assert_eq!(LogLevel::parse("Debug"), None);
    }
}
