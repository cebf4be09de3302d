//! Conversation with a server over many HTTP requests: pending requests, phase and queues.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bowline_core::call::ServerResponse;
use bowline_core::era::Era;
use bowline_core::pending_table::SendState;
use bowline_core::sync::lock;
use bowline_wire::mcp::method;
use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::Instant;

use super::endpoint::HttpEndpoint;
use super::http_client::{HttpBody, HttpClient};
use super::http_session::SessionHeaders;
use super::pending_guard::HttpPendingGuard;
use super::sender::{HttpSender, RequestKind};
use super::{HttpSpec, change_stream, routing_headers};
use crate::demux::{
    self, Demux, DemuxCounters, LinkEventSender, PendingRequest, PendingRequests, ResponseReceiver,
};
use crate::link::{LinkError, LinkEvent, LinkExit, LinkRequest, NotSentReason};
use crate::rpc;
use crate::stdio::{ClientInfo, declared_capabilities};

/// HTTP mode of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpMode {
    /// Streamable HTTP: a response arrives with the request.
    Streamable,
    /// HTTP+SSE: all responses arrive on a single stream.
    Sse,
    /// Modern: a response arrives with the request, without a session; closing the stream cancels
    /// the request.
    Stateless,
}

impl HttpMode {
    /// Returns the era of the mode.
    pub(super) const fn era(self) -> Era {
        match self {
            Self::Streamable | Self::Sse => Era::Legacy,
            Self::Stateless => Era::Modern,
        }
    }
}

/// Phase of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConversationPhase {
    /// Requests are accepted.
    Open,
    /// No new requests; the session is being ended.
    Ending,
    /// The link has ended.
    Ended(LinkExit),
}

/// State shared by all requests of a link.
#[derive(Debug)]
pub(super) struct HttpConversation {
    pub(super) spec: HttpSpec,
    pub(super) client: ClientInfo,
    pub(super) mode: HttpMode,
    /// Endpoint for posts.
    pub(super) endpoint: HttpEndpoint,
    pub(super) sender: HttpSender,
    pub(super) events: LinkEventSender,
    pub(super) session: watch::Sender<Arc<SessionHeaders>>,
    /// A single permit: the holder renews the session for all requests.
    pub(super) renewing: Semaphore,
    /// A single permit: the holder reads a large response.
    pub(super) large_reads: Arc<Semaphore>,
    /// Wakes the task for due events.
    pub(super) events_due: Notify,
    state: Mutex<ConversationState>,
    /// Mirrors `ConversationState::phase` for waiting tasks.
    phase: watch::Sender<ConversationPhase>,
    /// Messages without a response.
    outbox: mpsc::Sender<Bytes>,
    /// Bodies to drain after the response.
    trailing_bodies: mpsc::Sender<HttpBody>,
    /// Next id of a listen request.
    next_listen_id: AtomicU64,
    counters: DemuxCounters,
}

#[derive(Debug)]
struct ConversationState {
    phase: ConversationPhase,
    requests: PendingRequests,
}

/// Receiving ends of a conversation, a task for each.
#[derive(Debug)]
pub(super) struct ConversationQueues {
    pub(super) outbox: mpsc::Receiver<Bytes>,
    pub(super) trailing_bodies: mpsc::Receiver<HttpBody>,
}

/// Queued bodies to drain.
const RESTS_MAX: usize = 64;

