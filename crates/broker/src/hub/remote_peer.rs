//! A peer as a call target of the hub: live over the connection, or stored in the mailbox.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use arc_swap::ArcSwap;
use bowline_core::BoxFuture;
use bowline_core::error::{
    ExecutionStatus, FailureClass, FailureOrigin, FailureReport, RetryAdvice,
};
use bowline_core::sync::lock;
use bowline_core::time::to_millis;
use bowline_journal::{Duplicate, LeaseReceipt, MessageId, PublishOutcome};
use bytes::Bytes;
use tokio::sync::{oneshot, watch};

use super::live_requests::{self, PeerRequest};
use super::message_store::{MessageStoreError, random_id, storage_full, store_refusal};
use super::peer_registry::{ConnectedPeer, WaitingClient};
use super::{HubShared, pump};
use crate::frames::{
    BrokerFrame, BrokerResponse, MailboxMessage, MessageBody, MessageDraft, MessageSender,
    REQUEST_KIND, SessionEvent,
};
use crate::mailbox::{HUB, MailboxName};
use crate::{BrokerCall, BrokerCallError, NotificationHandler, PeerManifest, RemotePeer};

/// Id prefix of the hub's own requests.
const HUB_ID_PREFIX: &str = "hub-";

/// Pending replies to stored calls.
const REPLY_WAITERS_MAX: usize = 65_536;

/// Waiters for replies to the hub's stored calls, by request id.
#[derive(Debug, Default)]
pub(super) struct ReplyWaiters(HashMap<Arc<str>, ReplyWaiter>);

#[derive(Debug)]
struct ReplyWaiter {
    /// The called peer; a reply of any other sender is rejected.
    peer: MailboxName,
    response: oneshot::Sender<BrokerResponse>,
    client: WaitingClient,
}

impl ReplyWaiters {
    /// Returns the client waiting for a request held by `peer`.
    pub(super) fn client(&self, peer: &MailboxName, id: &str) -> Option<WaitingClient> {
        let waiter = self.0.get(id)?;
        (waiter.peer == *peer).then(|| waiter.client.clone())
    }
}

/// A peer as a call target of the hub.
#[derive(Debug)]
pub(super) struct HubRemotePeer {
    /// Weak, because the hub holds the offer handler, and the offer handler holds this value.
    shared: Weak<HubShared>,
    mailbox: MailboxName,
    manifest: ArcSwap<PeerManifest>,
    changes: watch::Sender<u64>,
    /// Notification handlers, one per server of the peer.
    handlers: Mutex<HashMap<Arc<str>, Weak<dyn NotificationHandler>>>,
}

/// Returns the call target of a mailbox, shared by all holders.
pub(super) fn get_or_create(shared: &Arc<HubShared>, mailbox: &MailboxName) -> Arc<HubRemotePeer> {
    let mut peers = lock(&shared.peers);
    if let Some(existing) = peers.remotes.get(mailbox).and_then(Weak::upgrade) {
        return existing;
    }
    let created = Arc::new(HubRemotePeer {
        shared: Arc::downgrade(shared),
        mailbox: mailbox.clone(),
        manifest: ArcSwap::default(),
        changes: watch::Sender::new(0),
        handlers: Mutex::default(),
    });
    let weak = Arc::downgrade(&created);
    peers.remotes.insert(mailbox.clone(), weak);
    created
}

/// Notifies holders of a call target that the peer connected or disconnected.
pub(super) fn notify_connection_change(shared: &HubShared, mailbox: &MailboxName) {
    let existing = lock(&shared.peers)
        .remotes
        .get(mailbox)
        .and_then(Weak::upgrade);
    if let Some(remote) = existing {
        remote.notify_changed();
    }
}

/// Forwards a notification of a peer's server sent outside requests.
pub(super) fn forward_notification(
    shared: &HubShared,
    peer: &ConnectedPeer,
    server: &str,
    session: Option<&Arc<str>>,
    notification: Bytes,
) {
    let is_offered = lock(&peer.state)
        .offered_servers
        .iter()
        .any(|own| **own == *server);
    if !is_offered {
        return;
    }
    let remote = lock(&shared.peers)
        .remotes
        .get(peer.mailbox())
        .and_then(Weak::upgrade);
    let handler = remote.and_then(|remote| lock(&remote.handlers).get(server)?.upgrade());
    if let Some(handler) = handler {
        handler.on_notification(session.map(AsRef::as_ref), notification);
    }
}

