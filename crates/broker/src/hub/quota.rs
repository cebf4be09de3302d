//! Limits of one principal at the hub: bytes in work, bytes per second, bytes in the journal.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::budget::{BudgetRefusal, CallCost};
use bowline_core::call::{Principal, Role};
use bowline_core::rate_limiter::{RateDecision, RequestCost, WAIT_MAX};
use bowline_core::shares::SharedResource;
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_journal::{JournalError, LaneName};
use foldhash::fast::RandomState;

use super::{HubShared, stored_message};
use crate::mailbox::MailboxName;
use bowline_core::accounts::ResourceShare;

/// Most copies of a delivery in memory while stored and answered: received, stamped, encoded,
/// being written, and the same again when leased.
const COPIES_MAX: u64 = 8;

/// Minimum interval between byte counts of the journal.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// Journal bytes by mailbox owner.
#[derive(Debug, Default)]
pub(super) struct StoredBytes {
    /// The last count of the journal plus all bytes stored since; acknowledged bytes are not
    /// subtracted until the next count.
    bytes: HashMap<Arc<str>, u64, RandomState>,
    total: u64,
    /// Time of the last count, if any.
    counted_at: Option<MonotonicTime>,
}

impl StoredBytes {
    fn reset_counts(&mut self, lanes: &[(LaneName, u64)], now: MonotonicTime) {
        self.bytes.clear();
        self.total = 0;
        self.counted_at = Some(now);
        for (lane, bytes) in lanes {
            self.total = self.total.saturating_add(*bytes);
            if let Some(principal) = stored_message::lane_account(lane) {
                *self.bytes.entry(principal).or_default() += bytes;
            }
        }
    }

    fn is_stale(&self, now: MonotonicTime) -> bool {
        let counted = self.counted_at;
        counted.is_none_or(|then| now >= then.plus(COUNT_INTERVAL))
    }
}

/// Memory share of a delivery in work, released on drop.
#[derive(Debug)]
pub(super) struct DeliveryPermit {
    shared: Arc<HubShared>,
    share: Option<ResourceShare>,
}

impl Drop for DeliveryPermit {
    fn drop(&mut self) {
        drop(self.share.take());
        self.shared.room_freed.notify_waiters();
    }
}

impl HubShared {
    /// Waits for memory for a frame of `bytes` within the principal's share. A frame larger than
    /// the share takes the whole share.
    pub(super) async fn acquire_delivery(
        self: &Arc<Self>,
        principal: &Principal,
        bytes: usize,
    ) -> DeliveryPermit {
        let mut freed = std::pin::pin!(self.room_freed.notified());
        loop {
            // Enable before the check, so that a release in between is not missed.
            freed.as_mut().enable();
            if let Some(permit) = self.try_acquire_delivery(principal, bytes) {
                return permit;
            }
            freed.as_mut().await;
            freed.set(self.room_freed.notified());
        }
    }

    /// Like [`acquire_delivery`](Self::acquire_delivery), but returns `None` instead of waiting.
    pub(super) fn try_acquire_delivery(
        self: &Arc<Self>,
        principal: &Principal,
        bytes: usize,
    ) -> Option<DeliveryPermit> {
        let accounts = self.gateway.accounts();
        let share_max = accounts.limit(SharedResource::DeliveryBytes).per_principal;
        let amount = (bytes as u64).saturating_mul(COPIES_MAX).min(share_max);
        let share = accounts.take_share(principal, SharedResource::DeliveryBytes, amount);
        Some(DeliveryPermit {
            shared: Arc::clone(self),
            share: Some(share.ok()?),
        })
    }

    /// Charges a frame to the rate at which the principal may send to this gateway, and waits
    /// accordingly. Frames refused later are charged too.
    pub(super) async fn charge_rate(&self, principal: &Principal, cost: RequestCost) {
        loop {
            match self
                .gateway
                .accounts()
                .charge_request(principal, cost, || self.now())
            {
                RateDecision::Immediate => return,
                RateDecision::Wait(wait) => return tokio::time::sleep(wait).await,
                RateDecision::Refused(wait) => tokio::time::sleep(wait.min(WAIT_MAX)).await,
            }
        }
    }

