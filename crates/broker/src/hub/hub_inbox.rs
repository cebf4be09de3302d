//! The hub's own mailbox: requests to the hub, and replies to the hub's stored calls.
//!
//! Senders take turns with a limited share in flight, so that a busy sender or slow tools delay
//! only their own requests.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::error::ExecutionStatus;
use bowline_core::sync::lock;
use bowline_journal::{
    Duplicate, Journal, JournalError, JournalFuture, LeaseOrder, LeaseReceipt, LeasedMessage,
    MessageId, PublishOutcome, Timestamps,
};
use bowline_runtime::{ActivityGuard, Service, Shutdown};

use super::inbox_scheduler::InboxScan;
use super::live_requests::PeerClientHandle;
use super::message_store::{MessageStoreError, hub_stamp, random_id};
use super::pump::{self, DELAY_MAX, UNREADABLE};
use super::{HubShared, SHUTDOWN_WAIT, remote_peer, stored_message};
use crate::frames::{
    BrokerResponse, MailboxMessage, MessageBody, MessageDraft, REPLY_KIND, REQUEST_KIND,
};
use crate::mailbox::MailboxName;
use crate::{ReplyError, ReplySink, ServeRequest, failures, reply_id};

/// Lease of a request in flight.
const REQUEST_LEASE: Duration = Duration::from_secs(65 * 60);

/// Wait after a journal error.
const JOURNAL_RETRY_WAIT: Duration = Duration::from_secs(1);

/// Starts the requests in the hub's own mailbox.
pub(super) struct HubInbox(pub(super) Arc<HubShared>);

impl Service for HubInbox {
    const NAME: &'static str = "hub mailbox";

    async fn run(self, shutdown: Shutdown) {
        let Self(shared) = self;
        load_pending(&shared).await;
        loop {
            let due = lock(&shared.inbox).promote_due(shared.now());
            start_scans(&shared);
            tokio::select! {
                biased;
                () = shutdown.wait_closing() => break,
                () = shared.inbox.wait_until(&**shared.clock(), due) => {}
            }
        }
        shared.engine.close(SHUTDOWN_WAIT).await;
    }
}

/// Marks the messages left from before a restart as pending.
async fn load_pending(shared: &HubShared) {
    let bytes = shared
        .journal
        .lane_bytes(stored_message::HUB_LANE_PREFIX)
        .await;
    match shared
        .journal
        .lane_stats(stored_message::HUB_LANE_PREFIX, shared.timestamps())
        .await
    {
        Ok(lanes) => {
            let mut inbox = lock(&shared.inbox);
            for (lane, bytes) in bytes.unwrap_or_default() {
                if let Some(sender) = stored_message::lane_sender(&lane) {
                    // No message is larger than the whole lane.
                    inbox.record_size(sender, bytes);
                }
            }
            for lane in lanes.iter().filter(|lane| lane.queued > 0) {
                if let Some(sender) = stored_message::lane_sender(&lane.lane) {
                    inbox.mark_pending(sender);
                }
            }
        }
        Err(error) => tracing::error!(%error, "cannot read the hub's mailbox"),
    }
}

/// Starts scans of the next senders in parallel, so that the journal batches the lease writes.
fn start_scans(shared: &Arc<HubShared>) {
    loop {
        let next = lock(&shared.inbox).next_sender();
        let Some((sender, max)) = next else {
            return;
        };
        let owned = Arc::clone(shared);
        shared.tasks().spawn("hub inbox scan", async move {
            let scan = scan_sender(&owned, &sender, max).await;
            lock(&owned.inbox).finish_scan(&sender, scan);
            owned.inbox.wake();
        });
    }
}

async fn scan_sender(shared: &Arc<HubShared>, sender: &Arc<str>, max: usize) -> InboxScan {
    let Ok(lane) = stored_message::mailbox_lane(&MailboxName::new_hub(), sender) else {
        return InboxScan::All;
    };
    let at = shared.timestamps();
    let batch = match shared
        .journal
        .lease(&lane, LeaseOrder::Any, max, REQUEST_LEASE, at)
        .await
    {
        Ok(batch) => batch,
        Err(error) => {
            tracing::error!(%lane, %error, "cannot read the hub's mailbox");
            lock(&shared.inbox).schedule_retry(sender, at.now.plus(JOURNAL_RETRY_WAIT));
            return InboxScan::All;
        }
    };
    let scan = match batch.len() >= max {
        true => InboxScan::More,
        false => InboxScan::All,
    };
    for delivery in batch {
        handle_delivery(shared, sender, delivery).await;
    }
    scan
}

