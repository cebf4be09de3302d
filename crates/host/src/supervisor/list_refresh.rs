//! List refreshes requested by callers.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::time::MonotonicTime;
use tokio::time::timeout_at;

use super::freshness::RELIST_WAIT_MAX;
use super::{ReadyLink, Supervisor};
use crate::catalog::ListKind;
use crate::catalog::initialize_info::declares_capability;

impl Supervisor {
    /// Requests a background refresh of a list older than its `ttl`, or older than `relist`. Does
    /// not start an idle server, and skips servers with change notifications.
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
            shared.freshness.request_refresh(kind, now);
        }
    }

    /// Refreshes a list because of an unknown name, and waits for it, bounded by
    /// [`RELIST_WAIT_MAX`]; `false` at once if the list was refreshed moments ago.
    pub(crate) async fn relist_for_unknown(&self, kind: ListKind, deadline: MonotonicTime) -> bool {
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
            true => freshness.request_refresh(kind, now),
            false => freshness.pending_since(kind),
        };
        let Some(since) = since else {
            return false;
        };
        let until = deadline.min(since.plus(RELIST_WAIT_MAX));
        let until = shared.clock.instant(until);
        timeout_at(until, freshness.wait_refreshed(kind))
            .await
            .is_ok()
    }

    /// Requests a refresh of every list, regardless of age.
    pub(crate) fn request_all_lists(&self) {
        let now = self.shared.clock.now();
        for kind in ListKind::ALL {
            self.shared.freshness.request_refresh(kind, now);
        }
    }

    /// Waits for the requested lists; returns the errors of failed lists.
    pub(crate) async fn wait_lists_read(
        &self,
        deadline: MonotonicTime,
    ) -> Vec<(ListKind, Arc<str>)> {
        let shared = &self.shared;
        let until = shared.clock.instant(deadline);
        let mut failed = Vec::new();
        for kind in ListKind::ALL {
            let completed = timeout_at(until, shared.freshness.wait_refreshed(kind)).await;
            let error = match completed {
                Ok(()) => shared.freshness.last_error(kind),
                Err(_) => Some("it did not answer in time".into()),
            };
            failed.extend(error.map(|error| (kind, shared.spec.secrets.redact_shared(&error))));
        }
        failed
    }
}

fn has_list(ready: &ReadyLink, kind: ListKind) -> bool {
    declares_capability(&ready.link.server_info().initialize, kind.capability())
}

fn announces_changes(ready: &ReadyLink, kind: ListKind) -> bool {
    let change = format!("{}.listChanged", kind.capability());
    declares_capability(&ready.link.server_info().initialize, &change)
}
