//! Lists of a server that are asked for again because somebody wants them.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::time::Now;
use tokio::time::timeout_at;

use super::freshness::RELIST_WAIT_MAX;
use super::{Ready, Supervisor};
use crate::catalog::ListKind;
use crate::catalog::introduction::declares;

impl Supervisor {
    /// Has a list asked for again in the background where it is older than `ttl`, which its
    /// server says of it, or older than `relist`. A server that serves nobody is not started for
    /// it, and one that announces changes is not asked.
    pub(crate) fn refresh_stale(&self, kind: ListKind, ttl: Option<Duration>) {
        let shared = &self.shared;
        let Some(age) = ttl.or(shared.spec.relist) else {
            return;
        };
        let now = shared.clock.now();
        if !shared.freshness.is_stale(kind, age, now) {
            return;
        }
        if let Some(ready) = self.open_link()
            && has_list(&ready, kind)
            && !announces_changes(&ready, kind)
        {
            shared.freshness.want(kind, now);
        }
    }

    /// Asks for a list again because a name is not in it, and waits for it, but not long; returns
    /// `false` at once where the list was asked for a moment ago.
    pub(crate) async fn relist_for_unknown(&self, kind: ListKind, deadline: Now) -> bool {
        let shared = &self.shared;
        let freshness = &shared.freshness;
        if shared.spec.relist.is_none() {
            return false;
        }
        let Some(ready) = self.open_link().filter(|ready| has_list(ready, kind)) else {
            return false;
        };
        drop(ready);
        let now = shared.clock.now();
        let since = match freshness.is_stale(kind, Duration::ZERO, now) {
            true => freshness.want(kind, now),
            false => freshness.wanted_since(kind),
        };
        let Some(since) = since else {
            return false;
        };
        let until = deadline.min(since.plus(RELIST_WAIT_MAX));
        let until = shared.clock.instant(until);
        timeout_at(until, freshness.completed(kind)).await.is_ok()
    }

    /// Has every list asked for again, however young it is.
    pub(crate) fn want_lists(&self) {
        let now = self.shared.clock.now();
        for kind in ListKind::ALL {
            self.shared.freshness.want(kind, now);
        }
    }

    /// Waits until the lists are read that were wanted, and returns why some could not be had.
    pub(crate) async fn lists_read(&self, deadline: Now) -> Vec<(ListKind, Arc<str>)> {
        let shared = &self.shared;
        let until = shared.clock.instant(deadline);
        let mut failed = Vec::new();
        for kind in ListKind::ALL {
            let completed = timeout_at(until, shared.freshness.completed(kind)).await;
            let error = match completed {
                Ok(()) => shared.freshness.error(kind),
                Err(_) => Some("it did not answer in time".into()),
            };
            failed.extend(error.map(|error| (kind, shared.spec.secrets.clean_shared(&error))));
        }
        failed
    }
}

fn has_list(ready: &Ready, kind: ListKind) -> bool {
    declares(&ready.link.server().initialize, kind.capability())
}

fn announces_changes(ready: &Ready, kind: ListKind) -> bool {
    let change = format!("{}.listChanged", kind.capability());
    declares(&ready.link.server().initialize, &change)
}
