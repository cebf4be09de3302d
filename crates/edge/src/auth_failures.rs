//! Authentication failures: counted, logged at a limited rate, and audited.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_core::sync::lock;
use bowline_host::audit::{AuditEntry, AuditTarget};
use bowline_journal::audit::AuditRowKind;
use http::header;
use http::request::Parts;

use super::Edge;
use super::auth::AuthError;
use super::connection_registry::ClientConnection;
use super::http_listener;
use super::response_body::EdgeResponse;

/// Route label of unknown paths.
pub(super) const NO_ROUTE: &str = "none";

/// All routes, so that each route has a series from the start.
const ROUTES: [&str; 9] = [
    "mcp", "sse", "messages", "broker", "executor", "api", "metrics", "health", NO_ROUTE,
];

/// Maximum number of log lines per period.
const LOG_LINES_MAX: u32 = 5;

/// Length of a period.
const LOG_PERIOD_MS: u64 = 1_000;

/// Reason for an authentication failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AuthFailure {
    /// `Host` names a foreign host.
    Host,
    /// `Origin` names a foreign origin.
    Origin,
    /// No credential.
    Missing,
    /// Invalid, expired or revoked credential.
    Wrong,
    /// Credential in the query string.
    Query,
    /// Token kind not accepted on this endpoint.
    Kind,
}

impl AuthFailure {
    const ALL: [Self; 6] = [
        Self::Host,
        Self::Origin,
        Self::Missing,
        Self::Wrong,
        Self::Query,
        Self::Kind,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Origin => "origin",
            Self::Missing => "missing",
            Self::Wrong => "wrong",
            Self::Query => "query",
            Self::Kind => "kind",
        }
    }

    fn from_auth_error(refused: AuthError, parts: &Parts) -> Option<Self> {
        match refused {
            AuthError::ForeignHost => Some(Self::Host),
            AuthError::ForeignOrigin => Some(Self::Origin),
            AuthError::CredentialInQuery => Some(Self::Query),
            AuthError::Unauthorized if parts.headers.contains_key(header::AUTHORIZATION) => {
                Some(Self::Wrong)
            }
            AuthError::Unauthorized => Some(Self::Missing),
            AuthError::ExecutorToken | AuthError::ReaderToken => Some(Self::Kind),
            AuthError::Forbidden => None,
        }
    }
}

/// Failures by reason and route.
#[derive(Debug, Default)]
pub(super) struct AuthFailureCounts {
    counts: [[AtomicU64; ROUTES.len()]; AuthFailure::ALL.len()],
    lines: Mutex<LogLimiter>,
}

#[derive(Debug, Default)]
struct LogLimiter {
    period: u64,
    written: u32,
    /// Failures since the last line.
    suppressed: u64,
}

impl AuthFailureCounts {
    fn increment(&self, failure: AuthFailure, route: &'static str) {
        let reasons = AuthFailure::ALL.iter().zip(&self.counts);
        for (_, routes) in reasons.filter(|(reason, _)| **reason == failure) {
            let counts = ROUTES.iter().zip(routes);
            for (_, count) in counts.filter(|(name, _)| **name == route) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the counts by reason and route.
    pub(super) fn snapshot(&self) -> Vec<(&'static str, &'static str, u64)> {
        let reasons = AuthFailure::ALL.iter().zip(&self.counts);
        let counts = reasons.flat_map(|(reason, routes)| {
            let counts = ROUTES.iter().zip(routes);
            counts.map(|(route, count)| (reason.as_str(), *route, count.load(Ordering::Relaxed)))
        });
        counts.collect()
    }
}

impl LogLimiter {
    /// Counts a failure; if the line is due, returns the number of failures suppressed before.
    fn admit_line(&mut self, now_ms: u64) -> Option<u64> {
        let period = now_ms / LOG_PERIOD_MS;
        if period != self.period {
            (self.period, self.written) = (period, 0);
        }
        if self.written >= LOG_LINES_MAX {
            self.suppressed += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

impl Edge {
    /// Counts and refuses a request.
    pub(super) fn refuse_request(
        &self,
        refused: AuthError,
        parts: &Parts,
        route: &'static str,
        connection: &ClientConnection,
    ) -> EdgeResponse {
        if let Some(failure) = AuthFailure::from_auth_error(refused, parts) {
            self.count_auth_failure(failure, route, connection);
        }
        http_listener::auth_error_response(refused)
    }

    /// Counts an authentication failure and records an audit row.
    pub(super) fn count_auth_failure(
        &self,
        failure: AuthFailure,
        route: &'static str,
        connection: &ClientConnection,
    ) {
        self.auth_failures.increment(failure, route);
        let at_ms = self.host.clock().unix_ms();
        let (reason, peer) = (failure.as_str(), connection.peer_address());
        if let Some(unwritten) = lock(&self.auth_failures.lines).admit_line(at_ms) {
            let peer = peer.map(tracing::field::display);
            tracing::warn!(peer, route, reason, unwritten, "authentication failed");
        }
        let mut note = AuditEntry::new(AuditRowKind::Unauthenticated, at_ms, "failed");
        note.peer = peer;
        note.target = AuditTarget::Named {
            server: None,
            name: route.into(),
        };
        note.reason = Some(reason.into());
        self.host.audit().record(note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_counted_per_reason_and_route() {
        let counts = AuthFailureCounts::default();
        counts.increment(AuthFailure::Wrong, "api");
        counts.increment(AuthFailure::Wrong, "api");
        counts.increment(AuthFailure::Host, NO_ROUTE);
        let some: Vec<_> = counts
            .snapshot()
            .into_iter()
            .filter(|it| it.2 > 0)
            .collect();
        assert_eq!(some, [("host", NO_ROUTE, 1), ("wrong", "api", 2)]);
        assert_eq!(counts.snapshot().len(), 54);
    }

    #[test]
    fn log_lines_are_limited_and_counted() {
        let mut lines = LogLimiter::default();
        let written = (0..100).filter(|_| lines.admit_line(5).is_some()).count();
        assert_eq!(written, LOG_LINES_MAX as usize);
        let before = 100 - u64::from(LOG_LINES_MAX);
        assert_eq!(lines.admit_line(LOG_PERIOD_MS), Some(before));
    }
}
