//! Ages of a server's lists, and refreshes requested by callers.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_runtime::Work;
use tokio::sync::watch;

use super::list_fetch::ListFetch;
use crate::catalog::{ListKind, PerList};

/// Minimum interval between refreshes of a list: a caller with endless unknown tool names costs the
/// server a single list request per interval.
pub(crate) const RELIST_MIN_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum wait of a caller for a refresh triggered by an unknown name, counted from the refresh
/// request: an unresponsive server delays no later caller again.
pub(super) const RELIST_WAIT_MAX: Duration = Duration::from_secs(3);

/// The ages of a server's lists.
#[derive(Debug)]
pub(super) struct ListFreshness {
    /// Wakes the actor for a requested list.
    lists: Work<PerList<ListAge>>,
    /// Counts finished list requests.
    completed: watch::Sender<u64>,
}

/// State of a list while a link is up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ListAge {
    /// End of the last request, successful or not; `None` without a link.
    asked_at: Option<MonotonicTime>,
    demand: RelistDemand,
    /// Error of the last request.
    error: Option<Arc<str>>,
}

/// Whether a refresh is requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RelistDemand {
    #[default]
    Idle,
    /// Requested since then; not yet seen by the actor.
    Requested(MonotonicTime),
    /// Requested since then; in progress.
    InProgress(MonotonicTime),
}

impl RelistDemand {
    const fn requested_at(self) -> Option<MonotonicTime> {
        match self {
            Self::Idle => None,
            Self::Requested(since) | Self::InProgress(since) => Some(since),
        }
    }
}

/// Clears pending refresh requests when the link ends.
#[derive(Debug)]
pub(super) struct ServingGuard<'a>(&'a ListFreshness);

impl Drop for ServingGuard<'_> {
    fn drop(&mut self) {
        *lock(&self.0.lists) = PerList::default();
        self.0.completed.send_modify(|nth| *nth += 1);
    }
}

impl Default for ListFreshness {
    fn default() -> Self {
        Self {
            lists: Work::default(),
            completed: watch::Sender::new(0),
        }
    }
}

