//! One connection to a hub, from the handshake to the end.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::client_handle::ClientHandle;
use bowline_core::error::ExecutionStatus;
use bowline_core::pending_table::{PendingTable, SendState};
use bowline_core::sync::lock;
use bowline_link::websocket::{DisconnectReason, WebSocketSender};
use bowline_runtime::{Lifecycle, TaskTracker};
use bytes::Bytes;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::super::BrokerCallError;
use super::super::server_requests::OutgoingServerRequests;
use crate::frames::{BrokerFrame, BrokerRefusal, BrokerWelcome, LiveRequest, MailboxMessage};

/// Messages awaiting a receipt on one connection.
const RECEIPTS_MAX: usize = 65_536;

/// How long a cancel frame may wait for room.
const CANCEL_WAIT: Duration = Duration::from_secs(1);

/// One connection; every wait on the connection ends with it.
#[derive(Debug)]
pub(super) struct HubConnection {
    /// Number of the connection within the client.
    pub(super) generation: u64,
    /// The mailbox assigned by the hub.
    pub(super) mailbox: Arc<str>,
    /// The sending half.
    pub(super) outgoing: WebSocketSender,
    /// Server requests of local servers to callers at the hub.
    pub(super) server_requests: OutgoingServerRequests,
    /// Revision of the newest manifest announced by the hub.
    pub(super) manifest_revision: watch::Sender<u64>,
    /// Pending live calls and receipts.
    pending: std::sync::Mutex<HubConnectionTable>,
    /// Permits for live calls in flight.
    live_permits: Semaphore,
    /// Closed at the end of the connection.
    lifecycle: Lifecycle,
    tasks: TaskTracker,
}

#[derive(Debug)]
struct HubConnectionTable {
    live: PendingTable<LiveCallWaiter>,
    receipts: HashMap<Arc<str>, oneshot::Sender<Result<(), BrokerRefusal>>>,
    /// How the connection ended, if ended; no wait starts after that.
    end: Option<HubConnectionEnd>,
}

/// A live response, or why there is none.
pub(super) type LiveCallResult = Result<Bytes, BrokerCallError>;

/// Waiter for a live response.
#[derive(Debug)]
struct LiveCallWaiter {
    response: oneshot::Sender<LiveCallResult>,
    client: Option<Arc<dyn ClientHandle>>,
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HubConnectionEnd {
    /// The reason, as one clause.
    pub(super) reason: Arc<str>,
    /// Whether another peer took over the mailbox.
    pub(super) fenced: bool,
}

/// Why a message has no receipt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeliverError {
    /// The message was never sent.
    #[error("it was not sent: {0}")]
    NotSent(Arc<str>),
    /// The connection was lost after the message may have been sent.
    #[error("the connection was lost: {0}")]
    Lost(Arc<str>),
    /// The receipt timed out.
    #[error("no receipt in time")]
    Timeout,
    /// The broker refused the message and stored nothing.
    #[error("the broker refused it: {}", .0.reason)]
    Refused(BrokerRefusal),
}

impl HubConnection {
    pub(super) fn new(
        generation: u64,
        welcome: &BrokerWelcome,
        outgoing: WebSocketSender,
        tasks: &TaskTracker,
    ) -> Self {
        let requests_max = welcome.requests_max.clamp(1, Semaphore::MAX_PERMITS);
        let table = HubConnectionTable {
            live: PendingTable::new(requests_max),
            receipts: HashMap::new(),
            end: None,
        };
        Self {
            generation,
            mailbox: Arc::clone(&welcome.mailbox),
            outgoing,
            server_requests: OutgoingServerRequests::default(),
            manifest_revision: watch::Sender::new(0),
            pending: std::sync::Mutex::new(table),
            live_permits: Semaphore::new(requests_max),
            lifecycle: Lifecycle::default(),
            tasks: tasks.clone(),
        }
    }

    /// Returns how the connection ended, after all waiters got the error.
    pub(super) fn connection_end(&self) -> Option<HubConnectionEnd> {
        lock(&self.pending).end.clone()
    }