impl HttpConversation {
    pub(super) fn new(
        spec: &HttpSpec,
        http: Arc<dyn HttpClient>,
        client: ClientInfo,
        mode: HttpMode,
        endpoint: HttpEndpoint,
        events: mpsc::Sender<LinkEvent>,
    ) -> (Arc<Self>, ConversationQueues) {
        let (outbox, outbox_receiver) = mpsc::channel(spec.limits.outbox_max.max(1));
        let (trailing_bodies, bodies_receiver) = mpsc::channel(RESTS_MAX);
        // Capacity for a request beyond the limit, so a session renewal always fits.
        let session = match mode {
            HttpMode::Streamable | HttpMode::Sse => SessionHeaders::before_handshake(),
            HttpMode::Stateless => SessionHeaders::new_stateless(),
        };
        let waiters_max = spec.limits.in_flight_max.saturating_add(1);
        let conversation = Self {
            session: watch::Sender::new(Arc::new(session)),
            client,
            mode,
            endpoint,
            sender: HttpSender::new(http, Arc::clone(&spec.credentials)),
            events: LinkEventSender::new(events),
            renewing: Semaphore::new(1),
            large_reads: Arc::new(Semaphore::new(1)),
            events_due: Notify::new(),
            state: Mutex::new(ConversationState {
                phase: ConversationPhase::Open,
                requests: PendingRequests::new(waiters_max, spec.owner.clone()),
            }),
            phase: watch::Sender::new(ConversationPhase::Open),
            outbox,
            trailing_bodies,
            next_listen_id: AtomicU64::new(change_stream::LISTEN_ID_MIN),
            counters: DemuxCounters::default(),
            spec: spec.clone(),
        };
        let queues = ConversationQueues {
            outbox: outbox_receiver,
            trailing_bodies: bodies_receiver,
        };
        (Arc::new(conversation), queues)
    }

    /// Sends a request and waits for the response.
    pub(super) fn request(
        self: &Arc<Self>,
        request: LinkRequest,
    ) -> impl Future<Output = Result<ServerResponse, LinkError>> + Send {
        // Consume the request here: values moved into the future stay during the wait.
        let (retry, deadline) = (RetryRule::from_method(&request.method), request.deadline);
        let registered = self.register_call(request);
        async move {
            let (mut waiting, mut response, kind) = registered?;
            let id = waiting.id();
            let carrying = pin!(self.deliver_request(id, kind, retry, deadline));
            let outcome = self
                .drive_exchange(id, &mut response, deadline, carrying)
                .await;
            waiting.settle(outcome, &mut response)
        }
    }

    fn register_call(
        &self,
        request: LinkRequest,
    ) -> Result<(HttpPendingGuard<'_>, ResponseReceiver, RequestKind), LinkError> {
        let (id, receiver) = self.register_request(&request, self.spec.limits.in_flight_max)?;
        let waiting = HttpPendingGuard::new(self, id);
        Ok((waiting, receiver, self.request_kind(id, request)?))
    }

    /// Serializes a request. Parameters can be large and the wait long, so nothing else is kept.
    pub(super) fn request_kind(
        &self,
        id: u64,
        request: LinkRequest,
    ) -> Result<RequestKind, LinkError> {
        let body = strip_newline(rpc::request_frame(
            id,
            &request,
            rpc::TracePlacement::Header,
        ));
        let bytes_max = self.spec.limits.body_bytes_max;
        if body.len() > bytes_max {
            return Err(LinkError::NotSent(NotSentReason::TooLarge { bytes_max }));
        }
        match self.mode {
            HttpMode::Streamable | HttpMode::Sse => Ok(RequestKind::new_call(
                body,
                request.message.trace,
                request.idempotency_header,
            )),
            HttpMode::Stateless => {
                routing_headers::stateless_request(&self.session.borrow(), body, request)
            }
        }
    }

    /// Returns the size limit of the response to a request.
    pub(super) fn response_bytes_max(&self, id: u64) -> usize {
        let limits = &self.spec.limits;
        let kind = self.with_pending(|requests| requests.pending.get(id).map(|entry| entry.kind));
        kind.map_or(limits.body_bytes_max, |kind| {
            limits.large.bytes_max(kind, limits.body_bytes_max)
        })
    }

    /// Waits for a response while `delivery` sends the request; `None` when the deadline came
    /// first. Borrowed, as a moved future would be stored twice.
    pub(super) async fn drive_exchange(
        &self,
        id: u64,
        response: &mut ResponseReceiver,
        deadline: Instant,
        delivery: Pin<&mut impl Future<Output = Result<(), LinkError>>>,
    ) -> Option<Result<ServerResponse, LinkError>> {
        let mut waiting = pin!(demux::wait_response(self, id, response, deadline));
        tokio::select! {
            biased;
            carried = delivery => match carried {
                Ok(()) => waiting.await,
                Err(error) => Some(Err(error)),
            },
            // The response arrived on another stream, or the wait has ended.
            waited = &mut waiting => waited,
        }
    }

