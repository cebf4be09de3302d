//! Budgets and rates in virtual time.

use super::*;

fn budget(calls: u64, secs: u64) -> Allowance {
    Allowance {
        budget: Some(BudgetRule {
            calls,
            per: Duration::from_secs(secs),
        }),
        rate: None,
    }
}

fn rate(calls: u32, ms: u64, burst: u32) -> Allowance {
    Allowance {
        budget: None,
        rate: Some(RateRule {
            calls,
            per: Duration::from_millis(ms),
            burst,
        }),
    }
}

/// One principal in one role, charged again and again.
struct Purse {
    accounts: Accounts,
    who: (Arc<str>, Arc<str>),
}

impl Purse {
    fn new() -> Self {
        Self {
            accounts: Accounts::default(),
            who: ("ann".into(), "r".into()),
        }
    }

    fn charge(&mut self, allowance: Allowance, cost: Cost, at: u64) -> Result<Receipt, Refused> {
        let (principal, role) = &self.who;
        self.accounts
            .charge((principal, role), allowance, cost, Now(at))
    }

    fn call(&mut self, allowance: Allowance, at: u64) -> Result<(), Refused> {
        self.charge(allowance, Cost::Call, at).map(|_| ())
    }

    fn refund(&mut self, receipt: Receipt) {
        self.accounts.refund((&self.who.0, &self.who.1), receipt);
    }
}

fn spent(allowed: u64, spent: u64, after_ms: u64) -> Result<(), Refused> {
    Err(Refused::Spent {
        allowed,
        spent,
        after: Duration::from_millis(after_ms),
    })
}

fn too_fast(after_ms: u64) -> Result<(), Refused> {
    let after = Duration::from_millis(after_ms);
    Err(Refused::TooFast { after })
}

