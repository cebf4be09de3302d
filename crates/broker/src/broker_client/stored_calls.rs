//! Stored calls: durable at the hub before they run, and independent of connections.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::client_handle::ClientHandle;
use bowline_core::error::ExecutionStatus;
use bowline_core::hex::to_hex;
use bowline_core::sync::lock;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::super::{BrokerCall, BrokerCallError};
use super::broker_calls::{ConnectionWait, to_refused_error};
use super::hub_connection::DeliverError;
use super::request_handler::HubSender;
use super::{BrokerClientShared, BrokerClientState};
use crate::frames::{
    BrokerFrame, BrokerResponse, MailboxMessage, MessageBody, MessageDraft, REPLY_KIND,
    REQUEST_KIND,
};
use crate::mailbox::HUB;

/// Pending stored calls.
const STORED_CALLS_MAX: usize = 65_536;

/// Remembered called peers; late replies of any other peer become dead letters.
const CALLED_PEERS_MAX: usize = 1_024;

/// Timeout for a receipt.
const RECEIPT_WAIT: Duration = Duration::from_secs(30);

/// Id prefix of this client's requests, to recognize replies.
const REQUEST_ID_PREFIX: &str = "broker-mcp-";

/// Waiter for the reply to a stored call.
#[derive(Debug)]
pub(super) struct StoredCallWaiter {
    /// The mailbox expected to reply.
    to: Arc<str>,
    response: oneshot::Sender<BrokerResponse>,
    client: Option<Arc<dyn ClientHandle>>,
}

impl BrokerClientShared {
    /// Stores a request under one id, over as many connections as needed, and waits for the reply.
    pub(super) async fn call_stored(
        &self,
        to: Option<&Arc<str>>,
        call: BrokerCall,
    ) -> Result<BrokerResponse, BrokerCallError> {
        let to = to.map_or_else(|| HUB.into(), Arc::clone);
        let (mut guard, mut response) = self.register_stored(to, call.client.clone())?;
        let mut after = 0;
        loop {
            let wait = match guard.may_be_stored {
                true => ConnectionWait::Deadline,
                false => ConnectionWait::Round,
            };
            let connection = tokio::select! {
                biased;
                answer = &mut response => return unwrap_response(answer),
                connection = self.wait_connection(after, call.deadline, wait) => connection,
            };
            let connection = connection.map_err(|error| guard.adjust_error(error))?;
            after = connection.generation;
            let deadline = self.live_deadline(call.deadline);
            let message = MailboxMessage::new(&MessageDraft {
                id: &guard.id,
                kind: REQUEST_KIND,
                body: MessageBody::Request(&call.request),
                correlation_id: None,
                ttl_ms: Some(deadline.ttl_ms),
                created_at_ms: self.options.clock.unix_ms(),
            });
            let now = self.options.clock.now();
            let receipt_by = call.deadline.min(now.plus(RECEIPT_WAIT));
            let at = self.options.clock.instant(receipt_by);
            let was_sent = guard.may_be_stored;
            // Treat as sent during the delivery: a caller leaving now must cancel the request.
            guard.may_be_stored = true;
            let receipt = tokio::select! {
                biased;
                answer = &mut response => return unwrap_response(answer),
                receipt = connection.deliver_message(&guard.to, message, at) => receipt,
            };
            match receipt {
                Ok(()) => break,
                Err(DeliverError::NotSent(_)) => guard.may_be_stored = was_sent,
                Err(DeliverError::Lost(_)) => {}
                Err(DeliverError::Timeout) if receipt_by < call.deadline => {
                    return Err(BrokerCallError::Lost("the broker gave no receipt".into()));
                }
                Err(DeliverError::Timeout) => {
                    return Err(BrokerCallError::Timeout(ExecutionStatus::Unknown));
                }
                Err(DeliverError::Refused(refusal)) => {
                    // Nothing was stored now, so nothing is left to cancel; but an earlier delivery
                    // may have been stored.
                    guard.may_be_stored = was_sent;
                    let execution = match was_sent {
                        true => ExecutionStatus::Unknown,
                        false => ExecutionStatus::NotStarted,
                    };
                    return Err(to_refused_error(&refusal, execution));
                }
            }
        }
        let at = self.options.clock.instant(call.deadline);
        tokio::select! {
            biased;
            answer = timeout_at(at, response) => match answer {
                Ok(answer) => unwrap_response(answer),
                Err(_) => Err(BrokerCallError::Timeout(ExecutionStatus::Unknown)),
            },
            reason = self.wait_closed() => Err(BrokerCallError::Lost(reason)),
        }
    }

