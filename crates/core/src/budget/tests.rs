//! Budgets and rates in virtual time.

use super::*;

fn budget(calls: u64, secs: u64) -> CallAllowance {
    CallAllowance {
        budget: Some(BudgetRule {
            calls,
            per: Duration::from_secs(secs),
        }),
        rate: None,
    }
}

fn rate(calls: u32, ms: u64, burst: u32) -> CallAllowance {
    CallAllowance {
        budget: None,
        rate: Some(RateRule {
            calls,
            per: Duration::from_millis(ms),
            burst,
        }),
    }
}

/// One principal in one role, charged repeatedly.
struct TestAccounts {
    accounts: SpendingAccounts,
    owner: (Arc<str>, Arc<str>),
}

impl TestAccounts {
    fn new() -> Self {
        Self {
            accounts: SpendingAccounts::default(),
            owner: ("ann".into(), "r".into()),
        }
    }

    fn charge(
        &mut self,
        allowance: CallAllowance,
        cost: CallCost,
        at: u64,
    ) -> Result<ChargeReceipt, BudgetRefusal> {
        let (principal, role) = &self.owner;
        self.accounts
            .charge_cost(principal, role, allowance, cost, MonotonicTime(at))
    }

    fn call(&mut self, allowance: CallAllowance, at: u64) -> Result<(), BudgetRefusal> {
        self.charge(allowance, CallCost::Call, at).map(|_| ())
    }

    fn refund(&mut self, receipt: ChargeReceipt) {
        self.accounts
            .refund_charge(&self.owner.0, &self.owner.1, receipt);
    }
}

fn spent(allowed: u64, spent: u64, after_ms: u64) -> Result<(), BudgetRefusal> {
    Err(BudgetRefusal::BudgetExceeded {
        allowed,
        spent,
        after: Duration::from_millis(after_ms),
    })
}

fn too_fast(after_ms: u64) -> Result<(), BudgetRefusal> {
    let after = Duration::from_millis(after_ms);
    Err(BudgetRefusal::RateExceeded { after })
}

#[test]
fn budget_stays_spent_until_period_ends() {
    let two = budget(2, 10);
    let mut purse = TestAccounts::new();
    assert_eq!(purse.call(two, 5_000), Ok(()));
    assert_eq!(purse.call(two, 9_000), Ok(()));
    assert_eq!(purse.call(two, 9_000), spent(2, 2, 6_000));
    assert_eq!(purse.call(two, 14_999), spent(2, 2, 1));
    assert_eq!(
        purse.call(two, 15_000),
        Ok(()),
        "a period after the first call"
    );
    assert_eq!(
        purse.call(two, 40_000),
        Ok(()),
        "a period begins with a call"
    );
    assert_eq!(purse.call(two, 49_999), Ok(()));
    assert_eq!(purse.call(two, 49_999), spent(2, 2, 1));
}

#[test]
fn rate_allows_burst_then_paces_calls() {
    let rule = rate(3, 1_000, 2);
    let mut purse = TestAccounts::new();
    assert_eq!(purse.call(rule, 0), Ok(()));
    assert_eq!(purse.call(rule, 0), Ok(()));
    assert_eq!(purse.call(rule, 0), too_fast(334));
    assert_eq!(purse.call(rule, 333), too_fast(1));
    assert_eq!(purse.call(rule, 334), Ok(()));
    // Rounding loses nothing: the unused third of a second is credited.
    assert_eq!(purse.call(rule, 666), too_fast(1));
    assert_eq!(purse.call(rule, 667), Ok(()));
    assert_eq!(purse.call(rule, 60_000), Ok(()));
    assert_eq!(purse.call(rule, 60_000), Ok(()));
    assert_eq!(
        purse.call(rule, 60_000),
        too_fast(334),
        "no more is saved up"
    );
}

#[test]
fn sustained_calls_get_exactly_rate() {
    let rule = rate(7, 1_000, 1);
    let mut purse = TestAccounts::new();
    let made = (0..100_000).filter(|at| purse.call(rule, *at).is_ok());
    // Each call waits for a whole millisecond, and the excess counts for the next call.
    assert_eq!(made.count(), 700);
}

