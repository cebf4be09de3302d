//! How a server of the modern era is listened to between calls: one request that stays open, and
//! that is made anew when what is wanted changes or when it is lost.

use std::collections::HashSet;
use std::sync::Arc;

use bowline_wire::object::{field, items, string};
use bowline_wire::splice::write_string;
use bytes::Bytes;
use tokio::sync::oneshot;

use crate::desk::Events;
use crate::link::{Answer, BoxFuture, Exit, LinkError, Request};

mod listener;

pub(crate) use listener::{Listener, listen};

/// Resources of one server of which news may be wanted.
pub(crate) const RESOURCES_MAX: usize = 4_096;

/// What a server is asked to tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// That its tools changed.
    pub tools: bool,
    /// That its prompts changed.
    pub prompts: bool,
    /// That its list of resources changed.
    pub resources: bool,
    /// That one of these resources changed.
    pub uris: Vec<Arc<str>>,
}

impl Filter {
    /// Returns what a server declares that it tells, of its lists; `discovered` is its answer to
    /// `server/discover`.
    pub(crate) fn declared(discovered: &[u8]) -> Self {
        let tells = |list: &str| {
            let capabilities = field(discovered, "capabilities")?.of(discovered);
            let list = field(capabilities, list)?.of(capabilities);
            Some(field(list, "listChanged")?.of(list) == b"true")
        };
        Self {
            tools: tells("tools").unwrap_or_default(),
            prompts: tells("prompts").unwrap_or_default(),
            resources: tells("resources").unwrap_or_default(),
            uris: Vec::new(),
        }
    }

    /// Whether it wants nothing.
    pub(crate) fn is_empty(&self) -> bool {
        !(self.tools || self.prompts || self.resources) && self.uris.is_empty()
    }

    /// Returns those resources of which a server will tell, by what it agreed to.
    fn agreed(&self, notifications: &[u8]) -> Vec<Arc<str>> {
        let list = field(notifications, "resourceSubscriptions");
        let list = list.map_or(&b""[..], |at| at.of(notifications));
        let told: HashSet<_> = items(list).filter_map(|at| string(at.of(list))).collect();
        let wanted = self.uris.iter();
        wanted
            .filter(|uri| told.contains(uri.as_ref()))
            .cloned()
            .collect()
    }

    /// Returns the parameters of `subscriptions/listen`, without `_meta`.
    pub(crate) fn params(&self) -> Vec<u8> {
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

/// A stream of changes while it lasts.
pub(crate) type Streaming = BoxFuture<'static, Result<Answer, LinkError>>;

/// A stream of changes that was asked for.
pub(crate) struct Opened {
    /// Takes the `notifications` of `notifications/subscriptions/acknowledged`.
    pub(crate) agreed: oneshot::Receiver<Bytes>,
    /// Ends with the stream: `Ok` where the server answered the request, be it with an error.
    /// Dropped, it takes the stream back.
    pub(crate) over: Streaming,
}

/// What a link gives the one who listens.
pub(crate) trait Ear: Send + Sync + 'static {
    /// Sends a request that opens a stream of changes; it is of the modern era already.
    fn open(self: &Arc<Self>, request: Request) -> Opened;

    /// Returns the name of the server.
    fn server(&self) -> &str;

    /// Where changes go.
    fn events(&self) -> &Events;

    /// Waits until the link is gone.
    fn gone(&self) -> BoxFuture<'_, Exit>;
}
