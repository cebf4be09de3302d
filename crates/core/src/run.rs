//! Agent runs: a limit on calls, carried in the client's requests.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::time::MonotonicTime;

/// Runs of all principals in memory.
pub const RUNS_MAX: usize = 65_536;

/// Runs of one principal in memory.
pub const PRINCIPAL_RUNS_MAX: usize = 1_024;

/// Longest accepted run id.
pub const RUN_ID_BYTES_MAX: usize = 128;

/// Idle time before a run is dropped.
pub const RUN_IDLE_MAX: Duration = Duration::from_secs(3_600);

/// A run with a limited number of calls. All branches share one counter.
#[derive(Debug)]
pub struct AgentRun {
    /// The client's id of the run.
    pub id: Arc<str>,
    ceiling: AtomicU64,
    spent: AtomicU64,
}

/// The run has reached its ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunExhausted {
    /// The ceiling.
    pub ceiling: u64,
    /// Calls made.
    pub spent: u64,
}

impl AgentRun {
    /// Returns a run without calls.
    #[must_use]
    pub fn new(id: &str, ceiling: u64) -> Self {
        Self {
            id: id.into(),
            ceiling: AtomicU64::new(ceiling),
            spent: AtomicU64::new(0),
        }
    }

    /// Returns a nested run with a separate ceiling and counter. Nested calls are not charged to
    /// this run. Meant for programs that limit a part of their work, not for clients.
    #[must_use]
    pub fn new_nested(&self, ceiling: u64) -> Self {
        Self::new(&self.id, ceiling)
    }

    /// Charges one call.
    ///
    /// # Errors
    /// The ceiling is reached; no charge.
    pub fn charge_call(&self) -> Result<(), RunExhausted> {
        let ceiling = self.ceiling.load(Ordering::Relaxed);
        let below = |spent: u64| (spent < ceiling).then(|| spent.saturating_add(1));
        self.spent
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, below)
            .map(|_before| ())
            .map_err(|spent| RunExhausted { ceiling, spent })
    }

    /// Lowers the ceiling; a higher value is ignored, since a run cannot raise its own limit.
    pub fn lower_ceiling(&self, ceiling: u64) {
        self.ceiling.fetch_min(ceiling, Ordering::Relaxed);
    }

    /// Returns the calls made.
    #[must_use]
    pub fn spent_calls(&self) -> u64 {
        self.spent.load(Ordering::Relaxed)
    }

    /// Returns the ceiling.
    #[must_use]
    pub fn ceiling(&self) -> u64 {
        self.ceiling.load(Ordering::Relaxed)
    }
}

/// The active runs, by principal and run id.
#[derive(Debug, Default)]
pub struct RunRegistry {
    by_principal: HashMap<Arc<str>, PrincipalRuns, RandomState>,
    /// Total number of runs.
    run_count: usize,
}

type PrincipalRuns = HashMap<Arc<str>, RunEntry, RandomState>;

#[derive(Debug)]
struct RunEntry {
    run: Arc<AgentRun>,
    last_call: MonotonicTime,
}

impl RunRegistry {
    /// Returns the run with this id, limited to `calls` calls or to a lower earlier ceiling.
    ///
    /// If the table is full, the longest idle run is dropped, preferably of the same principal.
    pub fn enter_run(
        &mut self,
        principal: &Arc<str>,
        id: &str,
        calls: u64,
        now: MonotonicTime,
    ) -> Arc<AgentRun> {
        let own = self.by_principal.get_mut(principal);
        if let Some(entry) = own.and_then(|own| own.get_mut(id)) {
            if !is_idle(entry, now) {
                entry.run.lower_ceiling(calls);
                entry.last_call = entry.last_call.max(now);
                return Arc::clone(&entry.run);
            }
            self.remove_run(principal, id);
        }
        self.evict_quietest(principal, now);
        let run = Arc::new(AgentRun::new(id, calls));
        let new_entry = RunEntry {
            run: Arc::clone(&run),
            last_call: now,
        };
        let own = self.by_principal.entry(Arc::clone(principal)).or_default();
        own.insert(Arc::clone(&run.id), new_entry);
        self.run_count += 1;
        run
    }

    /// Returns the number of runs.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.run_count
    }

    /// Whether the registry is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.run_count == 0
    }

    fn evict_quietest(&mut self, principal: &Arc<str>, now: MonotonicTime) {
        let own = self.by_principal.get(principal).map_or(0, HashMap::len);
        if own < PRINCIPAL_RUNS_MAX && self.run_count < RUNS_MAX {
            return;
        }
        self.by_principal.retain(|_, own| {
            own.retain(|_, entry| !is_idle(entry, now));
            !own.is_empty()
        });
        self.run_count = self.by_principal.values().map(HashMap::len).sum();
        let own = self.by_principal.get(principal).map_or(0, HashMap::len);
        if own < PRINCIPAL_RUNS_MAX && self.run_count < RUNS_MAX {
            return;
        }
        let most = || {
            let most = self.by_principal.iter().max_by_key(|(_, own)| own.len());
            most.map(|(name, _)| Arc::clone(name))
        };
        let from = (own > 0).then(|| Arc::clone(principal)).or_else(most);
        let quietest = from.and_then(|from| {
            let own = self.by_principal.get(&from)?;
            let (id, _) = own.iter().min_by_key(|(_, entry)| entry.last_call)?;
            Some((from, Arc::clone(id)))
        });
        if let Some((from, id)) = quietest {
            self.remove_run(&from, &id);
        }
    }

    fn remove_run(&mut self, principal: &str, id: &str) {
        let Some(own) = self.by_principal.get_mut(principal) else {
            return;
        };
        self.run_count -= usize::from(own.remove(id).is_some());
        if own.is_empty() {
            self.by_principal.remove(principal);
        }
    }
}

