//! Watches a peer's server: reports list changes to the supervisor, and closes the link with the
//! connection.

use std::sync::{Arc, Weak};

use bowline_link::{LinkEvent, LinkExit};
use tokio::sync::{mpsc, watch};

use super::PeerLink;
use crate::broker::{OfferedServer, PeerManifest};

/// Watches one server of a peer.
pub(super) struct PeerServerWatcher {
    pub(super) link: Weak<PeerLink>,
    pub(super) changes: watch::Receiver<u64>,
    pub(super) exit: watch::Receiver<Option<LinkExit>>,
    pub(super) events: mpsc::Sender<LinkEvent>,
}

impl PeerServerWatcher {
    pub(super) async fn run(mut self, mut known: Arc<PeerManifest>) {
        // Pending changes: at most one event per kind, so that none is lost.
        let mut due = Vec::new();
        loop {
            if !self.check_manifest(&mut known, &mut due) {
                return;
            }
            let room = async {
                match due.is_empty() {
                    false => self.events.reserve().await.ok(),
                    true => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.changes.changed() => if changed.is_err() {
                    // The peer is gone for good: no further changes.
                    if let Some(link) = self.link.upgrade() {
                        link.close_as(LinkExit::Gone);
                    }
                    return;
                },
                permit = room => match (permit, due.pop()) {
                    (Some(permit), Some(event)) => permit.send(event),
                    // The event receiver is gone.
                    _ => due.clear(),
                },
                _ = self.exit.wait_for(Option::is_some) => return,
            }
        }
    }

    /// Applies the current manifest; returns whether to keep watching.
    fn check_manifest(&self, known: &mut Arc<PeerManifest>, due: &mut Vec<LinkEvent>) -> bool {
        let Some(link) = self.link.upgrade() else {
            return false;
        };
        if !link.remote.is_connected() {
            link.close_as(LinkExit::Gone);
            return false;
        }
        let now = link.remote.manifest();
        if Arc::ptr_eq(known, &now) {
            return true;
        }
        let server = link.tools.server();
        let (old, new) = (offered_server(known, server), offered_server(&now, server));
        if old.map(server_identity) != new.map(server_identity) {
            // Another server took the name; pending requests end as usual.
            link.close_as(LinkExit::Gone);
            return false;
        }
        let lists =
            |ware: Option<&OfferedServer>| ware.map(|ware| ware.lists.clone()).unwrap_or_default();
        let (old, new) = (lists(old), lists(new));
        let changed = [
            (
                !link.tools.has_same_tools(known, &now) || old.tools != new.tools,
                LinkEvent::ToolsChanged,
            ),
            (old.prompts != new.prompts, LinkEvent::PromptsChanged),
            (old.resources != new.resources, LinkEvent::ResourcesChanged),
        ];
        for (is_changed, event) in changed {
            if is_changed && !due.contains(&event) {
                due.push(event);
            }
        }
        *known = now;
        true
    }
}

/// Finds a complete server in a manifest.
pub(super) fn offered_server<'a>(
    manifest: &'a PeerManifest,
    server: &str,
) -> Option<&'a OfferedServer> {
    let mut wares = manifest.servers.iter();
    wares.find(|ware| *ware.name == *server)
}

fn server_identity(ware: &OfferedServer) -> (bowline_link::Revision, &[u8]) {
    (ware.revision, &ware.initialize)
}
