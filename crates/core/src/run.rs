//! One run of an agent: a ceiling on its calls that the caller itself carries along.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
}