fn is_idle(entry: &RunEntry, now: MonotonicTime) -> bool {
    now >= entry.last_call.plus(RUN_IDLE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_stops_at_ceiling() {
        let run = AgentRun::new("r", 2);
        assert_eq!(run.charge_call(), Ok(()));
        run.lower_ceiling(9);
        assert_eq!(run.charge_call(), Ok(()));
        let over = RunExhausted {
            ceiling: 2,
            spent: 2,
        };
        assert_eq!(run.charge_call(), Err(over));
        assert_eq!(run.spent_calls(), 2, "a refused call is not counted");
    }

    #[test]
    fn parallel_branches_share_one_count() {
        let run = AgentRun::new("r", 10_000);
        let made: u64 = std::thread::scope(|scope| {
            let branches: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| (0..5_000).filter(|_| run.charge_call().is_ok()).count()))
                .collect();
            let made = branches.into_iter().map(|branch| branch.join().unwrap());
            made.map(|count| u64::try_from(count).unwrap()).sum()
        });
        assert_eq!((made, run.spent_calls()), (10_000, 10_000));
    }

    #[test]
    fn nested_run_has_own_ceiling() {
        let outer = AgentRun::new("r", 3);
        assert_eq!(outer.charge_call(), Ok(()));
        {
            let inner = outer.new_nested(1);
            assert_eq!(inner.charge_call(), Ok(()));
            assert!(inner.charge_call().is_err());
        }
        assert_eq!((outer.ceiling(), outer.spent_calls()), (3, 1));
        assert_eq!((outer.charge_call(), outer.charge_call()), (Ok(()), Ok(())));
        assert!(outer.charge_call().is_err());
    }

    #[test]
    fn run_is_reused_per_principal() {
        let (ann, bob): (Arc<str>, Arc<str>) = ("ann".into(), "bob".into());
        let mut runs = RunRegistry::default();
        let first = runs.enter_run(&ann, "r", 2, MonotonicTime(0));
        assert_eq!(first.charge_call(), Ok(()));
        let again = runs.enter_run(&ann, "r", 9, MonotonicTime(1));
        assert!(Arc::ptr_eq(&first, &again) && again.ceiling() == 2);
        assert_eq!(runs.enter_run(&ann, "r", 1, MonotonicTime(2)).ceiling(), 1);
        assert_eq!(
            runs.enter_run(&bob, "r", 9, MonotonicTime(2)).spent_calls(),
            0
        );
        assert_eq!(runs.len(), 2);
        let idle = MonotonicTime(2).plus(RUN_IDLE_MAX);
        assert_eq!(
            runs.enter_run(&ann, "r", 9, MonotonicTime(idle.0 - 1))
                .spent_calls(),
            1
        );
        assert_eq!(runs.enter_run(&bob, "r", 9, idle).spent_calls(), 0);
        assert_eq!(runs.len(), 2);
    }

    #[test]
    fn quietest_run_is_evicted_at_limit() {
        let (ann, bob): (Arc<str>, Arc<str>) = ("ann".into(), "bob".into());
        let mut runs = RunRegistry::default();
        runs.enter_run(&bob, "kept", 5, MonotonicTime(0))
            .charge_call()
            .unwrap();
        for number in 0..PRINCIPAL_RUNS_MAX as u64 {
            let run = runs.enter_run(&ann, &number.to_string(), 5, MonotonicTime(1 + number));
            run.charge_call().unwrap();
        }
        assert_eq!(runs.len(), PRINCIPAL_RUNS_MAX + 1);
        let late = MonotonicTime(5_000);
        assert_eq!(
            runs.enter_run(&ann, "0", 5, late).spent_calls(),
            1,
            "used again"
        );
        runs.enter_run(&ann, "more", 5, late);
        assert_eq!(runs.len(), PRINCIPAL_RUNS_MAX + 1);
        assert_eq!(runs.enter_run(&ann, "0", 5, late).spent_calls(), 1);
        assert_eq!(runs.enter_run(&bob, "kept", 5, late).spent_calls(), 1);
        assert_eq!(
            runs.enter_run(&ann, "1", 5, late).spent_calls(),
            0,
            "the quietest went"
        );
    }
}