impl ListFreshness {
    /// Records a new link with freshly read lists.
    pub(super) fn begin_serving(&self, now: MonotonicTime) -> ServingGuard<'_> {
        *lock(&self.lists) = PerList::from_fn(|_| ListAge {
            asked_at: Some(now),
            ..ListAge::default()
        });
        ServingGuard(self)
    }

    /// True if a list is older than `age` and past the minimum interval.
    pub(super) fn is_stale(&self, kind: ListKind, age: Duration, now: MonotonicTime) -> bool {
        let lists = lock(&self.lists);
        let list = lists.get(kind);
        let due = list
            .asked_at
            .map(|at| at.plus(age.max(RELIST_MIN_INTERVAL)));
        list.demand == RelistDemand::Idle && due.is_some_and(|due| due <= now)
    }

    /// Requests a refresh unless already requested; returns the time of the request, or `None`
    /// without a link.
    pub(super) fn request_refresh(
        &self,
        kind: ListKind,
        now: MonotonicTime,
    ) -> Option<MonotonicTime> {
        let since = {
            let mut lists = lock(&self.lists);
            let list = lists.get_mut(kind);
            list.asked_at?;
            if list.demand == RelistDemand::Idle {
                list.demand = RelistDemand::Requested(now);
            }
            list.demand.requested_at()
        };
        self.lists.wake();
        since
    }

    /// Returns the time of a pending refresh request.
    pub(super) fn pending_since(&self, kind: ListKind) -> Option<MonotonicTime> {
        lock(&self.lists).get(kind).demand.requested_at()
    }

    /// Waits until the requested refresh finishes or fails.
    pub(super) async fn wait_refreshed(&self, kind: ListKind) {
        let mut completed = self.completed.subscribe();
        while self.pending_since(kind).is_some() {
            // The sender lives as long as the supervisor.
            if completed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits for requested refreshes and returns the lists.
    pub(super) async fn next_requested(&self) -> Vec<ListKind> {
        loop {
            self.lists.wait().await;
            let kinds = self.take_requested();
            if !kinds.is_empty() {
                return kinds;
            }
        }
    }

    fn take_requested(&self) -> Vec<ListKind> {
        let mut lists = lock(&self.lists);
        let take = |kind: &ListKind| {
            let list = lists.get_mut(*kind);
            match list.demand {
                RelistDemand::Requested(since) => {
                    list.demand = RelistDemand::InProgress(since);
                    true
                }
                RelistDemand::Idle | RelistDemand::InProgress(_) => false,
            }
        };
        ListKind::ALL.into_iter().filter(take).collect()
    }

    /// Records finished list requests.
    pub(super) fn record_outcomes(&self, outcomes: RelistOutcomes, now: MonotonicTime) {
        {
            let mut lists = lock(&self.lists);
            for (kind, error) in outcomes.0 {
                *lists.get_mut(kind) = ListAge {
                    asked_at: Some(now),
                    demand: RelistDemand::Idle,
                    error,
                };
            }
        }
        self.completed.send_modify(|nth| *nth += 1);
    }

    /// Returns the error of the last request.
    pub(super) fn last_error(&self, kind: ListKind) -> Option<Arc<str>> {
        lock(&self.lists).get(kind).error.clone()
    }
}

/// Results of list requests.
#[derive(Debug)]
pub(super) struct RelistOutcomes(Vec<(ListKind, Option<Arc<str>>)>);

impl From<&[ListFetch]> for RelistOutcomes {
    fn from(listed: &[ListFetch]) -> Self {
        let outcomes = listed.iter().map(|(kind, listed)| {
            let error = listed.as_ref().err();
            (
                *kind,
                error.map(|error| super::FailureCause::from(error).reason),
            )
        });
        Self(outcomes.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: Duration = Duration::from_secs(60);

    fn finished(kind: ListKind) -> RelistOutcomes {
        RelistOutcomes(vec![(kind, None)])
    }

    #[test]
    fn stale_list_is_wanted_once() {
        let tools = ListKind::Tools;
        let lists = ListFreshness::default();
        assert_eq!(
            lists.request_refresh(tools, MonotonicTime(0)),
            None,
            "no link serves"
        );
        let serving = lists.begin_serving(MonotonicTime(1_000));
        assert!(!lists.is_stale(tools, AGE, MonotonicTime(60_999)));
        assert!(lists.is_stale(tools, AGE, MonotonicTime(61_000)));
        assert_eq!(
            lists.request_refresh(tools, MonotonicTime(61_000)),
            Some(MonotonicTime(61_000))
        );
        assert!(
            !lists.is_stale(tools, AGE, MonotonicTime(99_000)),
            "it is asked for"
        );
        assert_eq!(
            lists.request_refresh(tools, MonotonicTime(62_000)),
            Some(MonotonicTime(61_000))
        );
        assert_eq!(lists.take_requested(), [tools]);
        assert_eq!(lists.take_requested(), []);
        lists.record_outcomes(finished(tools), MonotonicTime(63_000));
        assert_eq!(lists.pending_since(tools), None);
        assert!(!lists.is_stale(tools, Duration::ZERO, MonotonicTime(67_999)));
        assert!(lists.is_stale(tools, Duration::ZERO, MonotonicTime(68_000)));
        drop(serving);
        assert!(!lists.is_stale(tools, AGE, MonotonicTime(999_000)));
    }

    #[tokio::test]
    async fn link_end_releases_waiters() {
        let lists = ListFreshness::default();
        let serving = lists.begin_serving(MonotonicTime(0));
        lists.request_refresh(ListKind::Prompts, MonotonicTime(9_000));
        let mut waiting = std::pin::pin!(lists.wait_refreshed(ListKind::Prompts));
        tokio::select! {
            biased;
            () = &mut waiting => panic!("the list has not come"),
            () = std::future::ready(()) => {}
        }
        drop(serving);
        waiting.await;
    }
}
