//! Answers the hub's requests over the client's connections.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::client_handle::{
    ClientCapability, ClientHandle, NullClient, ServerRequest, ServerRequestId, SessionKey,
};
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_runtime::{Clock, TaskTracker};
use bytes::Bytes;
use tokio::sync::Notify;

use crate::frames::{
    BrokerFrame, BrokerResponse, FRAME_BYTES_MAX, LiveRequest, MailboxMessage, MessageBody,
    MessageDraft, MessageSender, REPLY_KIND, REQUEST_KIND, ResultForm, SessionEvent,
};
use crate::mailbox::HUB;
use crate::{
    DeliverError, HubRequestHandler, HubSender, REQUEST_TTL, RemoteSessions, ReplyError, ReplySink,
    ServeEngine, ServeRequest, failures, reply_id,
};

/// Timeout for the receipt of a reply.
const RECEIPT_WAIT: Duration = Duration::from_secs(30);

/// Bytes of a frame around the body of a reply.
const ENVELOPE_BYTES_MAX: usize = 4 * 1024;

/// Notifications per request; more are dropped.
const EVENTS_MAX: usize = 64;

/// Live requests in flight.
const LIVE_REQUESTS_MAX: usize = 1_024;

/// Live requests in flight, by connection number and request id.
type LiveRequestTable = Mutex<HashMap<(u64, Arc<str>), Arc<Notify>>>;

/// Answers the requests over all connections of one client through one engine: a request started
/// over a lost connection does not run again when redelivered.
#[derive(Debug)]
pub struct ServeSession {
    engine: Arc<ServeEngine>,
    clock: Arc<dyn Clock>,
    tasks: TaskTracker,
    live_requests: Arc<LiveRequestTable>,
    remote_sessions: Option<Arc<RemoteSessions>>,
}

impl ServeSession {
    /// Returns a session that answers with `engine`.
    #[must_use]
    pub fn new(engine: Arc<ServeEngine>, clock: Arc<dyn Clock>, tasks: TaskTracker) -> Self {
        Self {
            engine,
            clock,
            tasks,
            live_requests: Arc::default(),
            remote_sessions: None,
        }
    }

    /// Reports connections and session events of the hub to `sessions`.
    #[must_use]
    pub fn with_remote_sessions(self, sessions: &Arc<RemoteSessions>) -> Self {
        Self {
            remote_sessions: Some(Arc::clone(sessions)),
            ..self
        }
    }

    fn note_connection(&self, hub: &HubSender) {
        if let Some(sessions) = &self.remote_sessions {
            sessions.note_connection(hub);
        }
    }

    fn deadline_from_ttl(&self, ttl_ms: Option<u64>) -> MonotonicTime {
        let ttl = ttl_ms.map_or(REQUEST_TTL, Duration::from_millis);
        self.clock.now().plus(ttl)
    }
}

impl HubRequestHandler for ServeSession {
    fn on_message(&self, message: MailboxMessage, hub: &HubSender) {
        let from = match &message.sender {
            Some(from) if *message.kind == *REQUEST_KIND => from.clone(),
            _ => return self.dead_letter_foreign(&message, hub),
        };
        self.note_connection(hub);
        let id = Arc::clone(&message.id);
        let incoming = ServeRequest {
            principal: None,
            deadline: self.deadline_from_ttl(message.ttl_ms),
            client: Some(Arc::new(HubClientHandle::new(hub, &id))),
            sender: from,
            message,
        };
        let sink = HubReplySink {
            hub: hub.clone(),
            caller: Arc::clone(&incoming.sender.session_id),
            id,
            clock: Arc::clone(&self.clock),
        };
        let engine = Arc::clone(&self.engine);
        self.tasks.spawn("broker request", async move {
            engine.handle_stored(incoming, &sink).await;
            sink.hub.server_requests().cancel_for_call(&sink.id);
        });
    }

