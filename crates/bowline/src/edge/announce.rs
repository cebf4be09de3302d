//! Tells listening sessions when what they see has changed, and lets quiet sessions go.

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

/// Runs until told to stop.
pub async fn run(edge: Arc<Edge>, mut stop: watch::Receiver<bool>) {
    let mut changes = edge.host.catalog_changes();
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                tokio::select! {
                    () = settled(&edge) => {}
                    _ = stop.changed() => return,
                }
                changes.borrow_and_update();
                tell(&edge);
            }
            _ = sweep.tick() => edge.sweep_sessions(),
            _ = stop.changed() => return,
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
    session.announce(&lists(edge, &session.principal, &session.scope));
}

/// Notes that a session begins with the lists as they are.
pub(super) fn knows(edge: &Edge, session: &Session) {
    session.knows_all(lists(edge, &session.principal, &session.scope));
}

fn lists(edge: &Edge, principal: &Principal, scope: &Scope) -> Lists {
    Lists::from(|kind| edge.host.view(principal, scope, kind).fingerprint)
}

/// Tells each session whose own view is another than the one it knows. Views are computed once
/// for each kind of caller, not for each session.
fn tell(edge: &Edge) {
    let mut views: HashMap<(Arc<Principal>, Scope), Lists> = HashMap::new();
    for session in edge.sessions.all() {
        let key = (Arc::clone(&session.principal), session.scope.clone());
        let lists = views
            .entry(key)
            .or_insert_with(|| lists(edge, &session.principal, &session.scope));
        session.announce(lists);
    }
}
