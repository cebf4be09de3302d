//! Counts and reports denials; a flood of denials is reported in part.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_core::call::{Principal, Route};
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;

use crate::authorizer::PolicyRefusal;
use crate::events::{EventBus, EventKind};

/// Rule sources, for counters.
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

/// Denials reported individually per period.
const REPORTED_MAX: u32 = 10;

/// Length of a period.
const PERIOD_MS: u64 = 1_000;

/// Counts and reports denials.
#[derive(Debug)]
pub(crate) struct DenialReporter {
    counts: [AtomicU64; SOURCES.len()],
    period: Mutex<DenialPeriod>,
    events: EventBus,
}

#[derive(Debug, Default)]
struct DenialPeriod {
    number: u64,
    reported: u32,
    /// Denials counted but not reported since the last report.
    unreported: u64,
}

impl DenialPeriod {
    /// Counts a denial; returns the number of unreported denials before it if it is to be reported.
    fn count_denial(&mut self, now: MonotonicTime) -> Option<u64> {
        let nth = now.0 / PERIOD_MS;
        if nth != self.number {
            (self.number, self.reported) = (nth, 0);
        }
        if self.reported >= REPORTED_MAX {
            self.unreported += 1;
            return None;
        }
        self.reported += 1;
        Some(std::mem::take(&mut self.unreported))
    }
}

impl DenialReporter {
    pub(crate) fn new(events: EventBus) -> Self {
        Self {
            counts: Default::default(),
            period: Mutex::default(),
            events,
        }
    }

    /// Counts and reports a denial.
    pub(crate) fn record_denial(
        &self,
        principal: &Principal,
        route: &Route,
        refusal: &PolicyRefusal,
        now: MonotonicTime,
    ) {
        let counts = SOURCES.iter().zip(&self.counts);
        for (_, count) in counts.filter(|(source, _)| **source == refusal.source) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let Some(untold) = lock(&self.period).count_denial(now) else {
            return;
        };
        let PolicyRefusal { source, reason } = refusal;
        tracing::warn!(
            principal = %principal.name,
            server = %route.server,
            name = %route.name,
            rule = source,
            %reason,
            untold,
            "access denied"
        );
        self.events.publish(EventKind::Denied {
            principal: Arc::clone(&principal.name),
            server: Arc::clone(&route.server),
            name: Arc::clone(&route.name),
            rule: (*source).into(),
            reason: Arc::clone(reason),
            untold,
        });
    }

    /// Returns the number of denials per rule source.
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
    fn reports_are_limited_per_period() {
        let mut period = DenialPeriod::default();
        let told = (0..100)
            .filter(|_| period.count_denial(MonotonicTime(5)).is_some())
            .count();
        assert_eq!(told, REPORTED_MAX as usize);
        assert_eq!(
            period.count_denial(MonotonicTime(PERIOD_MS)),
            Some(100 - u64::from(REPORTED_MAX))
        );
        assert_eq!(period.count_denial(MonotonicTime(PERIOD_MS)), Some(0));
    }
}
