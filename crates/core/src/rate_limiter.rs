//! Request and byte rates of principals: two token buckets per principal.
//!
//! Every request counts, regardless of type and outcome. A request beyond the burst waits for room
//! in the bucket, at most [`WAIT_MAX`]; beyond, the request is refused and not charged.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::time::MonotonicTime;

/// The longest wait for room in a bucket.
pub const WAIT_MAX: Duration = Duration::from_secs(1);

/// Number of principals from which settled principals are evicted.
const SWEEP_PRINCIPALS_MIN: usize = 1_024;

/// Parts per unit, so that a rate per second repays a whole number of parts per millisecond.
const PARTS_PER_UNIT: u64 = 1_000;

const MIB: u64 = 1024 * 1024;

/// Refill rate and capacity of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketLimit {
    /// Units refilled per second.
    pub per_s: u64,
    /// Units spendable at once.
    pub burst: u64,
}

/// Rates of every principal except the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimits {
    /// Requests, and messages of a batch.
    pub requests: BucketLimit,
    /// Bytes of bodies.
    pub bytes: BucketLimit,
}

impl Default for RateLimits {
    fn default() -> Self {
        Self {
            requests: BucketLimit {
                per_s: 10_000,
                burst: 10_000,
            },
            bytes: BucketLimit {
                per_s: 16 * MIB,
                burst: 64 * MIB,
            },
        }
    }
}

/// The cost of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCost {
    /// Requests, or messages of a batch.
    pub requests: u64,
    /// Bytes of the body.
    pub bytes: u64,
}

/// Admission of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateDecision {
    /// Immediate.
    Immediate,
    /// After this delay; already charged.
    Wait(Duration),
    /// Refused; the bucket has room after this time.
    Refused(Duration),
}

/// Debt of all principals.
#[derive(Debug, Default)]
pub struct RateLimiter {
    limits: RateLimits,
    by_principal: HashMap<Arc<str>, RateMeter, RandomState>,
    /// Number of principals before the next eviction.
    sweep_at: usize,
}

#[derive(Clone, Copy, Debug)]
struct RateMeter {
    request_debt: u64,
    byte_debt: u64,
    /// Time of the last update.
    updated_at: MonotonicTime,
}

impl RateLimiter {
    /// Returns a limiter without debt.
    #[must_use]
    pub fn new(limits: RateLimits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Changes the limits; existing debt stays.
    pub const fn set_limits(&mut self, limits: RateLimits) {
        self.limits = limits;
    }

    /// Charges a request to a principal and returns the admission.
    pub fn charge_request(
        &mut self,
        principal: &Arc<str>,
        cost: RequestCost,
        now: MonotonicTime,
    ) -> RateDecision {
        let limits = self.limits;
        let meter = match self.by_principal.get_mut(principal) {
            Some(meter) => meter,
            None => {
                self.evict_idle(now);
                let fresh = RateMeter {
                    request_debt: 0,
                    byte_debt: 0,
                    updated_at: now,
                };
                self.by_principal
                    .entry(Arc::clone(principal))
                    .or_insert(fresh)
            }
        };
        meter.repay_until(limits, now);
        let wait = wait_time(meter.request_debt, limits.requests)
            .max(wait_time(meter.byte_debt, limits.bytes));
        if wait > WAIT_MAX {
            return RateDecision::Refused(wait);
        }
        meter.request_debt =
            (cost.requests.saturating_mul(PARTS_PER_UNIT)).saturating_add(meter.request_debt);
        meter.byte_debt =
            (cost.bytes.saturating_mul(PARTS_PER_UNIT)).saturating_add(meter.byte_debt);
        if wait.is_zero() {
            RateDecision::Immediate
        } else {
            RateDecision::Wait(wait)
        }
    }

    /// Returns the number of principals with recent debt.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_principal.len()
    }

    /// Whether no principal has recent debt.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_principal.is_empty()
    }

    fn evict_idle(&mut self, now: MonotonicTime) {
        if self.by_principal.len() < self.sweep_at.max(SWEEP_PRINCIPALS_MIN) {
            return;
        }
        let limits = self.limits;
        self.by_principal.retain(|_, meter| {
            meter.repay_until(limits, now);
            meter.request_debt > 0 || meter.byte_debt > 0
        });
        self.sweep_at = self.by_principal.len().saturating_mul(2);
    }
}

impl RateMeter {
    /// Repays the debt for the elapsed time.
    const fn repay_until(&mut self, limits: RateLimits, now: MonotonicTime) {
        let passed = now.millis_since(self.updated_at);
        if passed == 0 {
            return;
        }
        let requests = passed.saturating_mul(limits.requests.per_s);
        let bytes = passed.saturating_mul(limits.bytes.per_s);
        self.request_debt = self.request_debt.saturating_sub(requests);
        self.byte_debt = self.byte_debt.saturating_sub(bytes);
        self.updated_at = now;
    }
}

