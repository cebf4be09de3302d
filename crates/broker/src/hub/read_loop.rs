//! Reads and dispatches the frames of a peer; slow frames run in tasks and do not block reading.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::rate_limiter::RequestCost;
use bowline_core::sync::lock;
use bowline_journal::{Duplicate, PublishOutcome};
use bowline_link::websocket::WebSocketReceiver;
use bytes::Bytes;
use tokio::task::{AbortHandle, JoinSet};

use super::hub_counts::increment;
use super::message_address::MessageAddress;
use super::message_store::{storage_full, store_refusal};
use super::peer_registry::ConnectedPeer;
use super::pump::{self, AckOutcome, NakMode};
use super::quota::DeliveryPermit;
use super::rights::{not_allowed, refusal};
use super::{
    HubShared, PeerAuthenticator, hub_inbox, hub_views, live_requests, peer_offers, remote_peer,
};
use crate::frames::{BrokerFrame, BrokerRefusal, FrameError, MailboxMessage, REQUEST_KIND};
use crate::mailbox::{HUB, MailboxName, check_message_id};
use crate::server_requests::RelayKey;

/// Frames of one peer in work at once; reading waits beyond the limit.
const FRAMES_IN_WORK_MAX: usize = 64;

/// Minimum size of a frame charged to the principal's byte rate regardless of kind.
const LARGE_FRAME_BYTES_MIN: usize = 64 * 1024;

/// Longest unknown frame kind echoed back to the peer.
const KIND_CHARS_MAX: usize = 64;

/// Dead letters listed in one frame.
const DEAD_LETTERS_MAX: usize = 100;

/// How a connection ended.
#[derive(Debug)]
pub(super) enum ReadLoopEnd {
    /// The socket closed.
    Disconnected,
    /// Protocol error of the peer.
    ProtocolError(BrokerRefusal),
}

/// The reading side of one connection.
#[derive(Debug)]
pub(super) struct PeerReader<'a> {
    pub(super) shared: &'a Arc<HubShared>,
    pub(super) peer: &'a Arc<ConnectedPeer>,
    authenticator: &'a dyn PeerAuthenticator,
    /// Frames in work.
    frame_tasks: JoinSet<()>,
    /// Running live requests of the peer; aborted with the connection.
    pub(super) live_tasks: JoinSet<()>,
    /// Abort handles of the live requests, by the peer's request id.
    pub(super) live_handles: HashMap<Arc<str>, AbortHandle>,
}

impl<'a> PeerReader<'a> {
    pub(super) fn new(
        shared: &'a Arc<HubShared>,
        peer: &'a Arc<ConnectedPeer>,
        authenticator: &'a dyn PeerAuthenticator,
    ) -> Self {
        Self {
            shared,
            peer,
            authenticator,
            frame_tasks: JoinSet::new(),
            live_tasks: JoinSet::new(),
            live_handles: HashMap::new(),
        }
    }

    /// Reads until the connection ends.
    pub(super) async fn run(mut self, incoming: &mut WebSocketReceiver) -> ReadLoopEnd {
        loop {
            let Ok(bytes) = incoming.next().await else {
                // Finish the last frames: an acknowledgement still counts.
                while self.frame_tasks.join_next().await.is_some() {}
                return ReadLoopEnd::Disconnected;
            };
            self.reap_tasks().await;
            let frame = match BrokerFrame::parse(&bytes) {
                Ok(frame) => frame,
                Err(error @ FrameError::Member(_)) => {
                    self.charge_rate(None, bytes.len()).await;
                    let reason = error.to_string();
                    self.refuse_frame(refusal("bad_frame", &reason, None)).await;
                    continue;
                }
                Err(error) => {
                    return ReadLoopEnd::ProtocolError(refusal(
                        "bad_frame",
                        &error.to_string(),
                        None,
                    ));
                }
            };
            let size = bytes.len();
            drop(bytes);
            if let BrokerFrame::Unknown { kind, request_id } = frame {
                self.charge_rate(None, size).await;
                if let Some(end) = self.refuse_unknown(&kind, request_id).await {
                    return end;
                }
                continue;
            }
            // Stop reading while the principal's deliveries fill the memory share.
            self.charge_rate(Some(&frame), size).await;
            let principal = &self.peer.admitted.principal;
            let permit = match frame {
                BrokerFrame::Deliver { .. } => {
                    Some(self.shared.acquire_delivery(principal, size).await)
                }
                // A live request may run long and may depend on later frames of this connection.
                // Without a permit the request is refused, and reading goes on.
                BrokerFrame::Request(_) => self.shared.try_acquire_delivery(principal, size),
                _ => None,
            };
            self.dispatch_frame(frame, size, permit).await;
        }
    }

