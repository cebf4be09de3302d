//! What a server of a peer says of itself, and between requests.

use std::sync::Arc;

use bowline_link::{LinkEvent, Revision, ServerInfo};
use bowline_wire::mcp::method;
use bowline_wire::object;
use bytes::Bytes;

use super::PeerLink;
use crate::broker::{Hears, Ware};

/// What a server of a peer says of itself that offers its tools alone.
const INITIALIZE: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"#,
    r#""serverInfo":{"name":"peer","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}}"#,
);

/// Says what a server is of which the tools are all that is known.
pub(super) fn of_tools(server: &Arc<str>) -> ServerInfo {
    ServerInfo {
        revision: Revision::LATEST_LEGACY,
        initialize: Bytes::from_static(INITIALIZE.as_bytes()),
        name: Arc::clone(server),
        version: Arc::default(),
    }
}

/// Says what a server is that told of itself.
pub(super) fn introduced(ware: &Ware) -> ServerInfo {
    let initialize = &ware.initialize;
    let itself = object::field(initialize, "serverInfo").map(|at| at.of(initialize));
    let itself = itself.unwrap_or_default();
    let text = |key| object::text(itself, key).unwrap_or_default().into();
    ServerInfo {
        revision: ware.revision,
        initialize: initialize.clone(),
        name: text("name"),
        version: text("version"),
    }
}

impl Hears for PeerLink {
    fn hear(&self, session: Option<&str>, notification: Bytes) {
        let said = object::text(&notification, "method");
        let named = |key| {
            let params = object::field(&notification, "params")?.of(&notification);
            Some(Arc::from(&*object::text(params, key)?))
        };
        let event = match said.as_deref() {
            Some(method::RESOURCES_UPDATED) => named("uri").map(|uri| LinkEvent::ResourceUpdated {
                uri,
                notification: notification.clone(),
            }),
            Some(method::TASKS_STATUS | method::TASKS_NOTIFICATION) => {
                named("taskId").map(|task| LinkEvent::TaskStatus {
                    task,
                    notification: notification.clone(),
                })
            }
            Some(method::MESSAGE | method::ELICITATION_COMPLETE) => {
                let session = session.and_then(|name| self.acquainted.session(name));
                session.map(|session| LinkEvent::Told {
                    session,
                    notification: notification.clone(),
                })
            }
            Some(_) | None => None,
        };
        if let Some(event) = event {
            // What finds no room is left out, as between any server and those who listen to it.
            let _full = self.events.try_send(event);
        }
    }
}
