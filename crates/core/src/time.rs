//! Time as a number, passed in by the caller, and deadlines.

use std::time::Duration;

/// A point on the process's monotonic clock, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MonotonicTime(pub u64);

impl MonotonicTime {
    /// Returns the time `wait` after this time.
    #[must_use]
    pub fn plus(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(to_millis(wait)))
    }

    /// Returns the milliseconds since `earlier`; zero if `earlier` lies ahead.
    #[must_use]
    pub const fn millis_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the duration until `later`; zero if passed.
    #[must_use]
    pub const fn duration_until(self, later: Self) -> Duration {
        Duration::from_millis(later.0.saturating_sub(self.0))
    }
}

/// The owner of the limit that ends the wait for a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimeLimit {
    /// The configured timeout of the tool or its server, or a limit of the link.
    Server,
    /// A client deadline earlier than the server's timeout.
    Caller,
}

/// The deadline of a call, with the owner of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallDeadline {
    /// The end of the wait.
    pub at: MonotonicTime,
    /// The owner of the limit.
    pub limit: TimeLimit,
}

impl CallDeadline {
    /// Returns the earlier deadline; the server's on a tie or without a client deadline.
    #[must_use]
    pub fn from_limits(server: MonotonicTime, caller: Option<MonotonicTime>) -> Self {
        match caller {
            Some(at) if at < server => Self {
                at,
                limit: TimeLimit::Caller,
            },
            Some(_) | None => Self {
                at: server,
                limit: TimeLimit::Server,
            },
        }
    }

    /// Returns the owner of the limit for a timeout at `now`. A timeout before the deadline is a
    /// limit of the link, such as the connect timeout.
    #[must_use]
    pub fn limit_passed_at(self, now: MonotonicTime) -> TimeLimit {
        if now < self.at {
            TimeLimit::Server
        } else {
            self.limit
        }
    }
}

/// Converts a duration to whole milliseconds, saturating.
#[must_use]
pub fn to_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_deadline_names_earlier_limit() {
        let (server, hasty) = (MonotonicTime(100), MonotonicTime(60));
        let check = |caller, at, limit| {
            assert_eq!(
                CallDeadline::from_limits(server, caller),
                CallDeadline { at, limit }
            );
        };
        check(None, server, TimeLimit::Server);
        check(Some(hasty), hasty, TimeLimit::Caller);
        check(Some(server), server, TimeLimit::Server);
        check(Some(MonotonicTime(200)), server, TimeLimit::Server);
        let deadline = CallDeadline::from_limits(server, Some(hasty));
        assert_eq!(
            deadline.limit_passed_at(MonotonicTime(59)),
            TimeLimit::Server
        );
        assert_eq!(
            deadline.limit_passed_at(MonotonicTime(60)),
            TimeLimit::Caller
        );
    }
}