    /// Charges a frame to the principal's rate: work for the hub counts as a request, and any other
    /// large frame by size because of the parse cost. A response awaited by the hub is free.
    async fn charge_rate(&self, frame: Option<&BrokerFrame>, size: usize) {
        let bytes = size as u64;
        let requests = match frame {
            Some(BrokerFrame::Deliver { .. } | BrokerFrame::Request(_)) => 1,
            Some(BrokerFrame::Response { id, .. })
                if lock(&self.peer.state).pending.contains_key(&**id) =>
            {
                return;
            }
            _ if size <= LARGE_FRAME_BYTES_MIN => return,
            _ => 0,
        };
        let cost = RequestCost { requests, bytes };
        let principal = &self.peer.admitted.principal;
        self.shared.charge_rate(principal, cost).await;
    }

    /// Reaps finished tasks, and waits while too many are running.
    async fn reap_tasks(&mut self) {
        while self.frame_tasks.try_join_next().is_some() {}
        while self.frame_tasks.len() >= FRAMES_IN_WORK_MAX {
            self.frame_tasks.join_next().await;
        }
        let mut any_finished = false;
        while self.live_tasks.try_join_next().is_some() {
            any_finished = true;
        }
        if any_finished {
            self.live_handles.retain(|_, run| !run.is_finished());
        }
    }

    /// Registers the servers that the peer offers; each refused server is reported to the peer.
    async fn take_offer(&self, revision: u64, servers: &Bytes) {
        for refused in peer_offers::handle_offer(self.shared, self.peer, revision, servers) {
            self.refuse_frame(refused).await;
        }
    }

    async fn dispatch_frame(
        &mut self,
        frame: BrokerFrame,
        size: usize,
        permit: Option<DeliveryPermit>,
    ) {
        match frame {
            BrokerFrame::Deliver { to, message } => {
                self.deliver_message(&to, message, size, permit).await
            }
            BrokerFrame::Subscribe => pump::subscribe_peer(self.shared, self.peer),
            BrokerFrame::Ack { id } => self.ack_message(id, None),
            BrokerFrame::AckWithReceipt { id, request_id } => {
                self.ack_message(id, Some(request_id))
            }
            BrokerFrame::Nak {
                id,
                delay_ms,
                dead_letter_reason,
            } => self.nak_message(id, delay_ms, dead_letter_reason),
            BrokerFrame::Cancel { to, correlation_id } => {
                self.cancel_request(to.as_ref(), &correlation_id).await
            }
            BrokerFrame::ListConnected { role } => self.send_connected(role.as_deref()).await,
            BrokerFrame::ListDead { limit } => self.send_dead_letters(limit).await,
            BrokerFrame::Offer { revision, servers } => self.take_offer(revision, &servers).await,
            BrokerFrame::Request(request) => {
                live_requests::handle_request(self, request, permit).await
            }
            BrokerFrame::Response { id, body } => {
                live_requests::complete_response(self.peer, &id, body)
            }
            BrokerFrame::Event { id, notification } => {
                live_requests::forward_event(self.shared, self.peer, &id, notification);
            }
            BrokerFrame::ServerRequest {
                id,
                number,
                request,
            } => live_requests::relay_server_request(self.shared, self.peer, id, number, request),
            BrokerFrame::MissingCapability { id, capability } => {
                live_requests::forward_missing_capability(self.shared, self.peer, &id, capability)
            }
            BrokerFrame::CancelServerRequest { id, number } => {
                self.peer.server_requests.cancel(&RelayKey { id, number })
            }
            BrokerFrame::SessionNotification {
                server,
                session,
                notification,
            } => remote_peer::forward_notification(
                self.shared,
                self.peer,
                &server,
                session.as_ref(),
                notification,
            ),
            // Frames only a hub sends, and a second hello; unknown kinds are refused earlier.
            BrokerFrame::Hello(_)
            | BrokerFrame::Welcome(_)
            | BrokerFrame::BrokerIdentity { .. }
            | BrokerFrame::Error(_)
            | BrokerFrame::Delivered { .. }
            | BrokerFrame::Message(_)
            | BrokerFrame::AckResult { .. }
            | BrokerFrame::Connected { .. }
            | BrokerFrame::Dead { .. }
            | BrokerFrame::Changed { .. }
            | BrokerFrame::ServerRequestReply { .. }
            | BrokerFrame::Session { .. }
            | BrokerFrame::Unknown { .. } => {}
        }
    }

