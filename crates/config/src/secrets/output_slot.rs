//! Cached output of a secret program: runs are serialized, with a minimum interval.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_runtime::Clock;

use super::secret_program::SecretFetcher;
use super::{SecretValue, secret_program};

/// Minimum interval between runs caused by a refusal of a server: a server that refuses everything
/// must not cause constant runs.
pub(super) const REFUSED_RUN_INTERVAL: Duration = Duration::from_secs(5);

/// Delay of the next regular run after a failure.
const FAILED_RUN_INTERVAL: Duration = Duration::from_secs(30);

/// Reason to run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FetchReason {
    /// No output yet, or outdated output.
    Age,
    /// A server refused the current value.
    Refused,
}

/// Result of the last run.
pub(super) type FetchResult = Result<SecretValue, Arc<secret_program::SecretProgramError>>;

/// The cached output of a program.
#[derive(Default)]
pub(super) struct OutputSlot {
    state: Mutex<OutputSlotState>,
    /// Held while the program runs.
    run_lock: Mutex<()>,
}

#[derive(Default)]
struct OutputSlotState {
    /// The last output, or the error if no run ever succeeded.
    cached: Option<FetchResult>,
    /// Time of the last run, and the version of the secret.
    ran_at: Option<(MonotonicTime, u64)>,
    /// Whether the last run failed.
    has_failed: bool,
    /// Time of the last run caused by a refusal.
    refused_at: Option<MonotonicTime>,
    /// Number of runs.
    runs: u64,
}

impl OutputSlot {
    /// Returns the cached result without blocking.
    pub(super) fn cached_result(&self) -> Option<FetchResult> {
        lock(&self.state).cached.clone()
    }

    /// Returns whether another run is due.
    pub(super) fn is_due(&self, now: MonotonicTime, fetcher: &SecretFetcher) -> bool {
        let state = lock(&self.state);
        let Some((ran_at, version)) = state.ran_at else {
            return true;
        };
        if version != fetcher.version() {
            return true;
        }
        let wait = match (state.has_failed, fetcher.max_age()) {
            (true, Some(every)) => FAILED_RUN_INTERVAL.min(every),
            (true, None) => FAILED_RUN_INTERVAL,
            (false, Some(every)) => every,
            (false, None) => return false,
        };
        ran_at.plus(wait) <= now
    }

    /// Runs the program and returns whether the value changed. Callers that arrive during a run
    /// share the result.
    pub(super) fn run_fetch(
        &self,
        clock: &dyn Clock,
        fetcher: &SecretFetcher,
        reason: FetchReason,
        run: impl FnOnce() -> Result<SecretValue, secret_program::SecretProgramError>,
    ) -> (FetchResult, bool) {
        let runs_before = lock(&self.state).runs;
        let _guard = lock(&self.run_lock);
        {
            let mut state = lock(&self.state);
            let now = clock.now();
            let is_early = reason == FetchReason::Refused
                && (state.refused_at).is_some_and(|at| now < at.plus(REFUSED_RUN_INTERVAL));
            if let Some(cached) = &state.cached
                && (state.runs != runs_before || is_early)
            {
                return (cached.clone(), false);
            }
            if reason == FetchReason::Refused {
                state.refused_at = Some(now);
            }
        }
        let fetched = run().map_err(Arc::new);
        let mut state = lock(&self.state);
        state.runs += 1;
        state.ran_at = Some((clock.now(), fetcher.version()));
        state.has_failed = fetched.is_err();
        let has_changed = match (&fetched, &state.cached) {
            (Ok(new), Some(Ok(old))) => new != old,
            (Ok(_), _) => true,
            (Err(_), _) => false,
        };
        match &fetched {
            Err(error) => {
                let error: &dyn std::error::Error = &**error;
                tracing::warn!(error, "secret could not be fetched");
                if !matches!(state.cached, Some(Ok(_))) {
                    state.cached = Some(fetched.clone());
                }
            }
            Ok(_) => state.cached = Some(fetched.clone()),
        }
        (fetched, has_changed)
    }
}