async fn handle_delivery(shared: &Arc<HubShared>, sender: &Arc<str>, delivery: LeasedMessage) {
    let receipt = delivery.receipt;
    if pump::is_delivery_limit_reached(shared, &delivery) {
        let times = delivery.attempts.saturating_sub(1);
        let reason = format!("it was taken up {times} times and never ended");
        return pump::dead_letter_message(shared, receipt, reason.into()).await;
    }
    let Some(stored) = stored_message::decode_message(&delivery.body) else {
        return pump::dead_letter_message(shared, receipt, UNREADABLE.into()).await;
    };
    let stored_message::StoredMessage {
        principal,
        alias,
        message,
    } = stored;
    let from = message.sender.clone().unwrap_or_default();
    match &*message.kind {
        REQUEST_KIND => {
            let bytes = delivery.body.len() as u64;
            if !lock(&shared.inbox).start_message(receipt, sender, bytes) {
                // Already running; the end of the run ends this lease too.
                return;
            }
            let left = delivery.remaining.unwrap_or(DELAY_MAX);
            let subscriber = MailboxName::parse(&from.session_id)
                .ok()
                .and_then(|from| lock(&shared.peers).subscriber(&from));
            let id = Arc::clone(&message.id);
            let incoming = ServeRequest {
                sender: from,
                principal: Some(Arc::new(principal)),
                deadline: shared.now().plus(left),
                client: subscriber.map(|peer| PeerClientHandle::for_request(&peer, &id)),
                message,
            };
            let inbox_request = InboxRequest {
                shared: Arc::clone(shared),
                message: receipt.id,
                sender: Arc::clone(sender),
                request: id,
                alias,
                is_first: delivery.attempts == 1,
                is_settled: AtomicBool::new(false),
                _activity: shared.shutdown.start_activity(),
            };
            let tasks = shared.tasks();
            tasks.spawn("hub request", async move {
                inbox_request.run_request(incoming).await
            });
        }
        REPLY_KIND => remote_peer::handle_reply(shared, &from, &message, receipt).await,
        _ => {
            let reason = "it is of a kind that the hub does not take";
            pump::dead_letter_message(shared, receipt, reason.into()).await;
        }
    }
}

/// Cancels a stored request of a peer, running or still pending.
pub(super) fn cancel_stored(shared: &HubShared, from: &MailboxName, id: &Arc<str>) {
    if !shared.engine.cancel_request(from.as_str(), id) {
        let name = format!("{from}/{id}").into();
        lock(&shared.inbox).remember_cancelled(name);
    }
}

/// Stores the recorded reply again for a request completed before.
pub(super) async fn resend_reply(
    shared: &HubShared,
    from: &MailboxName,
    request: &MailboxMessage,
    alias: Option<&Arc<str>>,
) {
    let recorded = shared
        .engine
        .ledger()
        .find_response(from.as_str(), &request.id)
        .await;
    let Ok(Some(Some(body))) = recorded else {
        return;
    };
    if let Err(error) =
        store_hub_reply(shared, from, &request.id, alias, MessageBody::Json(&body)).await
    {
        tracing::warn!(%from, %error, "cannot store a reply again");
    }
}

/// Stores a reply of the hub, sent from the name that the request was addressed to. Among several
/// replies to one request the first counts until acknowledged.
pub(super) async fn store_hub_reply(
    shared: &HubShared,
    to: &MailboxName,
    request: &str,
    alias: Option<&Arc<str>>,
    body: MessageBody<'_>,
) -> Result<(), MessageStoreError> {
    let message = |id: &str| {
        let draft = MessageDraft {
            id,
            kind: REPLY_KIND,
            body,
            correlation_id: Some(request),
            ttl_ms: None,
            created_at_ms: shared.clock().unix_ms(),
        };
        MailboxMessage::new(&draft).with_sender(hub_stamp(alias))
    };
    let reply = message(&reply_id(to.as_str(), request));
    // A reply is charged like a delivery.
    shared.charge_bytes(&to.principal().into(), reply.body.len());
    let outcome = shared.store_hub_message(to, &reply).await?;
    if matches!(outcome, PublishOutcome::Duplicate(Duplicate::Completed(_))) {
        shared
            .store_hub_message(to, &message(&random_id("")?))
            .await?;
    }
    Ok(())
}

/// A request in flight until dropped, and the sink of the reply.
#[derive(Debug)]
struct InboxRequest {
    shared: Arc<HubShared>,
    message: MessageId,
    sender: Arc<str>,
    request: Arc<str>,
    /// The alias of the hub used as the address.
    alias: Option<Arc<str>>,
    /// Whether this is the first delivery.
    is_first: bool,
    /// Whether the journal recorded the outcome.
    is_settled: AtomicBool,
    /// The hub closes after the request.
    _activity: ActivityGuard,
}

