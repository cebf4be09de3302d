//! What one principal may have of the hub: bytes in work, bytes a second, bytes in the journal.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::budget::{Cost, Refused};
use bowline_core::call::{Principal, Role};
use bowline_core::mailbox::Mailbox;
use bowline_core::rates::{Pace, RequestCost, WAIT_MAX};
use bowline_core::shares::Resource;
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_journal::{JournalError, Lane};
use foldhash::fast::RandomState;

use super::{Shared, mailbox};
use crate::accounts::Share;

/// In how many copies a delivery is held at the most while it is stored and answered: as it came,
/// stamped, as it is written, on its way into the file, and the same when it is taken up.
const COPIES: u64 = 8;

/// How often the journal is asked at the most how many bytes mailboxes have.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// Bytes in the journal by the principals whose mailboxes they are in.
#[derive(Debug, Default)]
pub(super) struct Stored {
    /// What the journal said when it was last asked, and all that was stored since; what was
    /// acknowledged since is still among it.
    bytes: HashMap<Arc<str>, u64, RandomState>,
    total: u64,
    /// When it was asked; absent where it was not yet.
    counted: Option<Now>,
}

impl Stored {
    fn count(&mut self, lanes: &[(Lane, u64)], now: Now) {
        self.bytes.clear();
        self.total = 0;
        self.counted = Some(now);
        for (lane, bytes) in lanes {
            self.total = self.total.saturating_add(*bytes);
            if let Some(whose) = mailbox::account_of(lane) {
                *self.bytes.entry(whose).or_default() += bytes;
            }
        }
    }

    fn is_stale(&self, now: Now) -> bool {
        let counted = self.counted;
        counted.is_none_or(|then| now >= then.plus(COUNT_EVERY))
    }
}

/// Bytes of a delivery that is in work; dropped, there is room for the next.
#[derive(Debug)]
pub(super) struct InWork {
    shared: Arc<Shared>,
    share: Option<Share>,
}

impl Drop for InWork {
    fn drop(&mut self) {
        drop(self.share.take());
        self.shared.room.notify_waiters();
    }
}

impl Shared {
    /// Waits until there is room for a frame of so many bytes among what is in work of this
    /// principal. A frame that is larger than the share has it for itself.
    pub(super) async fn in_work(self: &Arc<Self>, principal: &Principal, bytes: usize) -> InWork {
        let mut freed = std::pin::pin!(self.room.notified());
        loop {
            // Before the look: what is freed after it is not missed.
            freed.as_mut().enable();
            if let Some(in_work) = self.try_in_work(principal, bytes) {
                return in_work;
            }
            freed.as_mut().await;
            freed.set(self.room.notified());
        }
    }

    /// The same, and nothing where there is no room.
    pub(super) fn try_in_work(
        self: &Arc<Self>,
        principal: &Principal,
        bytes: usize,
    ) -> Option<InWork> {
        let accounts = self.host.accounts();
        let share_max = accounts.limit(Resource::DeliveryBytes).per_principal;
        let wanted = (bytes as u64).saturating_mul(COPIES).min(share_max);
        let share = accounts.take(principal, Resource::DeliveryBytes, wanted);
        Some(InWork {
            shared: Arc::clone(self),
            share: Some(share.ok()?),
        })
    }

    /// Charges a frame to the rate at which its principal may send anything to this gateway, and
    /// waits as long as that says. Frames that are refused later are charged as well.
    pub(super) async fn keep_rate(&self, principal: &Principal, cost: RequestCost) {
        loop {
            match self.host.accounts().charge(principal, cost, || self.now()) {
                Pace::Now => return,
                Pace::Wait(wait) => return tokio::time::sleep(wait).await,
                Pace::Refused(wait) => tokio::time::sleep(wait.min(WAIT_MAX)).await,
            }
        }
    }

    /// Waits until a principal may deliver one message more, whatever connection it comes over,
    /// and charges its bytes.
    pub(super) async fn slow(&self, principal: &Principal, bytes: usize) {
        let name = &principal.name;
        loop {
            let now = self.now();
            let mut wait = lock(&self.bytes_pace).wait(name, now);
            if wait.is_zero() {
                let (mut pace, allowance) = (lock(&self.pace), self.allowance);
                let charged = pace.charge((name, &Arc::default()), allowance, Cost::FollowUp, now);
                match charged {
                    Ok(_) => break,
                    Err(Refused::TooFast { after } | Refused::Spent { after, .. }) => wait = after,
                }
            }
            tokio::time::sleep(wait.max(Duration::from_millis(1))).await;
        }
        self.charge_bytes(name, bytes);
    }

    /// Charges bytes that were stored for a principal.
    pub(super) fn charge_bytes(&self, principal: &Arc<str>, bytes: usize) {
        lock(&self.bytes_pace).charge(principal, bytes as u64, self.now());
    }

    /// Makes room for a message in a mailbox, and counts it.
    ///
    /// # Errors
    /// The principal whose mailbox it is has as many bytes in the journal as it may have, or the
    /// journal cannot say.
    pub(super) async fn make_room(
        &self,
        whose: &Arc<str>,
        bytes: usize,
    ) -> Result<bool, JournalError> {
        if self.has_room(whose, bytes) {
            return Ok(true);
        }
        let now = self.now();
        if !lock(&self.stored).is_stale(now) {
            return Ok(false);
        }
        let lanes = self.journal.lane_bytes(mailbox::LANES).await?;
        lock(&self.stored).count(&lanes, now);
        Ok(self.has_room(whose, bytes))
    }

    fn has_room(&self, whose: &Arc<str>, bytes: usize) -> bool {
        let limit = self.host.accounts().limit(Resource::JournalBytes);
        let (own_max, all_max) = match &**whose == OWNER {
            true => (limit.total, limit.total),
            false => (
                limit.per_principal,
                limit.total.saturating_sub(limit.owner_reserve),
            ),
        };
        let mut stored = lock(&self.stored);
        if stored.counted.is_none() {
            return false;
        }
        let bytes = bytes as u64;
        let own = stored.bytes.get(whose).copied().unwrap_or_default();
        let fits =
            own.saturating_add(bytes) <= own_max && stored.total.saturating_add(bytes) <= all_max;
        if fits {
            stored.total += bytes;
            *stored.bytes.entry(Arc::clone(whose)).or_default() += bytes;
        }
        fits
    }

    /// Whether a principal may have this mailbox: one that it has, or one more than it has.
    ///
    /// # Errors
    /// The journal cannot say.
    pub(super) async fn may_have(
        &self,
        principal: &Principal,
        wanted: &Mailbox,
    ) -> Result<bool, JournalError> {
        // The mailbox of its own name is always there.
        if principal.role == Role::Owner || wanted.as_str() == &principal.name {
            return Ok(true);
        }
        let lanes = self.journal.lanes(mailbox::LANES, self.at()).await?;
        let mut known = lock(&self.peers).mailboxes_of(&principal.name);
        for lane in &lanes {
            let name = match mailbox::sender_of(&lane.lane) {
                Some(sender) => Mailbox::parse(sender).ok(),
                None => mailbox::mailbox_of(&lane.lane),
            };
            known.extend(name.filter(|name| name.principal() == &*principal.name));
        }
        Ok(known.contains(wanted) || known.len() < self.limits.mailboxes_max)
    }
}

/// Whose mailboxes may have all that there is.
const OWNER: &str = "owner";
