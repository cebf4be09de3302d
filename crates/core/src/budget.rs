//! How many calls a principal may make, and how fast.

use std::time::Duration;

/// So many calls in each period.
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
