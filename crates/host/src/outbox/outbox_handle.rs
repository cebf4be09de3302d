//! Operator access to queued writes: list, retry, drop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{EndpointScope, Principal, Role};
use bowline_core::client_handle::SessionKey;
use bowline_core::sync::lock;
use bowline_journal::{
    Journal, JournalError, JournalHealth, LaneName, LeaseOrder, MessageFilter, MessageId,
    MessageStatus, MessageView,
};
use thiserror::Error;

use super::notify::SUBSCRIPTION_KEY;
use super::queue_view::{
    OutboxLaneView, delivery_status, lane_parties, policy_target, to_agent_json, view_delivered,
    view_entry, with_params,
};
use super::queued_reply::OUTBOX_URI_PREFIX;
use super::write_record::WriteRecord;
use super::{LANE_PREFIX, ORDER_PERMITS, OutboxShared, deliver};
use super::{QueuedCallView, ServerQueueView};
use crate::host::Host;

/// Maximum writes per list request.
pub const QUEUED_CALLS_MAX: usize = 1_000;

/// Lease duration while the writes of a credential are picked.
const PICK_LEASE: Duration = Duration::from_secs(60);

/// Writes leased at once while picking.
const PICK_MAX: usize = 256;

/// Maximum number of remembered revoked credentials, for writes in flight at revocation.
const REVOKED_MAX: usize = 10_000;

/// Why an operation on a queued write failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OutboxError {
    /// Unknown or already delivered.
    #[error("no write `{id}` waits")]
    Unknown {
        /// The requested number.
        id: Arc<str>,
    },
    /// Being delivered.
    #[error("the write `{id}` is being delivered")]
    Sending {
        /// The requested number.
        id: Arc<str>,
    },
    /// The journal failed.
    #[error("the journal failed")]
    Journal(#[from] JournalError),
}

/// The queued writes of a host.
#[derive(Clone, Debug)]
pub struct OutboxHandle {
    host: Host,
}

impl Host {
    /// Returns the handle to queued writes.
    #[must_use]
    pub fn outbox(&self) -> OutboxHandle {
        OutboxHandle { host: self.clone() }
    }
}

impl Host {
    /// True if a principal may see its own write at an endpoint: under the same rules as its tool.
    fn can_see_write(
        &self,
        principal: &Principal,
        scope: &EndpointScope,
        view: &QueuedCallView,
    ) -> bool {
        let is_elsewhere = matches!(scope, EndpointScope::Server(only) if *only != view.server);
        let (tool, delivered) = (policy_target(view), delivery_status(view));
        !is_elsewhere && self.can_learn_outcome(principal, scope, tool, delivered)
    }
}

impl OutboxHandle {
    fn shared(&self) -> &Arc<OutboxShared> {
        self.host.outbox_shared_state()
    }

    /// Returns the journal.
    #[must_use]
    pub fn journal(&self) -> &Arc<dyn Journal> {
        &self.shared().journal
    }

    /// Returns the health of the journal.
    #[must_use]
    pub fn health(&self) -> JournalHealth {
        self.shared().journal.health()
    }

