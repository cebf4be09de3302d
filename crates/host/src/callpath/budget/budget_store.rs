//! Persists spending in the journal, so that a restart does not refund budgets.
//!
//! Writes are delayed: a charge never waits for the disk, and changed accounts are written at most
//! once a second and at an orderly stop. A kill refunds the spending of the last second. Nothing is
//! read or written before the first call with a budget or rate limit.

mod account_record;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::budget::{ACCOUNTS_MAX, AccountBalance, BalanceChange, SpendingAccounts};
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_journal::{ExpectedRevision, Journal, JournalError};
use bowline_runtime::{Clock, Lifecycle, TaskTracker};
use bytes::Bytes;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::timeout;

/// Key prefix in the journal; the shard number follows.
const KEY_PREFIX: &str = "budget/";

/// Number of journal values. A changed account rewrites only its own shard.
const SHARDS: u8 = 16;

/// Accounts per shard at most; accounts with the latest release time are kept.
const SHARD_ACCOUNTS_MAX: usize = ACCOUNTS_MAX / SHARDS as usize;

/// Maximum delay before a changed account is written.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Maximum wait of the first limited call for stored accounts.
const LOAD_WAIT: Duration = Duration::from_secs(5);

/// Maximum wait of an orderly stop for the last write.
const CLOSE_WAIT: Duration = Duration::from_secs(3);

/// Persistent storage of the accounts.
#[derive(Debug)]
pub(super) struct BudgetStore {
    accounts: Arc<Mutex<SpendingAccounts>>,
    journal: Arc<dyn Journal>,
    clock: Arc<dyn Clock>,
    /// Wall time at the start of the clock, in milliseconds since 1970.
    epoch_ms: u64,
    tasks: TaskTracker,
    /// Set after the first load attempt: whether stored values may be overwritten.
    access: OnceCell<StoreAccess>,
    /// True if a scheduled write will include current changes.
    write_scheduled: AtomicBool,
    /// Permits a single write at a time.
    write_permit: Semaphore,
    persisted: Mutex<PersistedShards>,
    lifecycle: Lifecycle,
}

/// Permitted use of the stored values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreAccess {
    /// Loaded successfully.
    ReadWrite,
    /// Unreadable: left unchanged for the next start.
    Off,
}

/// The journal's contents as far as written by this process.
#[derive(Debug, Default)]
struct PersistedShards {
    shards: BTreeMap<u8, BudgetShard>,
    /// Shards that differ from the journal.
    dirty: BTreeSet<u8>,
    /// True if the last write failed, so that a failure is logged once.
    is_failing: bool,
}

/// The accounts of a shard, by principal and role.
type BudgetShard = BTreeMap<(Arc<str>, Arc<str>), AccountBalance>;

impl BudgetStore {
    pub(super) fn new(
        accounts: Arc<Mutex<SpendingAccounts>>,
        journal: Arc<dyn Journal>,
        clock: Arc<dyn Clock>,
        tasks: TaskTracker,
    ) -> Self {
        Self {
            accounts,
            journal,
            epoch_ms: clock.unix_ms().saturating_sub(clock.now().0),
            clock,
            tasks,
            access: OnceCell::new(),
            write_scheduled: AtomicBool::new(false),
            write_permit: Semaphore::new(1),
            persisted: Mutex::default(),
            lifecycle: Lifecycle::default(),
        }
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.access.initialized()
    }

    /// Loads the stored accounts once; all limited calls wait for the result. After a failure or
    /// timeout, this process counts from zero and leaves the stored values to the next start.
    pub(super) async fn ensure_loaded(&self) {
        self.access.get_or_init(|| self.load_accounts()).await;
    }

    async fn load_accounts(&self) -> StoreAccess {
        let listed = self.journal.list_values(KEY_PREFIX, usize::from(SHARDS));
        let values = match timeout(LOAD_WAIT, listed).await {
            Ok(Ok(values)) => values,
            Ok(Err(error)) => {
                tracing::error!(%error, "stored budgets cannot be read, counting from zero");
                return StoreAccess::Off;
            }
            Err(_) => {
                tracing::error!("stored budgets not read in time, counting from zero");
                return StoreAccess::Off;
            }
        };
        let now = self.wall_time(self.clock.now());
        let mut accounts = lock(&self.accounts);
        let mut written = lock(&self.persisted);
        for (key, value) in values {
            let Some(records) = account_record::parse_accounts(&value.bytes) else {
                tracing::error!(%key, "stored budget value is damaged, counting from zero");
                continue;
            };
            for BalanceChange {
                principal,
                role,
                balance,
            } in records
            {
                accounts.restore_account(&principal, &role, balance, now);
                let shard = written.shards.entry(shard_number(&principal, &role));
                shard.or_default().insert((principal, role), balance);
            }
        }
        StoreAccess::ReadWrite
    }

    /// Writes changed accounts within [`WRITE_EVERY`].
    pub(super) fn schedule_write(self: &Arc<Self>) {
        if self.write_scheduled.swap(true, Ordering::AcqRel) {
            return;
        }
        let store = Arc::clone(self);
        self.tasks.spawn("budgets", async move {
            // An orderly stop ends the delay.
            let closing = store.lifecycle.shutdown().wait_closing();
            let _ = timeout(WRITE_EVERY, closing).await;
            store.write_changes().await;
        });
    }

    /// Writes changed accounts, waiting at most [`CLOSE_WAIT`].
    pub(super) async fn close(&self) {
        self.lifecycle.close();
        if self.access.initialized() && timeout(CLOSE_WAIT, self.write_changes()).await.is_err() {
            tracing::warn!("budgets were not written in time");
        }
    }