impl Drop for InboxRequest {
    fn drop(&mut self) {
        let shared = &self.shared;
        let receipt = self.current_receipt();
        lock(&shared.inbox).finish_message(self.message);
        shared.inbox.wake();
        let Some(receipt) = receipt.filter(|_| !self.is_settled.load(Ordering::Relaxed)) else {
            return;
        };
        let due = shared.now().plus(JOURNAL_RETRY_WAIT);
        lock(&shared.inbox).schedule_retry(&self.sender, due);
        let owned = Arc::clone(shared);
        shared.tasks().spawn("request return", async move {
            let back = owned
                .journal
                .nak(receipt, JOURNAL_RETRY_WAIT, owned.timestamps())
                .await;
            if let Err(error) = back {
                tracing::warn!(%error, "cannot return a request to the mailbox");
            }
        });
    }
}

impl InboxRequest {
    async fn run_request(self, incoming: ServeRequest) {
        let (caller, id) = (
            Arc::clone(&incoming.sender.session_id),
            Arc::clone(&incoming.message.id),
        );
        let name = format!("{caller}/{id}");
        if self.is_first && lock(&self.shared.inbox).take_cancelled(&name) {
            let response =
                BrokerResponse::Failed(failures::request_cancelled(ExecutionStatus::NotStarted));
            // Nobody reads the reply; only the end of the request matters.
            let _ = self.store_reply(&response).await;
            return self.ack().await;
        }
        let mut served = Box::pin(self.shared.engine.handle_stored(incoming, &self));
        // Poll once to register the request as in flight, so that it can be cancelled.
        let first_poll = poll_fn(|context| Poll::Ready(served.as_mut().poll(context))).await;
        if first_poll.is_ready() {
            return;
        }
        if lock(&self.shared.inbox).take_cancelled(&name) {
            self.shared.engine.cancel_request(&caller, &id);
        }
        served.await;
    }

    fn current_receipt(&self) -> Option<LeaseReceipt> {
        lock(&self.shared.inbox).receipt(self.message)
    }

    /// Applies a journal operation to the lease of the request.
    async fn update_journal<'a>(
        &'a self,
        operation: impl FnOnce(&'a dyn Journal, LeaseReceipt, Timestamps) -> JournalFuture<'a, ()>
        + Send,
    ) {
        if let Some(receipt) = self.current_receipt() {
            let result = operation(&*self.shared.journal, receipt, self.shared.timestamps()).await;
            self.record_result(result);
        }
    }

    /// Records whether the journal operation succeeded.
    fn record_result(&self, result: Result<(), JournalError>) {
        match result {
            Ok(()) => self.is_settled.store(true, Ordering::Relaxed),
            Err(error) => tracing::error!(%error, "cannot store the end of a request"),
        }
    }
}

impl ReplySink for InboxRequest {
    fn store_reply<'a>(
        &'a self,
        response: &'a BrokerResponse,
    ) -> BoxFuture<'a, Result<(), ReplyError>> {
        Box::pin(async move {
            let to = MailboxName::parse(&self.sender)
                .map_err(|bad| ReplyError::Refused(bad.to_string().into()))?;
            let (request, alias) = (&self.request, self.alias.as_ref());
            let body = MessageBody::Reply(response);
            let stored = store_hub_reply(&self.shared, &to, request, alias, body).await;
            stored.map_err(|error| match error {
                MessageStoreError::Journal(JournalError::TooLarge { .. }) => ReplyError::TooLarge,
                MessageStoreError::Journal(JournalError::LaneFull { .. })
                | MessageStoreError::OverShare => {
                    ReplyError::Refused("the mailbox of whoever asked is full".into())
                }
                MessageStoreError::Journal(JournalError::BadName) => {
                    ReplyError::Refused(error.to_string().into())
                }
                MessageStoreError::Journal(_) => ReplyError::Lost,
            })
        })
    }

    fn ack(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.update_journal(|journal, receipt, at| journal.ack(receipt, None, at)))
    }

    fn put_back(&self, delay: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.update_journal(move |journal, receipt, at| journal.nak(receipt, delay, at))
                .await;
            let due = self.shared.now().plus(delay);
            lock(&self.shared.inbox).schedule_retry(&self.sender, due);
            self.shared.inbox.wake();
        })
    }

    fn dead_letter(&self, reason: Arc<str>) -> BoxFuture<'_, ()> {
        Box::pin(
            self.update_journal(move |journal, receipt, at| {
                journal.dead_letter(receipt, reason, at)
            }),
        )
    }
}
