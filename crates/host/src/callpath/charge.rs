//! What a call costs its principal: one unit, before anything else is done for it.

use std::sync::{Arc, Mutex};

use bowline_core::budget::{Accounts, Allowance, Cost, Receipt, Refused};
use bowline_core::call::{Call, Subject};
use bowline_core::error::CallError;
use bowline_core::run::Overspent;
use bowline_core::sync::lock;
use bowline_core::time::Now;

/// What principals have spent.
#[derive(Debug, Default)]
pub(crate) struct Purse(Mutex<Accounts>);

/// What the policy lets a principal spend, and in which role.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ceiling {
    /// Nothing where nothing is limited.
    pub(crate) role: Option<Arc<str>>,
    pub(crate) allowance: Allowance,
}

impl Purse {
    /// Charges a call to its principal and to its run: to both, or to neither. Where nothing is
    /// limited, nothing is counted and no lock is taken.
    ///
    /// What is asked about a task that was paid for costs neither budget nor run, and is held to
    /// the rate.
    pub(crate) fn charge(&self, call: &Call, ceiling: &Ceiling, now: Now) -> Result<(), CallError> {
        let cost = match call.subject {
            Subject::Task { .. } => Cost::FollowUp,
            Subject::Tool(_)
            | Subject::Prompt(_)
            | Subject::Resource(_)
            | Subject::CompletePrompt(_)
            | Subject::CompleteResource(_) => Cost::Call,
        };
        let principal = &call.principal.name;
        let receipt = match &ceiling.role {
            Some(role) => Some((role, self.take(principal, role, ceiling, cost, now)?)),
            None => None,
        };
        let Some(run) = call.run.as_ref().filter(|_| cost == Cost::Call) else {
            return Ok(());
        };
        run.charge().map_err(|over| {
            if let Some((role, receipt)) = receipt {
                lock(&self.0).refund((principal, role), receipt);
            }
            run_spent(principal, over)
        })
    }

    fn take(
        &self,
        principal: &Arc<str>,
        role: &Arc<str>,
        ceiling: &Ceiling,
        cost: Cost,
        now: Now,
    ) -> Result<Receipt, CallError> {
        let charged = lock(&self.0).charge((principal, role), ceiling.allowance, cost, now);
        charged.map_err(|refused| match refused {
            Refused::TooFast { after } => CallError::TooFast {
                principal: Arc::clone(principal),
                after,
            },
            Refused::Spent {
                allowed,
                spent,
                after,
            } => CallError::BudgetSpent {
                principal: Arc::clone(principal),
                limit: "budget",
                allowed,
                spent,
                after: Some(after),
            },
        })
    }
}

fn run_spent(principal: &Arc<str>, over: Overspent) -> CallError {
    CallError::BudgetSpent {
        principal: Arc::clone(principal),
        limit: "run",
        allowed: over.ceiling,
        spent: over.spent,
        after: None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bowline_core::budget::{BudgetRule, RateRule};
    use bowline_core::call::{Principal, Role, Scope, TaskVerb};
    use bowline_core::run::Run;
    use bytes::Bytes;

    use super::*;

    fn call(subject: Subject, run: &Arc<Run>) -> Call {
        Call {
            principal: Arc::new(Principal::new("ann", Role::Named("r".into()))),
            scope: Scope::All,
            subject,
            params: Bytes::new(),
            name_at: 0..0,
            makes_task: false,
            progress_at: None,
            id: Bytes::new(),
            deadline: None,
            caller: None,
            trace: None,
            run: Some(Arc::clone(run)),
            key: None,
            stateless: None,
        }
    }

    #[test]
    fn questions_about_a_task_are_free_of_budget_and_run_and_held_to_the_rate() {
        let per = Duration::from_secs(1);
        let (calls, burst) = (1, 4);
        let ceiling = Ceiling {
            role: Some("r".into()),
            allowance: Allowance {
                budget: Some(BudgetRule { calls: 1, per }),
                rate: Some(RateRule { calls, per, burst }),
            },
        };
        let (purse, run) = (Purse::default(), Arc::new(Run::new("run", 1)));
        let charge = |subject| purse.charge(&call(subject, &run), &ceiling, Now(0));
        let get = || Subject::Task {
            id: "t".into(),
            verb: TaskVerb::Get,
        };
        assert_eq!(charge(Subject::Tool("s__do".into())), Ok(()));
        for _ in 0..3 {
            assert_eq!(charge(get()), Ok(()));
        }
        assert!(matches!(charge(get()), Err(CallError::TooFast { .. })));
        assert_eq!(run.spent(), 1);
    }
}