#[test]
fn rate_refusal_is_free_and_followups_skip_budget() {
    let both = CallAllowance {
        rate: rate(1, 1_000, 1).rate,
        ..budget(2, 60)
    };
    let mut purse = TestAccounts::new();
    assert_eq!(purse.call(both, 0), Ok(()));
    for at in 1..100 {
        assert_eq!(purse.call(both, at), too_fast(1_000 - at));
    }
    assert!(purse.charge(both, CallCost::FollowUp, 1_000).is_ok());
    assert_eq!(
        purse.charge(both, CallCost::FollowUp, 1_001).map(|_| ()),
        too_fast(999)
    );
    assert_eq!(
        purse.call(both, 2_000),
        Ok(()),
        "one unit was spent until here"
    );
    // The budget is spent, and the refusal does not use up the rate.
    assert_eq!(purse.call(both, 3_000), spent(2, 2, 57_000));
    assert!(purse.charge(both, CallCost::FollowUp, 3_000).is_ok());
}

#[test]
fn refund_counts_in_same_period_only() {
    let both = CallAllowance {
        rate: rate(1, 1_000, 1).rate,
        ..budget(1, 60)
    };
    let mut purse = TestAccounts::new();
    let first = purse.charge(both, CallCost::Call, 0).unwrap();
    purse.refund(first);
    let again = purse.charge(both, CallCost::Call, 0).unwrap();
    assert_eq!(purse.call(both, 59_000), spent(1, 1, 1_000));
    assert_eq!(purse.call(both, 60_000), Ok(()));
    // Without a rule nothing is charged, and so nothing is given back.
    let unruled = purse.charge(CallAllowance::default(), CallCost::Call, 60_000);
    purse.refund(unruled.unwrap());
    // Charged to the previous period, which is over; the current period is unaffected.
    purse.refund(again);
    assert_eq!(purse.call(both, 70_000), spent(1, 1, 50_000));
}

#[test]
fn changed_rules_keep_spent_amount() {
    let mut purse = TestAccounts::new();
    for _ in 0..3 {
        assert_eq!(purse.call(budget(3, 60), 0), Ok(()));
    }
    assert_eq!(purse.call(budget(2, 60), 1_000), spent(2, 3, 59_000));
    assert_eq!(purse.call(budget(4, 60), 1_000), Ok(()));
    assert_eq!(purse.call(budget(4, 30), 1_000), spent(4, 4, 29_000));
    assert_eq!(
        purse.call(CallAllowance::default(), 1_000),
        Ok(()),
        "no rule, no count"
    );
    assert_eq!(purse.call(budget(4, 90), 1_000), spent(4, 4, 89_000));
    assert_eq!(purse.call(rate(1, 100, 4), 1_000), Ok(()));
    assert_eq!(purse.call(rate(1, 1_000, 2), 1_000), Ok(()));
    assert_eq!(purse.call(rate(1, 1_000, 2), 1_000), too_fast(1_000));
    assert_eq!(purse.call(rate(2, 10_000, 2), 1_000), too_fast(5_000));
}

#[test]
fn roles_of_one_principal_have_separate_accounts() {
    let mut accounts = SpendingAccounts::default();
    let ann: Arc<str> = "ann".into();
    let (slow, quick): (Arc<str>, Arc<str>) = ("slow".into(), "quick".into());
    let mut call = |role, allowance, at| {
        let charged =
            accounts.charge_cost(&ann, role, allowance, CallCost::Call, MonotonicTime(at));
        charged.map(|_| ())
    };
    assert_eq!(call(&slow, budget(1, 3_600), 0), Ok(()));
    for at in 0..100 {
        // Many short periods of the quick role do not end the long period of the slow role.
        assert_eq!(call(&quick, budget(1, 1), at * 1_000), Ok(()));
    }
    assert_eq!(
        call(&slow, budget(1, 3_600), 100_000),
        spent(1, 1, 3_500_000)
    );
}

