//! Coalesces repeated events, so that no source can flood a log.
//!
//! The first event of a key is logged separately. Repeats within a window are merged into one
//! event with a count. A token bucket per source limits separate and merged events; further events
//! of the source go into a single overflow event with a longer window.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

/// Log volume per source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoalesceLimits {
    /// Burst of events per source.
    pub burst_events_max: u32,
    /// Refill interval of one event.
    pub refill_ms: u64,
    /// Window for merging repeats of a key.
    pub window_ms: u64,
    /// Window for merging the overflow of a source.
    pub overflow_window_ms: u64,
    /// Distinguished sources; events of further sources share one bucket.
    pub sources_max: usize,
}

/// How an event is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoalesceOutcome {
    /// Separately, now.
    Separate,
    /// Later, as part of a merged event.
    Merged,
}

/// Several events logged as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedEvents<T> {
    /// The source; empty if several sources are merged.
    pub source: Arc<str>,
    /// The first merged event.
    pub first: T,
    /// The number of merged events.
    pub count: u64,
    /// Whether the events have different keys.
    pub is_mixed: bool,
}

/// The merged events to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushScope {
    /// Events whose window has ended.
    Expired,
    /// All events.
    All,
}

/// Coalesces events by source and key.
#[derive(Debug)]
pub struct Coalescer<T> {
    limits: CoalesceLimits,
    sources: HashMap<Arc<str>, SourceState<T>, RandomState>,
}

#[derive(Debug)]
struct SourceState<T> {
    /// Available tokens.
    tokens: u32,
    /// Time of the last refill.
    refilled_at_ms: u64,
    windows: HashMap<u64, KeyWindow<T>, RandomState>,
    overflow: Option<OverflowWindow<T>>,
}

/// The window of a key after a separate event.
#[derive(Debug)]
struct KeyWindow<T> {
    until_ms: u64,
    /// The first repeat and the number of repeats.
    repeats: Option<(T, u64)>,
}

#[derive(Debug)]
struct OverflowWindow<T> {
    until_ms: u64,
    key: u64,
    first: T,
    count: u64,
    is_mixed: bool,
}

impl<T> Coalescer<T> {
    /// Returns an empty coalescer.
    #[must_use]
    pub fn new(limits: CoalesceLimits) -> Self {
        Self {
            limits,
            sources: HashMap::default(),
        }
    }

    /// Whether no source has state.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Adds an event; `keep` builds the value to store, if needed.
    pub fn add_event(
        &mut self,
        source: &str,
        key: u64,
        now_ms: u64,
        keep: impl FnOnce() -> T,
    ) -> CoalesceOutcome {
        let limits = self.limits;
        let source = self.source_or_insert(source, now_ms);
        let SourceState {
            tokens, windows, ..
        } = source;
        match windows.get_mut(&key) {
            Some(KeyWindow {
                repeats: Some((_, count)),
                ..
            }) => {
                *count += 1;
                return CoalesceOutcome::Merged;
            }
            Some(window) if is_window_open(window.until_ms, now_ms, limits.window_ms) => {
                if *tokens > 0 {
                    *tokens -= 1;
                    window.repeats = Some((keep(), 1));
                    return CoalesceOutcome::Merged;
                }
            }
            Some(_) | None if *tokens > 0 => {
                *tokens -= 1;
                let until_ms = now_ms.saturating_add(limits.window_ms);
                let repeats = None;
                windows.insert(key, KeyWindow { until_ms, repeats });
                return CoalesceOutcome::Separate;
            }
            Some(_) | None => {}
        }
        source.add_overflow(key, limits.overflow_window_ms, now_ms, keep)
    }

    /// Adds an event without a separate log entry: always merged.
    pub fn add_overflow(
        &mut self,
        source: &str,
        key: u64,
        now_ms: u64,
        keep: impl FnOnce() -> T,
    ) -> CoalesceOutcome {
        let window_ms = self.limits.overflow_window_ms;
        let source = self.source_or_insert(source, now_ms);
        source.add_overflow(key, window_ms, now_ms, keep)
    }

