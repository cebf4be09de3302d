//! Parked calls: calls waiting for input from their clients.

use std::collections::HashMap;
use std::sync::Arc;

use bowline_core::time::MonotonicTime;
use foldhash::fast::RandomState;

use super::request_state::STATE_TTL;

/// Maximum number of parked calls; server requests of further calls are refused.
pub(crate) const PARKED_MAX: usize = 4_096;

/// Maximum number of parked calls per principal.
pub(crate) const PARKED_PRINCIPAL_MAX: usize = 64;

/// Calls that are parked, or running again after being parked.
#[derive(Debug)]
pub(crate) struct ParkedCallTable<T> {
    calls: HashMap<u64, ParkedEntry<T>, RandomState>,
    last_handle: u64,
}

#[derive(Debug)]
struct ParkedEntry<T> {
    principal: Arc<str>,
    round: u32,
    phase: ParkedPhase,
    call: T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParkedPhase {
    /// Waiting for the client's input.
    Waiting { until: MonotonicTime },
    /// Running with input from the client.
    Running,
}

/// The limit of parked calls is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParkedTableFull;

/// Reason for not resuming a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResumeError {
    /// Finished or unknown.
    Finished,
    /// This round was already answered.
    AlreadyUsed,
    /// The client took too long.
    Expired,
}

impl<T> Default for ParkedCallTable<T> {
    fn default() -> Self {
        Self {
            calls: HashMap::default(),
            last_handle: 0,
        }
    }
}

impl<T: Clone> ParkedCallTable<T> {
    /// Parks a call for its first round and returns handle and round.
    pub(crate) fn park(
        &mut self,
        principal: &Arc<str>,
        parked: T,
        now: MonotonicTime,
    ) -> Result<(u64, u32), ParkedTableFull> {
        let own = |entry: &&ParkedEntry<T>| entry.principal == *principal;
        if self.calls.len() >= PARKED_MAX
            || self.calls.values().filter(own).count() >= PARKED_PRINCIPAL_MAX
        {
            return Err(ParkedTableFull);
        }
        self.last_handle += 1;
        let entry = ParkedEntry {
            principal: Arc::clone(principal),
            round: 1,
            phase: waiting_phase(now),
            call: parked,
        };
        self.calls.insert(self.last_handle, entry);
        Ok((self.last_handle, 1))
    }

    /// Parks a running call for its next round; `None` if finished.
    pub(crate) fn park_again(&mut self, handle: u64, now: MonotonicTime) -> Option<u32> {
        let entry = self.calls.get_mut(&handle)?;
        entry.round = entry.round.checked_add(1)?;
        entry.phase = waiting_phase(now);
        Some(entry.round)
    }

    /// Resumes a call with input for this round; only the first attempt succeeds.
    pub(crate) fn resume(
        &mut self,
        handle: u64,
        round: u32,
        now: MonotonicTime,
    ) -> Result<T, ResumeError> {
        let entry = self.calls.get_mut(&handle).ok_or(ResumeError::Finished)?;
        match entry.phase {
            ParkedPhase::Waiting { .. } | ParkedPhase::Running if entry.round != round => {
                Err(ResumeError::AlreadyUsed)
            }
            ParkedPhase::Running => Err(ResumeError::AlreadyUsed),
            ParkedPhase::Waiting { until } if until <= now => Err(ResumeError::Expired),
            ParkedPhase::Waiting { .. } => {
                entry.phase = ParkedPhase::Running;
                Ok(entry.call.clone())
            }
        }
    }

    /// Resumes a call parked without need.
    pub(crate) fn unpark(&mut self, handle: u64) {
        if let Some(entry) = self.calls.get_mut(&handle) {
            entry.phase = ParkedPhase::Running;
        }
    }

    /// Removes a finished call.
    pub(crate) fn remove(&mut self, handle: u64) {
        self.calls.remove(&handle);
    }

    /// Removes the calls with late clients.
    pub(crate) fn take_expired(&mut self, now: MonotonicTime) -> Vec<T> {
        self.take_where(
            |entry| matches!(entry.phase, ParkedPhase::Waiting { until } if until <= now),
        )
    }

    /// Removes the matching calls.
    pub(crate) fn take_matching(&mut self, which: impl Fn(&T) -> bool) -> Vec<T> {
        self.take_where(|entry| which(&entry.call))
    }

    fn take_where(&mut self, which: impl Fn(&ParkedEntry<T>) -> bool) -> Vec<T> {
        let removed = self.calls.extract_if(|_, entry| which(entry));
        removed.map(|(_, entry)| entry.call).collect()
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.calls.len()
    }
}

fn waiting_phase(now: MonotonicTime) -> ParkedPhase {
    ParkedPhase::Waiting {
        until: now.plus(STATE_TTL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: MonotonicTime = MonotonicTime(5);

    fn test_principal() -> Arc<str> {
        "ann".into()
    }

    #[test]
    fn each_round_resumes_once() {
        let mut parked = ParkedCallTable::default();
        let (handle, round) = parked.park(&test_principal(), 'a', AT).unwrap();
        assert_eq!(
            parked.resume(handle + 1, round, AT),
            Err(ResumeError::Finished)
        );
        assert_eq!(
            parked.resume(handle, round + 1, AT),
            Err(ResumeError::AlreadyUsed)
        );
        assert_eq!(parked.resume(handle, round, AT), Ok('a'));
        assert_eq!(
            parked.resume(handle, round, AT),
            Err(ResumeError::AlreadyUsed)
        );
        let next = parked.park_again(handle, AT).unwrap();
        assert_eq!(
            parked.resume(handle, round, AT),
            Err(ResumeError::AlreadyUsed)
        );
        assert_eq!(parked.resume(handle, next, AT), Ok('a'));
        parked.remove(handle);
        assert_eq!(parked.park_again(handle, AT), None);
        assert_eq!(parked.resume(handle, next, AT), Err(ResumeError::Finished));
        let (other, _) = parked.park(&test_principal(), 'b', AT).unwrap();
        assert_ne!(other, handle, "no handle is given twice");
    }

    #[test]
    fn late_calls_expire_running_calls_stay() {
        let mut parked = ParkedCallTable::default();
        let (slow, round) = parked.park(&test_principal(), 's', AT).unwrap();
        let (going, first) = parked.park(&test_principal(), 'g', AT).unwrap();
        parked.resume(going, first, AT).unwrap();
        let end = AT.plus(STATE_TTL);
        assert!(parked.take_expired(MonotonicTime(end.0 - 1)).is_empty());
        assert_eq!(parked.resume(slow, round, end), Err(ResumeError::Expired));
        assert_eq!(parked.take_expired(end), ['s']);
        assert_eq!(parked.count(), 1);
        // Every server request restarts the timeout.
        parked.park_again(going, end).unwrap();
        assert!(parked.take_expired(end).is_empty());
        assert_eq!(parked.take_matching(|held| *held == 'g'), ['g']);
    }

    #[test]
    fn parked_calls_are_bounded() {
        let mut parked = ParkedCallTable::default();
        for _ in 0..PARKED_PRINCIPAL_MAX {
            parked.park(&test_principal(), 0, AT).unwrap();
        }
        assert_eq!(parked.park(&test_principal(), 0, AT), Err(ParkedTableFull));
        for nth in 0.. {
            if parked.park(&nth.to_string().into(), 0, AT).is_err() {
                break;
            }
        }
        assert_eq!(parked.count(), PARKED_MAX);
    }
}
