//! Change streams of modern servers: one `subscriptions/listen` long-lived request,
//! renewed when the subscriptions change or the stream is lost.

use std::collections::HashSet;
use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::call::ServerResponse;
use bowline_wire::object::{field, items, parse_string};
use bowline_wire::splice::write_string;
use bytes::Bytes;
use tokio::sync::oneshot;

use crate::demux::LinkEventSender;
use crate::link::{LinkError, LinkExit, LinkRequest};

mod listener;

pub(crate) use listener::{ChangeListener, run_listener};

/// Subscribed resources per server.
pub(crate) const RESOURCES_MAX: usize = 4_096;

/// Filter of a change stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenFilter {
    /// Tool list changes.
    pub tools: bool,
    /// Prompt list changes.
    pub prompts: bool,
    /// Resource list changes.
    pub resources: bool,
    /// Updates of the listed resources.
    pub uris: Vec<Arc<str>>,
}

impl ListenFilter {
    /// Returns the supported list changes of a server, from the `server/discover` result.
    pub(crate) fn from_capabilities(discovered: &[u8]) -> Self {
        let tells = |list: &str| {
            let capabilities = field(discovered, "capabilities")?.slice(discovered);
            let list = field(capabilities, list)?.slice(capabilities);
            Some(field(list, "listChanged")?.slice(list) == b"true")
        };
        Self {
            tools: tells("tools").unwrap_or_default(),
            prompts: tells("prompts").unwrap_or_default(),
            resources: tells("resources").unwrap_or_default(),
            uris: Vec::new(),
        }
    }

    /// Whether nothing is subscribed.
    pub(crate) fn is_empty(&self) -> bool {
        !(self.tools || self.prompts || self.resources) && self.uris.is_empty()
    }

    /// Returns the subscribed resources with an acknowledgement.
    fn acknowledged_uris(&self, notifications: &[u8]) -> Vec<Arc<str>> {
        let list = field(notifications, "resourceSubscriptions");
        let list = list.map_or(&b""[..], |at| at.slice(notifications));
        let acknowledged: HashSet<_> = items(list)
            .filter_map(|at| parse_string(at.slice(list)))
            .collect();
        let wanted = self.uris.iter();
        wanted
            .filter(|uri| acknowledged.contains(uri.as_ref()))
            .cloned()
            .collect()
    }

    /// Returns the parameters of `subscriptions/listen`, without `_meta`.
    pub(crate) fn to_params(&self) -> Vec<u8> {
        let mut out = b"{\"notifications\":{".to_vec();
        for (wanted, key) in [
            (self.tools, "toolsListChanged"),
            (self.prompts, "promptsListChanged"),
            (self.resources, "resourcesListChanged"),
        ] {
            if wanted {
                write_string(&mut out, key);
                out.extend_from_slice(b":true,");
            }
        }
        if !self.uris.is_empty() {
            out.extend_from_slice(b"\"resourceSubscriptions\":[");
            for uri in &self.uris {
                write_string(&mut out, uri);
                out.push(b',');
            }
            out.pop_if(|byte| *byte == b',');
            out.extend_from_slice(b"],");
        }
        out.pop_if(|byte| *byte == b',');
        out.extend_from_slice(b"}}");
        out
    }
}

/// Resolves at the end of a change stream.
pub(crate) type ChangeStreamFuture = BoxFuture<'static, Result<ServerResponse, LinkError>>;

/// A requested change stream.
pub(crate) struct ChangeStream {
    /// Receives the `notifications` of `notifications/subscriptions/acknowledged`.
    pub(crate) acknowledged: oneshot::Receiver<Bytes>,
    /// Resolves at the end of the stream: `Ok` with the response of the server, even an error.
    /// A drop cancels the stream.
    pub(crate) finished: ChangeStreamFuture,
}

/// Interface between the listener task and the link.
pub(crate) trait ListenTransport: Send + Sync + 'static {
    /// Opens a change stream with a modern request.
    fn start_listen(self: &Arc<Self>, request: LinkRequest) -> ChangeStream;

    /// Returns the server name.
    fn server_name(&self) -> &str;

    /// Returns the event channel.
    fn event_sender(&self) -> &LinkEventSender;

    /// Waits until the link has closed.
    fn wait_link_closed(&self) -> BoxFuture<'_, LinkExit>;
}
