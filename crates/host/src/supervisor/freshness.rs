//! When each list of a server was last asked for, and which lists callers want asked for again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_core::time::Now;
use tokio::sync::{Notify, watch};

use super::list::Listed;
use crate::catalog::{ListKind, PerList};

/// A list is not asked for again sooner, whatever callers do: one that names unknown tools
/// without end costs the server one list in this time.
pub(crate) const RELIST_MIN_INTERVAL: Duration = Duration::from_secs(5);

/// How long a caller waits for a list that is asked for because a name is not in it, counted from
/// the request for that list: a server that does not answer holds up no later caller again.
pub(super) const RELIST_WAIT_MAX: Duration = Duration::from_secs(3);

/// The ages of a server's lists.
#[derive(Debug)]
pub(super) struct Freshness {
    lists: Mutex<PerList<ListAge>>,
    /// Wakes the actor when a list is wanted.
    wanted: Notify,
    /// Counts requests for lists that ended.
    completed: watch::Sender<u64>,
}

/// What is known of one list while a link is up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ListAge {
    /// When the last request for it ended, with a list or without; absent while no link serves.
    asked_at: Option<Now>,
    want: Want,
    /// Why the last request for it brought no list.
    error: Option<Arc<str>>,
}

/// Whether a caller wants a list anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Want {
    #[default]
    No,
    /// Since then, and the actor has not seen it.
    New(Now),
    /// Since then, and the actor asks for it.
    Taken(Now),
}

impl Want {
    const fn since(self) -> Option<Now> {
        match self {
            Self::No => None,
            Self::New(since) | Self::Taken(since) => Some(since),
        }
    }
}

/// Ends what callers want of a link when that link serves no longer.
#[derive(Debug)]
pub(super) struct Serving<'a>(&'a Freshness);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        *lock(&self.0.lists) = PerList::default();
        self.0.completed.send_modify(|nth| *nth += 1);
    }
}

impl Default for Freshness {
    fn default() -> Self {
        Self {
            lists: Mutex::default(),
            wanted: Notify::new(),
            completed: watch::Sender::new(0),
        }
    }
}

impl Freshness {
    /// Notes that a link serves whose lists were all read just now.
    pub(super) fn serve(&self, now: Now) -> Serving<'_> {
        *lock(&self.lists) = PerList::from(|_| ListAge {
            asked_at: Some(now),
            ..ListAge::default()
        });
        Serving(self)
    }

    /// Returns whether a list is older than `age`, and old enough to be asked for again.
    pub(super) fn is_stale(&self, kind: ListKind, age: Duration, now: Now) -> bool {
        let lists = lock(&self.lists);
        let list = lists.get(kind);
        let due = list
            .asked_at
            .map(|at| at.plus(age.max(RELIST_MIN_INTERVAL)));
        list.want == Want::No && due.is_some_and(|due| due <= now)
    }

    /// Has a list asked for again, unless it is already; returns since when it is wanted, and
    /// nothing while no link serves.
    pub(super) fn want(&self, kind: ListKind, now: Now) -> Option<Now> {
        let since = {
            let mut lists = lock(&self.lists);
            let list = lists.get_mut(kind);
            list.asked_at?;
            if list.want == Want::No {
                list.want = Want::New(now);
            }
            list.want.since()
        };
        self.wanted.notify_one();
        since
    }

    /// Returns since when a list is wanted that has not come yet.
    pub(super) fn wanted_since(&self, kind: ListKind) -> Option<Now> {
        lock(&self.lists).get(kind).want.since()
    }

    /// Waits until the list is read that was wanted, or cannot be had.
    pub(super) async fn completed(&self, kind: ListKind) {
        let mut completed = self.completed.subscribe();
        while self.wanted_since(kind).is_some() {
            // The sender lives as long as the supervisor does.
            if completed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until lists are wanted, and returns them.
    pub(super) async fn next_wanted(&self) -> Vec<ListKind> {
        loop {
            self.wanted.notified().await;
            let kinds = self.take_wanted();
            if !kinds.is_empty() {
                return kinds;
            }
        }
    }

    fn take_wanted(&self) -> Vec<ListKind> {
        let mut lists = lock(&self.lists);
        let take = |kind: &ListKind| {
            let list = lists.get_mut(*kind);
            match list.want {
                Want::New(since) => {
                    list.want = Want::Taken(since);
                    true
                }
                Want::No | Want::Taken(_) => false,
            }
        };
        ListKind::ALL.into_iter().filter(take).collect()
    }

    /// Notes that requests for lists ended.
    pub(super) fn complete(&self, outcomes: Outcomes, now: Now) {
        {
            let mut lists = lock(&self.lists);
            for (kind, error) in outcomes.0 {
                *lists.get_mut(kind) = ListAge {
                    asked_at: Some(now),
                    want: Want::No,
                    error,
                };
            }
        }
        self.completed.send_modify(|nth| *nth += 1);
    }

    /// Returns why the last request for a list brought none.
    pub(super) fn error(&self, kind: ListKind) -> Option<Arc<str>> {
        lock(&self.lists).get(kind).error.clone()
    }
}

/// What came of requests for lists.
#[derive(Debug)]
pub(super) struct Outcomes(Vec<(ListKind, Option<Arc<str>>)>);

impl From<&[Listed]> for Outcomes {
    fn from(listed: &[Listed]) -> Self {
        let outcomes = listed.iter().map(|(kind, listed)| {
            let error = listed.as_ref().err();
            (*kind, error.map(|error| super::Cause::from(error).reason))
        });
        Self(outcomes.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: Duration = Duration::from_secs(60);

    fn done(kind: ListKind) -> Outcomes {
        Outcomes(vec![(kind, None)])
    }

    #[test]
    fn stale_list_is_wanted_once() {
        let tools = ListKind::Tools;
        let lists = Freshness::default();
        assert_eq!(lists.want(tools, Now(0)), None, "no link serves");
        let serving = lists.serve(Now(1_000));
        assert!(!lists.is_stale(tools, AGE, Now(60_999)));
        assert!(lists.is_stale(tools, AGE, Now(61_000)));
        assert_eq!(lists.want(tools, Now(61_000)), Some(Now(61_000)));
        assert!(!lists.is_stale(tools, AGE, Now(99_000)), "it is asked for");
        assert_eq!(lists.want(tools, Now(62_000)), Some(Now(61_000)));
        assert_eq!(lists.take_wanted(), [tools]);
        assert_eq!(lists.take_wanted(), []);
        lists.complete(done(tools), Now(63_000));
        assert_eq!(lists.wanted_since(tools), None);
        assert!(!lists.is_stale(tools, Duration::ZERO, Now(67_999)));
        assert!(lists.is_stale(tools, Duration::ZERO, Now(68_000)));
        drop(serving);
        assert!(!lists.is_stale(tools, AGE, Now(999_000)));
    }

    #[tokio::test]
    async fn link_end_releases_waiters() {
        let lists = Freshness::default();
        let serving = lists.serve(Now(0));
        lists.want(ListKind::Prompts, Now(9_000));
        let mut waiting = std::pin::pin!(lists.completed(ListKind::Prompts));
        tokio::select! {
            biased;
            () = &mut waiting => panic!("the list has not come"),
            () = std::future::ready(()) => {}
        }
        drop(serving);
        waiting.await;
    }
}
