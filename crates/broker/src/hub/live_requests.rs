//! Live requests: never stored, answered over the connection of the requester.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bowline_core::client_handle::{ClientCapability, ClientHandle, SessionKey};
use bowline_core::error::{
    ExecutionStatus, FailureClass, FailureOrigin, FailureReport, RetryAdvice,
};
use bowline_core::sync::lock;
use bowline_core::time::{MonotonicTime, to_millis};
use bytes::Bytes;
use tokio::sync::oneshot;

use super::HubShared;
use super::peer_registry::{ConnectedPeer, PeerResponseWaiter, WaitingClient};
use super::quota::DeliveryPermit;
use super::read_loop::PeerReader;
use super::rights::{not_allowed, refusal};
use crate::frames::{BrokerFrame, BrokerResponse, LiveRequest, MailboxMessage, MessageSender};
use crate::mailbox::{MailboxName, check_message_id};
use crate::server_requests::RelayKey;
use crate::{BrokerCallError, REQUEST_TTL, ServeRequest};

/// Longest TTL of a live request.
const LIVE_TTL_MAX: Duration = Duration::from_secs(60 * 60);

/// Handles a live request of a peer.
pub(super) async fn handle_request(
    reader: &mut PeerReader<'_>,
    request: LiveRequest,
    permit: Option<DeliveryPermit>,
) {
    let (shared, peer) = (reader.shared, reader.peer);
    if check_message_id(&request.id).is_err() {
        let reason = "the name of the request is none";
        return reader.refuse_frame(refusal("bad_name", reason, None)).await;
    }
    if reader.live_handles.contains_key(&request.id) {
        let reason = "a request of this name is under way";
        let id = Some(&request.id);
        return reader.refuse_frame(refusal("conflict", reason, id)).await;
    }
    if reader.live_handles.len() >= shared.limits.requests_max || permit.is_none() {
        let retry = RetryAdvice::After(Duration::from_millis(100));
        let failure = broker_failure(
            FailureClass::Throttled,
            retry,
            "throttled",
            "too many requests at once",
        );
        send_response(peer, request.id, &BrokerResponse::Failed(failure)).await;
        return;
    }
    let is_other = |to: &&str| !shared.aliases.is_hub_name(to);
    let to = request.to.as_deref().filter(is_other);
    let to = to.map(MailboxName::parse).transpose();
    let allowed = match &to {
        Ok(to) => {
            let reaches = |to: &MailboxName| peer.admitted.can_reach(to);
            peer.admitted.matches_sender(request.caller.as_ref()) && to.as_ref().is_none_or(reaches)
        }
        Err(_) => false,
    };
    let (Ok(to), true) = (to, allowed) else {
        let refused = not_allowed(Some(&request.id));
        reader.report_refusal(&refused);
        let denied = broker_failure(
            FailureClass::Denied,
            RetryAdvice::Never,
            "not_allowed",
            &refused.reason,
        );
        send_response(peer, request.id, &BrokerResponse::Failed(denied)).await;
        return;
    };
    let id = Arc::clone(&request.id);
    let (shared, peer) = (Arc::clone(shared), Arc::clone(peer));
    let run = reader.live_tasks.spawn(async move {
        match to {
            None => serve_request(&shared, &peer, request).await,
            Some(to) => forward_request(&shared, &peer, &to, request).await,
        }
        drop(permit);
    });
    reader.live_handles.insert(id, run);
}

fn live_deadline(shared: &HubShared, ttl_ms: Option<u64>) -> MonotonicTime {
    let ttl = ttl_ms.map_or(REQUEST_TTL, Duration::from_millis);
    shared.now().plus(ttl.min(LIVE_TTL_MAX))
}

/// Serves a request to the hub.
async fn serve_request(shared: &HubShared, peer: &Arc<ConnectedPeer>, request: LiveRequest) {
    let id = Arc::clone(&request.id);
    let incoming = ServeRequest {
        sender: peer.stamp.clone(),
        principal: Some(Arc::clone(&peer.admitted.principal)),
        deadline: live_deadline(shared, request.ttl_ms),
        client: Some(PeerClientHandle::for_request(peer, &id)),
        message: MailboxMessage::from_live(request),
    };
    let response = shared.engine.handle_live(incoming).await;
    send_response(peer, id, &response).await;
}

