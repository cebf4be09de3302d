//! Refreshes lists while a link is up: after a change, or after a failed attempt.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::backoff::Backoff;
use bowline_core::retry::{JitterSource, Retry};
use bowline_link::Link;
use bowline_runtime::Clock;
use tokio::time::{Instant, sleep_until};

use super::list_fetch::{ListFetch, fetch_lists};
use crate::catalog::ListKind;

/// Timeout of a refresh.
const RELIST_TIMEOUT: Duration = Duration::from_secs(30);

/// Delays before retrying a failed list.
const RETRY_BACKOFF: Backoff = Backoff {
    base: Duration::from_secs(1),
    cap: Duration::from_secs(60),
};

/// Lists of a server that are refreshed together.
pub(super) struct RelistBatch {
    /// Lists to request next. A change during a request is handled afterwards, so that a server
    /// changing faster than it lists is still read.
    changed: Vec<ListKind>,
    /// The request in flight.
    in_flight: Option<BoxFuture<'static, Vec<ListFetch>>>,
    /// Lists that failed.
    failed: Vec<ListKind>,
    /// Consecutive failed attempts.
    retry: Retry,
    /// Time of the next retry.
    retry_at: Option<Instant>,
}

impl RelistBatch {
    pub(super) fn new(server: &str) -> Self {
        Self {
            changed: Vec::new(),
            in_flight: None,
            failed: Vec::new(),
            retry: Retry::new(RETRY_BACKOFF, JitterSource::from_owner(server)),
            retry_at: None,
        }
    }

    /// Marks lists as changed.
    pub(super) fn mark_changed(&mut self, kinds: &[ListKind]) {
        for kind in kinds {
            if !self.changed.contains(kind) {
                self.changed.push(*kind);
            }
        }
    }

    /// Records results and schedules retries.
    pub(super) fn record_results(&mut self, listed: &[ListFetch], clock: &dyn Clock) {
        for (kind, listed) in listed {
            self.failed.retain(|missing| missing != kind);
            if listed.as_ref().is_err_and(|error| error.is_transient()) {
                self.failed.push(*kind);
            }
        }
        if self.failed.is_empty() {
            self.retry.reset();
            self.retry_at = None;
        } else {
            let now = clock.now();
            self.retry_at = Some(clock.instant(now.plus(self.retry.next_wait(now))));
        }
    }

    /// Requests the lists due and returns the results; pending while nothing is due. Cancel-safe: a
    /// later call continues.
    pub(super) async fn next_lists(
        &mut self,
        link: &Arc<dyn Link>,
        entries_max: usize,
        clock: &dyn Clock,
    ) -> Vec<ListFetch> {
        loop {
            if !self.changed.is_empty() && self.in_flight.is_none() {
                let kinds = std::mem::take(&mut self.changed);
                let deadline = clock.instant(clock.now().plus(RELIST_TIMEOUT));
                let link = Arc::clone(link);
                self.in_flight = Some(Box::pin(async move {
                    fetch_lists(link.as_ref(), &kinds, entries_max, deadline, deadline).await
                }));
            }
            if let Some(fetch) = &mut self.in_flight {
                let listed = fetch.await;
                self.in_flight = None;
                return listed;
            }
            match self.retry_at {
                Some(retry_at) => sleep_until(retry_at).await,
                None => std::future::pending().await,
            }
            self.retry_at = None;
            let missing = std::mem::take(&mut self.failed);
            self.mark_changed(&missing);
        }
    }
}

impl fmt::Debug for RelistBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelistBatch")
            .field("changed", &self.changed)
            .field("missing", &self.failed)
            .finish_non_exhaustive()
    }
}
