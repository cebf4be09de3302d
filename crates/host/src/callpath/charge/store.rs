//! Keeps what principals have spent in the journal, so that a restart gives no budget back.
//!
//! Writes are behind: a charge never waits for the disk, and changed accounts are written once a
//! second at most and at an orderly stop. A kill gives back what was spent in the last second.
//! Nothing is read and nothing is written before the first call that a budget or a rate limits.

mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::budget::{ACCOUNTS_MAX, Accounts, Balance, Changed};
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_journal::{Expect, Journal, JournalError};
use bytes::Bytes;
use tokio::sync::{OnceCell, Semaphore, watch};
use tokio::time::timeout;

use crate::ports::Clock;
use crate::tasks::Tasks;

/// How the keys of our values begin; the number of a shard follows.
const KEYS: &str = "budget/";

/// Values that accounts are spread over, so that one that changed has few others written with it.
const SHARDS: u8 = 16;

/// Accounts of one value at most; those that are owed longest are kept.
const SHARD_ACCOUNTS_MAX: usize = ACCOUNTS_MAX / SHARDS as usize;

/// How long a changed account waits to be written, at most.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// How long the first limited call waits for the accounts of before.
const LOAD_WAIT: Duration = Duration::from_secs(5);

/// How long an orderly stop waits for the last write.
const CLOSE_WAIT: Duration = Duration::from_secs(3);

/// Where accounts are kept between lives of the process.
#[derive(Debug)]
pub(super) struct Store {
    accounts: Arc<Mutex<Accounts>>,
    journal: Arc<dyn Journal>,
    clock: Arc<dyn Clock>,
    /// The wall time at which the clock began, in milliseconds since 1970.
    epoch_ms: u64,
    tasks: Tasks,
    /// Set once the accounts of before are known, or not to be had: whether they may be replaced.
    loaded: OnceCell<Access>,
    /// Whether a write is on its way that will see what changes now.
    is_due: AtomicBool,
    /// Lets one write at a time.
    turn: Semaphore,
    written: Mutex<Written>,
    closing: watch::Sender<bool>,
}

/// What may be done with the values of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// They were read.
    ReadWrite,
    /// They could not be read: they are left as they are for the next start.
    Off,
}

/// What the journal holds, as far as it was written.
#[derive(Debug, Default)]
struct Written {
    shards: BTreeMap<u8, Shard>,
    /// Shards that the journal does not hold as they are here.
    unwritten: BTreeSet<u8>,
    /// Whether the last write failed, so that a failure is told once.
    is_failing: bool,
}

/// The accounts of one value, by principal and role.
type Shard = BTreeMap<(Arc<str>, Arc<str>), Balance>;

impl Store {
    pub(super) fn new(
        accounts: Arc<Mutex<Accounts>>,
        journal: Arc<dyn Journal>,
        clock: Arc<dyn Clock>,
        tasks: Tasks,
    ) -> Self {
        Self {
            accounts,
            journal,
            epoch_ms: clock.unix_ms().saturating_sub(clock.now().0),
            clock,
            tasks,
            loaded: OnceCell::new(),
            is_due: AtomicBool::new(false),
            turn: Semaphore::new(1),
            written: Mutex::default(),
            closing: watch::Sender::new(false),
        }
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.loaded.initialized()
    }

    /// Takes the accounts of before over, once; all calls that are limited wait for it. Where they
    /// cannot be read in time, this life counts from zero and leaves them to the next one.
    pub(super) async fn load(&self) {
        self.loaded.get_or_init(|| self.read()).await;
    }

    async fn read(&self) -> Access {
        let listed = self.journal.list(KEYS, usize::from(SHARDS));
        let values = match timeout(LOAD_WAIT, listed).await {
            Ok(Ok(values)) => values,
            Ok(Err(error)) => {
                tracing::error!(%error, "budgets of before cannot be read, counting from zero");
                return Access::Off;
            }
            Err(_) => {
                tracing::error!("budgets of before are not read in time, counting from zero");
                return Access::Off;
            }
        };
        let now = self.wall_time(self.clock.now());
        let mut accounts = lock(&self.accounts);
        let mut written = lock(&self.written);
        for (key, value) in values {
            let Some(records) = record::read(&value.bytes) else {
                tracing::error!(%key, "a value of budgets is damaged, counting from zero");
                continue;
            };
            for Changed {
                principal,
                role,
                balance,
            } in records
            {
                accounts.restore((&principal, &role), balance, now);
                let shard = written.shards.entry(shard_of(&principal, &role));
                shard.or_default().insert((principal, role), balance);
            }
        }
        Access::ReadWrite
    }

    /// Has changed accounts written within [`WRITE_EVERY`].
    pub(super) fn schedule_write(self: &Arc<Self>) {
        if self.is_due.swap(true, Ordering::AcqRel) {
            return;
        }
        let store = Arc::clone(self);
        self.tasks.spawn("budgets", async move {
            let mut closing = store.closing.subscribe();
            let closed = closing.wait_for(|closing| *closing);
            // An orderly stop does not wait for it.
            let _ = timeout(WRITE_EVERY, closed).await;
            store.write().await;
        });
    }

    /// Writes what changed and waits for it, but not long.
    pub(super) async fn close(&self) {
        self.closing.send_replace(true);
        if self.loaded.initialized() && timeout(CLOSE_WAIT, self.write()).await.is_err() {
            tracing::warn!("budgets were not written in time");
        }
    }

