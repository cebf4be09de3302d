//! One run of an agent: a ceiling on its calls that the caller itself carries along.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::time::Now;

/// Runs of all principals that are remembered.
pub const RUNS_MAX: usize = 65_536;

/// Runs of one principal that are remembered.
pub const PRINCIPAL_RUNS_MAX: usize = 1_024;

/// The longest name of a run that is worth remembering.
pub const RUN_ID_BYTES_MAX: usize = 128;

/// A run without a call for this long is forgotten.
pub const RUN_IDLE_MAX: Duration = Duration::from_secs(3_600);

/// A run may make so many calls and no more. All its branches share one count.
#[derive(Debug)]
pub struct Run {
    /// What the caller names it.
    pub id: Arc<str>,
    ceiling: AtomicU64,
    spent: AtomicU64,
}

/// A run has made as many calls as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overspent {
    /// How many it may make.
    pub ceiling: u64,
    /// How many it has made.
    pub spent: u64,
}

impl Run {
    /// Returns a run that has made no call yet.
    #[must_use]
    pub fn new(id: &str, ceiling: u64) -> Self {
        Self {
            id: id.into(),
            ceiling: AtomicU64::new(ceiling),
            spent: AtomicU64::new(0),
        }
    }

    /// Returns a run inside this one, with a ceiling and a count of its own. What it spends is
    /// not spent here, so when it ends this one stands as it stood: it is for a program that
    /// gives a part of its work a limit of its own, and not a way in from outside.
    #[must_use]
    pub fn nested(&self, ceiling: u64) -> Self {
        Self::new(&self.id, ceiling)
    }

    /// Counts one call.
    ///
    /// # Errors
    /// The ceiling is reached; nothing is counted.
    pub fn charge(&self) -> Result<(), Overspent> {
        let ceiling = self.ceiling.load(Ordering::Relaxed);
        let below = |spent: u64| (spent < ceiling).then(|| spent.saturating_add(1));
        self.spent
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, below)
            .map(|_before| ())
            .map_err(|spent| Overspent { ceiling, spent })
    }

    /// Lowers the ceiling; a higher one changes nothing, since a run cannot grant itself more.
    pub fn lower(&self, ceiling: u64) {
        self.ceiling.fetch_min(ceiling, Ordering::Relaxed);
    }

    /// Returns how many calls were made.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.spent.load(Ordering::Relaxed)
    }

    /// Returns how many calls it may make in all.
    #[must_use]
    pub fn ceiling(&self) -> u64 {
        self.ceiling.load(Ordering::Relaxed)
    }
}

/// The runs that are under way, by the principal they belong to and the name it gave them.
#[derive(Debug, Default)]
pub struct Runs {
    by_principal: HashMap<Arc<str>, Own, RandomState>,
    /// How many there are in all.
    count: usize,
}

type Own = HashMap<Arc<str>, Entered, RandomState>;

#[derive(Debug)]
struct Entered {
    run: Arc<Run>,
    last: Now,
}

impl Runs {
    /// Returns the run of this name, which may make `calls` calls, or fewer where it was entered
    /// with a lower ceiling before.
    ///
    /// Where there are as many runs as may be, the one that was quiet for longest is forgotten: of
    /// the same principal, where it has any.
    pub fn enter(&mut self, principal: &Arc<str>, id: &str, calls: u64, now: Now) -> Arc<Run> {
        let own = self.by_principal.get_mut(principal);
        if let Some(known) = own.and_then(|own| own.get_mut(id)) {
            if !is_over(known, now) {
                known.run.lower(calls);
                known.last = known.last.max(now);
                return Arc::clone(&known.run);
            }
            self.forget(principal, id);
        }
        self.make_room(principal, now);
        let run = Arc::new(Run::new(id, calls));
        let entered = Entered {
            run: Arc::clone(&run),
            last: now,
        };
        let own = self.by_principal.entry(Arc::clone(principal)).or_default();
        own.insert(Arc::clone(&run.id), entered);
        self.count += 1;
        run
    }

