//! How many calls a principal may make, and how fast.

mod account;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::time::Now;
use account::Account;

/// Accounts that are kept. An account is forgotten only when nothing is owed on it any more, so
/// that nobody gets a spent budget back by waiting for others.
pub const ACCOUNTS_MAX: usize = 65_536;

/// Accounts to forget are looked for this often at most, where there are as many as may be.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// So many calls in each period. A period begins with a call that no period holds, and ends
/// `per` later; then nothing is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetRule {
    /// Calls in one period.
    pub calls: u64,
    /// How long a period is.
    pub per: Duration,
}

/// So many calls in each short while, and some more at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateRule {
    /// Calls that become free in each `per`.
    pub calls: u32,
    /// How long that takes.
    pub per: Duration,
    /// Calls that may be saved up.
    pub burst: u32,
}

/// What a role lets each of its principals spend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Calls per period.
    pub budget: Option<BudgetRule>,
    /// Calls per while.
    pub rate: Option<RateRule>,
}

impl Allowance {
    /// Whether nothing is limited, so that nothing need be counted.
    #[must_use]
    pub const fn is_unlimited(&self) -> bool {
        self.budget.is_none() && self.rate.is_none()
    }
}

/// What is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// A call: one unit of the budget, and one of the rate.
    Call,
    /// A question about a call that was paid before: one unit of the rate only.
    FollowUp,
}

/// Why nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It comes too early; there is room for one `after` this.
    TooFast {
        /// When.
        after: Duration,
    },
    /// The budget is spent; a new period begins `after` this.
    Spent {
        /// Calls in one period.
        allowed: u64,
        /// Calls made in this one.
        spent: u64,
        /// When.
        after: Duration,
    },
}

/// What was charged, to give it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Receipt {
    /// The period that it was charged to, where it was charged to one.
    period: Option<Now>,
}

/// What one account holds, for those who keep it longer than the process lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// What was spent of a budget.
    pub period: Option<PeriodBalance>,
    /// What is owed to a rate.
    pub bucket: Option<BucketBalance>,
}

/// What was spent in one period of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeriodBalance {
    /// When the period began.
    pub began: Now,
    /// How long it is.
    pub per: Duration,
    /// Calls made in it.
    pub spent: u64,
}

/// The calls that a rate has not made good yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketBalance {
    /// The rate.
    pub rule: RateRule,
    /// Calls, each worth as many parts as `rule.per` has milliseconds, so that `rule.calls` parts
    /// are made good in each of them and nothing is lost to rounding.
    pub owed: u64,
    /// When `owed` was right.
    pub at: Now,
}

/// An account that changed, and what it holds now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Whose it is.
    pub principal: Arc<str>,
    /// In which role.
    pub role: Arc<str>,
    /// What it holds.
    pub balance: Balance,
}

impl Balance {
    /// Returns the moment from which on nothing is owed, so that it can be forgotten.
    #[must_use]
    pub fn free_at(&self) -> Now {
        Account::from_balance(*self, Now(u64::MAX)).free_at()
    }
}

/// What principals have spent. One account for each principal in each of its roles, since two
/// roles are two rules and neither may count by the other's clock.
#[derive(Debug, Default)]
pub struct Accounts {
    by_principal: HashMap<Arc<str>, Own, RandomState>,
    /// How many there are in all.
    count: usize,
    /// Before this moment it is no use to look for accounts to forget.
    none_before: Now,
    /// Accounts that changed since they were last taken, each once.
    changed: Vec<(Arc<str>, Arc<str>)>,
}

/// The accounts of one principal, by its roles: few.
type Own = Vec<(Arc<str>, Account)>;