/// Handles a reply in the hub's mailbox.
pub(super) async fn handle_reply(
    shared: &HubShared,
    from: &MessageSender,
    message: &MailboxMessage,
    receipt: LeaseReceipt,
) {
    let correlation = message.correlation_id.as_deref().unwrap_or_default();
    let waiter = {
        let mut waiting = lock(&shared.reply_waiters);
        let is_expected = |waiter: &ReplyWaiter| *waiter.peer.as_str() == from.session_id;
        match waiting.0.get(correlation) {
            Some(waiter) if is_expected(waiter) => waiting.0.remove(correlation),
            Some(_) | None => None,
        }
    };
    // Parse before the ack, so that an unreadable reply stays inspectable.
    let response = BrokerResponse::parse(&message.body);
    match (waiter, response) {
        (Some(waiter), Ok(response)) => {
            // The caller may be gone.
            let _ = waiter.response.send(response);
        }
        // A reply after the deadline or after a restart.
        (None, Ok(_)) if correlation.starts_with(HUB_ID_PREFIX) => {
            tracing::debug!(from = %from.session_id, "reply without a waiter");
        }
        (None, Ok(_)) => {
            let reason = "it answers nothing that was asked of its sender";
            return pump::dead_letter_message(shared, receipt, reason.into()).await;
        }
        (_, Err(_)) => {
            let reason = "the reply cannot be read";
            return pump::dead_letter_message(shared, receipt, reason.into()).await;
        }
    }
    if let Err(error) = shared.journal.ack(receipt, None, shared.timestamps()).await {
        tracing::warn!(%error, "cannot store the end of a reply");
    }
}

impl HubRemotePeer {
    /// Replaces the manifest.
    pub(super) fn set_manifest(&self, manifest: PeerManifest) {
        self.manifest.store(Arc::new(manifest));
        self.notify_changed();
    }

    fn notify_changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    async fn call_live(
        &self,
        shared: &HubShared,
        call: BrokerCall,
    ) -> Result<BrokerResponse, BrokerCallError> {
        let peer = lock(&shared.peers).subscriber(&self.mailbox);
        let peer =
            peer.ok_or_else(|| BrokerCallError::NotSent("the peer is not connected".into()))?;
        let live_request = PeerRequest {
            body: call.request.to_bytes(),
            sender: hub_sender(call.sender),
            deadline: call.deadline,
            client: call.client,
        };
        let body = live_requests::request_peer(shared, &peer, live_request).await?;
        BrokerResponse::parse(&body).map_err(|error| {
            BrokerCallError::Refused(FailureReport {
                class: FailureClass::ProtocolError,
                execution: ExecutionStatus::Unknown,
                retry: RetryAdvice::Never,
                origin: FailureOrigin::Broker,
                code: "bad_answer".into(),
                reason: error.to_string().into(),
            })
        })
    }

    async fn call_stored(
        &self,
        shared: Arc<HubShared>,
        call: BrokerCall,
    ) -> Result<BrokerResponse, BrokerCallError> {
        let id = random_id(HUB_ID_PREFIX)
            .map_err(|error| BrokerCallError::NotSent(error.to_string().into()))?;
        let draft = MessageDraft {
            id: &id,
            kind: REQUEST_KIND,
            body: MessageBody::Request(&call.request),
            correlation_id: None,
            ttl_ms: Some(to_millis(shared.now().duration_until(call.deadline))),
            created_at_ms: shared.clock().unix_ms(),
        };
        let message = MailboxMessage::new(&draft).with_sender(hub_sender(call.sender));
        let (reply, response) = oneshot::channel();
        let client = WaitingClient::new(call.client);
        let extension = Arc::clone(&client.extension);
        let mut guard = ReplyWaitGuard::new(&shared, &self.mailbox, &id, reply, client)?;
        let work = async {
            let outcome = shared.store_hub_message(&self.mailbox, &message).await;
            guard.message = match outcome {
                Ok(
                    PublishOutcome::Stored { id, .. }
                    | PublishOutcome::Duplicate(Duplicate::Queued { id, .. }),
                ) => Some(id),
                Ok(PublishOutcome::Duplicate(_)) => None,
                Err(error) => {
                    guard.is_over = true;
                    return Err(BrokerCallError::Refused(to_failure(&error, &id)));
                }
            };
            let response = response.await;
            guard.is_over = true;
            response.map_err(|_| BrokerCallError::Lost("the hub goes down".into()))
        };
        let clock = shared.clock().as_ref();
        match extension
            .run_until_deadline(clock, call.deadline, work)
            .await
        {
            Some(reply) => reply,
            None => Err(BrokerCallError::Timeout(guard.withdraw_request().await)),
        }
    }
}

fn hub_sender(caller: Option<MessageSender>) -> MessageSender {
    MessageSender {
        session_id: HUB.into(),
        ..caller.unwrap_or_default()
    }
}

fn to_failure(error: &MessageStoreError, id: &Arc<str>) -> FailureReport {
    let refusal = match error {
        MessageStoreError::Journal(error) => store_refusal(error, id),
        MessageStoreError::OverShare => storage_full(id),
    };
    FailureReport {
        class: FailureClass::SendFailed,
        execution: ExecutionStatus::NotStarted,
        retry: RetryAdvice::Never,
        origin: FailureOrigin::Broker,
        code: refusal.code.unwrap_or_default(),
        reason: refusal.reason,
    }
}