    /// Refuses a frame of unknown kind. A peer that expects a response to such a frame would ignore
    /// an error frame, so the connection is closed to end the wait.
    async fn refuse_unknown(
        &self,
        kind: &str,
        request_id: Option<Arc<str>>,
    ) -> Option<ReadLoopEnd> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let is_named = kind.len() <= KIND_CHARS_MAX && kind.chars().all(is_plain);
        let reason = match is_named {
            true => format!("frames of kind `{kind}` are not known here"),
            false => "a frame of a kind that is not known here".to_owned(),
        };
        // Never echo an invalid id.
        let id = request_id.filter(|id| check_message_id(id).is_ok());
        let refused = refusal("unknown_frame", &reason, id.as_ref());
        if id.is_some() {
            increment(&self.shared.counters.refused);
            return Some(ReadLoopEnd::ProtocolError(refused));
        }
        self.refuse_frame(refused).await;
        None
    }

    /// Sends a refusal to the peer and reports the refusal to the authenticator.
    pub(super) async fn refuse_frame(&self, refusal: BrokerRefusal) {
        increment(&self.shared.counters.refused);
        self.authenticator
            .on_refused(Some(&self.peer.admitted), &refusal);
        self.peer.send(&BrokerFrame::Error(refusal)).await;
    }

    /// Reports a refusal to the authenticator.
    pub(super) fn report_refusal(&self, refusal: &BrokerRefusal) {
        self.authenticator
            .on_refused(Some(&self.peer.admitted), refusal);
    }

    async fn deliver_message(
        &mut self,
        to: &str,
        message: MailboxMessage,
        size: usize,
        permit: Option<DeliveryPermit>,
    ) {
        // A refused message costs as much as a stored message.
        let principal = &self.peer.admitted.principal;
        self.shared.throttle_delivery(principal, size).await;
        let (to, message) = match self.check_message(to, message) {
            Ok(checked) => checked,
            Err(refusal) => return self.refuse_frame(refusal).await,
        };
        if let Err(refusal) = self.check_room(&to.mailbox, &message).await {
            return self.refuse_frame(refusal).await;
        }
        let (shared, peer) = (Arc::clone(self.shared), Arc::clone(self.peer));
        let mut storing: BoxFuture<'static, ()> = Box::pin(async move {
            store_and_confirm(&shared, &peer, &to, message).await;
            drop(permit);
        });
        // The first poll happens here to keep the order of messages; the rest mostly waits for the
        // disk, batched with other writes.
        let first_poll = poll_fn(|context| Poll::Ready(storing.as_mut().poll(context))).await;
        if first_poll.is_pending() {
            self.frame_tasks.spawn(storing);
        }
    }

    /// Checks that the journal has room for a message: on the account of the mailbox owner, or of
    /// the sender for a message to the hub.
    async fn check_room(
        &self,
        to: &MailboxName,
        message: &MailboxMessage,
    ) -> Result<(), BrokerRefusal> {
        let sender = &self.peer.admitted.principal.name;
        let account = match to.principal() {
            HUB => Arc::clone(sender),
            other => other.into(),
        };
        match self.shared.reserve_bytes(&account, message.raw.len()).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(storage_full(&message.id)),
            Err(error) => Err(store_refusal(&error, &message.id)),
        }
    }

    /// Validates and stamps a message.
    fn check_message(
        &self,
        to: &str,
        message: MailboxMessage,
    ) -> Result<(MessageAddress, MailboxMessage), BrokerRefusal> {
        let bad =
            |name: crate::mailbox::MailboxNameError, id| refusal("bad_name", &name.to_string(), id);
        // Never echo an invalid id.
        check_message_id(&message.id).map_err(|name| bad(name, None))?;
        let id = Some(&message.id);
        if let Some(correlation) = &message.correlation_id {
            check_message_id(correlation).map_err(|name| bad(name, id))?;
        }
        let to = self.shared.aliases.resolve(to);
        let to = to.map_err(|name| bad(name, id))?;
        let admitted = &self.peer.admitted;
        match admitted.matches_sender(message.sender.as_ref())
            && admitted.can_send(&to.mailbox, &message.kind)
        {
            true => Ok((to, message.with_sender(self.peer.stamp.clone()))),
            false => Err(not_allowed(id)),
        }
    }

    fn ack_message(&mut self, id: Arc<str>, request_id: Option<Arc<str>>) {
        let (shared, peer) = (Arc::clone(self.shared), Arc::clone(self.peer));
        self.frame_tasks.spawn(async move {
            let outcome = pump::ack_message(&shared, &peer, &id).await;
            let Some(request_id) = request_id else {
                return;
            };
            let reason = match outcome {
                AckOutcome::Removed => None,
                AckOutcome::Unknown => Some("there is no such message to acknowledge"),
                AckOutcome::Failed => Some("the acknowledgement could not be stored"),
            };
            let result = BrokerFrame::AckResult {
                id,
                request_id,
                accepted: reason.is_none(),
                reason: reason.map(Into::into),
            };
            peer.send(&result).await;
        });
    }

    fn nak_message(&mut self, id: Arc<str>, delay_ms: u64, dead: Option<Arc<str>>) {
        let mode = match dead {
            Some(reason) => NakMode::Dead(reason),
            None => NakMode::Later(Duration::from_millis(delay_ms)),
        };
        let (shared, peer) = (Arc::clone(self.shared), Arc::clone(self.peer));
        self.frame_tasks
            .spawn(async move { pump::nak_message(&shared, &peer, &id, mode).await });
    }

    /// Sends the connected mailboxes that this peer may see.
    async fn send_connected(&self, role: Option<&str>) {
        let ids = hub_views::visible_subscribers(self.shared, &self.peer.admitted, role);
        self.peer.send(&BrokerFrame::Connected { ids }).await;
    }

    /// Sends the dead letters of this peer's mailbox.
    async fn send_dead_letters(&self, limit: usize) {
        let (mailbox, limit) = (self.peer.mailbox(), limit.min(DEAD_LETTERS_MAX));
        let dead_letters = hub_views::dead_letters_json(self.shared, mailbox, limit).await;
        self.peer.send(&BrokerFrame::Dead { dead_letters }).await;
    }

    /// Cancels a request: a live request of this peer, or a request held by another peer.
    async fn cancel_request(&mut self, to: Option<&Arc<str>>, id: &Arc<str>) {
        if check_message_id(id).is_err() {
            let reason = "the name of the request is none";
            return self.refuse_frame(refusal("bad_name", reason, None)).await;
        }
        let to = match to.filter(|to| !self.shared.aliases.is_hub_name(to)) {
            None => {
                match self.live_handles.remove(id) {
                    Some(run) => run.abort(),
                    None => hub_inbox::cancel_stored(self.shared, self.peer.mailbox(), id),
                }
                return;
            }
            Some(to) => MailboxName::parse(to),
        };
        match to {
            Ok(to) if self.peer.admitted.can_reach(&to) => {
                let other = lock(&self.shared.peers).subscriber(&to);
                if let Some(other) = other {
                    let correlation_id = Arc::clone(id);
                    // Two peers may choose the same id, so the cancel frame names the sender.
                    let sender = Arc::clone(self.peer.mailbox().as_str());
                    other.try_send(&BrokerFrame::Cancel {
                        to: Some(sender),
                        correlation_id,
                    });
                }
            }
            Ok(_) | Err(_) => self.refuse_frame(not_allowed(Some(id))).await,
        }
    }
}

/// Stores a message and confirms the receipt.
async fn store_and_confirm(
    shared: &Arc<HubShared>,
    peer: &ConnectedPeer,
    to: &MessageAddress,
    message: MailboxMessage,
) {
    let stored = shared
        .store_message(to, &peer.admitted.principal, &message)
        .await;
    let id = Arc::clone(&message.id);
    let frame = match &stored {
        Ok(_) => {
            increment(&shared.counters.delivered);
            BrokerFrame::Delivered { id }
        }
        Err(error) => BrokerFrame::Error(store_refusal(error, &id)),
    };
    peer.send(&frame).await;
    let was_done = matches!(
        stored,
        Ok(PublishOutcome::Duplicate(Duplicate::Completed(_)))
    );
    if was_done && to.mailbox.principal() == HUB && &*message.kind == REQUEST_KIND {
        let alias = to.alias.as_ref();
        hub_inbox::resend_reply(shared, peer.mailbox(), &message, alias).await;
    }
}
