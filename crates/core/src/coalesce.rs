//! Folds repeats of an event into one with a count, so that no source can flood a log.
//!
//! The first event of a key is separate. Its repeats within a window are merged into one. A
//! source may have so many separate and merged events, refilled at a rate; the rest of its events
//! is merged into a single overflow, which is due less often.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

/// How much each source may log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoalesceLimits {
    /// Events of one source that are logged at once.
    pub burst_events_max: u32,
    /// After how long a source may log one more.
    pub refill_ms: u64,
    /// How long repeats of one key are merged.
    pub window_ms: u64,
    /// How long the overflow of a source is merged.
    pub overflow_window_ms: u64,
    /// Sources that are told apart; the events of further ones are merged as those of one.
    pub sources_max: usize,
}

/// Whether an event is to be logged by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// It is logged by itself, now.
    Separate,
    /// It is counted, and logged later with others.
    Merged,
}

/// Events that are logged as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged<T> {
    /// Their source; empty where several sources are merged.
    pub source: Arc<str>,
    /// The first of them.
    pub first: T,
    /// How many there were.
    pub count: u64,
    /// Whether they are of different keys.
    pub is_mixed: bool,
}

/// Which merged events are taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Those whose window is over.
    Over,
    /// All of them.
    All,
}

/// Counts repeats for each source.
#[derive(Debug)]
pub struct Coalescer<T> {
    limits: CoalesceLimits,
    sources: HashMap<Arc<str>, Source<T>, RandomState>,
}

#[derive(Debug)]
struct Source<T> {
    /// Events that it may log now.
    tokens: u32,
    /// Until when refills were counted.
    refilled_ms: u64,
    open: HashMap<u64, Open<T>, RandomState>,
    overflow: Option<Overflow<T>>,
}

/// A key whose first event was logged.
#[derive(Debug)]
struct Open<T> {
    until_ms: u64,
    /// The first repeat and how many there were.
    repeats: Option<(T, u64)>,
}

#[derive(Debug)]
struct Overflow<T> {
    until_ms: u64,
    key: u64,
    first: T,
    count: u64,
    is_mixed: bool,
}

impl<T> Coalescer<T> {
    /// Returns a coalescer that has seen nothing.
    #[must_use]
    pub fn new(limits: CoalesceLimits) -> Self {
        Self {
            limits,
            sources: HashMap::default(),
        }
    }

    /// Whether nothing is remembered of any source.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Counts an event; `keep` makes what is remembered of it, where anything is.
    pub fn add(
        &mut self,
        (source, key): (&str, u64),
        now_ms: u64,
        keep: impl FnOnce() -> T,
    ) -> Fold {
        let limits = self.limits;
        let source = self.source(source, now_ms);
        let Source { tokens, open, .. } = source;
        match open.get_mut(&key) {
            Some(Open {
                repeats: Some((_, count)),
                ..
            }) => {
                *count += 1;
                return Fold::Merged;
            }
            Some(known) if is_within(known.until_ms, now_ms, limits.window_ms) => {
                if *tokens > 0 {
                    *tokens -= 1;
                    known.repeats = Some((keep(), 1));
                    return Fold::Merged;
                }
            }
            Some(_) | None if *tokens > 0 => {
                *tokens -= 1;
                let until_ms = now_ms.saturating_add(limits.window_ms);
                let repeats = None;
                open.insert(key, Open { until_ms, repeats });
                return Fold::Separate;
            }
            Some(_) | None => {}
        }
        source.overflow((key, limits.overflow_window_ms), now_ms, keep)
    }

    /// Counts an event for which there is no room in the log: it is never separate.
    pub fn add_overflow(
        &mut self,
        (source, key): (&str, u64),
        now_ms: u64,
        keep: impl FnOnce() -> T,
    ) -> Fold {
        let window_ms = self.limits.overflow_window_ms;
        let source = self.source(source, now_ms);
        source.overflow((key, window_ms), now_ms, keep)
    }

    /// Takes merged events out, and forgets sources that were quiet for long.
    pub fn take(&mut self, due: Due, now_ms: u64) -> Vec<Merged<T>> {
        let limits = self.limits;
        let is_due =
            |until_ms, window_ms| due == Due::All || !is_within(until_ms, now_ms, window_ms);
        let mut taken = Vec::new();
        self.sources.retain(|name, source| {
            source.refill(&limits, now_ms);
            for known in source.open.values_mut() {
                if is_due(known.until_ms, limits.window_ms)
                    && let Some((first, count)) = known.repeats.take()
                {
                    taken.push(Merged {
                        source: Arc::clone(name),
                        first,
                        count,
                        is_mixed: false,
                    });
                }
            }
            source.open.retain(|_, known| {
                known.repeats.is_some() || is_within(known.until_ms, now_ms, limits.window_ms)
            });
            let over = source
                .overflow
                .take_if(|over| is_due(over.until_ms, limits.overflow_window_ms));
            taken.extend(over.map(|over| Merged {
                source: Arc::clone(name),
                first: over.first,
                count: over.count,
                is_mixed: over.is_mixed,
            }));
            let is_rested = source.tokens >= limits.burst_events_max;
            !is_rested || !source.open.is_empty() || source.overflow.is_some()
        });
        taken
    }