    /// Queues a message without a response.
    pub(super) fn queue_post(&self, message: Bytes) -> Result<(), LinkError> {
        if let Some(exit) = self.exit() {
            return Err(LinkError::Closed(exit));
        }
        if self.mode == HttpMode::Stateless {
            // Modern servers accept requests only.
            DemuxCounters::increment(&self.counters.dropped);
            return Ok(());
        }
        let queued = self.outbox.try_send(message);
        queued.map_err(|_| LinkError::NotSent(NotSentReason::QueueFull))
    }

    /// Registers a pending request, up to `in_flight_max`.
    pub(super) fn register_request(
        &self,
        request: &LinkRequest,
        in_flight_max: usize,
    ) -> Result<(u64, ResponseReceiver), LinkError> {
        let (entry, receiver) = PendingRequest::new(request);
        let mut state = lock(&self.state);
        if let Some(exit) = state.phase.exit() {
            return Err(LinkError::Closed(exit));
        }
        let busy = LinkError::Busy { in_flight_max };
        if state.requests.pending.len() >= in_flight_max {
            return Err(busy);
        }
        let id = state.requests.pending.register(entry).map_err(|_| busy)?;
        Ok((id, receiver))
    }

    /// Dispatches a server text; returns whether the request `via` is no longer pending.
    pub(super) fn dispatch_text(self: &Arc<Self>, text: Bytes, via: Option<u64>) -> bool {
        for _ in 0..demux::dispatch_text(self, &self.events, text, via) {
            DemuxCounters::increment(&self.counters.noise);
        }
        if self.events.has_due() {
            self.events_due.notify_one();
        }
        via.is_some_and(|id| !self.is_pending(id))
    }

    /// Returns the id of a new listen request.
    pub(super) fn next_listen_id(&self) -> u64 {
        self.next_listen_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts a misplaced message.
    pub(super) fn count_stray(&self) {
        DemuxCounters::increment(&self.counters.dropped);
    }

    pub(super) fn is_pending(&self, id: u64) -> bool {
        self.with_pending(|requests| requests.pending.get(id).is_some())
    }

    /// Whether a request has a client for server requests.
    pub(super) fn has_caller(&self, id: u64) -> bool {
        let has = |entry: &PendingRequest| entry.caller.is_some();
        self.with_pending(|requests| requests.pending.get(id).is_some_and(has))
    }

    /// Drains a body after the response, so the connection becomes reusable.
    pub(super) fn drain_body(&self, rest: HttpBody) {
        if !rest.is_buffered() {
            // With a full queue the body is dropped, and the connection closes.
            let _ = self.trailing_bodies.try_send(rest);
        }
    }

    pub(super) fn capabilities(&self) -> bowline_core::client_handle::ClientCapabilities {
        declared_capabilities(self.spec.owner.as_ref())
    }

    /// Returns the exit of an ended or ending link.
    pub(super) fn exit(&self) -> Option<LinkExit> {
        lock(&self.state).phase.exit()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.with_pending(|requests| requests.pending.len())
    }

    /// Stops accepting requests and ends the session.
    pub(super) fn begin_shutdown(&self) {
        self.set_phase(ConversationPhase::Ending);
    }

    /// Stops accepting requests because the server is gone. Requests in flight end with the own
    /// connections.
    pub(super) fn mark_lost(&self) {
        self.set_phase(ConversationPhase::Ended(LinkExit::Gone));
    }

    /// Ends the link and fails all pending requests.
    pub(super) fn finish(&self, exit: LinkExit) {
        self.set_phase(ConversationPhase::Ended(exit));
        let requests = self.with_pending(|requests| requests.pending.drain().collect::<Vec<_>>());
        for (entry, sent) in requests {
            let _ = entry.response.send(Err(match sent {
                SendState::NotSent => LinkError::Closed(exit),
                SendState::MaybeSent => LinkError::Lost(exit),
            }));
        }
    }

    fn set_phase(&self, phase: ConversationPhase) {
        let mut state = lock(&self.state);
        let goes_on = match (state.phase, phase) {
            (ConversationPhase::Open, _) => true,
            (ConversationPhase::Ending, ConversationPhase::Ended(_)) => true,
            (ConversationPhase::Ending | ConversationPhase::Ended(_), _) => false,
        };
        if goes_on {
            state.phase = phase;
            // Sent under the lock, so waiting tasks see phases in order.
            self.phase.send_replace(phase);
        }
    }

    /// Waits until no more requests are accepted.
    pub(super) async fn wait_closing(&self) -> ConversationPhase {
        self.wait_phase(|phase| *phase != ConversationPhase::Open)
            .await
    }

    /// Waits for the end of the link.
    pub(super) async fn wait_ended(&self) -> LinkExit {
        let ended = self.wait_phase(|phase| matches!(phase, ConversationPhase::Ended(_)));
        ended.await.exit().unwrap_or(LinkExit::Gone)
    }

    async fn wait_phase(
        &self,
        predicate: impl FnMut(&ConversationPhase) -> bool + Send,
    ) -> ConversationPhase {
        let mut phase = self.phase.subscribe();
        let reached = phase.wait_for(predicate).await;
        reached.map_or(ConversationPhase::Ended(LinkExit::Gone), |phase| *phase)
    }
}

impl ConversationPhase {
    const fn exit(self) -> Option<LinkExit> {
        match self {
            Self::Open => None,
            Self::Ending => Some(LinkExit::Stopping),
            Self::Ended(exit) => Some(exit),
        }
    }
}

impl Demux for HttpConversation {
    fn with_pending<R>(&self, action: impl FnOnce(&mut PendingRequests) -> R) -> R {
        action(&mut lock(&self.state).requests)
    }

