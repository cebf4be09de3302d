//! Lists that are asked for again while a link is up: because they changed, or could not be had.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_link::{BoxFuture, Link};
use tokio::time::{Instant, sleep_until};

use super::list::{Listed, list_all};
use crate::catalog::ListKind;
use crate::ports::Clock;

/// How long a server may take to list anew.
const RELIST_TIMEOUT: Duration = Duration::from_secs(30);

/// How long to wait before a list that could not be had is asked for again.
const AGAIN: Backoff = Backoff {
    base: Duration::from_secs(1),
    cap: Duration::from_secs(60),
};

/// Some of a server's lists, which are asked for together.
#[derive(Default)]
pub(super) struct Relist {
    /// Lists to ask for next. A change during a list is looked at after it: a server that
    /// changes faster than it lists is still heard.
    changed: Vec<ListKind>,
    /// Lists that were asked for.
    asked: Option<BoxFuture<'static, Vec<Listed>>>,
    /// Lists that could not be had.
    missing: Vec<ListKind>,
    /// How often in a row some could not.
    failures: u32,
    /// When the missing ones are asked for again.
    again: Option<Instant>,
}

impl Relist {
    /// These changed.
    pub(super) fn note(&mut self, kinds: &[ListKind]) {
        for kind in kinds {
            if !self.changed.contains(kind) {
                self.changed.push(*kind);
            }
        }
    }

    /// Learns what came of asking; `jitter` is any number.
    pub(super) fn learn(&mut self, listed: &[Listed], clock: &dyn Clock, jitter: u64) {
        for (kind, listed) in listed {
            self.missing.retain(|missing| missing != kind);
            if listed.as_ref().is_err_and(|error| error.may_pass()) {
                self.missing.push(*kind);
            }
        }
        if self.missing.is_empty() {
            self.failures = 0;
            self.again = None;
        } else {
            self.failures = self.failures.saturating_add(1);
            let wait = AGAIN.wait(self.failures, jitter);
            self.again = Some(clock.instant(clock.now().plus(wait)));
        }
    }

    /// Asks for what is due, and returns what came of it; never while nothing is due. Dropped,
    /// it goes on when it is called again.
    pub(super) async fn next(
        &mut self,
        link: &Arc<dyn Link>,
        entries_max: usize,
        clock: &dyn Clock,
    ) -> Vec<Listed> {
        loop {
            if !self.changed.is_empty() && self.asked.is_none() {
                let wanted = std::mem::take(&mut self.changed);
                let deadline = clock.instant(clock.now().plus(RELIST_TIMEOUT));
                let link = Arc::clone(link);
                self.asked = Some(Box::pin(async move {
                    list_all(link.as_ref(), &wanted, entries_max, deadline, deadline).await
                }));
            }
            if let Some(asked) = &mut self.asked {
                let listed = asked.await;
                self.asked = None;
                return listed;
            }
            match self.again {
                Some(again) => sleep_until(again).await,
                None => std::future::pending().await,
            }
            self.again = None;
            let missing = std::mem::take(&mut self.missing);
            self.note(&missing);
        }
    }
}

impl fmt::Debug for Relist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relist")
            .field("changed", &self.changed)
            .field("missing", &self.missing)
            .finish_non_exhaustive()
    }
}
