//! Spending of one principal in one role: a counter per period and a token bucket.

use std::time::Duration;

use super::{
    AccountBalance, BucketBalance, BudgetRefusal, BudgetRule, CallAllowance, CallCost,
    PeriodBalance, RateRule,
};
use crate::time::{MonotonicTime, to_millis};

/// Spending, with the rules for repayment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BudgetAccount {
    period: Option<BudgetPeriod>,
    bucket: Option<RateBucket>,
    /// Whether the account is in `SpendingAccounts::changed_accounts`.
    pub(super) is_changed: bool,
}

/// A budget period, started by its first call; `per` is the length from the last applied rule.
type BudgetPeriod = PeriodBalance;

/// Debt of the rate: calls made and not yet repaid by time.
type RateBucket = BucketBalance;

impl BudgetAccount {
    pub(super) const fn balance(&self) -> AccountBalance {
        AccountBalance {
            period: self.period,
            rate_bucket: self.bucket,
        }
    }

    /// Restores an account of an earlier process. The clock may have been set back since, so all
    /// times are capped at `now`.
    pub(super) fn from_balance(balance: AccountBalance, now: MonotonicTime) -> Self {
        let period = balance.period.map(|period| BudgetPeriod {
            started_at: period.started_at.min(now),
            ..period
        });
        let bucket = balance.rate_bucket.map(|bucket| RateBucket {
            debt: bucket.debt.min(debt_limit(bucket.rule)),
            updated_at: bucket.updated_at.min(now),
            ..bucket
        });
        Self {
            period,
            bucket,
            is_changed: false,
        }
    }

    /// Charges `cost`, all or nothing; returns the start of the charged period, if any.
    pub(super) fn charge_cost(
        &mut self,
        allowance: CallAllowance,
        cost: CallCost,
        now: MonotonicTime,
    ) -> Result<Option<MonotonicTime>, BudgetRefusal> {
        // Both limits are checked before either is charged.
        let bucket = match allowance.rate {
            Some(rule) => Some(RateBucket::from_previous(self.bucket, rule, now).with_call(rule)?),
            None => self.bucket,
        };
        let charged = match (allowance.budget, cost) {
            (Some(rule), CallCost::Call) => {
                Some(BudgetPeriod::from_previous(self.period, rule, now).with_call(rule, now)?)
            }
            (Some(_), CallCost::FollowUp) | (None, _) => None,
        };
        self.bucket = bucket;
        self.period = charged.or(self.period);
        Ok(charged.map(|period| period.started_at))
    }

    pub(super) fn refund_charge(&mut self, began: Option<MonotonicTime>) {
        if let Some(bucket) = &mut self.bucket {
            bucket.debt = bucket.debt.saturating_sub(parts_per_call(bucket.rule));
        }
        let same = |period: &&mut BudgetPeriod| Some(period.started_at) == began;
        if let Some(period) = self.period.as_mut().filter(same) {
            period.spent = period.spent.saturating_sub(1);
        }
    }

    /// Returns the time of full repayment, from which the account can be evicted.
    pub(super) fn settled_at(&self) -> MonotonicTime {
        let period = self
            .period
            .map_or(MonotonicTime(0), |period| period.ends_at());
        let bucket = self.bucket.map_or(MonotonicTime(0), |bucket| {
            bucket
                .updated_at
                .plus(repayment_time(bucket.debt, bucket.rule))
        });
        period.max(bucket)
    }
}

impl BudgetPeriod {
    /// Continues the current period or starts a new period. A changed rule changes the length but
    /// not the spent amount.
    fn from_previous(before: Option<Self>, rule: BudgetRule, now: MonotonicTime) -> Self {
        let fresh = Self {
            started_at: now,
            per: rule.per,
            spent: 0,
        };
        let going_on = before.map(|before| Self {
            per: rule.per,
            ..before
        });
        going_on
            .filter(|before| now < before.ends_at())
            .unwrap_or(fresh)
    }

    fn with_call(self, rule: BudgetRule, now: MonotonicTime) -> Result<Self, BudgetRefusal> {
        if self.spent >= rule.calls {
            return Err(BudgetRefusal::BudgetExceeded {
                allowed: rule.calls,
                spent: self.spent,
                after: now.duration_until(self.ends_at()),
            });
        }
        let spent = self.spent.saturating_add(1);
        Ok(Self { spent, ..self })
    }

    fn ends_at(&self) -> MonotonicTime {
        self.started_at.plus(self.per)
    }
}

impl RateBucket {
    /// Advances the bucket to `now` under the previous rule; a new rule takes over the debt.
    fn from_previous(before: Option<Self>, rule: RateRule, now: MonotonicTime) -> Self {
        let Some(before) = before else {
            return Self {
                rule,
                debt: 0,
                updated_at: now,
            };
        };
        let passed = now.millis_since(before.updated_at);
        let good = passed.saturating_mul(u64::from(before.rule.calls));
        let mut owed = before.debt.saturating_sub(good);
        if parts_per_call(before.rule) != parts_per_call(rule) {
            let scaled = u128::from(owed) * u128::from(parts_per_call(rule))
                / u128::from(parts_per_call(before.rule));
            owed = u64::try_from(scaled).unwrap_or(u64::MAX);
        }
        Self {
            rule,
            debt: owed.min(debt_limit(rule)),
            updated_at: now.max(before.updated_at),
        }
    }

    fn with_call(self, rule: RateRule) -> Result<Self, BudgetRefusal> {
        let owed = self.debt.saturating_add(parts_per_call(rule));
        if owed > debt_limit(rule) {
            let after = repayment_time(owed.saturating_sub(debt_limit(rule)), rule);
            return Err(BudgetRefusal::RateExceeded { after });
        }
        Ok(Self { debt: owed, ..self })
    }
}

/// Returns the parts of one call.
fn parts_per_call(rule: RateRule) -> u64 {
    to_millis(rule.per).max(1)
}

/// Returns the maximum debt.
fn debt_limit(rule: RateRule) -> u64 {
    u64::from(rule.burst.max(1)).saturating_mul(parts_per_call(rule))
}

/// Returns the time until the given debt is repaid.
fn repayment_time(owed: u64, rule: RateRule) -> Duration {
    Duration::from_millis(owed.div_ceil(u64::from(rule.calls.max(1))))
}