#[test]
fn full_table_evicts_only_settled_accounts() {
    let mut accounts = SpendingAccounts::default();
    let role: Arc<str> = "r".into();
    let mut call = |name: &str, secs, at| {
        let name: Arc<str> = name.into();
        let charged = accounts.charge_cost(
            &name,
            &role,
            budget(1, secs),
            CallCost::Call,
            MonotonicTime(at),
        );
        (charged.map(|_| ()), accounts.len())
    };
    for number in 0..ACCOUNTS_MAX - 1 {
        assert_eq!(call(&number.to_string(), 60, 0).0, Ok(()));
    }
    assert_eq!(call("short", 1, 0), (Ok(()), ACCOUNTS_MAX));
    assert_eq!(call("late", 60, 500), (too_fast(500), ACCOUNTS_MAX));
    assert_eq!(
        call("late", 60, 1_000),
        (Ok(()), ACCOUNTS_MAX),
        "in the place of `short`"
    );
    assert_eq!(call("0", 60, 1_000).0, spent(1, 1, 59_000), "not forgotten");
    assert_eq!(call("more", 60, 1_000).0, too_fast(1_000));
    assert_eq!(
        call("more", 60, 60_000),
        (Ok(()), 2),
        "all others owe nothing by now"
    );
}

#[test]
fn clock_going_back_adds_no_time() {
    let mut purse = TestAccounts::new();
    let both = CallAllowance {
        rate: rate(1, 1_000, 2).rate,
        ..budget(3, 60)
    };
    assert_eq!(purse.call(both, 10_000), Ok(()));
    assert_eq!(purse.call(both, 9_000), Ok(()));
    assert_eq!(purse.call(both, 9_000), too_fast(1_000));
    assert_eq!(purse.call(both, 11_000), Ok(()));
    assert_eq!(purse.call(both, 12_000), spent(3, 3, 58_000));
}

#[test]
fn restored_account_keeps_period_and_rate() {
    let both = CallAllowance {
        rate: rate(1, 10_000, 2).rate,
        ..budget(3, 60)
    };
    let mut before = TestAccounts::new();
    assert_eq!(before.call(both, 100_000), Ok(()));
    assert_eq!(before.call(both, 101_000), Ok(()));
    let changed = before.accounts.take_changes();
    assert_eq!(
        changed.len(),
        1,
        "one account, however often it was charged"
    );
    assert!(!before.accounts.has_changes());
    let balance = changed[0].balance;
    assert_eq!(balance.settled_at(), MonotonicTime(160_000));

    // Ten seconds later, in a new process.
    let mut after = TestAccounts::new();
    let (principal, role) = (&*changed[0].principal, &*changed[0].role);
    after
        .accounts
        .restore_account(principal, role, balance, MonotonicTime(111_000));
    assert_eq!(after.call(both, 111_000), Ok(()));
    assert_eq!(after.call(both, 111_000), too_fast(9_000));
    assert_eq!(after.call(both, 130_000), spent(3, 3, 30_000));
    assert_eq!(after.call(both, 160_000), Ok(()), "a new period");

    // A settled account is not restored, and existing accounts take precedence.
    let mut late = TestAccounts::new();
    late.accounts
        .restore_account(principal, role, balance, MonotonicTime(160_000));
    assert!(late.accounts.is_empty());
    after
        .accounts
        .restore_account(principal, role, balance, MonotonicTime(111_000));
    assert_eq!(after.accounts.len(), 1);
}

#[test]
fn restored_period_never_lies_ahead() {
    let mut before = TestAccounts::new();
    assert_eq!(before.call(budget(1, 60), 900_000), Ok(()));
    let changed = before.accounts.take_changes();
    // The clock was set back in between.
    let mut after = TestAccounts::new();
    after
        .accounts
        .restore_account("ann", "r", changed[0].balance, MonotonicTime(1_000));
    assert_eq!(after.call(budget(1, 60), 1_000), spent(1, 1, 60_000));
    assert_eq!(after.call(budget(1, 60), 61_000), Ok(()));
}