/// Forwards a request to another peer and returns the response.
async fn forward_request(
    shared: &HubShared,
    peer: &Arc<ConnectedPeer>,
    to: &MailboxName,
    request: LiveRequest,
) {
    let live_request = PeerRequest {
        body: request.body,
        sender: peer.stamp.clone(),
        deadline: live_deadline(shared, request.ttl_ms),
        client: Some(PeerClientHandle::for_request(peer, &request.id)),
    };
    let other = lock(&shared.peers).subscriber(to);
    let body = match other {
        None => Err(BrokerCallError::NotSent("nobody is there".into())),
        Some(other) => request_peer(shared, &other, live_request).await,
    };
    match body {
        Ok(body) => {
            let id = request.id;
            peer.send(&BrokerFrame::Response { id, body }).await;
        }
        Err(error) => {
            send_response(
                peer,
                request.id,
                &BrokerResponse::Failed(to_failure(&error)),
            )
            .await
        }
    }
}

async fn send_response(peer: &ConnectedPeer, id: Arc<str>, response: &BrokerResponse) {
    // A disconnected peer does not wait for the response.
    let _ = peer.outgoing.send(response.to_response_frame(&id)).await;
}

fn broker_failure(
    class: FailureClass,
    retry: RetryAdvice,
    code: &str,
    reason: &str,
) -> FailureReport {
    FailureReport {
        class,
        execution: ExecutionStatus::NotStarted,
        retry,
        origin: FailureOrigin::Broker,
        code: code.into(),
        reason: reason.into(),
    }
}

/// Converts a call error to a failure for peers.
fn to_failure(error: &BrokerCallError) -> FailureReport {
    let (class, code, reason) = match error {
        BrokerCallError::NotSent(why) => (
            FailureClass::ConnectFailed,
            "not_connected",
            Arc::clone(why),
        ),
        BrokerCallError::Lost(why) => (
            FailureClass::ConnectionLost,
            "connection_lost",
            Arc::clone(why),
        ),
        BrokerCallError::Timeout(_) => {
            (FailureClass::Timeout, "timeout", "no answer in time".into())
        }
        BrokerCallError::Refused(failure) => return failure.clone(),
    };
    FailureReport {
        execution: error.execution(),
        ..broker_failure(class, RetryAdvice::Never, code, &reason)
    }
}

/// A live request to a peer.
#[derive(Debug)]
pub(super) struct PeerRequest {
    pub(super) body: Bytes,
    pub(super) sender: MessageSender,
    pub(super) deadline: MonotonicTime,
    pub(super) client: Option<Arc<dyn ClientHandle>>,
}

/// Sends a live request to a peer. Dropping the future cancels the request at the peer.
pub(super) async fn request_peer(
    shared: &HubShared,
    peer: &Arc<ConnectedPeer>,
    live_request: PeerRequest,
) -> Result<Bytes, BrokerCallError> {
    let client = WaitingClient::new(live_request.client);
    let extension = Arc::clone(&client.extension);
    let mut guard = LiveRequestGuard {
        peer: Arc::clone(peer),
        id: format!("q{}", shared.take_number()).into(),
        state: LiveRequestState::Unsent,
    };
    let work = async {
        // The limit of requests to a peer equals the limit announced to the peer.
        let Ok(_permit) = peer.live_permits.acquire().await else {
            return Err(BrokerCallError::NotSent("the peer is gone".into()));
        };
        let (response_sender, response) = oneshot::channel();
        {
            let mut peer_state = lock(&peer.state);
            if peer.is_over() {
                return Err(BrokerCallError::NotSent("the peer is gone".into()));
            }
            peer_state.pending.insert(
                Arc::clone(&guard.id),
                PeerResponseWaiter {
                    response: response_sender,
                    client,
                },
            );
        }
        let request = BrokerFrame::Request(LiveRequest {
            id: Arc::clone(&guard.id),
            to: None,
            body: live_request.body,
            ttl_ms: Some(to_millis(
                shared.now().duration_until(live_request.deadline),
            )),
            caller: Some(live_request.sender),
        });
        if !peer.send(&request).await {
            return Err(BrokerCallError::NotSent("the connection is lost".into()));
        }
        guard.state = LiveRequestState::Sent;
        let response = response.await;
        guard.state = LiveRequestState::Done;
        response.map_err(|_| BrokerCallError::Lost("the connection was lost".into()))
    };
    let clock = shared.clock().as_ref();
    let outcome = extension
        .run_until_deadline(clock, live_request.deadline, work)
        .await;
    outcome.unwrap_or_else(|| {
        let execution = match guard.state {
            LiveRequestState::Unsent => ExecutionStatus::NotStarted,
            LiveRequestState::Sent | LiveRequestState::Done => ExecutionStatus::Unknown,
        };
        Err(BrokerCallError::Timeout(execution))
    })
}

