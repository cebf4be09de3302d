//! A peer's server as a link: supervised, listed and called like any other server.
//!
//! The link closes with the connection: the server is then shown as away with the last known
//! tools, and calls wait for the next link. Pending requests continue: the broker client knows
//! whether each request survives a lost connection.

mod client_filter;
mod peer_translation;
mod remote_server;
mod server_info;
mod server_watcher;
mod session_names;
pub(super) mod tool_index;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use bowline_core::BoxFuture;
use bowline_core::call::{BodyKind, ServerResponse};
use bowline_core::client_handle::SessionKey;
use bowline_core::error::ExecutionStatus;
use bowline_core::pending_table::SendState;
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_link::{
    InFlightGuard, Link, LinkConnectError, LinkError, LinkEvent, LinkExit, LinkRequest, ServerInfo,
};
use bowline_runtime::{Clock, TaskTracker};
use bowline_wire::mcp::{code, method};
use bowline_wire::object;
use bowline_wire::splice::write_string;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

use self::client_filter::FilteredClientHandle;
use self::peer_translation::{renamed_params, to_link_response};
use self::server_info::{offered_info, tools_only_info};
use self::server_watcher::{PeerServerWatcher, offered_server};
use self::session_names::SessionNames;
use self::tool_index::ToolIndex;
use crate::frames::{
    BrokerArguments, BrokerRequest, CallWithContext, CallerContext, MessageSender, SessionEvent,
};
use crate::mailbox::HUB;
use crate::{BrokerCall, BrokerCallError, NotificationHandler, RemotePeer};

pub use bowline_core::peer_role::PeerRole;
pub use remote_server::RemoteServer;

/// Queued events. List changes are kept beside the queue; other events are dropped when full.
const EVENTS_MAX: usize = 64;

/// A link to one server of a peer.
#[derive(Debug)]
pub struct PeerLink {
    remote: Arc<dyn RemotePeer>,
    side: PeerRole,
    clock: Arc<dyn Clock>,
    /// The tools of the server, with repeatability.
    tools: ToolIndex,
    /// Whether the peer accepts every MCP request for the server and relays server requests.
    forwards_all: bool,
    /// Resources of a modern server that the peer is subscribed to.
    subscribed_uris: Mutex<BTreeSet<Arc<str>>>,
    /// Session names known to the peer.
    session_names: Arc<SessionNames>,
    events: mpsc::Sender<LinkEvent>,
    in_flight: AtomicUsize,
    /// How the link closed, if closed. [`LinkExit::Stopping`] also ends pending requests.
    exit: watch::Sender<Option<LinkExit>>,
    info: ServerInfo,
}

/// Returns the run and trace of a request, and nothing else.
fn base_context(request: &LinkRequest) -> CallerContext {
    let identity = request.caller_identity.as_deref();
    CallerContext {
        run: identity.and_then(|identity| identity.run.clone()),
        trace: request.message.trace.as_deref().cloned().map(Box::new),
        ..CallerContext::default()
    }
}

/// Returns the error for an absent peer.
fn peer_away_error(server: &Arc<str>, peer: &RemoteServer) -> LinkConnectError {
    LinkConnectError::Refused {
        server: Arc::clone(server),
        source: LinkError::Unreachable(format!("{} is away", peer.display_target()).into()),
    }
}

