//! Handler of the hub's requests, and the sender for the responses.

use std::fmt;
use std::sync::Arc;

use bowline_link::websocket::DisconnectReason;
use bytes::Bytes;
use tokio::time::Instant;

use super::super::server_requests::OutgoingServerRequests;
use super::hub_connection::{DeliverError, HubConnection};
use crate::frames::{BrokerFrame, BrokerRefusal, LiveRequest, MailboxMessage, SessionEvent};

/// Handles requests of the hub. Called by the connection reader, so no method may block; the hub
/// limits the number of requests in flight.
pub trait HubRequestHandler: fmt::Debug + Send + Sync {
    /// A mailbox message other than a reply to this client. The client holds the lease until an ack
    /// over `hub` or the end of the connection.
    fn on_message(&self, message: MailboxMessage, hub: &HubSender);

    /// A live request.
    fn on_request(&self, request: LiveRequest, hub: &HubSender);

    /// A request was cancelled: a stored request sent from mailbox `mailbox`, or a request of the
    /// hub itself if `None`.
    fn on_cancel(&self, mailbox: Option<&Arc<str>>, correlation_id: &Arc<str>, hub: &HubSender);

    /// An event of a session served by a local server.
    fn on_session_event(&self, server: &Arc<str>, session: &Arc<str>, event: SessionEvent) {
        let _ = (server, session, event);
    }

    /// The hub refused a frame without a waiter, such as an offer.
    fn on_refused(&self, refusal: &BrokerRefusal) {
        let _ = refusal;
    }

    /// A connection ended: unacknowledged messages will be redelivered.
    fn on_disconnected(&self, hub: &HubSender) {
        let _ = hub;
    }
}

/// Sends frames over one connection to the hub. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HubSender(pub(super) Arc<HubConnection>);

impl HubSender {
    /// Returns the number of the connection, counted from one.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.0.generation
    }

    /// Returns the local mailbox.
    #[must_use]
    pub fn mailbox(&self) -> &Arc<str> {
        &self.0.mailbox
    }

    /// Sends a frame, waiting for room in the queue.
    ///
    /// # Errors
    /// The connection ended.
    pub async fn send(&self, frame: &BrokerFrame) -> Result<(), DisconnectReason> {
        self.0.outgoing.send(frame.to_bytes()).await
    }

    /// Sends a frame if the queue has room; otherwise returns the bytes.
    ///
    /// # Errors
    /// The queue is full, or the connection ended.
    pub fn try_send(&self, frame: &BrokerFrame) -> Result<(), Bytes> {
        self.0.outgoing.try_send(frame.to_bytes())
    }

    /// Delivers a message to be stored and waits for the receipt.
    ///
    /// # Errors
    /// No receipt arrived.
    pub async fn deliver(
        &self,
        to: &Arc<str>,
        message: MailboxMessage,
        deadline: Instant,
    ) -> Result<(), DeliverError> {
        self.0.deliver_message(to, message, deadline).await
    }

    /// Returns the open server requests of local servers.
    pub(crate) fn server_requests(&self) -> &OutgoingServerRequests {
        &self.0.server_requests
    }

    /// Waits for the end of the connection.
    pub async fn wait_closed(&self) -> DisconnectReason {
        self.0.outgoing.wait_closed().await
    }
}
