//! Every denial is counted and told, and no flood of them drowns what else is told.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_core::call::{Principal, Route};
use bowline_core::sync::lock;
use bowline_core::time::Now;

use crate::decide::Refusal;
use crate::events::{Events, What};

/// What refuses, for those who count.
const SOURCES: [&str; 8] = [
    "role",
    "default",
    "context",
    "profile",
    "allowlist",
    "condition",
    "address",
    "guard",
];

/// Denials that are told one by one, in each period.
const TOLD_MAX: u32 = 10;

/// How long such a period is.
const PERIOD_MS: u64 = 1_000;

/// Counts denials and tells of them.
#[derive(Debug)]
pub(crate) struct Denials {
    counts: [AtomicU64; SOURCES.len()],
    period: Mutex<Period>,
    events: Events,
}

#[derive(Debug, Default)]
struct Period {
    nth: u64,
    told: u32,
    /// Denials that were counted and not told since the last one that was.
    untold: u64,
}

impl Period {
    /// Counts one; says how many went untold before it where it is to be told.
    fn tells(&mut self, now: Now) -> Option<u64> {
        let nth = now.0 / PERIOD_MS;
        if nth != self.nth {
            (self.nth, self.told) = (nth, 0);
        }
        if self.told >= TOLD_MAX {
            self.untold += 1;
            return None;
        }
        self.told += 1;
        Some(std::mem::take(&mut self.untold))
    }
}

impl Denials {
    pub(crate) fn new(events: Events) -> Self {
        Self {
            counts: Default::default(),
            period: Mutex::default(),
            events,
        }
    }

    /// Counts a denial and tells of it.
    pub(crate) fn add(&self, principal: &Principal, route: &Route, refusal: &Refusal, now: Now) {
        let counts = SOURCES.iter().zip(&self.counts);
        for (_, count) in counts.filter(|(source, _)| **source == refusal.source) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let Some(untold) = lock(&self.period).tells(now) else {
            return;
        };
        let Refusal { source, reason } = refusal;
        tracing::warn!(
            principal = %principal.name,
            server = %route.server,
            name = %route.name,
            rule = source,
            %reason,
            untold,
            "denied"
        );
        self.events.tell(What::Denied {
            principal: Arc::clone(&principal.name),
            server: Arc::clone(&route.server),
            name: Arc::clone(&route.name),
            rule: source,
            reason: Arc::clone(reason),
            untold,
        });
    }

    /// Returns how often each sort of rule refused.
    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = SOURCES.iter().zip(&self.counts);
        counts
            .map(|(source, count)| (*source, count.load(Ordering::Relaxed)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_told_in_one_period_and_the_rest_is_counted() {
        let mut period = Period::default();
        let told = (0..100).filter(|_| period.tells(Now(5)).is_some()).count();
        assert_eq!(told, TOLD_MAX as usize);
        assert_eq!(
            period.tells(Now(PERIOD_MS)),
            Some(100 - u64::from(TOLD_MAX))
        );
        assert_eq!(period.tells(Now(PERIOD_MS)), Some(0));
    }
}