impl PeerLink {
    /// Waits for a recently connected peer, and opens a link to the offered server.
    /// # Errors
    /// The peer is away.
    pub async fn connect(
        name: &Arc<str>,
        spec: &RemoteServer,
        clock: &Arc<dyn Clock>,
        tasks: &TaskTracker,
        deadline: Instant,
    ) -> Result<(Arc<dyn Link>, mpsc::Receiver<LinkEvent>), LinkConnectError> {
        let remote = &spec.remote;
        let mut changes = remote.subscribe_changes();
        if !remote.is_connected() {
            let connected =
                async { while !remote.is_connected() && changes.changed().await.is_ok() {} };
            if spec.take_wait_permission() {
                let _late = timeout_at(deadline, connected).await;
            }
        }
        if !remote.is_connected() {
            return Err(peer_away_error(name, spec));
        }
        spec.mark_reachable();
        let (events, event_receiver) = mpsc::channel(EVENTS_MAX);
        let manifest = remote.manifest();
        let offered = offered_server(&manifest, &spec.server);
        let link = Arc::new(Self {
            remote: Arc::clone(remote),
            side: spec.role,
            clock: Arc::clone(clock),
            tools: ToolIndex::new(&spec.server, &manifest),
            forwards_all: offered.is_some(),
            subscribed_uris: Mutex::default(),
            session_names: Arc::clone(&spec.session_names),
            events: events.clone(),
            in_flight: AtomicUsize::new(0),
            exit: watch::Sender::new(None),
            info: offered.map_or_else(|| tools_only_info(&spec.server), offered_info),
        });
        let handler: Weak<dyn NotificationHandler> =
            Arc::downgrade(&(Arc::clone(&link) as Arc<dyn NotificationHandler>));
        remote.set_notification_handler(&spec.server, handler);
        let exit = link.exit.subscribe();
        let watcher = PeerServerWatcher {
            link: Arc::downgrade(&link),
            changes,
            exit,
            events,
        };
        tasks.spawn("peer link", watcher.run(manifest));
        Ok((link, event_receiver))
    }

    async fn handle_request(&self, request: LinkRequest) -> Result<ServerResponse, LinkError> {
        match request.method.as_ref() {
            method::PING => Ok(request.result_response(b"{}")),
            method::TOOLS_LIST if !self.forwards_all => {
                self.tools.refresh(&self.remote.manifest());
                Ok(request.result_response(&self.tools.list_page()))
            }
            method::TOOLS_CALL => self.call_tool(request).await,
            _ if self.forwards_all => self.forward_request(request).await,
            other => {
                let message = format!("`{other}` does not go to a peer");
                Ok(request.error_response(code::METHOD_NOT_FOUND, &message, None))
            }
        }
    }

    async fn call_tool(&self, request: LinkRequest) -> Result<ServerResponse, LinkError> {
        let params = renamed_params(&request);
        let Some(tool) = object::text_field(&params, "name").map(Arc::<str>::from) else {
            let message = "the call names no tool";
            return Ok(request.error_response(code::INVALID_PARAMS, message, None));
        };
        self.tools.refresh(&self.remote.manifest());
        let Some(repeatable) = self.tools.repeatability(&tool) else {
            let message = format!("Unknown tool: {tool}");
            return Ok(request.error_response(code::INVALID_PARAMS, &message, None));
        };
        let context = match self.forwards_all {
            true => self.request_context(&request),
            false => base_context(&request),
        };
        let arguments = match self.forwards_all || !context.is_empty() {
            true => {
                BrokerArguments::ParamsWithContext(Box::new(CallWithContext { params, context }))
            }
            false => BrokerArguments::Params(params),
        };
        let broker_request = BrokerRequest::Call {
            tool,
            server: Some(Arc::clone(self.tools.server())),
            arguments,
        };
        let stored = !repeatable;
        self.send_request(request, broker_request, stored).await
    }

    /// Forwards a request other than a tool call, as a live request.
    async fn forward_request(&self, request: LinkRequest) -> Result<ServerResponse, LinkError> {
        let lists_tools = request.method == method::TOOLS_LIST;
        let broker_request = BrokerRequest::Mcp {
            server: Arc::clone(self.tools.server()),
            method: request.method.as_ref().into(),
            params: Some(renamed_params(&request)).filter(|params| !params.is_empty()),
            context: self.request_context(&request),
        };
        let response = self.send_request(request, broker_request, false).await?;
        if lists_tools && response.body == BodyKind::Result {
            self.tools.learn_page(response.body_bytes());
        }
        Ok(response)
    }