    fn on_request(&self, request: LiveRequest, hub: &HubSender) {
        let key = (hub.generation(), Arc::clone(&request.id));
        let cancelled = Arc::new(Notify::new());
        {
            let mut live = lock(&self.live_requests);
            if live.len() >= LIVE_REQUESTS_MAX || live.contains_key(&key) {
                let response =
                    BrokerResponse::Failed(failures::too_many_requests(LIVE_REQUESTS_MAX));
                let hub = hub.clone();
                self.tasks.spawn("broker refusal", async move {
                    send_response(&hub, request.id, &response).await;
                });
                return;
            }
            live.insert(key.clone(), Arc::clone(&cancelled));
        }
        self.note_connection(hub);
        let id = Arc::clone(&request.id);
        let incoming = ServeRequest {
            // Without a caller, the hub itself is the sender.
            sender: request.caller.clone().unwrap_or_else(|| MessageSender {
                session_id: HUB.into(),
                ..MessageSender::default()
            }),
            principal: None,
            deadline: self.deadline_from_ttl(request.ttl_ms),
            client: Some(Arc::new(HubClientHandle::new(hub, &id))),
            message: MailboxMessage::from_live(request),
        };
        let guard = LiveServeGuard {
            live_requests: Arc::downgrade(&self.live_requests),
            key,
        };
        let (engine, hub) = (Arc::clone(&self.engine), hub.clone());
        self.tasks.spawn("broker live request", async move {
            let _guard = guard;
            tokio::select! {
                biased;
                answer = engine.handle_live(incoming) => {
                    send_response(&hub, Arc::clone(&id), &answer).await;
                }
                () = cancelled.notified() => {}
            }
            hub.server_requests().cancel_for_call(&id);
        });
    }

    fn on_cancel(&self, mailbox: Option<&Arc<str>>, correlation_id: &Arc<str>, hub: &HubSender) {
        // The hub names live requests; callers name stored requests.
        let Some(mailbox) = mailbox else {
            let key = (hub.generation(), Arc::clone(correlation_id));
            match lock(&self.live_requests).get(&key) {
                Some(cancelled) => cancelled.notify_one(),
                None => drop(self.engine.cancel_request(&HUB.into(), correlation_id)),
            }
            return;
        };
        self.engine.cancel_request(mailbox, correlation_id);
    }

    fn on_session_event(&self, server: &Arc<str>, session: &Arc<str>, event: SessionEvent) {
        if let Some(sessions) = &self.remote_sessions {
            sessions.on_session_event(server, session, event);
        }
    }

    /// Cancels live requests: no response can be sent. Stored requests continue and are
    /// redelivered.
    fn on_disconnected(&self, hub: &HubSender) {
        let generation = hub.generation();
        for ((request_generation, _), cancelled) in &*lock(&self.live_requests) {
            if *request_generation == generation {
                cancelled.notify_one();
            }
        }
    }
}

impl ServeSession {
    /// Turns an unexpected message into a dead letter, for inspection.
    fn dead_letter_foreign(&self, message: &MailboxMessage, hub: &HubSender) {
        tracing::warn!(kind = %message.kind, id = %message.id, "unexpected message rejected");
        let frame = BrokerFrame::Nak {
            id: Arc::clone(&message.id),
            delay_ms: 0,
            dead_letter_reason: Some("nobody here takes messages of this kind".into()),
        };
        let hub = hub.clone();
        self.tasks.spawn("broker dead letter", async move {
            // After a disconnect the message is still in the mailbox.
            let _ = hub.send(&frame).await;
        });
    }
}

async fn send_response(hub: &HubSender, id: Arc<str>, response: &BrokerResponse) {
    let mut body = response.to_bytes(ResultForm::Brief);
    if body.len() + ENVELOPE_BYTES_MAX > FRAME_BYTES_MAX {
        body = BrokerResponse::Failed(failures::response_too_large()).to_bytes(ResultForm::Brief);
    }
    // After a disconnect the caller knows.
    let _ = hub.send(&BrokerFrame::Response { id, body }).await;
}

/// A live request in flight until dropped.
#[derive(Debug)]
struct LiveServeGuard {
    live_requests: Weak<LiveRequestTable>,
    key: (u64, Arc<str>),
}

impl Drop for LiveServeGuard {
    fn drop(&mut self) {
        if let Some(live) = self.live_requests.upgrade() {
            lock(&live).remove(&self.key);
        }
    }
}

/// Sends the reply and the ack of one stored request over the same connection.
#[derive(Debug)]
struct HubReplySink {
    hub: HubSender,
    /// The caller's mailbox.
    caller: Arc<str>,
    /// The request id.
    id: Arc<str>,
    clock: Arc<dyn Clock>,
}

