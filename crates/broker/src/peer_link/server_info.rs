//! Server info of a peer's server, and the server's notifications outside requests.

use std::sync::Arc;

use bowline_link::{LinkEvent, Revision, ServerInfo};
use bowline_wire::mcp::method;
use bowline_wire::object;
use bytes::Bytes;

use super::PeerLink;
use crate::{NotificationHandler, OfferedServer};

/// `initialize` result for a server that offers only tools.
const TOOLS_ONLY_INITIALIZE: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"#,
    r#""serverInfo":{"name":"peer","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}}"#,
);

/// Returns the info of a server that offers only tools.
pub(super) fn tools_only_info(server: &Arc<str>) -> ServerInfo {
    ServerInfo {
        revision: Revision::LATEST_LEGACY,
        initialize: Bytes::from_static(TOOLS_ONLY_INITIALIZE.as_bytes()),
        name: Arc::clone(server),
        version: Arc::default(),
    }
}

/// Returns the info of a complete server.
pub(super) fn offered_info(server: &OfferedServer) -> ServerInfo {
    let initialize = &server.initialize;
    let implementation = object::field(initialize, "serverInfo").map(|at| at.slice(initialize));
    let implementation = implementation.unwrap_or_default();
    let text = |key| {
        object::text_field(implementation, key)
            .unwrap_or_default()
            .into()
    };
    ServerInfo {
        revision: server.revision,
        initialize: initialize.clone(),
        name: text("name"),
        version: text("version"),
    }
}

impl NotificationHandler for PeerLink {
    fn on_notification(&self, session: Option<&str>, notification: Bytes) {
        let method_name = object::text_field(&notification, "method");
        let text_param = |key| {
            let params = object::field(&notification, "params")?.slice(&notification);
            Some(Arc::from(&*object::text_field(params, key)?))
        };
        let event = match method_name.as_deref() {
            Some(method::RESOURCES_UPDATED) => {
                text_param("uri").map(|uri| LinkEvent::ResourceUpdated {
                    uri,
                    notification: notification.clone(),
                })
            }
            Some(method::TASKS_STATUS | method::TASKS_NOTIFICATION) => {
                text_param("taskId").map(|task| LinkEvent::TaskStatus {
                    task,
                    notification: notification.clone(),
                })
            }
            Some(method::MESSAGE | method::ELICITATION_COMPLETE) => {
                let session = session.and_then(|name| self.session_names.parse_session(name));
                session.map(|session| LinkEvent::SessionNotification {
                    session,
                    notification: notification.clone(),
                })
            }
            Some(_) | None => None,
        };
        if let Some(event) = event {
            // Dropped when the queue is full, as for any link.
            let _full = self.events.try_send(event);
        }
    }
}
