//! Tells listening sessions when what they see has changed, and lets quiet sessions go.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Principal, Scope};
use bowline_host::catalog::ListKind;
use bowline_wire::jsonrpc::write_notification;
use bowline_wire::mcp::method;
use tokio::sync::watch;

use super::Edge;
use super::session::Session;

/// How often quiet sessions are looked for.
const SWEEP: Duration = Duration::from_secs(60);

/// Changes that follow each other this closely are told as one.
const SETTLE: Duration = Duration::from_millis(20);

/// Runs until told to stop.
pub async fn run(edge: Arc<Edge>, mut stop: watch::Receiver<bool>) {
    let mut changes = edge.host.catalog_changes();
    let message = message();
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                tokio::time::sleep(SETTLE).await;
                changes.borrow_and_update();
                tell(&edge, &message);
            }
            _ = sweep.tick() => edge.sessions.sweep(edge.host.clock().now()),
            _ = stop.changed() => return,
        }
    }
}

/// Tells a session that has just begun to listen of a change that it could not hear before.
pub(super) fn catch_up(edge: &Edge, session: &Session) {
    let view = edge
        .host
        .view(&session.principal, &session.scope, ListKind::Tools);
    session.announce(view.fingerprint, &message());
}

fn message() -> Vec<u8> {
    let mut message = Vec::new();
    write_notification(&mut message, method::TOOLS_LIST_CHANGED, None);
    message
}

/// Tells each session whose own view is another than the one it knows. Views are computed once
/// for each kind of caller, not for each session.
fn tell(edge: &Edge, message: &[u8]) {
    let mut views: HashMap<(Arc<Principal>, Scope), [u8; 32]> = HashMap::new();
    for session in edge.sessions.all() {
        let key = (Arc::clone(&session.principal), session.scope.clone());
        let fingerprint = *views.entry(key).or_insert_with(|| {
            edge.host
                .view(&session.principal, &session.scope, ListKind::Tools)
                .fingerprint
        });
        session.announce(fingerprint, message);
    }
}