/// Returns the time until the debt drops below the burst. A request of any size passes while the
/// bucket has room; the next request waits.
fn wait_time(owed: u64, limit: BucketLimit) -> Duration {
    let room = limit.burst.max(1).saturating_mul(PARTS_PER_UNIT);
    if owed < room {
        return Duration::ZERO;
    }
    let excess = owed.saturating_sub(room).saturating_add(1);
    Duration::from_millis(excess.div_ceil(limit.per_s.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: RequestCost = RequestCost {
        requests: 1,
        bytes: 0,
    };

    fn limiter() -> (RateLimiter, Arc<str>) {
        let limits = RateLimits {
            requests: BucketLimit {
                per_s: 10,
                burst: 3,
            },
            bytes: BucketLimit {
                per_s: 1_000,
                burst: 4_000,
            },
        };
        (RateLimiter::new(limits), "ann".into())
    }

    fn byte_cost(bytes: u64) -> RequestCost {
        RequestCost { requests: 0, bytes }
    }

    #[test]
    fn requests_beyond_burst_wait_then_refused() {
        let (mut rates, ann) = limiter();
        for _ in 0..3 {
            assert_eq!(
                rates.charge_request(&ann, REQUEST, MonotonicTime(0)),
                RateDecision::Immediate
            );
        }
        let mut waits = Vec::new();
        let refused = loop {
            match rates.charge_request(&ann, REQUEST, MonotonicTime(0)) {
                RateDecision::Wait(wait) => waits.push(wait),
                other => break other,
            }
        };
        assert_eq!(waits.len(), 10, "what one second makes good may wait");
        assert!(waits.iter().all(|wait| *wait <= WAIT_MAX));
        assert!(waits.is_sorted());
        assert!(matches!(refused, RateDecision::Refused(after) if after > WAIT_MAX));
        // The refused request was not charged.
        assert_eq!(
            rates.charge_request(&ann, REQUEST, MonotonicTime(0)),
            refused
        );
        let bob: Arc<str> = "bob".into();
        assert_eq!(
            rates.charge_request(&bob, REQUEST, MonotonicTime(0)),
            RateDecision::Immediate
        );
        assert_eq!(
            rates.charge_request(&ann, REQUEST, MonotonicTime(1_301)),
            RateDecision::Immediate
        );
    }

    #[test]
    fn bucket_refills_at_exact_rate() {
        let (mut rates, ann) = limiter();
        let mut passed = 0;
        for ms in 0..10_000 {
            if rates.charge_request(&ann, REQUEST, MonotonicTime(ms)) == RateDecision::Immediate {
                passed += 1;
            } else if let Some(meter) = rates.by_principal.get_mut(&ann) {
                meter.request_debt -= PARTS_PER_UNIT.min(meter.request_debt);
            }
        }
        assert!((100..=104).contains(&passed), "{passed}");
    }

    #[test]
    fn oversized_body_passes_once() {
        let (mut rates, ann) = limiter();
        assert_eq!(
            rates.charge_request(&ann, byte_cost(8_000), MonotonicTime(0)),
            RateDecision::Immediate
        );
        let refused = rates.charge_request(&ann, byte_cost(1), MonotonicTime(0));
        assert_eq!(refused, RateDecision::Refused(Duration::from_millis(4_001)));
        assert_eq!(
            rates.charge_request(&ann, byte_cost(1), MonotonicTime(4_001)),
            RateDecision::Immediate
        );
    }

    #[test]
    fn idle_principals_are_evicted() {
        let (mut rates, ann) = limiter();
        for number in 0..SWEEP_PRINCIPALS_MIN {
            rates.charge_request(&number.to_string().into(), REQUEST, MonotonicTime(0));
        }
        assert_eq!(rates.len(), SWEEP_PRINCIPALS_MIN);
        rates.charge_request(&ann, REQUEST, MonotonicTime(1_000));
        assert_eq!(rates.len(), 1);
    }

    #[test]
    fn batch_is_charged_per_message() {
        let (mut rates, ann) = limiter();
        let batch = RequestCost {
            requests: 100,
            bytes: 0,
        };
        assert_eq!(
            rates.charge_request(&ann, batch, MonotonicTime(0)),
            RateDecision::Immediate
        );
        assert!(matches!(
            rates.charge_request(&ann, REQUEST, MonotonicTime(0)),
            RateDecision::Refused(after) if after > Duration::from_secs(9)
        ));
    }
}