    /// Takes merged events and drops sources without state.
    pub fn take_due(&mut self, due: FlushScope, now_ms: u64) -> Vec<MergedEvents<T>> {
        let limits = self.limits;
        let is_due = |until_ms, window_ms| {
            due == FlushScope::All || !is_window_open(until_ms, now_ms, window_ms)
        };
        let mut merged = Vec::new();
        self.sources.retain(|name, source| {
            source.refill_tokens(&limits, now_ms);
            for window in source.windows.values_mut() {
                if is_due(window.until_ms, limits.window_ms)
                    && let Some((first, count)) = window.repeats.take()
                {
                    merged.push(MergedEvents {
                        source: Arc::clone(name),
                        first,
                        count,
                        is_mixed: false,
                    });
                }
            }
            source.windows.retain(|_, window| {
                window.repeats.is_some()
                    || is_window_open(window.until_ms, now_ms, limits.window_ms)
            });
            let overflow = source
                .overflow
                .take_if(|overflow| is_due(overflow.until_ms, limits.overflow_window_ms));
            merged.extend(overflow.map(|overflow| MergedEvents {
                source: Arc::clone(name),
                first: overflow.first,
                count: overflow.count,
                is_mixed: overflow.is_mixed,
            }));
            let is_rested = source.tokens >= limits.burst_events_max;
            !is_rested || !source.windows.is_empty() || source.overflow.is_some()
        });
        merged
    }

    fn source_or_insert(&mut self, name: &str, now_ms: u64) -> &mut SourceState<T> {
        let is_known = self.sources.contains_key(name);
        let name = if is_known || self.sources.len() < self.limits.sources_max {
            name
        } else {
            ""
        };
        let limits = self.limits;
        let source = self
            .sources
            .entry(name.into())
            .or_insert_with(|| SourceState {
                tokens: limits.burst_events_max,
                refilled_at_ms: now_ms,
                windows: HashMap::default(),
                overflow: None,
            });
        source.refill_tokens(&limits, now_ms);
        source
    }
}

impl<T> SourceState<T> {
    fn refill_tokens(&mut self, limits: &CoalesceLimits, now_ms: u64) {
        // A clock set back refills nothing and restarts the interval.
        let passed = now_ms.saturating_sub(self.refilled_at_ms);
        let more = passed / limits.refill_ms.max(1);
        let tokens = u64::from(self.tokens).saturating_add(more);
        let tokens = tokens.min(u64::from(limits.burst_events_max));
        self.tokens = u32::try_from(tokens).unwrap_or(limits.burst_events_max);
        if more > 0 || now_ms < self.refilled_at_ms {
            self.refilled_at_ms = now_ms - passed % limits.refill_ms.max(1);
        }
    }

    fn add_overflow(
        &mut self,
        key: u64,
        window_ms: u64,
        now_ms: u64,
        keep: impl FnOnce() -> T,
    ) -> CoalesceOutcome {
        match &mut self.overflow {
            Some(overflow) => {
                overflow.count += 1;
                overflow.is_mixed |= overflow.key != key;
            }
            None => {
                self.overflow = Some(OverflowWindow {
                    until_ms: now_ms.saturating_add(window_ms),
                    key,
                    first: keep(),
                    count: 1,
                    is_mixed: false,
                });
            }
        }
        CoalesceOutcome::Merged
    }
}

