//! What one program printed: run by one at a time, and not more often than it should be.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_host::ports::Clock;

use super::command::Tool;
use super::{Value, command};

/// After a run for a server that refused what it was sent, the next such run is at least this far
/// away: a server that refuses everything must not have us run programs all the time.
pub(super) const REFUSED_AGAIN: Duration = Duration::from_secs(5);

/// After a run that failed, the next one by age is this far away.
const FAILED_AGAIN: Duration = Duration::from_secs(30);

/// Why a program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// There is nothing yet, or what there is has become old.
    Age,
    /// A server refused what there is.
    Refused,
}

/// What came of the last run.
pub(super) type Fetched = Result<Value, Arc<command::Error>>;

/// The output of one program.
#[derive(Default)]
pub(super) struct Slot {
    state: Mutex<Slotted>,
    /// Held while the program runs.
    turn: Mutex<()>,
}

#[derive(Default)]
struct Slotted {
    /// What it printed last, or why it never printed anything.
    known: Option<Fetched>,
    /// When it was run last, and for which version of the secret.
    ran_at: Option<(Now, u64)>,
    /// Whether that went wrong.
    has_failed: bool,
    /// When it was last run because a server refused.
    refused_at: Option<Now>,
    /// Counts the runs.
    runs: u64,
}

impl Slot {
    /// Returns what is known, without a wait.
    pub(super) fn known(&self) -> Option<Fetched> {
        lock(&self.state).known.clone()
    }

    /// Whether it is time for a run.
    pub(super) fn is_due(&self, now: Now, tool: &Tool) -> bool {
        let state = lock(&self.state);
        let Some((ran_at, version)) = state.ran_at else {
            return true;
        };
        if version != tool.version() {
            return true;
        }
        let wait = match (state.has_failed, tool.every()) {
            (true, Some(every)) => FAILED_AGAIN.min(every),
            (true, None) => FAILED_AGAIN,
            (false, Some(every)) => every,
            (false, None) => return false,
        };
        ran_at.plus(wait) <= now
    }

    /// Runs the program and says whether it gave something new. Who comes while it runs gets what
    /// that run gives.
    pub(super) fn fetch(
        &self,
        clock: &dyn Clock,
        (tool, why): (&Tool, Why),
        run: impl FnOnce() -> Result<Value, command::Error>,
    ) -> (Fetched, bool) {
        let seen = lock(&self.state).runs;
        let _turn = lock(&self.turn);
        {
            let mut state = lock(&self.state);
            let now = clock.now();
            let is_early = why == Why::Refused
                && (state.refused_at).is_some_and(|at| now < at.plus(REFUSED_AGAIN));
            if let Some(known) = &state.known
                && (state.runs != seen || is_early)
            {
                return (known.clone(), false);
            }
            if why == Why::Refused {
                state.refused_at = Some(now);
            }
        }
        let fetched = run().map_err(Arc::new);
        let mut state = lock(&self.state);
        state.runs += 1;
        state.ran_at = Some((clock.now(), tool.version()));
        state.has_failed = fetched.is_err();
        let is_news = match (&fetched, &state.known) {
            (Ok(new), Some(Ok(old))) => new != old,
            (Ok(_), _) => true,
            (Err(_), _) => false,
        };
        match &fetched {
            Err(error) => {
                let error: &dyn std::error::Error = &**error;
                tracing::warn!(error, "a secret could not be fetched");
                if !matches!(state.known, Some(Ok(_))) {
                    state.known = Some(fetched.clone());
                }
            }
            Ok(_) => state.known = Some(fetched.clone()),
        }
        (fetched, is_news)
    }
}