impl Accounts {
    /// Charges `cost` to a principal in a role: all of it, or nothing.
    ///
    /// # Errors
    /// It may not spend that now.
    pub fn charge(
        &mut self,
        (principal, role): (&Arc<str>, &Arc<str>),
        allowance: Allowance,
        cost: Cost,
        now: Now,
    ) -> Result<Receipt, Refused> {
        let account = self.account(principal, role, now)?;
        let period = account.charge(allowance, cost, now)?;
        if !std::mem::replace(&mut account.is_changed, true) {
            let name = (Arc::clone(principal), Arc::clone(role));
            self.changed.push(name);
        }
        Ok(Receipt { period })
    }

    /// Whether an account changed since they were last taken.
    #[must_use]
    pub const fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Returns the accounts that changed since this was last asked.
    pub fn take_changed(&mut self) -> Vec<Changed> {
        let mut all = Vec::with_capacity(self.changed.len());
        for (principal, role) in std::mem::take(&mut self.changed) {
            let own = self.by_principal.get_mut(&principal);
            let account = own.and_then(|own| own.iter_mut().find(|(name, _)| *name == role));
            // Otherwise it was forgotten, since nothing was owed on it.
            if let Some((_, account)) = account {
                account.is_changed = false;
                let balance = account.balance();
                all.push(Changed {
                    principal,
                    role,
                    balance,
                });
            }
        }
        all
    }

    /// Takes over an account of an earlier life, unless nothing is owed on it or this life knows
    /// better.
    pub fn restore(&mut self, (principal, role): (&str, &str), balance: Balance, now: Now) {
        let account = Account::from_balance(balance, now);
        let own = self.by_principal.get(principal);
        let is_known = own.is_some_and(|own| own.iter().any(|(name, _)| **name == *role));
        if is_known || account.free_at() <= now || self.count >= ACCOUNTS_MAX {
            return;
        }
        let own = self.by_principal.entry(principal.into()).or_default();
        own.push((role.into(), account));
        self.count += 1;
    }

    /// Gives back what was charged, for a call that was refused by something else.
    pub fn refund(&mut self, (principal, role): (&str, &str), receipt: Receipt) {
        let accounts = self.by_principal.get_mut(principal);
        let account = accounts.and_then(|own| own.iter_mut().find(|(name, _)| **name == *role));
        if let Some((name, account)) = account {
            account.refund(receipt.period);
            if !std::mem::replace(&mut account.is_changed, true) {
                self.changed.push((principal.into(), Arc::clone(name)));
            }
        }
    }

    /// Returns how many accounts there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no account.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn account(
        &mut self,
        principal: &Arc<str>,
        role: &Arc<str>,
        now: Now,
    ) -> Result<&mut Account, Refused> {
        let known = |own: &Own| own.iter().any(|(name, _)| name == role);
        if !self.by_principal.get(principal).is_some_and(known) {
            self.make_room(now)?;
            let own = self.by_principal.entry(Arc::clone(principal)).or_default();
            own.push((Arc::clone(role), Account::default()));
            self.count += 1;
        }
        let own = self.by_principal.get_mut(principal);
        let account = own.and_then(|own| own.iter_mut().find(|(name, _)| name == role));
        debug_assert!(account.is_some(), "it was there or was made");
        account.map(|(_, account)| account).ok_or(Refused::TooFast {
            after: Duration::ZERO,
        })
    }

    /// Forgets accounts on which nothing is owed, where there are as many as may be.
    fn make_room(&mut self, now: Now) -> Result<(), Refused> {
        if self.count < ACCOUNTS_MAX {
            return Ok(());
        }
        if now >= self.none_before {
            let mut soonest = Now(u64::MAX);
            self.by_principal.retain(|_, own| {
                own.retain(|(_, account)| {
                    let free = account.free_at();
                    if free > now {
                        soonest = soonest.min(free);
                    }
                    free > now
                });
                !own.is_empty()
            });
            self.count = self.by_principal.values().map(Vec::len).sum();
            self.none_before = soonest.min(now.plus(SWEEP_EVERY));
        }
        if self.count < ACCOUNTS_MAX {
            return Ok(());
        }
        // Whoever has no account waits until one of the others owes nothing.
        let after = now.until(self.none_before);
        Err(Refused::TooFast { after })
    }
}