/// Whether a window is open; an end too far ahead means the clock was set back.
const fn is_window_open(until_ms: u64, now_ms: u64, window_ms: u64) -> bool {
    now_ms < until_ms && until_ms <= now_ms.saturating_add(window_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: CoalesceLimits = CoalesceLimits {
        burst_events_max: 4,
        refill_ms: 1_000,
        window_ms: 1_000,
        overflow_window_ms: 60_000,
        sources_max: 2,
    };

    fn coalescer() -> Coalescer<u64> {
        Coalescer::new(LIMITS)
    }

    fn merged(source: &str, first: u64, count: u64) -> MergedEvents<u64> {
        MergedEvents {
            source: source.into(),
            first,
            count,
            is_mixed: false,
        }
    }

    #[test]
    fn repeats_in_window_are_merged() {
        let mut events = coalescer();
        assert_eq!(events.add_event("a", 1, 0, || 1), CoalesceOutcome::Separate);
        for nth in 0..1_000 {
            assert_eq!(
                events.add_event("a", 1, 10, || nth),
                CoalesceOutcome::Merged
            );
        }
        assert_eq!(events.take_due(FlushScope::Expired, 999), []);
        assert_eq!(
            events.take_due(FlushScope::Expired, 1_000),
            [merged("a", 0, 1_000)]
        );
        assert_eq!(
            events.add_event("a", 1, 1_000, || 9),
            CoalesceOutcome::Separate
        );
    }

    #[test]
    fn keys_beyond_burst_merge_into_overflow() {
        let mut events = coalescer();
        let separate = (0..1_000)
            .filter(|key| events.add_event("a", *key, 0, || *key) == CoalesceOutcome::Separate);
        assert_eq!(separate.count(), 4);
        assert_eq!(events.take_due(FlushScope::Expired, 59_999), []);
        let all = MergedEvents {
            is_mixed: true,
            ..merged("a", 4, 996)
        };
        assert_eq!(events.take_due(FlushScope::Expired, 60_000), [all]);
        assert!(events.is_empty(), "a source that rested is forgotten");
    }

    #[test]
    fn hour_of_flood_is_bounded_and_counted() {
        let mut events = coalescer();
        let (mut rows, mut counted) = (0_u64, 0);
        for at in 0..3_600_u64 {
            for key in 0..50 {
                if events.add_event("a", at * 7 + key % 9, at * 1_000, || 0)
                    == CoalesceOutcome::Separate
                {
                    (rows, counted) = (rows + 1, counted + 1);
                }
            }
            for one in events.take_due(FlushScope::Expired, at * 1_000 + 999) {
                (rows, counted) = (rows + 1, counted + one.count);
            }
        }
        for one in events.take_due(FlushScope::All, 3_600_000) {
            (rows, counted) = (rows + 1, counted + one.count);
        }
        assert_eq!(counted, 3_600 * 50);
        assert!(rows <= 4 + 3_600 + 62, "{rows}");
    }

    #[test]
    fn sources_are_bounded_and_independent() {
        let mut events = coalescer();
        for key in 0..100 {
            events.add_event("a", key, 0, || 0);
        }
        assert_eq!(events.add_event("b", 1, 0, || 0), CoalesceOutcome::Separate);
        for source in ["c", "d", "e"] {
            assert_eq!(
                events.add_event(source, 1, 0, || 0),
                if source == "c" {
                    CoalesceOutcome::Separate
                } else {
                    CoalesceOutcome::Merged
                }
            );
        }
        let taken = events.take_due(FlushScope::All, 0);
        assert!(taken.contains(&merged("", 0, 2)), "{taken:?}");
        assert_eq!(
            events.add_overflow("b", 2, 0, || 0),
            CoalesceOutcome::Merged
        );
    }

    #[test]
    fn clock_set_back_delays_no_event() {
        let mut events = coalescer();
        events.add_event("a", 1, 1_000_000, || 0);
        events.add_event("a", 1, 1_000_000, || 7);
        assert_eq!(
            events.take_due(FlushScope::Expired, 5_000),
            [merged("a", 7, 1)]
        );
        assert_eq!(
            events.add_event("a", 1, 5_000, || 0),
            CoalesceOutcome::Separate
        );
    }
}
