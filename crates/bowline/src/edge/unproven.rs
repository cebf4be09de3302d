//! Requests that prove nobody: each is counted, some are logged, and the trail has rows of them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_core::sync::lock;
use bowline_host::audit::{Note, Target};
use bowline_journal::audit::Kind;
use http::header;
use http::request::Parts;

use super::Edge;
use super::body::Answer;
use super::door::Refused;
use super::hold::Hold;
use super::listen;

/// The route of a path that leads nowhere.
pub(super) const NOWHERE: &str = "none";

/// Every route, so that each has a series from the start.
const ROUTES: [&str; 9] = [
    "mcp", "sse", "messages", "broker", "executor", "api", "metrics", "health", NOWHERE,
];

/// Lines of the log in each period.
const LINES_MAX: u32 = 5;

/// How long such a period is.
const PERIOD_MS: u64 = 1_000;

/// Why a request proves nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unproven {
    /// `Host` names somebody else.
    Host,
    /// `Origin` names somebody else.
    Origin,
    /// There is no credential.
    Missing,
    /// The credential is wrong, has expired or was revoked.
    Wrong,
    /// The credential stands in the query.
    Query,
    /// The credential is of a kind that does not open this.
    Kind,
}

impl Unproven {
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

    fn from_refusal(refused: Refused, parts: &Parts) -> Option<Self> {
        match refused {
            Refused::Host => Some(Self::Host),
            Refused::Origin => Some(Self::Origin),
            Refused::Query => Some(Self::Query),
            Refused::Unauthorized if parts.headers.contains_key(header::AUTHORIZATION) => {
                Some(Self::Wrong)
            }
            Refused::Unauthorized => Some(Self::Missing),
            Refused::ExecutorToken | Refused::ReaderToken => Some(Self::Kind),
            Refused::Forbidden => None,
        }
    }
}

/// How often which request proved nobody.
#[derive(Debug, Default)]
pub(super) struct Counts {
    counts: [[AtomicU64; ROUTES.len()]; Unproven::ALL.len()],
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    period: u64,
    written: u32,
    /// Requests since the last line.
    unwritten: u64,
}

impl Counts {
    fn add(&self, why: Unproven, route: &'static str) {
        let reasons = Unproven::ALL.iter().zip(&self.counts);
        for (_, routes) in reasons.filter(|(reason, _)| **reason == why) {
            let counts = ROUTES.iter().zip(routes);
            for (_, count) in counts.filter(|(name, _)| **name == route) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the counts by reason and route.
    pub(super) fn counts(&self) -> Vec<(&'static str, &'static str, u64)> {
        let reasons = Unproven::ALL.iter().zip(&self.counts);
        let counts = reasons.flat_map(|(reason, routes)| {
            let counts = ROUTES.iter().zip(routes);
            counts.map(|(route, count)| (reason.as_str(), *route, count.load(Ordering::Relaxed)))
        });
        counts.collect()
    }
}

impl Lines {
    /// Counts a request; says how many had no line before it where it is to have one.
    fn next(&mut self, now_ms: u64) -> Option<u64> {
        let period = now_ms / PERIOD_MS;
        if period != self.period {
            (self.period, self.written) = (period, 0);
        }
        if self.written >= LINES_MAX {
            self.unwritten += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.unwritten))
    }
}

impl Edge {
    /// Turns a request away, and counts it.
    pub(super) fn refuse(
        &self,
        refused: Refused,
        (parts, route): (&Parts, &'static str),
        hold: &Hold,
    ) -> Answer {
        if let Some(why) = Unproven::from_refusal(refused, parts) {
            self.count_unproven(why, route, hold);
        }
        listen::refusal(refused)
    }

    /// Counts a request that proves nobody, and leaves a row of it.
    pub(super) fn count_unproven(&self, why: Unproven, route: &'static str, hold: &Hold) {
        self.unproven.add(why, route);
        let at_ms = self.host.clock().unix_ms();
        let (reason, peer) = (why.as_str(), hold.peer());
        if let Some(unwritten) = lock(&self.unproven.lines).next(at_ms) {
            let peer = peer.map(tracing::field::display);
            tracing::warn!(peer, route, reason, unwritten, "authentication failed");
        }
        let mut note = Note::new(Kind::Unauthenticated, at_ms, "failed");
        note.peer = peer;
        note.target = Target::Named {
            server: None,
            name: route.into(),
        };
        note.reason = Some(reason.into());
        self.host.audit().note(note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_and_route_is_counted_by_itself() {
        let counts = Counts::default();
        counts.add(Unproven::Wrong, "api");
        counts.add(Unproven::Wrong, "api");
        counts.add(Unproven::Host, NOWHERE);
        let some: Vec<_> = counts.counts().into_iter().filter(|it| it.2 > 0).collect();
        assert_eq!(some, [("host", NOWHERE, 1), ("wrong", "api", 2)]);
        assert_eq!(counts.counts().len(), 54);
    }

    #[test]
    fn lines_are_rated_and_the_rest_is_counted() {
        let mut lines = Lines::default();
        let written = (0..100).filter(|_| lines.next(5).is_some()).count();
        assert_eq!(written, LINES_MAX as usize);
        let before = 100 - u64::from(LINES_MAX);
        assert_eq!(lines.next(PERIOD_MS), Some(before));
    }
}