/// Removes the waiter of a live request on drop, and cancels the request at the peer.
#[derive(Debug)]
struct LiveRequestGuard {
    peer: Arc<ConnectedPeer>,
    id: Arc<str>,
    state: LiveRequestState,
}

#[derive(Clone, Copy, Debug)]
enum LiveRequestState {
    Unsent,
    Sent,
    Done,
}

impl Drop for LiveRequestGuard {
    fn drop(&mut self) {
        lock(&self.peer.state).pending.remove(&self.id);
        self.peer.server_requests.cancel_for_call(&self.id);
        if matches!(self.state, LiveRequestState::Sent) {
            self.peer.try_send(&BrokerFrame::Cancel {
                to: None,
                correlation_id: Arc::clone(&self.id),
            });
        }
    }
}

/// Completes a pending request with the peer's response. An unknown id is ignored.
pub(super) fn complete_response(peer: &ConnectedPeer, id: &str, body: Bytes) {
    let waiter = lock(&peer.state).pending.remove(id);
    match waiter {
        // The requester may be gone.
        Some(waiter) => drop(waiter.response.send(body)),
        None => tracing::debug!(mailbox = %peer.mailbox(), "response without a pending request"),
    }
}

/// Returns the client that waits for a request held by a peer, live or stored.
fn waiting_client(shared: &HubShared, peer: &ConnectedPeer, id: &str) -> Option<WaitingClient> {
    let live = lock(&peer.state)
        .pending
        .get(id)
        .map(|waiter| waiter.client.clone());
    live.or_else(|| lock(&shared.reply_waiters).client(peer.mailbox(), id))
}

/// Forwards a notification of a tool to the waiting client.
pub(super) fn forward_event(
    shared: &HubShared,
    peer: &ConnectedPeer,
    id: &str,
    notification: Bytes,
) {
    if let Some(client) = waiting_client(shared, peer, id).and_then(|waiter| waiter.handle) {
        client.notify(notification);
    }
}

/// Reports to the waiting client that a server request needed a missing capability.
pub(super) fn forward_missing_capability(
    shared: &HubShared,
    peer: &ConnectedPeer,
    id: &str,
    capability: ClientCapability,
) {
    if let Some(client) = waiting_client(shared, peer, id).and_then(|waiter| waiter.handle) {
        client.note_missing_capability(capability);
    }
}

/// Relays a server request of a peer's server to the waiting client.
pub(super) fn relay_server_request(
    shared: &Arc<HubShared>,
    peer: &Arc<ConnectedPeer>,
    id: Arc<str>,
    number: u64,
    request: Bytes,
) {
    let client = waiting_client(shared, peer, &id).unwrap_or_default();
    let extension = Arc::clone(&client.extension);
    extension.start_wait(shared.now());
    let (from, hub) = (Arc::downgrade(peer), Arc::downgrade(shared));
    let request_id = Arc::clone(&id);
    let reply = move |answer| {
        let (Some(peer), Some(shared)) = (from.upgrade(), hub.upgrade()) else {
            return;
        };
        extension.end_wait(shared.now());
        let id = request_id;
        let frame = BrokerFrame::ServerRequestReply { id, number, answer };
        // Without an answer, the server would wait as long as a person may take.
        if !peer.try_send(&frame) {
            shared.tasks().spawn("broker response", async move {
                peer.send(&frame).await;
            });
        }
    };
    let key = RelayKey { id, number };
    peer.server_requests
        .relay_to_client(client.handle.as_ref(), &key, request, reply);
}

/// Client handle of a request: sends notifications to the connection of the requester.
#[derive(Debug)]
pub(super) struct PeerClientHandle {
    peer: Weak<ConnectedPeer>,
    id: Arc<str>,
}

impl PeerClientHandle {
    pub(super) fn for_request(peer: &Arc<ConnectedPeer>, id: &Arc<str>) -> Arc<dyn ClientHandle> {
        Arc::new(Self {
            peer: Arc::downgrade(peer),
            id: Arc::clone(id),
        })
    }
}

impl ClientHandle for PeerClientHandle {
    fn session(&self) -> SessionKey {
        SessionKey(0)
    }

    fn notify(&self, notification: Bytes) {
        let Some(peer) = self.peer.upgrade() else {
            return;
        };
        let event = BrokerFrame::Event {
            id: Arc::clone(&self.id),
            notification,
        };
        if !peer.try_send(&event) {
            peer.events_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        Arc::new(bowline_core::client_handle::NullClient::new(SessionKey(0)))
    }
}
