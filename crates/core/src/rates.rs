//! How fast a principal may send requests and bytes: two token buckets for each principal.
//!
//! Every request counts, whatever it asks for and whatever becomes of it. A request beyond the
//! burst waits until the bucket has room, but no longer than [`WAIT_MAX`]; beyond that it is
//! refused and not charged.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::time::Now;

/// The longest wait for room in a bucket.
pub const WAIT_MAX: Duration = Duration::from_secs(1);

/// Principals after which those that owe nothing are forgotten.
const SWEEP_AT: usize = 1_024;

/// Parts of one unit, so that a rate per second makes good a whole number of them per millisecond.
const PARTS: u64 = 1_000;

const MIB: u64 = 1024 * 1024;

/// How fast one bucket fills, and how much it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketLimit {
    /// Units that become free in each second.
    pub per_s: u64,
    /// Units that may be spent at once.
    pub burst: u64,
}

/// How fast every principal but the owner may send.
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

/// What a request is charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCost {
    /// Requests, or messages of a batch.
    pub requests: u64,
    /// Bytes of the body.
    pub bytes: u64,
}

/// Whether a request may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At once.
    Now,
    /// After this; it is charged already.
    Wait(Duration),
    /// Not at all; there is room after this.
    Refused(Duration),
}

/// What principals have sent and time has not made good yet.
#[derive(Debug, Default)]
pub struct Rates {
    limits: RateLimits,
    by_principal: HashMap<Arc<str>, Meter, RandomState>,
    /// How many principals there may be before some are forgotten.
    sweep_at: usize,
}

#[derive(Clone, Copy, Debug)]
struct Meter {
    requests: u64,
    bytes: u64,
    /// When both were right.
    at: Now,
}

impl Rates {
    /// Returns rates of which nothing is spent.
    #[must_use]
    pub fn new(limits: RateLimits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Changes the limits. What is owed stays owed.
    pub const fn set_limits(&mut self, limits: RateLimits) {
        self.limits = limits;
    }

    /// Charges a request to a principal, and says when it may go on.
    pub fn charge(&mut self, principal: &Arc<str>, cost: RequestCost, now: Now) -> Pace {
        let limits = self.limits;
        let meter = match self.by_principal.get_mut(principal) {
            Some(meter) => meter,
            None => {
                self.forget_idle(now);
                let fresh = Meter {
                    requests: 0,
                    bytes: 0,
                    at: now,
                };
                self.by_principal
                    .entry(Arc::clone(principal))
                    .or_insert(fresh)
            }
        };
        meter.advance(limits, now);
        let wait = over(meter.requests, limits.requests).max(over(meter.bytes, limits.bytes));
        if wait > WAIT_MAX {
            return Pace::Refused(wait);
        }
        meter.requests = (cost.requests.saturating_mul(PARTS)).saturating_add(meter.requests);
        meter.bytes = (cost.bytes.saturating_mul(PARTS)).saturating_add(meter.bytes);
        if wait.is_zero() {
            Pace::Now
        } else {
            Pace::Wait(wait)
        }
    }

    /// Returns how many principals owe something, or did a short while ago.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_principal.len()
    }

    /// Whether no principal owes anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_principal.is_empty()
    }

    fn forget_idle(&mut self, now: Now) {
        if self.by_principal.len() < self.sweep_at.max(SWEEP_AT) {
            return;
        }
        let limits = self.limits;
        self.by_principal.retain(|_, meter| {
            meter.advance(limits, now);
            meter.requests > 0 || meter.bytes > 0
        });
        self.sweep_at = self.by_principal.len().saturating_mul(2);
    }
}

impl Meter {
    /// Makes good what time has.
    const fn advance(&mut self, limits: RateLimits, now: Now) {
        let passed = now.millis_since(self.at);
        if passed == 0 {
            return;
        }
        let requests = passed.saturating_mul(limits.requests.per_s);
        let bytes = passed.saturating_mul(limits.bytes.per_s);
        self.requests = self.requests.saturating_sub(requests);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.at = now;
    }
}

/// Returns how long it takes until what is owed is less than the burst. One request of any size
/// passes where there is any room: it is the next one that waits for it.
fn over(owed: u64, limit: BucketLimit) -> Duration {
    let room = limit.burst.max(1).saturating_mul(PARTS);
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

    fn rates() -> (Rates, Arc<str>) {
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
        (Rates::new(limits), "ann".into())
    }

    fn bytes(bytes: u64) -> RequestCost {
        RequestCost { requests: 0, bytes }
    }

    #[test]
    fn requests_beyond_the_burst_wait_and_then_are_refused() {
        let (mut rates, ann) = rates();
        for _ in 0..3 {
            assert_eq!(rates.charge(&ann, REQUEST, Now(0)), Pace::Now);
        }
        let mut waits = Vec::new();
        let refused = loop {
            match rates.charge(&ann, REQUEST, Now(0)) {
                Pace::Wait(wait) => waits.push(wait),
                other => break other,
            }
        };
        assert_eq!(waits.len(), 10, "what one second makes good may wait");
        assert!(waits.iter().all(|wait| *wait <= WAIT_MAX));
        assert!(waits.is_sorted());
        assert!(matches!(refused, Pace::Refused(after) if after > WAIT_MAX));
        // What was refused was not charged.
        assert_eq!(rates.charge(&ann, REQUEST, Now(0)), refused);
        let bob: Arc<str> = "bob".into();
        assert_eq!(rates.charge(&bob, REQUEST, Now(0)), Pace::Now);
        assert_eq!(rates.charge(&ann, REQUEST, Now(1_301)), Pace::Now);
    }

    #[test]
    fn time_makes_good_exactly_the_rate() {
        let (mut rates, ann) = rates();
        let mut passed = 0;
        for ms in 0..10_000 {
            if rates.charge(&ann, REQUEST, Now(ms)) == Pace::Now {
                passed += 1;
            } else if let Some(meter) = rates.by_principal.get_mut(&ann) {
                meter.requests -= PARTS.min(meter.requests);
            }
        }
        assert!((100..=104).contains(&passed), "{passed}");
    }

    #[test]
    fn a_body_larger_than_the_burst_passes_once() {
        let (mut rates, ann) = rates();
        assert_eq!(rates.charge(&ann, bytes(8_000), Now(0)), Pace::Now);
        let refused = rates.charge(&ann, bytes(1), Now(0));
        assert_eq!(refused, Pace::Refused(Duration::from_millis(4_001)));
        assert_eq!(rates.charge(&ann, bytes(1), Now(4_001)), Pace::Now);
    }

    #[test]
    fn principals_that_owe_nothing_are_forgotten() {
        let (mut rates, ann) = rates();
        for number in 0..SWEEP_AT {
            rates.charge(&number.to_string().into(), REQUEST, Now(0));
        }
        assert_eq!(rates.len(), SWEEP_AT);
        rates.charge(&ann, REQUEST, Now(1_000));
        assert_eq!(rates.len(), 1);
    }

    #[test]
    fn a_batch_is_charged_for_each_message() {
        let (mut rates, ann) = rates();
        let batch = RequestCost {
            requests: 100,
            bytes: 0,
        };
        assert_eq!(rates.charge(&ann, batch, Now(0)), Pace::Now);
        assert!(matches!(
            rates.charge(&ann, REQUEST, Now(0)),
            Pace::Refused(after) if after > Duration::from_secs(9)
        ));
    }
}
