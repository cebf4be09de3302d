//! JSON format of accounts in the journal; times are milliseconds since 1970.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::budget::{AccountBalance, BalanceChange, BucketBalance, PeriodBalance, RateRule};
use bowline_core::time::{MonotonicTime, to_millis};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct BudgetDocument {
    accounts: Vec<AccountRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
struct AccountRecord {
    principal: Arc<str>,
    role: Arc<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<BudgetRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<RateRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
struct BudgetRecord {
    began_unix_ms: u64,
    per_ms: u64,
    spent: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct RateRecord {
    calls: u32,
    per_ms: u64,
    burst: u32,
    owed: u64,
    at_unix_ms: u64,
}

/// Serializes accounts as a journal value.
pub(super) fn serialize_accounts(
    accounts: &BTreeMap<(Arc<str>, Arc<str>), AccountBalance>,
) -> Bytes {
    let accounts = accounts
        .iter()
        .map(|((principal, role), balance)| AccountRecord {
            principal: Arc::clone(principal),
            role: Arc::clone(role),
            budget: balance.period.map(|period| BudgetRecord {
                began_unix_ms: period.started_at.0,
                per_ms: to_millis(period.per),
                spent: period.spent,
            }),
            rate: balance.rate_bucket.map(|bucket| RateRecord {
                calls: bucket.rule.calls,
                per_ms: to_millis(bucket.rule.per),
                burst: bucket.rule.burst,
                owed: bucket.debt,
                at_unix_ms: bucket.updated_at.0,
            }),
        });
    let accounts = accounts.collect();
    // Numbers and strings always serialize.
    let text = serde_json::to_vec(&BudgetDocument { accounts });
    debug_assert!(text.is_ok(), "{text:?}");
    text.unwrap_or_default().into()
}

/// Parses a journal value; `None` if damaged.
pub(super) fn parse_accounts(value: &[u8]) -> Option<Vec<BalanceChange>> {
    let BudgetDocument { accounts } = serde_json::from_slice(value).ok()?;
    let accounts = accounts.into_iter().map(|record| BalanceChange {
        principal: record.principal,
        role: record.role,
        balance: AccountBalance {
            period: record.budget.map(|budget| PeriodBalance {
                started_at: MonotonicTime(budget.began_unix_ms),
                per: Duration::from_millis(budget.per_ms),
                spent: budget.spent,
            }),
            rate_bucket: record.rate.map(|rate| BucketBalance {
                rule: RateRule {
                    calls: rate.calls,
                    per: Duration::from_millis(rate.per_ms),
                    burst: rate.burst,
                },
                debt: rate.owed,
                updated_at: MonotonicTime(rate.at_unix_ms),
            }),
        },
    });
    Some(accounts.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_roundtrip_and_damage_is_detected() {
        let rule = RateRule {
            calls: 5,
            per: Duration::from_secs(1),
            burst: 20,
        };
        let balance = AccountBalance {
            period: Some(PeriodBalance {
                started_at: MonotonicTime(1_700_000_000_000),
                per: Duration::from_secs(3_600),
                spent: 499,
            }),
            rate_bucket: Some(BucketBalance {
                rule,
                debt: 1_500,
                updated_at: MonotonicTime(1_700_000_000_500),
            }),
        };
        let (ann, role): (Arc<str>, Arc<str>) = ("ann".into(), "reviewer".into());
        let value = serialize_accounts(&[((Arc::clone(&ann), Arc::clone(&role)), balance)].into());
        let expected = BalanceChange {
            principal: ann,
            role,
            balance,
        };
        assert_eq!(parse_accounts(&value), Some(vec![expected]));
        for damaged in [&value[..value.len() - 1], b"", b"[]", b"{\"accounts\":[7]}"] {
            assert_eq!(parse_accounts(damaged), None);
        }
    }
}