/// Removes the waiter of a stored call on drop, and withdraws an unfinished request.
#[derive(Debug)]
struct ReplyWaitGuard {
    shared: Arc<HubShared>,
    to: MailboxName,
    id: Arc<str>,
    message: Option<MessageId>,
    is_over: bool,
}

impl ReplyWaitGuard {
    /// Registers a waiter for the reply.
    fn new(
        shared: &Arc<HubShared>,
        to: &MailboxName,
        id: &Arc<str>,
        response: oneshot::Sender<BrokerResponse>,
        client: WaitingClient,
    ) -> Result<Self, BrokerCallError> {
        let mut waiting = lock(&shared.reply_waiters);
        if waiting.0.len() >= REPLY_WAITERS_MAX || shared.shutdown.is_closing() {
            return Err(BrokerCallError::NotSent(
                "the hub asks too much already".into(),
            ));
        }
        let peer = to.clone();
        waiting.0.insert(
            Arc::clone(id),
            ReplyWaiter {
                peer,
                response,
                client,
            },
        );
        Ok(Self {
            shared: Arc::clone(shared),
            to: to.clone(),
            id: Arc::clone(id),
            message: None,
            is_over: false,
        })
    }

    /// Withdraws the request and returns whether the request ran, as far as known.
    async fn withdraw_request(&mut self) -> ExecutionStatus {
        self.is_over = true;
        self.send_cancel();
        withdraw_message(&self.shared, self.message).await
    }

    fn send_cancel(&self) {
        let peer = lock(&self.shared.peers).subscriber(&self.to);
        if let Some(peer) = peer {
            peer.try_send(&BrokerFrame::Cancel {
                to: None,
                correlation_id: Arc::clone(&self.id),
            });
        }
    }
}

async fn withdraw_message(shared: &HubShared, message: Option<MessageId>) -> ExecutionStatus {
    let Some(id) = message else {
        return ExecutionStatus::Unknown;
    };
    let entry = shared.journal.get_message(id, shared.timestamps()).await;
    let untouched = matches!(entry, Ok(Some(entry)) if entry.attempts == 0);
    // Not leased and never delivered: the request cannot have run.
    let removed = shared
        .journal
        .remove_message(id, shared.timestamps())
        .await
        .is_ok();
    match untouched && removed {
        true => ExecutionStatus::NotStarted,
        false => ExecutionStatus::Unknown,
    }
}

impl Drop for ReplyWaitGuard {
    fn drop(&mut self) {
        lock(&self.shared.reply_waiters).0.remove(&self.id);
        let peer = lock(&self.shared.peers).subscriber(&self.to);
        if let Some(peer) = peer {
            peer.server_requests.cancel_for_call(&self.id);
        }
        if self.is_over {
            return;
        }
        self.send_cancel();
        let (shared, message) = (Arc::clone(&self.shared), self.message);
        let tasks = shared.tasks().clone();
        tasks.spawn("hub message return", async move {
            withdraw_message(&shared, message).await;
        });
    }
}

impl RemotePeer for HubRemotePeer {
    fn call(&self, call: BrokerCall) -> BoxFuture<'_, Result<BrokerResponse, BrokerCallError>> {
        Box::pin(async move {
            let Some(shared) = self.shared.upgrade() else {
                return Err(BrokerCallError::NotSent("the hub is gone".into()));
            };
            match call.stored {
                true => self.call_stored(shared, call).await,
                false => self.call_live(&shared, call).await,
            }
        })
    }

    fn manifest(&self) -> Arc<PeerManifest> {
        self.manifest.load_full()
    }

    fn subscribe_changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn is_connected(&self) -> bool {
        let shared = self.shared.upgrade();
        shared.is_some_and(|shared| lock(&shared.peers).subscriber(&self.mailbox).is_some())
    }

    fn name(&self) -> Arc<str> {
        Arc::clone(self.mailbox.as_str())
    }

    fn set_notification_handler(&self, server: &Arc<str>, handler: Weak<dyn NotificationHandler>) {
        let mut handlers = lock(&self.handlers);
        handlers.retain(|_, handler| handler.strong_count() > 0);
        handlers.insert(Arc::clone(server), handler);
    }

    fn notify_session_event(&self, server: &Arc<str>, session: Arc<str>, event: SessionEvent) {
        let shared = self.shared.upgrade();
        let peer = shared.and_then(|shared| lock(&shared.peers).subscriber(&self.mailbox));
        if let Some(peer) = peer {
            // Without the event, the peer drops the idle session by timeout.
            peer.try_send(&BrokerFrame::Session {
                server: Arc::clone(server),
                session,
                event,
            });
        }
    }
}