    /// Returns how many runs are remembered.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether no run is remembered.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn make_room(&mut self, principal: &Arc<str>, now: Now) {
        let own = self.by_principal.get(principal).map_or(0, HashMap::len);
        if own < PRINCIPAL_RUNS_MAX && self.count < RUNS_MAX {
            return;
        }
        self.by_principal.retain(|_, own| {
            own.retain(|_, entered| !is_over(entered, now));
            !own.is_empty()
        });
        self.count = self.by_principal.values().map(HashMap::len).sum();
        let own = self.by_principal.get(principal).map_or(0, HashMap::len);
        if own < PRINCIPAL_RUNS_MAX && self.count < RUNS_MAX {
            return;
        }
        let most = || {
            let most = self.by_principal.iter().max_by_key(|(_, own)| own.len());
            most.map(|(name, _)| Arc::clone(name))
        };
        let from = (own > 0).then(|| Arc::clone(principal)).or_else(most);
        let quietest = from.and_then(|from| {
            let own = self.by_principal.get(&from)?;
            let (id, _) = own.iter().min_by_key(|(_, entered)| entered.last)?;
            Some((from, Arc::clone(id)))
        });
        if let Some((from, id)) = quietest {
            self.forget(&from, &id);
        }
    }

    fn forget(&mut self, principal: &str, id: &str) {
        let Some(own) = self.by_principal.get_mut(principal) else {
            return;
        };
        self.count -= usize::from(own.remove(id).is_some());
        if own.is_empty() {
            self.by_principal.remove(principal);
        }
    }
}

fn is_over(entered: &Entered, now: Now) -> bool {
    now >= entered.last.plus(RUN_IDLE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_stops_at_its_ceiling_and_cannot_raise_it() {
        let run = Run::new("r", 2);
        assert_eq!(run.charge(), Ok(()));
        run.lower(9);
        assert_eq!(run.charge(), Ok(()));
        let over = Overspent {
            ceiling: 2,
            spent: 2,
        };
        assert_eq!(run.charge(), Err(over));
        assert_eq!(run.spent(), 2, "a refused call is not counted");
    }

    #[test]
    fn parallel_branches_share_one_count() {
        let run = Run::new("r", 10_000);
        let made: u64 = std::thread::scope(|scope| {
            let branches: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| (0..5_000).filter(|_| run.charge().is_ok()).count()))
                .collect();
            let made = branches.into_iter().map(|branch| branch.join().unwrap());
            made.map(|count| u64::try_from(count).unwrap()).sum()
        });
        assert_eq!((made, run.spent()), (10_000, 10_000));
    }

    #[test]
    fn a_nested_run_has_its_own_ceiling_and_leaves_the_outer_as_it_was() {
        let outer = Run::new("r", 3);
        assert_eq!(outer.charge(), Ok(()));
        {
            let inner = outer.nested(1);
            assert_eq!(inner.charge(), Ok(()));
            assert!(inner.charge().is_err());
        }
        assert_eq!((outer.ceiling(), outer.spent()), (3, 1));
        assert_eq!((outer.charge(), outer.charge()), (Ok(()), Ok(())));
        assert!(outer.charge().is_err());
    }

    #[test]
    fn a_run_is_found_again_and_belongs_to_its_principal() {
        let (ann, bob): (Arc<str>, Arc<str>) = ("ann".into(), "bob".into());
        let mut runs = Runs::default();
        let first = runs.enter(&ann, "r", 2, Now(0));
        assert_eq!(first.charge(), Ok(()));
        let again = runs.enter(&ann, "r", 9, Now(1));
        assert!(Arc::ptr_eq(&first, &again) && again.ceiling() == 2);
        assert_eq!(runs.enter(&ann, "r", 1, Now(2)).ceiling(), 1);
        assert_eq!(runs.enter(&bob, "r", 9, Now(2)).spent(), 0);
        assert_eq!(runs.len(), 2);
        let idle = Now(2).plus(RUN_IDLE_MAX);
        assert_eq!(runs.enter(&ann, "r", 9, Now(idle.0 - 1)).spent(), 1);
        assert_eq!(runs.enter(&bob, "r", 9, idle).spent(), 0);
        assert_eq!(runs.len(), 2);
    }

    #[test]
    fn runs_are_bounded_and_the_quietest_of_whoever_has_too_many_goes() {
        let (ann, bob): (Arc<str>, Arc<str>) = ("ann".into(), "bob".into());
        let mut runs = Runs::default();
        runs.enter(&bob, "kept", 5, Now(0)).charge().unwrap();
        for number in 0..PRINCIPAL_RUNS_MAX as u64 {
            let run = runs.enter(&ann, &number.to_string(), 5, Now(1 + number));
            run.charge().unwrap();
        }
        assert_eq!(runs.len(), PRINCIPAL_RUNS_MAX + 1);
        let late = Now(5_000);
        assert_eq!(runs.enter(&ann, "0", 5, late).spent(), 1, "used again");
        runs.enter(&ann, "more", 5, late);
        assert_eq!(runs.len(), PRINCIPAL_RUNS_MAX + 1);
        assert_eq!(runs.enter(&ann, "0", 5, late).spent(), 1);
        assert_eq!(runs.enter(&bob, "kept", 5, late).spent(), 1);
        assert_eq!(
            runs.enter(&ann, "1", 5, late).spent(),
            0,
            "the quietest went"
        );
    }
}
