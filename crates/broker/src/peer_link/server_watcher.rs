//! Watches a peer's server: reports list changes to the supervisor, and closes the link with the
//! connection.

use std::sync::{Arc, Weak};

use bowline_link::{LinkEvent, LinkExit};
use tokio::sync::{mpsc, watch};

use super::PeerLink;
use crate::{OfferedServer, PeerManifest};

/// Watches one server of a peer.
pub(super) struct PeerServerWatcher {
    pub(super) link: Weak<PeerLink>,
    pub(super) changes: watch::Receiver<u64>,
    pub(super) exit: watch::Receiver<Option<LinkExit>>,
    pub(super) events: mpsc::Sender<LinkEvent>,
}

impl PeerServerWatcher {
    pub(super) async fn run(mut self, mut last_manifest: Arc<PeerManifest>) {
        // Pending changes: at most one event per kind, so that none is lost.
        let mut due = Vec::new();
        loop {
            if !self.check_manifest(&mut last_manifest, &mut due) {
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
    fn check_manifest(
        &self,
        last_manifest: &mut Arc<PeerManifest>,
        due: &mut Vec<LinkEvent>,
    ) -> bool {
        let Some(link) = self.link.upgrade() else {
            return false;
        };
        if !link.remote.is_connected() {
            link.close_as(LinkExit::Gone);
            return false;
        }
        let current = link.remote.manifest();
        if Arc::ptr_eq(last_manifest, &current) {
            return true;
        }
        let server = link.tools.server();
        let (old, new) = (
            offered_server(last_manifest, server),
            offered_server(&current, server),
        );
        if old.map(server_identity) != new.map(server_identity) {
            // Another server took the name; pending requests end as usual.
            link.close_as(LinkExit::Gone);
            return false;
        }
        let lists = |offered: Option<&OfferedServer>| {
            offered
                .map(|offered| offered.lists.clone())
                .unwrap_or_default()
        };
        let (old, new) = (lists(old), lists(new));
        let changed = [
            (
                !link.tools.has_same_tools(last_manifest, &current) || old.tools != new.tools,
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
        *last_manifest = current;
        true
    }
}

/// Finds a complete server in a manifest.
pub(super) fn offered_server<'a>(
    manifest: &'a PeerManifest,
    server: &str,
) -> Option<&'a OfferedServer> {
    let mut servers = manifest.servers.iter();
    servers.find(|offered| *offered.name == *server)
}

fn server_identity(server: &OfferedServer) -> (bowline_link::Revision, &[u8]) {
    (server.revision, &server.initialize)
}
