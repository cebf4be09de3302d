//! How accounts stand in a value of the journal: JSON, with times in milliseconds since 1970.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::budget::{Balance, BucketBalance, Changed, PeriodBalance, RateRule};
use bowline_core::time::{Now, millis};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Document {
    accounts: Vec<Record>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    principal: Arc<str>,
    role: Arc<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<Budget>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<Rate>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Budget {
    began_unix_ms: u64,
    per_ms: u64,
    spent: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Rate {
    calls: u32,
    per_ms: u64,
    burst: u32,
    owed: u64,
    at_unix_ms: u64,
}

/// Returns accounts as a value.
pub(super) fn write(accounts: &BTreeMap<(Arc<str>, Arc<str>), Balance>) -> Bytes {
    let accounts = accounts.iter().map(|((principal, role), balance)| Record {
        principal: Arc::clone(principal),
        role: Arc::clone(role),
        budget: balance.period.map(|period| Budget {
            began_unix_ms: period.began.0,
            per_ms: millis(period.per),
            spent: period.spent,
        }),
        rate: balance.bucket.map(|bucket| Rate {
            calls: bucket.rule.calls,
            per_ms: millis(bucket.rule.per),
            burst: bucket.rule.burst,
            owed: bucket.owed,
            at_unix_ms: bucket.at.0,
        }),
    });
    let accounts = accounts.collect();
    // Numbers and strings can always be written.
    let text = serde_json::to_vec(&Document { accounts });
    debug_assert!(text.is_ok(), "{text:?}");
    text.unwrap_or_default().into()
}

/// Returns the accounts of a value, if it is one that was written here.
pub(super) fn read(value: &[u8]) -> Option<Vec<Changed>> {
    let Document { accounts } = serde_json::from_slice(value).ok()?;
    let accounts = accounts.into_iter().map(|record| Changed {
        principal: record.principal,
        role: record.role,
        balance: Balance {
            period: record.budget.map(|budget| PeriodBalance {
                began: Now(budget.began_unix_ms),
                per: Duration::from_millis(budget.per_ms),
                spent: budget.spent,
            }),
            bucket: record.rate.map(|rate| BucketBalance {
                rule: RateRule {
                    calls: rate.calls,
                    per: Duration::from_millis(rate.per_ms),
                    burst: rate.burst,
                },
                owed: rate.owed,
                at: Now(rate.at_unix_ms),
            }),
        },
    });
    Some(accounts.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_reads_back_and_damage_is_noticed() {
        let rule = RateRule {
            calls: 5,
            per: Duration::from_secs(1),
            burst: 20,
        };
        let balance = Balance {
            period: Some(PeriodBalance {
                began: Now(1_700_000_000_000),
                per: Duration::from_secs(3_600),
                spent: 499,
            }),
            bucket: Some(BucketBalance {
                rule,
                owed: 1_500,
                at: Now(1_700_000_000_500),
            }),
        };
        let (ann, role): (Arc<str>, Arc<str>) = ("ann".into(), "reviewer".into());
        let value = write(&[((Arc::clone(&ann), Arc::clone(&role)), balance)].into());
        let expected = Changed {
            principal: ann,
            role,
            balance,
        };
        assert_eq!(read(&value), Some(vec![expected]));
        for damaged in [&value[..value.len() - 1], b"", b"[]", b"{\"accounts\":[7]}"] {
            assert_eq!(read(damaged), None);
        }
    }
}