    /// Waits for the end of the connection.
    pub(super) async fn wait_end(&self) -> HubConnectionEnd {
        self.lifecycle.shutdown().wait_closing().await;
        self.connection_end().unwrap_or_else(|| HubConnectionEnd {
            reason: "the connection is over".into(),
            fenced: false,
        })
    }

    /// Returns the number of pending live calls.
    pub(super) fn pending_count(&self) -> usize {
        lock(&self.pending).live.len()
    }

    /// Sends a live request to the hub, or through the hub to a peer, and waits for the response.
    /// Dropping the future cancels the request at the hub.
    pub(super) async fn send_live(
        &self,
        to: Option<Arc<str>>,
        body: Bytes,
        deadline: LiveCallDeadline,
        client: Option<Arc<dyn ClientHandle>>,
    ) -> Result<Bytes, BrokerCallError> {
        // `finish` closes the semaphore, so a wait for a permit ends with the connection.
        let _permit = match timeout_at(deadline.at, self.live_permits.acquire()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(BrokerCallError::NotSent(self.end_reason())),
            Err(_) => return Err(BrokerCallError::Timeout(ExecutionStatus::NotStarted)),
        };
        let (guard, response) = self.register_live(client)?;
        let frame = BrokerFrame::Request(LiveRequest {
            id: itoa::Buffer::new().format(guard.id).into(),
            to,
            body,
            ttl_ms: Some(deadline.ttl_ms),
            ..LiveRequest::default()
        });
        // Mark as sent before the send: the connection may end in between.
        lock(&self.pending).live.mark_sent(guard.id);
        match timeout_at(deadline.at, self.outgoing.send(frame.to_bytes())).await {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => return Err(to_not_sent(&reason)),
            Err(_) => return Err(BrokerCallError::Timeout(ExecutionStatus::NotStarted)),
        }
        match timeout_at(deadline.at, response).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(BrokerCallError::Lost("the connection is over".into())),
            Err(_) => Err(BrokerCallError::Timeout(ExecutionStatus::Unknown)),
        }
    }

    /// Delivers a message to be stored and waits for the receipt.
    pub(super) async fn deliver_message(
        &self,
        to: &Arc<str>,
        message: MailboxMessage,
        deadline: Instant,
    ) -> Result<(), DeliverError> {
        let (receipt, received) = oneshot::channel();
        let id = Arc::clone(&message.id);
        {
            let mut table = lock(&self.pending);
            if let Some(end) = &table.end {
                return Err(DeliverError::NotSent(Arc::clone(&end.reason)));
            }
            if table.receipts.len() >= RECEIPTS_MAX {
                return Err(DeliverError::NotSent("too many wait for receipts".into()));
            }
            table.receipts.insert(Arc::clone(&id), receipt);
        }
        let _awaited = ReceiptGuard {
            connection: self,
            id,
        };
        let to = Arc::clone(to);
        let frame = BrokerFrame::Deliver { to, message }.to_bytes();
        match timeout_at(deadline, self.outgoing.send(frame)).await {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => return Err(DeliverError::NotSent(reason.to_string().into())),
            Err(_) => return Err(DeliverError::NotSent("no room in time".into())),
        }
        match timeout_at(deadline, received).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(refusal))) => Err(DeliverError::Refused(refusal)),
            Ok(Err(_)) => Err(DeliverError::Lost(self.end_reason())),
            Err(_) => Err(DeliverError::Timeout),
        }
    }

    /// Sends a cancel frame to the hub; best effort and non-blocking.
    pub(super) fn cancel_request(&self, to: Option<Arc<str>>, correlation_id: Arc<str>) {
        let frame = BrokerFrame::Cancel { to, correlation_id }.to_bytes();
        let Err(frame) = self.outgoing.try_send(frame) else {
            return;
        };
        if self.connection_end().is_some() || self.outgoing.disconnect_reason().is_some() {
            return;
        }
        let outgoing = self.outgoing.clone();
        self.tasks.spawn("broker cancel", async move {
            let _ = timeout(CANCEL_WAIT, outgoing.send(frame)).await;
        });
    }

    /// Completes a live call; `false` without a waiter.
    pub(super) fn complete_live(&self, id: &str, response: LiveCallResult) -> bool {
        let entry = match id.parse() {
            Ok(id) => lock(&self.pending).live.take(id),
            Err(_) => None,
        };
        match entry {
            // The waiter may have been dropped just now.
            Some((waiter, _)) => waiter.response.send(response).is_ok(),
            None => false,
        }
    }

    /// Returns the client handle of a live call.
    pub(super) fn live_client(&self, id: &str) -> Option<Arc<dyn ClientHandle>> {
        let table = lock(&self.pending);
        table.live.get(id.parse().ok()?)?.client.clone()
    }

    /// Completes a delivery with a receipt or a refusal; `false` without a waiter.
    pub(super) fn complete_receipt(&self, id: &str, receipt: Result<(), BrokerRefusal>) -> bool {
        let waiter = lock(&self.pending).receipts.remove(id);
        waiter.is_some_and(|waiter| waiter.send(receipt).is_ok())
    }

    /// Ends the connection state and fails every pending wait.
    pub(super) fn finish(&self, end: HubConnectionEnd) {
        let reason = Arc::clone(&end.reason);
        let (live, receipts): (Vec<_>, _) = {
            let mut table = lock(&self.pending);
            table.end.get_or_insert(end);
            let live = table.live.drain().collect();
            (live, std::mem::take(&mut table.receipts))
        };
        for (waiter, _) in live {
            let lost = BrokerCallError::Lost(Arc::clone(&reason));
            let _ = waiter.response.send(Err(lost));
        }
        drop(receipts);
        self.server_requests.close();
        self.live_permits.close();
        self.lifecycle.close();
    }

    fn end_reason(&self) -> Arc<str> {
        self.connection_end()
            .map_or_else(|| "the connection is over".into(), |end| end.reason)
    }

    fn register_live(
        &self,
        client: Option<Arc<dyn ClientHandle>>,
    ) -> Result<(LiveCallGuard<'_>, oneshot::Receiver<LiveCallResult>), BrokerCallError> {
        let (response, receiver) = oneshot::channel();
        let mut table = lock(&self.pending);
        if let Some(end) = &table.end {
            return Err(BrokerCallError::NotSent(Arc::clone(&end.reason)));
        }
        let id = table.live.register(LiveCallWaiter { response, client });
        let id = id.map_err(|_| BrokerCallError::NotSent("too many requests wait".into()))?;
        let guard = LiveCallGuard {
            connection: self,
            id,
        };
        Ok((guard, receiver))
    }
}

/// Deadline of a live call.
#[derive(Clone, Copy, Debug)]
pub(super) struct LiveCallDeadline {
    /// Deadline for the local timer.
    pub(super) at: Instant,
    /// Remaining time, for the request frame.
    pub(super) ttl_ms: u64,
}

fn to_not_sent(reason: &DisconnectReason) -> BrokerCallError {
    BrokerCallError::NotSent(reason.to_string().into())
}

/// Pending live call; cancels the request at the hub if dropped without a response.
#[derive(Debug)]
struct LiveCallGuard<'a> {
    connection: &'a HubConnection,
    id: u64,
}

impl Drop for LiveCallGuard<'_> {
    fn drop(&mut self) {
        let left = lock(&self.connection.pending).live.take(self.id);
        if let Some((_, SendState::MaybeSent)) = left {
            let id = itoa::Buffer::new().format(self.id).into();
            self.connection.cancel_request(None, id);
        }
    }
}

/// Pending receipt.
#[derive(Debug)]
struct ReceiptGuard<'a> {
    connection: &'a HubConnection,
    id: Arc<str>,
}

impl Drop for ReceiptGuard<'_> {
    fn drop(&mut self) {
        lock(&self.connection.pending).receipts.remove(&self.id);
    }
}
