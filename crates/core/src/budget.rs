//! Call budgets and call rates of principals.

mod account;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::time::MonotonicTime;
use account::BudgetAccount;

/// Accounts in memory. An account is evicted only when settled, so that no principal regains a
/// spent budget through evictions.
pub const ACCOUNTS_MAX: usize = 65_536;

/// Minimum interval between sweeps for settled accounts when the table is full.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// A number of calls per period. A period starts with the first call outside any period and ends
/// `per` later; the next period starts with the full budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetRule {
    /// Calls in one period.
    pub calls: u64,
    /// Length of a period.
    pub per: Duration,
}

/// A token-bucket rate with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateRule {
    /// Calls refilled in each `per`.
    pub calls: u32,
    /// The refill interval.
    pub per: Duration,
    /// Calls that may accumulate.
    pub burst: u32,
}

/// Budget and rate granted by a role to each principal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallAllowance {
    /// Calls per period.
    pub budget: Option<BudgetRule>,
    /// The token-bucket rate.
    pub rate: Option<RateRule>,
}

impl CallAllowance {
    /// Whether neither limit is set, so that no counting is needed.
    #[must_use]
    pub const fn is_unlimited(&self) -> bool {
        self.budget.is_none() && self.rate.is_none()
    }
}

/// The amount to charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallCost {
    /// A call: one unit of the budget, and one of the rate.
    Call,
    /// A follow-up request for a call charged before: one unit of the rate only.
    FollowUp,
}

/// Why a charge was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetRefusal {
    /// The rate is exceeded; the next call fits after `after`.
    RateExceeded {
        /// Time until the next call fits.
        after: Duration,
    },
    /// The budget is spent; a new period starts after `after`.
    BudgetExceeded {
        /// Calls in one period.
        allowed: u64,
        /// Calls made in the current period.
        spent: u64,
        /// Time until the next period.
        after: Duration,
    },
}

/// Record of a charge, needed for a refund.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct ChargeReceipt {
    /// The charged period, if a budget was charged.
    period: Option<MonotonicTime>,
}

/// The persistent state of one account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountBalance {
    /// Spending in the current budget period.
    pub period: Option<PeriodBalance>,
    /// Debt of the rate.
    pub rate_bucket: Option<BucketBalance>,
}

/// Spending in one budget period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeriodBalance {
    /// Start of the period.
    pub started_at: MonotonicTime,
    /// Length of the period.
    pub per: Duration,
    /// Calls made in the period.
    pub spent: u64,
}

/// Debt of a token-bucket rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketBalance {
    /// The rate.
    pub rule: RateRule,
    /// Calls owed, each counted as `rule.per` milliseconds' worth of parts: `rule.calls` parts are
    /// repaid per millisecond, so rounding loses nothing.
    pub debt: u64,
    /// Time of the last update of `debt`.
    pub updated_at: MonotonicTime,
}

/// An account that changed, with the new balance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalanceChange {
    /// The principal.
    pub principal: Arc<str>,
    /// The role.
    pub role: Arc<str>,
    /// The new balance.
    pub balance: AccountBalance,
}

impl AccountBalance {
    /// Returns the time of full repayment, from which the account can be evicted.
    #[must_use]
    pub fn settled_at(&self) -> MonotonicTime {
        BudgetAccount::from_balance(*self, MonotonicTime(u64::MAX)).settled_at()
    }
}

/// Spending of all principals. Each (principal, role) pair has a separate account, because two
/// roles have two rules and neither may use the period of the second.
#[derive(Debug, Default)]
pub struct SpendingAccounts {
    by_principal: HashMap<Arc<str>, RoleAccounts, RandomState>,
    /// Total number of accounts.
    account_count: usize,
    /// A sweep before this time is useless.
    next_sweep: MonotonicTime,
    /// Accounts changed since the last [`SpendingAccounts::take_changes`], without duplicates.
    changed_accounts: Vec<(Arc<str>, Arc<str>)>,
}

/// The accounts of one principal by role; few entries.
type RoleAccounts = Vec<(Arc<str>, BudgetAccount)>;

impl SpendingAccounts {
    /// Charges `cost` to a principal in a role: all or nothing.
    ///
    /// # Errors
    /// The budget or the rate is exceeded.
    pub fn charge_cost(
        &mut self,
        principal: &Arc<str>,
        role: &Arc<str>,
        allowance: CallAllowance,
        cost: CallCost,
        now: MonotonicTime,
    ) -> Result<ChargeReceipt, BudgetRefusal> {
        let account = self.account_or_insert(principal, role, now)?;
        let period = account.charge_cost(allowance, cost, now)?;
        if !std::mem::replace(&mut account.is_changed, true) {
            let name = (Arc::clone(principal), Arc::clone(role));
            self.changed_accounts.push(name);
        }
        Ok(ChargeReceipt { period })
    }

