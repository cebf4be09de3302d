//! How many calls each principal may have in flight, and has.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

/// Counts the calls in flight by principal.
#[derive(Debug)]
pub struct Seats {
    /// Calls one principal may have in flight.
    limit: u32,
    /// Only principals with calls in flight have an entry.
    taken: HashMap<Arc<str>, u32, RandomState>,
    /// Seats that were asked for in vain.
    refused: u64,
}

/// What a person sees of the seats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeatsView {
    /// Calls that one principal may have in flight.
    pub limit: u32,
    /// Calls in flight of each principal that has any, by name.
    pub taken: Vec<(Arc<str>, u32)>,
    /// Calls refused for this limit since the beginning.
    pub refused: u64,
}

impl Seats {
    /// Returns empty seats, `limit` for each principal.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        Self {
            limit,
            taken: HashMap::default(),
            refused: 0,
        }
    }

    /// Changes how many seats each principal has. Those that are taken stay taken.
    pub const fn allow(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Takes one seat, or says how many there are.
    pub fn take(&mut self, principal: &Arc<str>) -> Result<(), u32> {
        match self.taken.get_mut(principal) {
            Some(taken) if *taken < self.limit => {
                *taken += 1;
                Ok(())
            }
            None if self.limit > 0 => {
                self.taken.insert(Arc::clone(principal), 1);
                Ok(())
            }
            Some(_) | None => {
                self.refused += 1;
                Err(self.limit)
            }
        }
    }

    /// Returns what a person sees now.
    #[must_use]
    pub fn view(&self) -> SeatsView {
        let mut taken: Vec<_> = self
            .taken
            .iter()
            .map(|(principal, taken)| (Arc::clone(principal), *taken))
            .collect();
        taken.sort();
        SeatsView {
            limit: self.limit,
            taken,
            refused: self.refused,
        }
    }

    /// Gives one seat back.
    pub fn give_back(&mut self, principal: &Arc<str>) {
        if let Some(taken) = self.taken.get_mut(principal) {
            *taken = taken.saturating_sub(1);
            if *taken == 0 {
                self.taken.remove(principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_principal_cannot_take_the_seats_of_another() {
        let (ann, bob): (Arc<str>, Arc<str>) = ("ann".into(), "bob".into());
        let mut seats = Seats::new(2);
        assert_eq!(seats.take(&ann), Ok(()));
        assert_eq!(seats.take(&ann), Ok(()));
        assert_eq!(seats.take(&ann), Err(2));
        assert_eq!(seats.take(&bob), Ok(()));
        let view = SeatsView {
            limit: 2,
            taken: vec![(Arc::clone(&ann), 2), (Arc::clone(&bob), 1)],
            refused: 1,
        };
        assert_eq!(seats.view(), view);
        seats.give_back(&ann);
        assert_eq!(seats.take(&ann), Ok(()));
        for principal in [&ann, &ann, &bob, &bob] {
            seats.give_back(principal);
        }
        assert!(seats.taken.is_empty(), "idle principals are forgotten");
    }
}