    async fn write(&self) {
        // The semaphore is never closed.
        let Ok(_turn) = self.turn.acquire().await else {
            return;
        };
        // Before they are taken: whatever changes later has a write of its own.
        self.is_due.store(false, Ordering::Release);
        let changed = lock(&self.accounts).take_changed();
        if self.loaded.get() != Some(&Access::ReadWrite) {
            return;
        }
        lock(&self.written).note(changed);
        let outcome = self.flush().await;
        let is_failing = outcome.is_err();
        let failed_before = std::mem::replace(&mut lock(&self.written).is_failing, is_failing);
        match outcome {
            // They are written with the next call that is charged, or at the stop.
            Err(error) if !failed_before => {
                tracing::warn!(%error, "budgets cannot be written, a restart gives them back");
            }
            Ok(()) if failed_before => tracing::info!("budgets are written again"),
            Ok(()) | Err(_) => {}
        }
    }

    async fn flush(&self) -> Result<(), JournalError> {
        let now = self.wall_time(self.clock.now());
        loop {
            let next = lock(&self.written).next_value(now);
            let Some((number, bytes)) = next else {
                return Ok(());
            };
            let key = format!("{KEYS}{number:02}");
            self.journal.put(&key, bytes, Expect::Any).await?;
            lock(&self.written).unwritten.remove(&number);
        }
    }

    /// Returns a moment as the wall time that accounts go by, so that periods keep their meaning
    /// in the next life. It passes as the monotonic clock does: setting the clock of the machine
    /// ends no period before the next start.
    pub(super) const fn wall_time(&self, now: Now) -> Now {
        Now(self.epoch_ms.saturating_add(now.0))
    }
}

impl Written {
    fn note(&mut self, changed: Vec<Changed>) {
        for Changed {
            principal,
            role,
            balance,
        } in changed
        {
            let number = shard_of(&principal, &role);
            let shard = self.shards.entry(number).or_default();
            shard.insert((principal, role), balance);
            self.unwritten.insert(number);
        }
    }

    /// Returns the next value to be written, without the accounts on which nothing is owed any
    /// more; one without accounts is forgotten.
    fn next_value(&mut self, now: Now) -> Option<(u8, Option<Bytes>)> {
        let number = self.unwritten.first().copied()?;
        let shard = self.shards.entry(number).or_default();
        shard.retain(|_, balance| balance.free_at() > now);
        bound(shard);
        let bytes = (!shard.is_empty()).then(|| record::write(shard));
        Some((number, bytes))
    }
}

/// Leaves out the accounts that are free soonest, where there are more than may be.
fn bound(shard: &mut Shard) {
    let excess = shard.len().saturating_sub(SHARD_ACCOUNTS_MAX);
    if excess == 0 {
        return;
    }
    let mut by_end: Vec<_> = shard
        .iter()
        .map(|(name, balance)| (balance.free_at(), name.clone()))
        .collect();
    by_end.sort();
    for (_, name) in by_end.into_iter().take(excess) {
        shard.remove(&name);
    }
}

/// Returns the shard of an account: the same in every life.
fn shard_of(principal: &str, role: &str) -> u8 {
    let bytes = principal.bytes().chain([0]).chain(role.bytes());
    let mixed = bytes.fold(0_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    // The upper bits are the ones that every byte reaches.
    ((mixed >> 24) as u8) % SHARDS
}

#[cfg(test)]
mod tests {
    use bowline_core::budget::PeriodBalance;

    use super::*;

    fn owed(principal: &str, until: u64) -> Changed {
        let period = PeriodBalance {
            began: Now(0),
            per: Duration::from_millis(until),
            spent: 1,
        };
        Changed {
            principal: principal.into(),
            role: "r".into(),
            balance: Balance {
                period: Some(period),
                bucket: None,
            },
        }
    }

    /// Writes every shard, and returns how many accounts and how many values there are.
    fn flush_all(written: &mut Written, now: u64) -> (usize, usize) {
        written.unwritten = (0..SHARDS).collect();
        let (mut accounts, mut values) = (0, 0);
        while let Some((number, bytes)) = written.next_value(Now(now)) {
            written.unwritten.remove(&number);
            let Some(bytes) = bytes else { continue };
            accounts += record::read(&bytes).unwrap().len();
            values += 1;
        }
        (accounts, values)
    }

    #[test]
    fn flush_drops_stale_accounts_and_empty_values() {
        let mut written = Written::default();
        written.note(vec![owed("ann", 1_000), owed("bob", 2_000)]);
        assert_eq!(flush_all(&mut written, 999).0, 2);
        assert_eq!(flush_all(&mut written, 1_000), (1, 1));
        assert_eq!(flush_all(&mut written, 2_000), (0, 0));
    }

    #[test]
    fn shard_over_its_limit_loses_soonest_ends() {
        let mut shard = Shard::new();
        for number in 0..=SHARD_ACCOUNTS_MAX {
            let Changed {
                principal,
                role,
                balance,
            } = owed(&format!("p{number}"), number as u64 + 1);
            shard.insert((principal, role), balance);
        }
        bound(&mut shard);
        assert_eq!(shard.len(), SHARD_ACCOUNTS_MAX);
        assert!(!shard.contains_key(&("p0".into(), "r".into())));
    }

    #[test]
    fn accounts_spread_over_all_shards() {
        let all = (0..1_000).map(|number| shard_of(&format!("agent-{number}"), "r"));
        assert_eq!(all.collect::<BTreeSet<_>>().len(), usize::from(SHARDS));
    }
}
