//! Dependencies of a supervisor: the host components shared by all servers.

use std::sync::Arc;

use bowline_core::task_table::LinkKey;
use bowline_link::LinkEvent;
use bowline_runtime::{Clock, TaskTracker};
use tokio::sync::Semaphore;

use super::{Dial, SupervisorShared, log_line};
use crate::callpath::response_cache::ResponseCache;
use crate::catalog::CatalogStore;
use crate::events::EventBus;
use crate::manifest::ManifestStore;
use crate::pins::PinRegistry;
use crate::ports::NotificationSink;
use crate::session_state::SessionState;

/// Dependencies of a supervisor.
#[derive(Clone, Debug)]
pub(crate) struct SupervisorDeps {
    /// Connects to the server.
    pub dial: Arc<dyn Dial>,
    /// Receives the lists.
    pub catalog: Arc<CatalogStore>,
    /// Runs the actor.
    pub tasks: TaskTracker,
    /// Time source.
    pub clock: Arc<dyn Clock>,
    /// Receives notifications outside calls.
    pub notifications: Arc<dyn NotificationSink>,
    /// Finds the recipients of notifications.
    pub sessions: Arc<SessionState>,
    /// Stores the lists between runs.
    pub manifests: Arc<dyn ManifestStore>,
    /// Holds approved definitions.
    pub pins: Arc<PinRegistry>,
    /// Cached responses, purged when the server changes.
    pub cache: Arc<ResponseCache>,
    /// Publishes events.
    pub events: EventBus,
    /// Limits concurrent starts.
    pub start_permits: Arc<Semaphore>,
}

impl SupervisorDeps {
    /// Delivers a server event outside calls.
    pub(super) fn deliver_event(&self, shared: &SupervisorShared, link: LinkKey, event: LinkEvent) {
        let event = match &shared.spec.redact_results {
            Some(secrets) => secrets.redact_event(event),
            None => event,
        };
        match event {
            // Unattributed log messages go to the server's log only.
            LinkEvent::Log(message) => shared.log.push_text(&log_line::render_log_line(&message)),
            event => {
                let sink = self.notifications.as_ref();
                self.sessions
                    .deliver_event(sink, &shared.spec.name, link, event);
            }
        }
    }
}