impl HubReplySink {
    async fn deliver_reply(&self, response: &BrokerResponse) -> Result<(), ReplyError> {
        let message = MailboxMessage::new(&MessageDraft {
            id: &reply_id(&self.caller, &self.id),
            kind: REPLY_KIND,
            body: MessageBody::Reply(response),
            correlation_id: Some(&self.id),
            ttl_ms: None,
            created_at_ms: self.clock.unix_ms(),
        });
        if message.body.len() + ENVELOPE_BYTES_MAX > FRAME_BYTES_MAX {
            return Err(ReplyError::TooLarge);
        }
        let deadline = self.clock.now().plus(RECEIPT_WAIT);
        let deadline = self.clock.instant(deadline);
        match self.hub.deliver(&self.caller, message, deadline).await {
            Ok(()) => Ok(()),
            Err(DeliverError::Refused(refusal)) => match refusal.code.as_deref() {
                // An earlier reply exists and counts.
                Some("conflict") => Ok(()),
                Some("too_large") => Err(ReplyError::TooLarge),
                Some("not_stored" | "throttled" | "shutting_down") => Err(ReplyError::Lost),
                _ => Err(ReplyError::Refused(refusal.reason)),
            },
            Err(error) => {
                tracing::debug!(id = %self.id, %error, "reply not delivered");
                Err(ReplyError::Lost)
            }
        }
    }

    /// Sends a frame; after a disconnect the frame is lost and the request is redelivered.
    async fn send_frame(&self, frame: BrokerFrame) {
        let _ = self.hub.send(&frame).await;
    }
}

impl ReplySink for HubReplySink {
    fn store_reply<'a>(
        &'a self,
        response: &'a BrokerResponse,
    ) -> BoxFuture<'a, Result<(), ReplyError>> {
        Box::pin(self.deliver_reply(response))
    }

    fn ack(&self) -> BoxFuture<'_, ()> {
        let id = Arc::clone(&self.id);
        Box::pin(self.send_frame(BrokerFrame::Ack { id }))
    }

    fn put_back(&self, delay: Duration) -> BoxFuture<'_, ()> {
        Box::pin(self.send_frame(BrokerFrame::Nak {
            id: Arc::clone(&self.id),
            delay_ms: bowline_core::time::to_millis(delay),
            dead_letter_reason: None,
        }))
    }

    fn dead_letter(&self, reason: Arc<str>) -> BoxFuture<'_, ()> {
        Box::pin(self.send_frame(BrokerFrame::Nak {
            id: Arc::clone(&self.id),
            delay_ms: 0,
            dead_letter_reason: Some(reason),
        }))
    }
}

/// Client handle of a request: sends notifications and server requests to the caller, while the
/// queue has room and the connection lasts.
#[derive(Debug)]
struct HubClientHandle {
    hub: HubSender,
    id: Arc<str>,
    sent_events: AtomicUsize,
}

impl HubClientHandle {
    fn new(hub: &HubSender, id: &Arc<str>) -> Self {
        Self {
            hub: hub.clone(),
            id: Arc::clone(id),
            sent_events: AtomicUsize::new(0),
        }
    }
}

impl ClientHandle for HubClientHandle {
    fn session(&self) -> SessionKey {
        SessionKey(0)
    }

    fn notify(&self, notification: Bytes) {
        if self.sent_events.fetch_add(1, Ordering::Relaxed) < EVENTS_MAX {
            let id = Arc::clone(&self.id);
            drop(self.hub.try_send(&BrokerFrame::Event { id, notification }));
        }
    }

    fn request(&self, server_request: ServerRequest) -> Option<ServerRequestId> {
        let (number, request) = self
            .hub
            .server_requests()
            .register(&self.id, server_request)?;
        let id = Arc::clone(&self.id);
        let frame = BrokerFrame::ServerRequest {
            id,
            number,
            request,
        };
        match self.hub.try_send(&frame) {
            Ok(()) => Some(ServerRequestId(number)),
            Err(_unsent) => {
                self.hub.server_requests().complete(&self.id, number, None);
                None
            }
        }
    }

    fn note_missing_capability(&self, capability: ClientCapability) {
        let id = Arc::clone(&self.id);
        drop(
            self.hub
                .try_send(&BrokerFrame::MissingCapability { id, capability }),
        );
    }

    fn cancel_request(&self, request_id: ServerRequestId) {
        let (id, number) = (Arc::clone(&self.id), request_id.0);
        if self.hub.server_requests().complete(&id, number, None) {
            drop(
                self.hub
                    .try_send(&BrokerFrame::CancelServerRequest { id, number }),
            );
        }
    }

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        Arc::new(NullClient::new(SessionKey(0)))
    }
}