    /// Waits until the principal may deliver another message, over any connection, and charges the
    /// bytes.
    pub(super) async fn throttle_delivery(&self, principal: &Principal, bytes: usize) {
        let name = &principal.name;
        loop {
            let now = self.now();
            let mut wait = lock(&self.byte_rates).wait_time(name, now);
            if wait.is_zero() {
                let (mut pace, allowance) = (lock(&self.delivery_rates), self.delivery_allowance);
                let charged =
                    pace.charge_cost(name, &Arc::default(), allowance, CallCost::FollowUp, now);
                match charged {
                    Ok(_) => break,
                    Err(
                        BudgetRefusal::RateExceeded { after }
                        | BudgetRefusal::BudgetExceeded { after, .. },
                    ) => wait = after,
                }
            }
            tokio::time::sleep(wait.max(Duration::from_millis(1))).await;
        }
        self.charge_bytes(name, bytes);
    }

    /// Charges bytes stored for a principal.
    pub(super) fn charge_bytes(&self, principal: &Arc<str>, bytes: usize) {
        lock(&self.byte_rates).charge_bytes(principal, bytes as u64, self.now());
    }

    /// Reserves journal bytes for a message. Returns `false` at the owner's limit.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub(super) async fn reserve_bytes(
        &self,
        principal: &Arc<str>,
        bytes: usize,
    ) -> Result<bool, JournalError> {
        if self.try_reserve_bytes(principal, bytes) {
            return Ok(true);
        }
        let now = self.now();
        if !lock(&self.stored_bytes).is_stale(now) {
            return Ok(false);
        }
        let lanes = self.journal.lane_bytes(stored_message::LANE_PREFIX).await?;
        lock(&self.stored_bytes).reset_counts(&lanes, now);
        Ok(self.try_reserve_bytes(principal, bytes))
    }

    fn try_reserve_bytes(&self, principal: &Arc<str>, bytes: usize) -> bool {
        let limit = self.gateway.accounts().limit(SharedResource::JournalBytes);
        let (own_max, all_max) = match &**principal == OWNER_NAME {
            true => (limit.total, limit.total),
            false => (
                limit.per_principal,
                limit.total.saturating_sub(limit.owner_reserve),
            ),
        };
        let mut stored = lock(&self.stored_bytes);
        if stored.counted_at.is_none() {
            return false;
        }
        let bytes = bytes as u64;
        let own = stored.bytes.get(principal).copied().unwrap_or_default();
        let fits =
            own.saturating_add(bytes) <= own_max && stored.total.saturating_add(bytes) <= all_max;
        if fits {
            stored.total += bytes;
            *stored.bytes.entry(Arc::clone(principal)).or_default() += bytes;
        }
        fits
    }

    /// Returns whether a principal may have this mailbox: an existing mailbox, or a further mailbox
    /// below the limit.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub(super) async fn check_mailbox_limit(
        &self,
        principal: &Principal,
        mailbox: &MailboxName,
    ) -> Result<bool, JournalError> {
        // The mailbox named like the principal always exists.
        if principal.role == Role::Owner || mailbox.as_str() == &principal.name {
            return Ok(true);
        }
        let lanes = self
            .journal
            .lane_stats(stored_message::LANE_PREFIX, self.timestamps())
            .await?;
        let mut mailboxes = lock(&self.peers).principal_mailboxes(&principal.name);
        for lane in &lanes {
            let name = match stored_message::lane_sender(&lane.lane) {
                Some(sender) => MailboxName::parse(sender).ok(),
                None => stored_message::lane_mailbox(&lane.lane),
            };
            mailboxes.extend(name.filter(|name| name.principal() == &*principal.name));
        }
        Ok(mailboxes.contains(mailbox) || mailboxes.len() < self.limits.mailboxes_max)
    }
}

/// Owner of the mailboxes that may use all of the journal.
const OWNER_NAME: &str = "owner";
