//! The keys of a role's allowance: budget and rate of calls.

use std::ops::RangeInclusive;

use bowline_core::budget::{BudgetRule, CallAllowance, RateRule};

use super::require_keys;
use crate::file::config_table::config_table;
use crate::file::server_keys::nested_table;
use crate::file::tree_reader::TreeReader;
use crate::tree::ConfigEntry;

/// Range of calls per budget period.
const BUDGET_CALLS_RANGE: RangeInclusive<u32> = 1..=1_000_000_000;

/// Range of calls of a rate, and of the burst.
const RATE_CALLS_RANGE: RangeInclusive<u32> = 1..=1_000_000;

config_table! {
    /// `[roles.NAME.budget]`: calls per period.
    pub(in crate::file) enum BudgetKey {
        /// Calls of a period.
        Calls = "calls" takes "a whole number",
        /// The period.
        Per = "per" takes "a duration",
    }
}

config_table! {
    /// `[roles.NAME.rate]`: calls per period, refilled continuously.
    pub(in crate::file) enum RateKey {
        /// Calls of a period.
        Calls = "calls" takes "a whole number",
        /// The period.
        Per = "per" takes "a duration",
        /// Calls at once.
        Burst = "burst" takes "a whole number",
    }
}

pub(super) fn parse_budget(
    reader: &mut TreeReader,
    entry: &ConfigEntry,
    table_path: &str,
    allowance: &mut CallAllowance,
) {
    let table_path = nested_table(table_path, "budget");
    let (mut calls, mut per) = (None, None);
    let entries = reader.read_table(&entry.node, "budget", &table_path);
    for (key, inner) in &entries {
        match key {
            BudgetKey::Calls => {
                calls = reader.read_count(inner, &BUDGET_CALLS_RANGE).map(u64::from);
            }
            BudgetKey::Per => per = reader.read_duration(inner),
        }
    }
    require_keys(reader, entry, &entries, &[BudgetKey::Calls, BudgetKey::Per]);
    if let (Some(calls), Some(per)) = (calls, per) {
        allowance.budget = Some(BudgetRule { calls, per });
    }
}

pub(super) fn parse_rate(
    reader: &mut TreeReader,
    entry: &ConfigEntry,
    table_path: &str,
    allowance: &mut CallAllowance,
) {
    let table_path = nested_table(table_path, "rate");
    let (mut calls, mut per, mut burst) = (None, None, None);
    let entries = reader.read_table(&entry.node, "rate", &table_path);
    for (key, inner) in &entries {
        match key {
            RateKey::Calls => calls = reader.read_count(inner, &RATE_CALLS_RANGE),
            RateKey::Per => per = reader.read_duration(inner),
            RateKey::Burst => burst = reader.read_count(inner, &RATE_CALLS_RANGE),
        }
    }
    require_keys(reader, entry, &entries, &[RateKey::Calls, RateKey::Per]);
    if let (Some(calls), Some(per)) = (calls, per) {
        let burst = burst.unwrap_or(calls);
        allowance.rate = Some(RateRule { calls, per, burst });
    }
}
