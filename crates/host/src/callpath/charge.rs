//! What a call costs its principal: one unit, before anything else is done for it.

mod store;

use std::sync::{Arc, Mutex};

use bowline_core::budget::{Accounts, Allowance, Cost, Receipt, Refused};
use bowline_core::call::{Call, Subject};
use bowline_core::error::CallError;
use bowline_core::run::Overspent;
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_journal::Journal;

use self::store::Store;
use crate::ports::Clock;
use crate::tasks::Tasks;

/// What principals have spent, in this life of the process and in those before.
#[derive(Debug)]
pub(crate) struct Purse {
    accounts: Arc<Mutex<Accounts>>,
    store: Arc<Store>,
}

/// What the policy lets a principal spend, and in which role.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ceiling {
    /// Nothing where nothing is limited.
    pub(crate) role: Option<Arc<str>>,
    pub(crate) allowance: Allowance,
}

impl Purse {
    pub(crate) fn new(journal: Arc<dyn Journal>, clock: Arc<dyn Clock>, tasks: Tasks) -> Self {
        let accounts = Arc::<Mutex<Accounts>>::default();
        Self {
            store: Arc::new(Store::new(Arc::clone(&accounts), journal, clock, tasks)),
            accounts,
        }
    }

    /// Waits until the accounts of before are known, where anything is limited.
    pub(crate) async fn open(&self, ceiling: &Ceiling) {
        // What is rare is boxed, so that a call carries no room for it.
        if ceiling.role.is_some() && !self.store.is_loaded() {
            Box::pin(self.store.load()).await;
        }
    }

    /// Writes down what was spent; called once, when the host goes down.
    pub(crate) async fn close(&self) {
        self.store.close().await;
    }

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
                lock(&self.accounts).refund((principal, role), receipt);
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
        let now = self.store.wall_time(now);
        let (charged, has_changed) = {
            let mut accounts = lock(&self.accounts);
            let charged = accounts.charge((principal, role), ceiling.allowance, cost, now);
            (charged, accounts.has_changed())
        };
        if has_changed {
            self.store.schedule_write();
        }
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

    #[tokio::test]
    async fn questions_about_a_task_are_free_of_budget_and_run_and_held_to_the_rate() {
        let per = Duration::from_secs(1);
        let (calls, burst) = (1, 4);
        let ceiling = Ceiling {
            role: Some("r".into()),
            allowance: Allowance {
                budget: Some(BudgetRule { calls: 1, per }),
                rate: Some(RateRule { calls, per, burst }),
            },
        };
        let purse = Purse::new(
            Arc::new(bowline_journal::Memory::default()),
            Arc::new(crate::ports::SystemClock::start()),
            Tasks::default(),
        );
        let run = Arc::new(Run::new("run", 1));
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