    /// Returns all lanes with queued or dead writes, sorted.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn lanes(&self) -> Result<Vec<OutboxLaneView>, OutboxError> {
        let shared = self.shared();
        let at = shared.timestamps();
        let lanes = shared.journal.lane_stats(LANE_PREFIX, at).await?;
        let views = lanes.iter().map(|view| {
            let (principal, server) = lane_parties(view.lane.as_str());
            let oldest = view.oldest_unix_ms;
            OutboxLaneView {
                principal: principal.into(),
                server: server.into(),
                configured: self.host.server(server).is_ok(),
                queued: view.queued,
                dead: view.dead_letters,
                oldest_age_ms: oldest.map(|stored| at.unix_ms.saturating_sub(stored)),
            }
        });
        Ok(views.collect())
    }

    /// Returns the number of queued and dead writes per server.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn stats(&self) -> Result<BTreeMap<Arc<str>, ServerQueueView>, OutboxError> {
        let mut all: BTreeMap<Arc<str>, ServerQueueView> = BTreeMap::new();
        for lane in self.lanes().await? {
            let server = all.entry(lane.server).or_default();
            server.queued += lane.queued;
            server.dead += lane.dead;
            server.oldest_age_ms = server.oldest_age_ms.max(lane.oldest_age_ms);
        }
        Ok(all)
    }

    /// Returns queued and dead writes after `after`, oldest first, up to `limit` and at most
    /// [`QUEUED_CALLS_MAX`].
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn list(
        &self,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<QueuedCallView>, OutboxError> {
        let shared = self.shared();
        let filter = MessageFilter {
            lanes: LANE_PREFIX.to_owned(),
            after: after.map(MessageId),
            dead: None,
            limit: limit.min(QUEUED_CALLS_MAX),
        };
        let entries = shared
            .journal
            .list_messages(filter, shared.timestamps())
            .await?;
        Ok(entries
            .iter()
            .map(|entry| shared.write_view(entry))
            .collect())
    }

    /// Returns a write with its parameters or its result.
    ///
    /// # Errors
    /// Unknown write, or the journal cannot be read.
    pub async fn show(&self, id: &str) -> Result<QueuedCallView, OutboxError> {
        let shared = self.shared();
        let number = parse_id(id)?;
        if let Some(entry) = shared.find_entry(number).await? {
            return Ok(with_params(shared.write_view(&entry), &entry));
        }
        let delivered = shared
            .delivered
            .find_write(&*shared.journal, number)
            .await?;
        delivered
            .map(|delivered| view_delivered(&delivered))
            .ok_or_else(|| to_unknown_error(id))
    }

    /// Returns the content of `bowline://outbox/{id}` at an endpoint: a JSON object, or `None` for
    /// a write of a different principal. The owner reads all. A write is authorized like its tool:
    /// a caller that cannot see the tool here (context, profile or endpoint) cannot see the write;
    /// a caller that lost the tool with a role gets no result.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn read_uri(
        &self,
        principal: &Principal,
        scope: &EndpointScope,
        uri: &str,
    ) -> Result<Option<String>, OutboxError> {
        let Some(id) = uri.strip_prefix(OUTBOX_URI_PREFIX) else {
            return Ok(None);
        };
        let view = match self.show(id).await {
            Ok(view) => view,
            Err(OutboxError::Unknown { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let is_own = view.principal == principal.name || principal.role == Role::Owner;
        let is_seen = is_own && self.host.can_see_write(principal, scope, &view);
        Ok(is_seen.then(|| to_agent_json(&view)))
    }

    /// Subscribes a session to the end of a write; `false` if the principal has no such write.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn subscribe(
        &self,
        principal: &Principal,
        scope: &EndpointScope,
        session: SessionKey,
        uri: &str,
    ) -> Result<bool, OutboxError> {
        if self.read_uri(principal, scope, uri).await?.is_none() {
            return Ok(false);
        }
        self.shared()
            .sessions
            .record_identity(session, principal, scope);
        let (subscription_key, uri) = (Arc::from(SUBSCRIPTION_KEY), Arc::from(uri));
        let sessions = &self.shared().sessions;
        // With too many subscriptions the client can still read.
        let _full = sessions.subscribe(principal, session, &subscription_key, &uri, &uri);
        Ok(true)
    }

    /// Retries a write: at once if queued, or as the new last write of its lane if dead.
    ///
    /// # Errors
    /// Unknown write, or the journal failed.
    pub async fn retry(&self, id: &str) -> Result<(), OutboxError> {
        let shared = self.shared();
        let entry = self.find_entry(id).await?;
        if matches!(entry.status, MessageStatus::DeadLetter(_)) {
            let record = WriteRecord::parse(&entry.body);
            let ttl = record.map(|record| Duration::from_millis(record.head.keep_ms));
            shared
                .journal
                .requeue(entry.id, ttl, shared.timestamps())
                .await?;
        }
        shared.expedite_lane(&entry.lane);
        Ok(())
    }

    /// Drops a write: it is not delivered, and its key is unlocked.
    ///
    /// # Errors
    /// Unknown write, delivery in progress, or the journal failed.
    pub async fn drop_write(&self, id: &str) -> Result<(), OutboxError> {
        let shared = self.shared();
        let entry = self.find_entry(id).await?;
        let removed = shared
            .journal
            .remove_message(entry.id, shared.timestamps())
            .await;
        removed.map_err(|error| match error {
            JournalError::LeaseLost => OutboxError::Sending { id: id.into() },
            JournalError::NotFound => to_unknown_error(id),
            other => other.into(),
        })?;
        if let Some(record) = WriteRecord::parse(&entry.body) {
            let view = shared.write_view(&entry);
            shared.on_dropped(entry.id, &record, view);
        }
        shared.expedite_lane(&entry.lane);
        Ok(())
    }

    /// Dead-letters all queued writes of a credential and returns their number. A write in flight
    /// is not sent again.
    ///
    /// # Errors
    /// The journal failed; some writes may be dead already.
    pub async fn revoke_credential(&self, credential: &str) -> Result<usize, OutboxError> {
        if credential.is_empty() {
            return Ok(0);
        }
        let shared = self.shared();
        {
            let mut notes = lock(&shared.notes);
            if notes.revoked.len() >= REVOKED_MAX {
                notes.revoked.pop_first();
            }
            notes.revoked.insert(credential.into());
        }
        // Workers lease nothing meanwhile: picked writes return to their positions.
        let all = u32::try_from(ORDER_PERMITS).unwrap_or(u32::MAX);
        let _order = shared.order_permits.acquire_many(all).await;
        let mut count = 0;
        for view in shared
            .journal
            .lane_stats(LANE_PREFIX, shared.timestamps())
            .await?
        {
            if view.queued > 0 {
                count += self.pick_revoked(&view.lane, credential).await?;
                shared.expedite_lane(&view.lane);
            }
        }
        Ok(count)
    }

    /// Picks the writes of a credential from a lane.
    async fn pick_revoked(&self, lane: &LaneName, credential: &str) -> Result<usize, OutboxError> {
        let shared = self.shared();
        let (mut count, mut others) = (0, Vec::new());
        loop {
            let (journal, at) = (&shared.journal, shared.timestamps());
            let some = journal.lease(lane, LeaseOrder::Any, PICK_MAX, PICK_LEASE, at);
            let some = some.await?;
            if some.is_empty() {
                break;
            }
            for delivery in some {
                let record = WriteRecord::parse(&delivery.body);
                match record.filter(|record| **record.head.credential() == *credential) {
                    Some(record) => {
                        deliver::dead_letter_revoked(shared, delivery.receipt, &record).await?;
                        count += 1;
                    }
                    None => others.push(delivery.receipt),
                }
            }
        }
        for receipt in others {
            shared.release_message(receipt).await?;
        }
        Ok(count)
    }

    async fn find_entry(&self, id: &str) -> Result<MessageView, OutboxError> {
        let entry = self.shared().find_entry(parse_id(id)?).await?;
        entry.ok_or_else(|| to_unknown_error(id))
    }
}

impl OutboxShared {
    async fn find_entry(&self, id: MessageId) -> Result<Option<MessageView>, OutboxError> {
        let entry = match self.journal.get_message(id, self.timestamps()).await {
            Err(error @ JournalError::Damaged { .. }) => {
                Some(self.damaged_entry(id).await?.ok_or(error)?)
            }
            entry => entry?,
        };
        Ok(entry.filter(|entry| entry.lane.as_str().starts_with(LANE_PREFIX)))
    }

    /// Returns the rest of a damaged record, to show and drop it.
    async fn damaged_entry(&self, id: MessageId) -> Result<Option<MessageView>, JournalError> {
        let filter = MessageFilter {
            lanes: LANE_PREFIX.to_owned(),
            after: Some(MessageId(id.0.saturating_sub(1))),
            limit: 1,
            ..MessageFilter::default()
        };
        let entries = self
            .journal
            .list_messages(filter, self.timestamps())
            .await?;
        Ok(entries.into_iter().find(|entry| entry.id == id))
    }

    fn write_view(&self, entry: &MessageView) -> QueuedCallView {
        let context = self.view_context(Some(entry.lane.as_str()));
        view_entry(entry, self.last_error(entry.id), context)
    }

    /// Schedules a lane at once.
    fn expedite_lane(&self, lane: &LaneName) {
        let (_, server) = lane_parties(lane.as_str());
        let now = self.clock.now();
        let mut board = lock(&self.scheduler);
        board.mark_pending(&lane.as_str().into(), &server.into(), now);
        board.expedite(lane.as_str(), now);
        drop(board);
        self.wake_lane(lane.as_str());
        self.scheduler.wake();
    }
}

fn parse_id(id: &str) -> Result<MessageId, OutboxError> {
    id.parse().map(MessageId).map_err(|_| to_unknown_error(id))
}

fn to_unknown_error(id: &str) -> OutboxError {
    OutboxError::Unknown { id: id.into() }
}
