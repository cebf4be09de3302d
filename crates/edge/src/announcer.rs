//! Background tasks of the edge: announces list changes, sweeps idle sessions and expires tokens.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{EndpointScope, Principal};
use bowline_runtime::{Service, Shutdown};

use super::Edge;
use super::client_session::{ClientSession, ListFingerprints};

/// Interval between sweeps of idle sessions.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Changes within this delay produce a single announcement.
const SETTLE_DELAY: Duration = Duration::from_millis(20);

/// Upper bound between expiry checks, because the wall clock may be adjusted.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Announces list changes, sweeps idle sessions and expires tokens.
#[derive(Debug)]
pub struct Announcer(pub Arc<Edge>);

impl Service for Announcer {
    const NAME: &'static str = "announcer";

    async fn run(self, shutdown: Shutdown) {
        let Self(edge) = self;
        tokio::select! {
            () = announce_changes(&edge) => {}
            () = expire_tokens(&edge) => {}
            () = sweep_sessions(&edge) => {}
            () = shutdown.wait_closing() => {}
        }
    }
}

/// Announces changes of the catalog and of the policy.
async fn announce_changes(edge: &Edge) {
    let mut changes = edge.host.catalog_changes();
    let mut rules = edge.host.policy_changes();
    loop {
        let changed = tokio::select! {
            changed = changes.changed() => changed,
            changed = rules.changed() => changed,
        };
        if changed.is_err() {
            return std::future::pending().await;
        }
        wait_settled(edge).await;
        changes.borrow_and_update();
        rules.borrow_and_update();
        announce_to_all(edge);
    }
}

async fn sweep_sessions(edge: &Edge) {
    let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        sweep.tick().await;
        edge.sweep_sessions();
    }
}

/// Revokes access when tokens expire.
async fn expire_tokens(edge: &Edge) {
    let Some(tokens) = edge.authenticator.tokens() else {
        return std::future::pending().await;
    };
    loop {
        edge.revoke_access(&tokens.end_expired());
        match tokens.next_expiry() {
            None => tokens.wait_expiry_change().await,
            Some(wait) => tokio::select! {
                () = tokens.wait_expiry_change() => {}
                () = tokio::time::sleep(wait.min(EXPIRY_CHECK_INTERVAL)) => {}
            },
        }
    }
}

/// Waits until a group of changes is complete: changes close together in time, and the servers of
/// one configuration.
async fn wait_settled(edge: &Edge) {
    tokio::time::sleep(SETTLE_DELAY).await;
    edge.host.wait_applied().await;
}

/// Announces list changes missed before the session opened its listen stream.
pub(super) fn announce_missed(edge: &Edge, session: &ClientSession) {
    session.announce_changes(&list_fingerprints(
        edge,
        &session.current_principal(),
        &session.scope,
    ));
}

/// Records the current lists as known to a new session.
pub(super) fn note_current_lists(edge: &Edge, session: &ClientSession) {
    session.note_all_lists(list_fingerprints(
        edge,
        &session.current_principal(),
        &session.scope,
    ));
}

/// Returns fingerprints of the lists visible to a caller.
pub(super) fn list_fingerprints(
    edge: &Edge,
    principal: &Principal,
    scope: &EndpointScope,
) -> ListFingerprints {
    ListFingerprints::from_fn(|kind| edge.host.list_for(principal, scope, kind).fingerprint)
}

/// Announces changed views to all listeners, with or without a session. Each view is computed once
/// per principal and scope, not once per listener.
pub fn announce_to_all(edge: &Edge) {
    let mut views: HashMap<(Arc<Principal>, EndpointScope), ListFingerprints> = HashMap::new();
    let mut fingerprints_for = |principal: &Arc<Principal>, scope: &EndpointScope| {
        let key = (Arc::clone(principal), scope.clone());
        let view = views.entry(key);
        view.or_insert_with(|| list_fingerprints(edge, principal, scope))
            .clone()
    };
    for session in edge.sessions.snapshot() {
        session.announce_changes(&fingerprints_for(
            &session.current_principal(),
            &session.scope,
        ));
    }
    for listener in edge.sessions.listeners.snapshot() {
        let (principal, scope) = listener.principal_and_scope();
        listener.announce_changes(&fingerprints_for(principal, scope));
    }
}