    async fn send_request(
        &self,
        request: LinkRequest,
        broker_request: BrokerRequest,
        stored: bool,
    ) -> Result<ServerResponse, LinkError> {
        let caller = match (self.side, &request.caller_identity) {
            (PeerRole::Worker, Some(identity)) => Some(MessageSender {
                session_id: HUB.into(),
                role: identity.role.clone(),
                principal: Some(Arc::clone(&identity.principal)),
            }),
            (PeerRole::Worker, None) | (PeerRole::Hub, _) => None,
        };
        let client = request.message.client.as_ref().map(|caller| {
            let token = request.message.progress_at.clone();
            let token =
                token.and_then(|at| request.message.params.get(at).map(Bytes::copy_from_slice));
            FilteredClientHandle::wrap(caller, token)
        });
        let call = BrokerCall {
            request: broker_request,
            stored,
            deadline: self.to_now(request.deadline),
            sender: caller,
            client,
        };
        match self.remote.call(call).await {
            Ok(response) => to_link_response(&request, response),
            Err(error) => Err(self.to_link_error(error)),
        }
    }

    /// Returns the caller context visible to the server.
    fn request_context(&self, request: &LinkRequest) -> CallerContext {
        let context = CallerContext {
            era: request.message.era,
            ..base_context(request)
        };
        match &request.message.client {
            None => context,
            Some(caller) => CallerContext {
                session: self.session_names.register(caller.session()),
                capabilities: caller.capabilities(),
                level: caller.log_level(),
                ..context
            },
        }
    }

    /// Subscribes or unsubscribes a resource; `false` if the server refused.
    async fn send_subscription(
        &self,
        method: &'static str,
        uri: &str,
        deadline: Instant,
    ) -> Result<bool, LinkError> {
        let mut params = Vec::from(&b"{\"uri\":"[..]);
        write_string(&mut params, uri);
        params.push(b'}');
        let request = LinkRequest::new_internal(method, params.into(), deadline);
        let response = Link::request(self, request).await?;
        Ok(response.body == BodyKind::Result)
    }