    /// Registers a waiter for a reply.
    fn register_stored(
        &self,
        to: Arc<str>,
        client: Option<Arc<dyn ClientHandle>>,
    ) -> Result<(StoredCallGuard<'_>, oneshot::Receiver<BrokerResponse>), BrokerCallError> {
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|error| BrokerCallError::NotSent(error.to_string().into()))?;
        let id: Arc<str> = format!("{REQUEST_ID_PREFIX}{}", to_hex(&random)).into();
        {
            let mut called = lock(&self.called_peers);
            if *to != *HUB && called.len() < CALLED_PEERS_MAX {
                called.insert(Arc::clone(&to));
            }
        }
        let (response, receiver) = oneshot::channel();
        let mut stored = lock(&self.stored_calls);
        if stored.len() >= STORED_CALLS_MAX {
            return Err(BrokerCallError::NotSent("too many requests wait".into()));
        }
        stored.insert(
            Arc::clone(&id),
            StoredCallWaiter {
                to: Arc::clone(&to),
                response,
                client,
            },
        );
        drop(stored);
        let guard = StoredCallGuard {
            shared: self,
            id,
            to,
            may_be_stored: false,
        };
        Ok((guard, receiver))
    }

    /// Handles a message: a reply to a waiter, or a message for the request handler. A message for
    /// neither becomes a dead letter, so that it is neither lost nor blocks the mailbox.
    pub(super) fn on_message(&self, message: MailboxMessage, hub: &HubSender) {
        if *message.kind == *REPLY_KIND {
            match self.complete_stored(&message) {
                Ok(()) => {
                    let id = Arc::clone(&message.id);
                    // A lost ack leads to redelivery after the next connect.
                    let _ = hub.try_send(&BrokerFrame::Ack { id });
                }
                Err(reason) => dead_letter(&message, reason, hub),
            }
        } else if let Some(served) = &self.handler {
            served.on_message(message, hub);
        } else {
            dead_letter(&message, "nobody here takes such messages", hub);
        }
    }

    /// Completes a waiter with a reply, or returns why the message is no valid reply.
    fn complete_stored(&self, message: &MailboxMessage) -> Result<(), &'static str> {
        let id = message.correlation_id.clone().unwrap_or_default();
        let from = message.sender.as_ref().map(|from| &*from.session_id);
        let called = lock(&self.stored_calls)
            .get(&id)
            .map(|waiter| Arc::clone(&waiter.to));
        match called {
            // The hub itself reports the expiry of a request to a peer.
            Some(to) if from != Some(&*to) && from != Some(HUB) => {
                Err("a reply of somebody who was not asked")
            }
            // Parse before the ack.
            Some(_) => match BrokerResponse::parse(&message.body) {
                Ok(response) => {
                    if let Some(waiter) = lock(&self.stored_calls).remove(&id) {
                        let _ = waiter.response.send(response);
                    }
                    Ok(())
                }
                Err(_) => Err("a reply that cannot be read"),
            },
            // Reply to an abandoned request of this client: waiters are registered before sending.
            None if id.starts_with(REQUEST_ID_PREFIX)
                && from.is_some_and(|from| self.is_called_peer(from)) =>
            {
                Ok(())
            }
            None => Err("a reply to nothing that was asked"),
        }
    }

    /// Whether a sender may reply to an abandoned request: the hub, or a called peer.
    fn is_called_peer(&self, from: &str) -> bool {
        from == HUB || lock(&self.called_peers).contains(from)
    }

    /// Returns the client handle of a stored call.
    pub(super) fn stored_client(&self, id: &str) -> Option<Arc<dyn ClientHandle>> {
        lock(&self.stored_calls).get(id)?.client.clone()
    }

    /// Waits until the client is closed for good.
    async fn wait_closed(&self) -> Arc<str> {
        let mut changes = self.changes.subscribe();
        loop {
            if let BrokerClientState::Closed(error) = &self.snapshot.load().state {
                return error.display_chain();
            }
            if changes.changed().await.is_err() {
                return "the client is closed".into();
            }
        }
    }
}

/// Rejects a message as a dead letter.
fn dead_letter(message: &MailboxMessage, reason: &'static str, hub: &HubSender) {
    tracing::warn!(message = %message.id, kind = %message.kind, reason, "message rejected as dead");
    let _ = hub.try_send(&BrokerFrame::Nak {
        id: Arc::clone(&message.id),
        delay_ms: 0,
        dead_letter_reason: Some(reason.into()),
    });
}

fn unwrap_response(
    received: Result<BrokerResponse, oneshot::error::RecvError>,
) -> Result<BrokerResponse, BrokerCallError> {
    received.map_err(|_| BrokerCallError::Lost("the client is closed".into()))
}

/// Pending stored call; cancels the request at the hub if dropped without a reply.
#[derive(Debug)]
struct StoredCallGuard<'a> {
    shared: &'a BrokerClientShared,
    id: Arc<str>,
    to: Arc<str>,
    /// Whether the hub may have stored the request.
    may_be_stored: bool,
}

impl StoredCallGuard<'_> {
    /// Adjusts the error of a request without further connection: the request may have been stored.
    fn adjust_error(&self, error: BrokerCallError) -> BrokerCallError {
        match error {
            BrokerCallError::Timeout(_) if self.may_be_stored => {
                BrokerCallError::Timeout(ExecutionStatus::Unknown)
            }
            BrokerCallError::NotSent(reason) if self.may_be_stored => BrokerCallError::Lost(reason),
            error => error,
        }
    }
}

impl Drop for StoredCallGuard<'_> {
    fn drop(&mut self) {
        let left = lock(&self.shared.stored_calls).remove(&self.id);
        if left.is_none() || !self.may_be_stored {
            return;
        }
        let snapshot = self.shared.snapshot.load_full();
        if let BrokerClientState::Connected(connection) = &snapshot.state {
            connection.cancel_request(Some(Arc::clone(&self.to)), Arc::clone(&self.id));
        }
    }
}
