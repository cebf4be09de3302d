//! How many calls each principal may have in flight.

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
}

impl Seats {
    /// Returns empty seats, `limit` for each principal.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        Self {
            limit,
            taken: HashMap::default(),
        }
    }

    /// Changes how many seats each principal has. Those that are taken stay taken.
    pub const fn allow(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Takes one seat, or says how many there are.
    pub fn take(&mut self, principal: &Arc<str>) -> Result<(), u32> {
        match self.taken.get_mut(principal) {
            Some(taken) if *taken >= self.limit => Err(self.limit),
            Some(taken) => {
                *taken += 1;
                Ok(())
            }
            None if self.limit == 0 => Err(0),
            None => {
                self.taken.insert(Arc::clone(principal), 1);
                Ok(())
            }
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
        seats.give_back(&ann);
        assert_eq!(seats.take(&ann), Ok(()));
        for principal in [&ann, &ann, &bob, &bob] {
            seats.give_back(principal);
        }
        assert!(seats.taken.is_empty(), "idle principals are forgotten");
    }
}
