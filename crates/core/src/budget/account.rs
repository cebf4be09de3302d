//! What one principal has spent in one role: a count that starts again with each period, and a
//! bucket that fills with time.

use std::time::Duration;

use super::{
    Allowance, Balance, BucketBalance, BudgetRule, Cost, PeriodBalance, RateRule, Refused,
};
use crate::time::{Now, millis};

/// What was spent, and by which rules it is forgotten.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Account {
    period: Option<Period>,
    bucket: Option<Bucket>,
    /// Whether it is among the accounts that changed since they were last taken.
    pub(super) is_changed: bool,
}

/// A period of a budget, from its first call on: its length is the one it had when it was last
/// looked at.
type Period = PeriodBalance;

/// The calls that were made and not yet made good by time.
type Bucket = BucketBalance;

impl Account {
    pub(super) const fn balance(&self) -> Balance {
        Balance {
            period: self.period,
            bucket: self.bucket,
        }
    }

    /// Returns the account of an earlier life. The clock may have been set back since: nothing in
    /// it lies ahead of `now`.
    pub(super) fn from_balance(balance: Balance, now: Now) -> Self {
        let period = balance.period.map(|period| Period {
            began: period.began.min(now),
            ..period
        });
        let bucket = balance.bucket.map(|bucket| Bucket {
            owed: bucket.owed.min(room(bucket.rule)),
            at: bucket.at.min(now),
            ..bucket
        });
        Self {
            period,
            bucket,
            is_changed: false,
        }
    }

    /// Charges all of `cost` or nothing, and returns the period that was charged, if one was.
    pub(super) fn charge(
        &mut self,
        allowance: Allowance,
        cost: Cost,
        now: Now,
    ) -> Result<Option<Now>, Refused> {
        // Looked at both before either is charged.
        let bucket = match allowance.rate {
            Some(rule) => Some(Bucket::of(self.bucket, rule, now).with_one(rule)?),
            None => self.bucket,
        };
        let charged = match (allowance.budget, cost) {
            (Some(rule), Cost::Call) => {
                Some(Period::of(self.period, rule, now).with_one(rule, now)?)
            }
            (Some(_), Cost::FollowUp) | (None, _) => None,
        };
        self.bucket = bucket;
        self.period = charged.or(self.period);
        Ok(charged.map(|period| period.began))
    }

    pub(super) fn refund(&mut self, began: Option<Now>) {
        if let Some(bucket) = &mut self.bucket {
            bucket.owed = bucket.owed.saturating_sub(parts(bucket.rule));
        }
        let same = |period: &&mut Period| Some(period.began) == began;
        if let Some(period) = self.period.as_mut().filter(same) {
            period.spent = period.spent.saturating_sub(1);
        }
    }

    /// Returns the moment from which on nothing is owed, so that it can be forgotten.
    pub(super) fn free_at(&self) -> Now {
        let period = self.period.map_or(Now(0), |period| period.ends());
        let bucket = self.bucket.map_or(Now(0), |bucket| {
            bucket.at.plus(takes(bucket.owed, bucket.rule))
        });
        period.max(bucket)
    }
}

impl Period {
    /// Goes on with the period there is, or begins one. Another rule changes how long it is, and
    /// not what was spent in it.
    fn of(before: Option<Self>, rule: BudgetRule, now: Now) -> Self {
        let fresh = Self {
            began: now,
            per: rule.per,
            spent: 0,
        };
        let going_on = before.map(|before| Self {
            per: rule.per,
            ..before
        });
        going_on
            .filter(|before| now < before.ends())
            .unwrap_or(fresh)
    }

    fn with_one(self, rule: BudgetRule, now: Now) -> Result<Self, Refused> {
        if self.spent >= rule.calls {
            return Err(Refused::Spent {
                allowed: rule.calls,
                spent: self.spent,
                after: now.until(self.ends()),
            });
        }
        let spent = self.spent.saturating_add(1);
        Ok(Self { spent, ..self })
    }

    fn ends(&self) -> Now {
        self.began.plus(self.per)
    }
}

impl Bucket {
    /// Brings the bucket to `now`, by the rule it was filled by; another rule takes over the calls
    /// that are owed.
    fn of(before: Option<Self>, rule: RateRule, now: Now) -> Self {
        let Some(before) = before else {
            return Self {
                rule,
                owed: 0,
                at: now,
            };
        };
        let passed = now.millis_since(before.at);
        let good = passed.saturating_mul(u64::from(before.rule.calls));
        let mut owed = before.owed.saturating_sub(good);
        if parts(before.rule) != parts(rule) {
            let scaled =
                u128::from(owed) * u128::from(parts(rule)) / u128::from(parts(before.rule));
            owed = u64::try_from(scaled).unwrap_or(u64::MAX);
        }
        Self {
            rule,
            owed: owed.min(room(rule)),
            at: now.max(before.at),
        }
    }

    fn with_one(self, rule: RateRule) -> Result<Self, Refused> {
        let owed = self.owed.saturating_add(parts(rule));
        if owed > room(rule) {
            let after = takes(owed.saturating_sub(room(rule)), rule);
            return Err(Refused::TooFast { after });
        }
        Ok(Self { owed, ..self })
    }
}

/// What one call is worth.
fn parts(rule: RateRule) -> u64 {
    millis(rule.per).max(1)
}

/// What may be owed.
fn room(rule: RateRule) -> u64 {
    u64::from(rule.burst.max(1)).saturating_mul(parts(rule))
}

/// Returns how long it takes until so much is made good.
fn takes(owed: u64, rule: RateRule) -> Duration {
    Duration::from_millis(owed.div_ceil(u64::from(rule.calls.max(1))))
}