    fn send_reply(self: &Arc<Self>, reply: Vec<u8>) {
        if self.queue_post(reply.into()).is_err() {
            DemuxCounters::increment(&self.counters.dropped);
        }
    }

    fn counters(&self) -> &DemuxCounters {
        &self.counters
    }

    fn server_name(&self) -> &str {
        &self.spec.server
    }

    fn accepts_requests(&self) -> bool {
        self.mode != HttpMode::Stateless
    }
}

/// Whether the link may repeat a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryRule {
    /// After a transient failure.
    Transient,
    /// Never, as the request might run twice.
    Never,
}

impl RetryRule {
    fn from_method(method: &str) -> Self {
        if matches!(method, method::TOOLS_LIST | method::DISCOVER) {
            Self::Transient
        } else {
            Self::Never
        }
    }
}

/// Removes the line end.
pub(super) fn strip_newline(mut line: Vec<u8>) -> Bytes {
    line.pop_if(|byte| *byte == b'\n');
    line.into()
}

#[cfg(test)]
mod tests {
    use std::mem::size_of_val;

    use bowline_core::era::EraSetting;

    use super::super::http1::{Http1Client, HttpClientLimits};
    use super::super::upstream_credentials::NoCredentials;
    use super::super::{HttpLimits, HttpTransport};
    use super::*;

    /// Many calls wait at once with such a future; 48 bytes are for the permit of a large
    /// response.
    const CALL_FUTURE_BYTES_MAX: usize = 1280;

    #[test]
    fn waiting_call_future_is_small() {
        let endpoint = HttpEndpoint::parse("http://127.0.0.1:1/mcp").unwrap();
        let spec = HttpSpec {
            server: "tracker".into(),
            url: endpoint.clone(),
            transport: HttpTransport::Auto,
            credentials: Arc::new(NoCredentials),
            owner: None,
            era_setting: EraSetting::Auto,
            limits: HttpLimits::default(),
        };
        let http = Arc::new(Http1Client::new(HttpClientLimits::default()).unwrap());
        let info = ClientInfo {
            name: "probe".into(),
            version: "9".into(),
        };
        let (events, _heard) = mpsc::channel(1);
        let (talk, _ends) =
            HttpConversation::new(&spec, http, info, HttpMode::Streamable, endpoint, events);
        let deadline = bowline_runtime::timer::now();
        let request = LinkRequest::new_internal("tools/call", Bytes::new(), deadline);
        let bytes = size_of_val(&talk.request(request));
        assert!(bytes <= CALL_FUTURE_BYTES_MAX, "{bytes}");
    }
}