    fn source(&mut self, name: &str, now_ms: u64) -> &mut Source<T> {
        let is_known = self.sources.contains_key(name);
        let name = if is_known || self.sources.len() < self.limits.sources_max {
            name
        } else {
            ""
        };
        let limits = self.limits;
        let source = self.sources.entry(name.into()).or_insert_with(|| Source {
            tokens: limits.burst_events_max,
            refilled_ms: now_ms,
            open: HashMap::default(),
            overflow: None,
        });
        source.refill(&limits, now_ms);
        source
    }
}

impl<T> Source<T> {
    fn refill(&mut self, limits: &CoalesceLimits, now_ms: u64) {
        // A clock that was set back refills nothing, and counts from there.
        let passed = now_ms.saturating_sub(self.refilled_ms);
        let more = passed / limits.refill_ms.max(1);
        let tokens = u64::from(self.tokens).saturating_add(more);
        let tokens = tokens.min(u64::from(limits.burst_events_max));
        self.tokens = u32::try_from(tokens).unwrap_or(limits.burst_events_max);
        if more > 0 || now_ms < self.refilled_ms {
            self.refilled_ms = now_ms - passed % limits.refill_ms.max(1);
        }
    }

    fn overflow(
        &mut self,
        (key, window_ms): (u64, u64),
        now_ms: u64,
        keep: impl FnOnce() -> T,
    ) -> Fold {
        match &mut self.overflow {
            Some(over) => {
                over.count += 1;
                over.is_mixed |= over.key != key;
            }
            None => {
                self.overflow = Some(Overflow {
                    until_ms: now_ms.saturating_add(window_ms),
                    key,
                    first: keep(),
                    count: 1,
                    is_mixed: false,
                });
            }
        }
        Fold::Merged
    }
}

/// Whether a window is not over; one that ends too late was begun before the clock was set back.
const fn is_within(until_ms: u64, now_ms: u64, window_ms: u64) -> bool {
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

    fn merged(source: &str, first: u64, count: u64) -> Merged<u64> {
        Merged {
            source: source.into(),
            first,
            count,
            is_mixed: false,
        }
    }

    #[test]
    fn repeats_in_a_window_are_counted_as_one() {
        let mut events = coalescer();
        assert_eq!(events.add(("a", 1), 0, || 1), Fold::Separate);
        for nth in 0..1_000 {
            assert_eq!(events.add(("a", 1), 10, || nth), Fold::Merged);
        }
        assert_eq!(events.take(Due::Over, 999), []);
        assert_eq!(events.take(Due::Over, 1_000), [merged("a", 0, 1_000)]);
        assert_eq!(events.add(("a", 1), 1_000, || 9), Fold::Separate);
    }

    #[test]
    fn keys_beyond_the_burst_overflow_into_one() {
        let mut events = coalescer();
        let separate =
            (0..1_000).filter(|key| events.add(("a", *key), 0, || *key) == Fold::Separate);
        assert_eq!(separate.count(), 4);
        assert_eq!(events.take(Due::Over, 59_999), []);
        let all = Merged {
            is_mixed: true,
            ..merged("a", 4, 996)
        };
        assert_eq!(events.take(Due::Over, 60_000), [all]);
        assert!(events.is_empty(), "a source that rested is forgotten");
    }

    #[test]
    fn an_hour_of_a_flood_is_bounded_and_every_event_counted() {
        let mut events = coalescer();
        let (mut rows, mut counted) = (0_u64, 0);
        for at in 0..3_600_u64 {
            for key in 0..50 {
                if events.add(("a", at * 7 + key % 9), at * 1_000, || 0) == Fold::Separate {
                    (rows, counted) = (rows + 1, counted + 1);
                }
            }
            for one in events.take(Due::Over, at * 1_000 + 999) {
                (rows, counted) = (rows + 1, counted + one.count);
            }
        }
        for one in events.take(Due::All, 3_600_000) {
            (rows, counted) = (rows + 1, counted + one.count);
        }
        assert_eq!(counted, 3_600 * 50);
        assert!(rows <= 4 + 3_600 + 62, "{rows}");
    }

    #[test]
    fn sources_are_bounded_and_do_not_take_from_each_other() {
        let mut events = coalescer();
        for key in 0..100 {
            events.add(("a", key), 0, || 0);
        }
        assert_eq!(events.add(("b", 1), 0, || 0), Fold::Separate);
        for source in ["c", "d", "e"] {
            assert_eq!(
                events.add((source, 1), 0, || 0),
                if source == "c" {
                    Fold::Separate
                } else {
                    Fold::Merged
                }
            );
        }
        let taken = events.take(Due::All, 0);
        assert!(taken.contains(&merged("", 0, 2)), "{taken:?}");
        assert_eq!(events.add_overflow(("b", 2), 0, || 0), Fold::Merged);
    }

    #[test]
    fn a_clock_that_is_set_back_holds_nothing_back() {
        let mut events = coalescer();
        events.add(("a", 1), 1_000_000, || 0);
        events.add(("a", 1), 1_000_000, || 7);
        assert_eq!(events.take(Due::Over, 5_000), [merged("a", 7, 1)]);
        assert_eq!(events.add(("a", 1), 5_000, || 0), Fold::Separate);
    }
}
