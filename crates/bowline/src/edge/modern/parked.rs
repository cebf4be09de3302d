//! Calls that wait here until their callers come back with answers.

use std::collections::HashMap;
use std::sync::Arc;

use bowline_core::time::Now;
use foldhash::fast::RandomState;

use super::state::STATE_TTL;

/// Calls that may wait in all; the question of one more is refused.
pub(crate) const PARKED_MAX: usize = 4_096;

/// Calls of one principal that may wait.
pub(crate) const PARKED_PRINCIPAL_MAX: usize = 64;

/// The calls that wait, or go on after they did.
#[derive(Debug)]
pub(crate) struct Parked<T> {
    calls: HashMap<u64, Entry<T>, RandomState>,
    last: u64,
}

#[derive(Debug)]
struct Entry<T> {
    principal: Arc<str>,
    round: u32,
    phase: Phase,
    held: T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Its caller is to bring answers.
    Waiting { until: Now },
    /// Its caller has brought some, and waits.
    Going,
}

/// There are as many as may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// Why a call does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stale {
    /// It is over, or was never here.
    Over,
    /// This round was answered already.
    Used,
    /// Its caller took too long.
    Expired,
}

impl<T> Default for Parked<T> {
    fn default() -> Self {
        Self {
            calls: HashMap::default(),
            last: 0,
        }
    }
}

impl<T: Clone> Parked<T> {
    /// Parks a call for its first round, and returns how it is called.
    pub(crate) fn park(
        &mut self,
        principal: &Arc<str>,
        held: T,
        now: Now,
    ) -> Result<(u64, u32), Full> {
        let own = |entry: &&Entry<T>| entry.principal == *principal;
        if self.calls.len() >= PARKED_MAX
            || self.calls.values().filter(own).count() >= PARKED_PRINCIPAL_MAX
        {
            return Err(Full);
        }
        self.last += 1;
        let entry = Entry {
            principal: Arc::clone(principal),
            round: 1,
            phase: waiting(now),
            held,
        };
        self.calls.insert(self.last, entry);
        Ok((self.last, 1))
    }

    /// Parks a call that goes on for its next round; `None` where it is over.
    pub(crate) fn park_again(&mut self, handle: u64, now: Now) -> Option<u32> {
        let entry = self.calls.get_mut(&handle)?;
        entry.round = entry.round.checked_add(1)?;
        entry.phase = waiting(now);
        Some(entry.round)
    }

    /// Lets a call go on whose caller answers this round. Only the first answer does.
    pub(crate) fn resume(&mut self, handle: u64, round: u32, now: Now) -> Result<T, Stale> {
        let entry = self.calls.get_mut(&handle).ok_or(Stale::Over)?;
        match entry.phase {
            Phase::Waiting { .. } | Phase::Going if entry.round != round => Err(Stale::Used),
            Phase::Going => Err(Stale::Used),
            Phase::Waiting { until } if until <= now => Err(Stale::Expired),
            Phase::Waiting { .. } => {
                entry.phase = Phase::Going;
                Ok(entry.held.clone())
            }
        }
    }

    /// Lets a call go on that was parked for nothing.
    pub(crate) fn go_on(&mut self, handle: u64) {
        if let Some(entry) = self.calls.get_mut(&handle) {
            entry.phase = Phase::Going;
        }
    }

    /// Forgets a call that is over.
    pub(crate) fn end(&mut self, handle: u64) {
        self.calls.remove(&handle);
    }

    /// Takes out the calls whose callers took too long.
    pub(crate) fn expire(&mut self, now: Now) -> Vec<T> {
        self.take(|entry| matches!(entry.phase, Phase::Waiting { until } if until <= now))
    }

    /// Takes out the calls that `which` names.
    pub(crate) fn take_of(&mut self, which: impl Fn(&T) -> bool) -> Vec<T> {
        self.take(|entry| which(&entry.held))
    }

    fn take(&mut self, which: impl Fn(&Entry<T>) -> bool) -> Vec<T> {
        let taken = self.calls.extract_if(|_, entry| which(entry));
        taken.map(|(_, entry)| entry.held).collect()
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.calls.len()
    }
}

fn waiting(now: Now) -> Phase {
    Phase::Waiting {
        until: now.plus(STATE_TTL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Now = Now(5);

    fn ann() -> Arc<str> {
        "ann".into()
    }

    #[test]
    fn each_round_goes_on_once() {
        let mut parked = Parked::default();
        let (handle, round) = parked.park(&ann(), 'a', AT).unwrap();
        assert_eq!(parked.resume(handle + 1, round, AT), Err(Stale::Over));
        assert_eq!(parked.resume(handle, round + 1, AT), Err(Stale::Used));
        assert_eq!(parked.resume(handle, round, AT), Ok('a'));
        assert_eq!(parked.resume(handle, round, AT), Err(Stale::Used));
        let next = parked.park_again(handle, AT).unwrap();
        assert_eq!(parked.resume(handle, round, AT), Err(Stale::Used));
        assert_eq!(parked.resume(handle, next, AT), Ok('a'));
        parked.end(handle);
        assert_eq!(parked.park_again(handle, AT), None);
        assert_eq!(parked.resume(handle, next, AT), Err(Stale::Over));
        let (other, _) = parked.park(&ann(), 'b', AT).unwrap();
        assert_ne!(other, handle, "no handle is given twice");
    }

    #[test]
    fn who_takes_too_long_is_let_go_and_who_goes_on_is_not() {
        let mut parked = Parked::default();
        let (slow, round) = parked.park(&ann(), 's', AT).unwrap();
        let (going, first) = parked.park(&ann(), 'g', AT).unwrap();
        parked.resume(going, first, AT).unwrap();
        let end = AT.plus(STATE_TTL);
        assert!(parked.expire(Now(end.0 - 1)).is_empty());
        assert_eq!(parked.resume(slow, round, end), Err(Stale::Expired));
        assert_eq!(parked.expire(end), ['s']);
        assert_eq!(parked.count(), 1);
        // Its time begins anew with every question.
        parked.park_again(going, end).unwrap();
        assert!(parked.expire(end).is_empty());
        assert_eq!(parked.take_of(|held| *held == 'g'), ['g']);
    }

    #[test]
    fn as_many_wait_as_may() {
        let mut parked = Parked::default();
        for _ in 0..PARKED_PRINCIPAL_MAX {
            parked.park(&ann(), 0, AT).unwrap();
        }
        assert_eq!(parked.park(&ann(), 0, AT), Err(Full));
        for nth in 0.. {
            if parked.park(&nth.to_string().into(), 0, AT).is_err() {
                break;
            }
        }
        assert_eq!(parked.count(), PARKED_MAX);
    }
}
