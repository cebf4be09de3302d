//! Calls in flight per principal, with a limit.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

/// Counts the calls in flight by principal.
#[derive(Debug)]
pub struct ConcurrencyCounter {
    /// Calls one principal may have in flight.
    limit: u32,
    /// Idle principals have no entry.
    in_flight: HashMap<Arc<str>, u32, RandomState>,
    /// Refused calls.
    refused_calls: u64,
}

/// Calls in flight, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConcurrencyView {
    /// The limit per principal.
    pub limit: u32,
    /// Calls in flight per principal, by name.
    pub in_flight: Vec<(Arc<str>, u32)>,
    /// Calls refused for this limit since the start.
    pub refused_calls: u64,
}

impl ConcurrencyCounter {
    /// Returns an empty counter with a limit per principal.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        Self {
            limit,
            in_flight: HashMap::default(),
            refused_calls: 0,
        }
    }

    /// Changes the limit; calls in flight are unaffected.
    pub const fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Counts a call, or returns the limit if reached.
    pub fn try_acquire(&mut self, principal: &Arc<str>) -> Result<(), u32> {
        match self.in_flight.get_mut(principal) {
            Some(count) if *count < self.limit => {
                *count += 1;
                Ok(())
            }
            None if self.limit > 0 => {
                self.in_flight.insert(Arc::clone(principal), 1);
                Ok(())
            }
            Some(_) | None => {
                self.refused_calls += 1;
                Err(self.limit)
            }
        }
    }

    /// Returns the current counts.
    #[must_use]
    pub fn view(&self) -> ConcurrencyView {
        let mut in_flight: Vec<_> = self
            .in_flight
            .iter()
            .map(|(principal, in_flight)| (Arc::clone(principal), *in_flight))
            .collect();
        in_flight.sort();
        ConcurrencyView {
            limit: self.limit,
            in_flight,
            refused_calls: self.refused_calls,
        }
    }

    /// Releases the permit of a call.
    pub fn release_permit(&mut self, principal: &Arc<str>) {
        if let Some(count) = self.in_flight.get_mut(principal) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.in_flight.remove(principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn principals_have_separate_limits() {
        let (ann, bob): (Arc<str>, Arc<str>) = ("ann".into(), "bob".into());
        let mut seats = ConcurrencyCounter::new(2);
        assert_eq!(seats.try_acquire(&ann), Ok(()));
        assert_eq!(seats.try_acquire(&ann), Ok(()));
        assert_eq!(seats.try_acquire(&ann), Err(2));
        assert_eq!(seats.try_acquire(&bob), Ok(()));
        let view = ConcurrencyView {
            limit: 2,
            in_flight: vec![(Arc::clone(&ann), 2), (Arc::clone(&bob), 1)],
            refused_calls: 1,
        };
        assert_eq!(seats.view(), view);
        seats.release_permit(&ann);
        assert_eq!(seats.try_acquire(&ann), Ok(()));
        for principal in [&ann, &ann, &bob, &bob] {
            seats.release_permit(principal);
        }
        assert!(seats.in_flight.is_empty(), "idle principals are forgotten");
    }
}