#[test]
fn a_budget_is_spent_until_its_period_ends() {
    let two = budget(2, 10);
    let mut purse = Purse::new();
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
fn a_rate_lets_saved_calls_go_at_once_and_then_one_at_a_time() {
    let rule = rate(3, 1_000, 2);
    let mut purse = Purse::new();
    assert_eq!(purse.call(rule, 0), Ok(()));
    assert_eq!(purse.call(rule, 0), Ok(()));
    assert_eq!(purse.call(rule, 0), too_fast(334));
    assert_eq!(purse.call(rule, 333), too_fast(1));
    assert_eq!(purse.call(rule, 334), Ok(()));
    // Nothing is lost to rounding: the third of a second that was not used is there.
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
fn a_long_run_gets_exactly_its_rate() {
    let rule = rate(7, 1_000, 1);
    let mut purse = Purse::new();
    let made = (0..100_000).filter(|at| purse.call(rule, *at).is_ok());
    // Each waits for a whole millisecond, and what is over counts for the next.
    assert_eq!(made.count(), 700);
}

#[test]
fn what_is_refused_for_its_rate_costs_nothing_and_what_follows_up_is_free_of_the_budget() {
    let both = Allowance {
        rate: rate(1, 1_000, 1).rate,
        ..budget(2, 60)
    };
    let mut purse = Purse::new();
    assert_eq!(purse.call(both, 0), Ok(()));
    for at in 1..100 {
        assert_eq!(purse.call(both, at), too_fast(1_000 - at));
    }
    assert!(purse.charge(both, Cost::FollowUp, 1_000).is_ok());
    assert_eq!(
        purse.charge(both, Cost::FollowUp, 1_001).map(|_| ()),
        too_fast(999)
    );
    assert_eq!(
        purse.call(both, 2_000),
        Ok(()),
        "one unit was spent until here"
    );
    // The budget is spent, and being told so does not use up the rate.
    assert_eq!(purse.call(both, 3_000), spent(2, 2, 57_000));
    assert!(purse.charge(both, Cost::FollowUp, 3_000).is_ok());
}

#[test]
fn what_is_given_back_can_be_spent_again_in_the_same_period_only() {
    let both = Allowance {
        rate: rate(1, 1_000, 1).rate,
        ..budget(1, 60)
    };
    let mut purse = Purse::new();
    let first = purse.charge(both, Cost::Call, 0).unwrap();
    purse.refund(first);
    let again = purse.charge(both, Cost::Call, 0).unwrap();
    assert_eq!(purse.call(both, 59_000), spent(1, 1, 1_000));
    assert_eq!(purse.call(both, 60_000), Ok(()));
    // Without a rule nothing is charged, and so nothing is given back.
    let unruled = purse.charge(Allowance::default(), Cost::Call, 60_000);
    purse.refund(unruled.unwrap());
    // Charged to the period before: that one is over, and this one is not its business.
    purse.refund(again);
    assert_eq!(purse.call(both, 70_000), spent(1, 1, 50_000));
}

#[test]
fn other_rules_keep_what_was_spent() {
    let mut purse = Purse::new();
    for _ in 0..3 {
        assert_eq!(purse.call(budget(3, 60), 0), Ok(()));
    }
    assert_eq!(purse.call(budget(2, 60), 1_000), spent(2, 3, 59_000));
    assert_eq!(purse.call(budget(4, 60), 1_000), Ok(()));
    assert_eq!(purse.call(budget(4, 30), 1_000), spent(4, 4, 29_000));
    assert_eq!(
        purse.call(Allowance::default(), 1_000),
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
fn two_roles_of_one_principal_are_two_accounts() {
    let mut accounts = Accounts::default();
    let ann: Arc<str> = "ann".into();
    let (slow, quick): (Arc<str>, Arc<str>) = ("slow".into(), "quick".into());
    let mut call = |role, allowance, at| {
        let charged = accounts.charge((&ann, role), allowance, Cost::Call, Now(at));
        charged.map(|_| ())
    };
    assert_eq!(call(&slow, budget(1, 3_600), 0), Ok(()));
    for at in 0..100 {
        // Many short periods of one role do not end the long one of the other.
        assert_eq!(call(&quick, budget(1, 1), at * 1_000), Ok(()));
    }
    assert_eq!(
        call(&slow, budget(1, 3_600), 100_000),
        spent(1, 1, 3_500_000)
    );
}

#[test]
fn a_full_table_forgets_only_those_that_owe_nothing() {
    let mut accounts = Accounts::default();
    let role: Arc<str> = "r".into();
    let mut call = |name: &str, secs, at| {
        let name: Arc<str> = name.into();
        let charged = accounts.charge((&name, &role), budget(1, secs), Cost::Call, Now(at));
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
fn time_that_goes_back_is_no_time() {
    let mut purse = Purse::new();
    let both = Allowance {
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
    let both = Allowance {
        rate: rate(1, 10_000, 2).rate,
        ..budget(3, 60)
    };
    let mut before = Purse::new();
    assert_eq!(before.call(both, 100_000), Ok(()));
    assert_eq!(before.call(both, 101_000), Ok(()));
    let changed = before.accounts.take_changed();
    assert_eq!(
        changed.len(),
        1,
        "one account, however often it was charged"
    );
    assert!(!before.accounts.has_changed());
    let balance = changed[0].balance;
    assert_eq!(balance.free_at(), Now(160_000));

    // Ten seconds later, in another process.
    let mut after = Purse::new();
    let who = (&*changed[0].principal, &*changed[0].role);
    after.accounts.restore(who, balance, Now(111_000));
    assert_eq!(after.call(both, 111_000), Ok(()));
    assert_eq!(after.call(both, 111_000), too_fast(9_000));
    assert_eq!(after.call(both, 130_000), spent(3, 3, 30_000));
    assert_eq!(after.call(both, 160_000), Ok(()), "a new period");

    // Nothing is owed any more, and what this life knows counts.
    let mut late = Purse::new();
    late.accounts.restore(who, balance, Now(160_000));
    assert!(late.accounts.is_empty());
    after.accounts.restore(who, balance, Now(111_000));
    assert_eq!(after.accounts.len(), 1);
}

#[test]
fn restored_period_never_lies_ahead() {
    let mut before = Purse::new();
    assert_eq!(before.call(budget(1, 60), 900_000), Ok(()));
    let changed = before.accounts.take_changed();
    // The clock was set back in between.
    let mut after = Purse::new();
    after
        .accounts
        .restore(("ann", "r"), changed[0].balance, Now(1_000));
    assert_eq!(after.call(budget(1, 60), 1_000), spent(1, 1, 60_000));
    assert_eq!(after.call(budget(1, 60), 61_000), Ok(()));
}