    async fn write_changes(&self) {
        // The semaphore is never closed.
        let Ok(_turn) = self.write_permit.acquire().await else {
            return;
        };
        // Reset before taking the changes: later changes schedule their own write.
        self.write_scheduled.store(false, Ordering::Release);
        let changed = lock(&self.accounts).take_changes();
        if self.access.get() != Some(&StoreAccess::ReadWrite) {
            return;
        }
        lock(&self.persisted).add_changes(changed);
        let outcome = self.flush_shards().await;
        let is_failing = outcome.is_err();
        let failed_before = std::mem::replace(&mut lock(&self.persisted).is_failing, is_failing);
        match outcome {
            // The next charged call or the stop writes them.
            Err(error) if !failed_before => {
                tracing::warn!(%error, "budgets cannot be written, a restart gives them back");
            }
            Ok(()) if failed_before => tracing::info!("budgets are written again"),
            Ok(()) | Err(_) => {}
        }
    }

    async fn flush_shards(&self) -> Result<(), JournalError> {
        let now = self.wall_time(self.clock.now());
        loop {
            let next = lock(&self.persisted).next_shard(now);
            let Some((number, bytes)) = next else {
                return Ok(());
            };
            let key = format!("{KEY_PREFIX}{number:02}");
            self.journal
                .put_value(&key, bytes, ExpectedRevision::Any)
                .await?;
            lock(&self.persisted).dirty.remove(&number);
        }
    }

    /// Converts a moment to the wall time used by accounts, so that periods stay valid after a
    /// restart. This time advances with the monotonic clock: adjusting the machine's clock ends no
    /// period before the next start.
    pub(super) const fn wall_time(&self, now: MonotonicTime) -> MonotonicTime {
        MonotonicTime(self.epoch_ms.saturating_add(now.0))
    }
}

impl PersistedShards {
    fn add_changes(&mut self, changed: Vec<BalanceChange>) {
        for BalanceChange {
            principal,
            role,
            balance,
        } in changed
        {
            let number = shard_number(&principal, &role);
            let shard = self.shards.entry(number).or_default();
            shard.insert((principal, role), balance);
            self.dirty.insert(number);
        }
    }

    /// Returns the next shard to write, without settled accounts; an empty shard is deleted.
    fn next_shard(&mut self, now: MonotonicTime) -> Option<(u8, Option<Bytes>)> {
        let number = self.dirty.first().copied()?;
        let shard = self.shards.entry(number).or_default();
        shard.retain(|_, balance| balance.settled_at() > now);
        trim_shard(shard);
        let bytes = (!shard.is_empty()).then(|| account_record::serialize_accounts(shard));
        Some((number, bytes))
    }
}

/// Removes the accounts released soonest beyond the limit.
fn trim_shard(shard: &mut BudgetShard) {
    let excess = shard.len().saturating_sub(SHARD_ACCOUNTS_MAX);
    if excess == 0 {
        return;
    }
    let mut by_end: Vec<_> = shard
        .iter()
        .map(|(name, balance)| (balance.settled_at(), name.clone()))
        .collect();
    by_end.sort();
    for (_, name) in by_end.into_iter().take(excess) {
        shard.remove(&name);
    }
}

/// Returns the shard of an account; stable across restarts.
fn shard_number(principal: &str, role: &str) -> u8 {
    let bytes = principal.bytes().chain([0]).chain(role.bytes());
    let mixed = bytes.fold(0_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    // The upper bits depend on every byte.
    ((mixed >> 24) as u8) % SHARDS
}

#[cfg(test)]
mod tests {
    use bowline_core::budget::PeriodBalance;

    use super::*;

    fn changed_account(principal: &str, until: u64) -> BalanceChange {
        let period = PeriodBalance {
            started_at: MonotonicTime(0),
            per: Duration::from_millis(until),
            spent: 1,
        };
        BalanceChange {
            principal: principal.into(),
            role: "r".into(),
            balance: AccountBalance {
                period: Some(period),
                rate_bucket: None,
            },
        }
    }

    /// Writes every shard; returns the number of accounts and of values.
    fn flush_all(written: &mut PersistedShards, now: u64) -> (usize, usize) {
        written.dirty = (0..SHARDS).collect();
        let (mut accounts, mut values) = (0, 0);
        while let Some((number, bytes)) = written.next_shard(MonotonicTime(now)) {
            written.dirty.remove(&number);
            let Some(bytes) = bytes else { continue };
            accounts += account_record::parse_accounts(&bytes).unwrap().len();
            values += 1;
        }
        (accounts, values)
    }

    #[test]
    fn flush_drops_stale_accounts_and_empty_values() {
        let mut written = PersistedShards::default();
        written.add_changes(vec![
            changed_account("ann", 1_000),
            changed_account("bob", 2_000),
        ]);
        assert_eq!(flush_all(&mut written, 999).0, 2);
        assert_eq!(flush_all(&mut written, 1_000), (1, 1));
        assert_eq!(flush_all(&mut written, 2_000), (0, 0));
    }

    #[test]
    fn shard_over_limit_drops_soonest_released() {
        let mut shard = BudgetShard::new();
        for number in 0..=SHARD_ACCOUNTS_MAX {
            let BalanceChange {
                principal,
                role,
                balance,
            } = changed_account(&format!("p{number}"), number as u64 + 1);
            shard.insert((principal, role), balance);
        }
        trim_shard(&mut shard);
        assert_eq!(shard.len(), SHARD_ACCOUNTS_MAX);
        assert!(!shard.contains_key(&("p0".into(), "r".into())));
    }

    #[test]
    fn accounts_spread_over_all_shards() {
        let all = (0..1_000).map(|number| shard_number(&format!("agent-{number}"), "r"));
        assert_eq!(all.collect::<BTreeSet<_>>().len(), usize::from(SHARDS));
    }
}
