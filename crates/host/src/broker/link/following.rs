//! Tells the supervisor what changed of a peer's server, and ends its link with the connection.

use std::sync::{Arc, Weak};

use bowline_link::{Exit, LinkEvent};
use tokio::sync::{mpsc, watch};

use super::PeerLink;
use crate::broker::{Manifest, Ware};

/// Follows what a peer says of one server of its.
pub(super) struct Following {
    pub(super) link: Weak<PeerLink>,
    pub(super) changes: watch::Receiver<u64>,
    pub(super) over: watch::Receiver<Option<Exit>>,
    pub(super) events: mpsc::Sender<LinkEvent>,
}

impl Following {
    pub(super) async fn run(mut self, mut told: Arc<Manifest>) {
        // Changes that are to be told: at most one of each kind, so that none is lost.
        let mut due = Vec::new();
        loop {
            if !self.look(&mut told, &mut due) {
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
                    // Nobody will tell any more: the peer is gone for good.
                    if let Some(link) = self.link.upgrade() {
                        link.end(Exit::Gone);
                    }
                    return;
                },
                permit = room => match (permit, due.pop()) {
                    (Some(permit), Some(event)) => permit.send(event),
                    // Nobody listens.
                    _ => due.clear(),
                },
                _ = self.over.wait_for(Option::is_some) => return,
            }
        }
    }

    /// Whether there is more to follow.
    fn look(&self, told: &mut Arc<Manifest>, due: &mut Vec<LinkEvent>) -> bool {
        let Some(link) = self.link.upgrade() else {
            return false;
        };
        if !link.remote.is_connected() {
            link.end(Exit::Gone);
            return false;
        }
        let now = link.remote.manifest();
        if Arc::ptr_eq(told, &now) {
            return true;
        }
        let server = link.menu.server();
        let (old, new) = (ware(told, server), ware(&now, server));
        if old.map(introduction) != new.map(introduction) {
            // It is another server by now; requests that are under way end as they would.
            link.end(Exit::Gone);
            return false;
        }
        let lists = |ware: Option<&Ware>| ware.map(|ware| ware.lists.clone()).unwrap_or_default();
        let (old, new) = (lists(old), lists(new));
        let changed = [
            (
                !link.menu.is_same(told, &now) || old.tools != new.tools,
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
        *told = now;
        true
    }
}

/// Returns what a manifest says of a server that is offered whole.
pub(super) fn ware<'a>(manifest: &'a Manifest, server: &str) -> Option<&'a Ware> {
    let mut wares = manifest.servers.iter();
    wares.find(|ware| *ware.name == *server)
}

fn introduction(ware: &Ware) -> (bowline_link::Revision, &[u8]) {
    (ware.revision, &ware.initialize)
}