    /// Returns whether the subscription was accepted; `None` if the peer did not respond. While the
    /// link is open, a missing response affects only this resource and is retried on the next
    /// change.
    fn subscription_result(
        &self,
        uri: &str,
        result: Result<bool, LinkError>,
    ) -> Result<Option<bool>, LinkError> {
        match result {
            Ok(is_accepted) => Ok(Some(is_accepted)),
            Err(error) if self.exit_state().is_none() => {
                tracing::warn!(server = %self.tools.server(), uri, %error, "subscription failed");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Converts a call error to a link error.
    fn to_link_error(&self, error: BrokerCallError) -> LinkError {
        match error {
            BrokerCallError::NotSent(reason) => {
                if self.remote.is_connected() {
                    return LinkError::Unreachable(reason);
                }
                self.close_as(LinkExit::Gone);
                LinkError::Closed(LinkExit::Gone)
            }
            BrokerCallError::Lost(_) => {
                // The current connection, if any, is a newer connection.
                self.close_as(LinkExit::Gone);
                LinkError::Lost(LinkExit::Gone)
            }
            BrokerCallError::Timeout(execution) => LinkError::Timeout {
                sent: match execution {
                    ExecutionStatus::NotStarted => SendState::NotSent,
                    ExecutionStatus::Unknown | ExecutionStatus::Completed => SendState::MaybeSent,
                },
            },
            BrokerCallError::Refused(failure) => LinkError::RemoteFailure(Arc::new(failure)),
        }
    }

    /// Converts a deadline to the host clock.
    fn to_now(&self, deadline: Instant) -> MonotonicTime {
        let now = self.clock.now();
        now.plus(deadline.saturating_duration_since(self.clock.instant(now)))
    }

    fn close_as(&self, exit: LinkExit) {
        self.exit.send_if_modified(|current| {
            // A stop also ends the requests of a closed link.
            let is_news =
                current.is_none() || (exit == LinkExit::Stopping && *current != Some(exit));
            if is_news {
                *current = Some(exit);
            }
            is_news
        });
    }

    async fn wait_exit(&self, predicate: impl Fn(LinkExit) -> bool) -> LinkExit {
        let mut state = self.exit.subscribe();
        // The sender lives in `self`, so the channel cannot close.
        let exit = state.wait_for(|state| state.is_some_and(&predicate)).await;
        exit.ok().and_then(|exit| *exit).unwrap_or(LinkExit::Gone)
    }

    fn exit_state(&self) -> Option<LinkExit> {
        if let Some(exit) = *self.exit.borrow() {
            return Some(exit);
        }
        (!self.remote.is_connected()).then_some(LinkExit::Gone)
    }
}

impl Link for PeerLink {
    fn request(&self, request: LinkRequest) -> BoxFuture<'_, Result<ServerResponse, LinkError>> {
        Box::pin(async move {
            if let Some(exit) = self.exit_state() {
                return Err(LinkError::Closed(exit));
            }
            let _waiting = InFlightGuard::new(&self.in_flight);
            tokio::select! {
                biased;
                answer = self.handle_request(request) => answer,
                exit = self.wait_exit(|exit| exit == LinkExit::Stopping) => {
                    Err(LinkError::Lost(exit))
                }
            }
        })
    }

    /// Nothing to send: dropping a call cancels the call at the peer.
    fn notify(&self, _method: &str, _params: Option<&[u8]>) -> Result<(), LinkError> {
        self.exit_state()
            .map_or(Ok(()), |exit| Err(LinkError::Closed(exit)))
    }

    fn is_open(&self) -> bool {
        self.exit_state().is_none()
    }

    fn wait_closed(&self) -> BoxFuture<'_, LinkExit> {
        Box::pin(self.wait_exit(|_| true))
    }

    fn close(&self) -> BoxFuture<'_, LinkExit> {
        self.close_as(LinkExit::Stopping);
        Box::pin(self.wait_exit(|_| true))
    }

    fn pid(&self) -> Option<u32> {
        None
    }

    /// Subscribes by requests to the peer, in either protocol era.
    fn subscribe_resources(
        &self,
        uris: Vec<Arc<str>>,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<Vec<Arc<str>>, LinkError>> {
        Box::pin(async move {
            let wanted: BTreeSet<_> = uris.into_iter().collect();
            let subscribed = lock(&self.subscribed_uris).clone();
            for uri in subscribed.difference(&wanted) {
                let subscription =
                    self.send_subscription(method::RESOURCES_UNSUBSCRIBE, uri, deadline);
                if self.subscription_result(uri, subscription.await)?.is_some() {
                    lock(&self.subscribed_uris).remove(uri);
                }
            }
            for uri in wanted.difference(&subscribed) {
                let subscription =
                    self.send_subscription(method::RESOURCES_SUBSCRIBE, uri, deadline);
                if self.subscription_result(uri, subscription.await)? == Some(true) {
                    lock(&self.subscribed_uris).insert(Arc::clone(uri));
                }
            }
            let now = lock(&self.subscribed_uris).iter().cloned().collect();
            Ok(now)
        })
    }

    fn on_session_ended(&self, session: SessionKey) {
        if let Some(name) = self.session_names.remove(session) {
            let server = self.tools.server();
            self.remote
                .notify_session_event(server, name, SessionEvent::Ended);
        }
    }

    fn on_roots_changed(&self, session: SessionKey) {
        if let Some(name) = self.session_names.known_name(session) {
            let server = self.tools.server();
            self.remote
                .notify_session_event(server, name, SessionEvent::RootsChanged);
        }
    }

    fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    fn server_info(&self) -> &ServerInfo {
        &self.info
    }
}
