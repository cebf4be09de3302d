//! Tells listening sessions when what they see has changed, and lets quiet sessions and expired
//! tokens go.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Principal, Scope};
use tokio::sync::watch;

use super::Edge;
use super::session::{Lists, Session};

/// How often quiet sessions are looked for.
const SWEEP: Duration = Duration::from_secs(60);

/// Changes that follow each other this closely are told as one.
const SETTLE: Duration = Duration::from_millis(20);

/// The wall clock may be set, so the next token to expire is looked for this often at least.
const EXPIRY_LOOK: Duration = Duration::from_secs(60);

/// Runs until told to stop.
pub async fn run(edge: Arc<Edge>, mut stop: watch::Receiver<bool>) {
    tokio::select! {
        () = announce(&edge) => {}
        () = expire(&edge) => {}
        () = sweep(&edge) => {}
        _ = stop.changed() => {}
    }
}

/// Tells of changes: of what there is, and of who may see it.
async fn announce(edge: &Edge) {
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
        settled(edge).await;
        changes.borrow_and_update();
        rules.borrow_and_update();
        tell(edge);
    }
}

async fn sweep(edge: &Edge) {
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        sweep.tick().await;
        edge.sweep_sessions();
    }
}

/// Ends what was opened with tokens when their time has come.
async fn expire(edge: &Edge) {
    let Some(tokens) = edge.door.tokens() else {
        return std::future::pending().await;
    };
    loop {
        edge.dismiss(&tokens.expire());
        match tokens.next_end() {
            None => tokens.changed().await,
            Some(wait) => tokio::select! {
                () = tokens.changed() => {}
                () = tokio::time::sleep(wait.min(EXPIRY_LOOK)) => {}
            },
        }
    }
}

/// Waits until changes that belong together were all made: those that come close to each other,
/// and those of the servers that one configuration brought.
async fn settled(edge: &Edge) {
    tokio::time::sleep(SETTLE).await;
    edge.host.turned().await;
}

/// Tells a session that has just begun to listen of changes that it could not hear before.
pub(super) fn catch_up(edge: &Edge, session: &Session) {
    session.announce(&lists(edge, &session.asker(), &session.scope));
}

/// Notes that a session begins with the lists as they are.
pub(super) fn knows(edge: &Edge, session: &Session) {
    session.knows_all(lists(edge, &session.asker(), &session.scope));
}

/// Returns what a caller sees of the lists.
pub(super) fn lists(edge: &Edge, principal: &Principal, scope: &Scope) -> Lists {
    Lists::from(|kind| edge.host.view(principal, scope, kind).fingerprint)
}

/// Tells everyone who listens, with a session or without, whose own view is another than the one
/// it knows. Views are computed once for each kind of caller, not for each of them.
pub(crate) fn tell(edge: &Edge) {
    let mut views: HashMap<(Arc<Principal>, Scope), Lists> = HashMap::new();
    let mut seen = |asker: &Arc<Principal>, scope: &Scope| {
        let key = (Arc::clone(asker), scope.clone());
        let view = views.entry(key);
        view.or_insert_with(|| lists(edge, asker, scope)).clone()
    };
    for session in edge.sessions.all() {
        session.announce(&seen(&session.asker(), &session.scope));
    }
    for listener in edge.sessions.listeners.all() {
        let (asker, scope) = listener.asker();
        listener.announce(&seen(asker, scope));
    }
}