    /// Whether any account changed since the last [`take_changes`](Self::take_changes).
    #[must_use]
    pub const fn has_changes(&self) -> bool {
        !self.changed_accounts.is_empty()
    }

    /// Returns the accounts changed since the last call.
    pub fn take_changes(&mut self) -> Vec<BalanceChange> {
        let mut all = Vec::with_capacity(self.changed_accounts.len());
        for (principal, role) in std::mem::take(&mut self.changed_accounts) {
            let own = self.by_principal.get_mut(&principal);
            let account = own.and_then(|own| own.iter_mut().find(|(name, _)| *name == role));
            // Otherwise the account was settled and evicted.
            if let Some((_, account)) = account {
                account.is_changed = false;
                let balance = account.balance();
                all.push(BalanceChange {
                    principal,
                    role,
                    balance,
                });
            }
        }
        all
    }

    /// Restores an account persisted by an earlier process. Settled and existing accounts are
    /// skipped.
    pub fn restore_account(
        &mut self,
        principal: &str,
        role: &str,
        balance: AccountBalance,
        now: MonotonicTime,
    ) {
        let account = BudgetAccount::from_balance(balance, now);
        let own = self.by_principal.get(principal);
        let is_known = own.is_some_and(|own| own.iter().any(|(name, _)| **name == *role));
        if is_known || account.settled_at() <= now || self.account_count >= ACCOUNTS_MAX {
            return;
        }
        let own = self.by_principal.entry(principal.into()).or_default();
        own.push((role.into(), account));
        self.account_count += 1;
    }

    /// Refunds a charge for a call refused by a later check.
    pub fn refund_charge(&mut self, principal: &str, role: &str, receipt: ChargeReceipt) {
        let accounts = self.by_principal.get_mut(principal);
        let account = accounts.and_then(|own| own.iter_mut().find(|(name, _)| **name == *role));
        if let Some((name, account)) = account {
            account.refund_charge(receipt.period);
            if !std::mem::replace(&mut account.is_changed, true) {
                self.changed_accounts
                    .push((principal.into(), Arc::clone(name)));
            }
        }
    }

    /// Returns the number of accounts.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.account_count
    }

    /// Whether the table is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.account_count == 0
    }

    fn account_or_insert(
        &mut self,
        principal: &Arc<str>,
        role: &Arc<str>,
        now: MonotonicTime,
    ) -> Result<&mut BudgetAccount, BudgetRefusal> {
        let has_role = |own: &RoleAccounts| own.iter().any(|(name, _)| name == role);
        if !self.by_principal.get(principal).is_some_and(has_role) {
            self.evict_settled(now)?;
            let own = self.by_principal.entry(Arc::clone(principal)).or_default();
            own.push((Arc::clone(role), BudgetAccount::default()));
            self.account_count += 1;
        }
        let own = self.by_principal.get_mut(principal);
        let account = own.and_then(|own| own.iter_mut().find(|(name, _)| name == role));
        debug_assert!(account.is_some(), "it was there or was made");
        account
            .map(|(_, account)| account)
            .ok_or(BudgetRefusal::RateExceeded {
                after: Duration::ZERO,
            })
    }

    /// Evicts settled accounts if the table is full.
    fn evict_settled(&mut self, now: MonotonicTime) -> Result<(), BudgetRefusal> {
        if self.account_count < ACCOUNTS_MAX {
            return Ok(());
        }
        if now >= self.next_sweep {
            let mut soonest = MonotonicTime(u64::MAX);
            self.by_principal.retain(|_, own| {
                own.retain(|(_, account)| {
                    let free = account.settled_at();
                    if free > now {
                        soonest = soonest.min(free);
                    }
                    free > now
                });
                !own.is_empty()
            });
            self.account_count = self.by_principal.values().map(Vec::len).sum();
            self.next_sweep = soonest.min(now.plus(SWEEP_INTERVAL));
        }
        if self.account_count < ACCOUNTS_MAX {
            return Ok(());
        }
        // New principals wait until an account is settled.
        let after = now.duration_until(self.next_sweep);
        Err(BudgetRefusal::RateExceeded { after })
    }
}
