//! Charges each call to its principal's budget and to its run, before any further work, and limits
//! the calls in flight of each principal.

use std::sync::{Arc, Mutex};

use bowline_core::accounts::{ConcurrencyCounter, ConcurrencyView};
use bowline_core::budget::{
    BudgetRefusal, CallAllowance, CallCost, ChargeReceipt, SpendingAccounts,
};
use bowline_core::call::{CallRequest, CallSubject, Principal};
use bowline_core::error::CallError;
use bowline_core::run::RunExhausted;
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_journal::Journal;
use bowline_runtime::{Clock, TaskTracker};

use self::budget_store::BudgetStore;

mod budget_store;

/// Spending of all principals, restored from earlier runs of the process.
#[derive(Debug)]
pub(crate) struct BudgetAccounts {
    accounts: Arc<Mutex<SpendingAccounts>>,
    store: Arc<BudgetStore>,
}

/// Spending limits of a principal under the policy, and the role they belong to.
#[derive(Clone, Debug)]
pub(crate) struct BudgetLimits {
    pub(crate) role: Arc<str>,
    pub(crate) allowance: CallAllowance,
}

impl BudgetAccounts {
    pub(crate) fn new(
        journal: Arc<dyn Journal>,
        clock: Arc<dyn Clock>,
        tasks: TaskTracker,
    ) -> Self {
        let accounts = Arc::<Mutex<SpendingAccounts>>::default();
        Self {
            store: Arc::new(BudgetStore::new(
                Arc::clone(&accounts),
                journal,
                clock,
                tasks,
            )),
            accounts,
        }
    }

    /// Loads the stored accounts before the first limited call.
    pub(crate) async fn ensure_loaded(&self) {
        // Boxed because it is rare: keeps the future of an ordinary call small.
        if !self.store.is_loaded() {
            Box::pin(self.store.ensure_loaded()).await;
        }
    }

    /// Writes changed accounts; called once at shutdown.
    pub(crate) async fn flush(&self) {
        self.store.close().await;
    }

    /// Charges a call to its principal and to its run: to both or to neither.
    ///
    /// Requests about an already charged task cost no budget and no run unit, but count towards the
    /// rate limit.
    pub(crate) fn charge_call(
        &self,
        call: &CallRequest,
        limits: &BudgetLimits,
        now: MonotonicTime,
    ) -> Result<(), CallError> {
        let principal = &call.principal.name;
        let cost = match call.subject {
            CallSubject::Task { .. } => CallCost::FollowUp,
            CallSubject::Tool(_)
            | CallSubject::Prompt(_)
            | CallSubject::Resource(_)
            | CallSubject::CompletePrompt(_)
            | CallSubject::CompleteResource(_) => CallCost::Call,
        };
        let receipt = self.charge_account(principal, limits, cost, now)?;
        charge_run(call).inspect_err(|_| {
            lock(&self.accounts).refund_charge(principal, &limits.role, receipt);
        })
    }

    fn charge_account(
        &self,
        principal: &Arc<str>,
        limits: &BudgetLimits,
        cost: CallCost,
        now: MonotonicTime,
    ) -> Result<ChargeReceipt, CallError> {
        let now = self.store.wall_time(now);
        let (charged, has_changed) = {
            let mut accounts = lock(&self.accounts);
            let BudgetLimits { role, allowance } = limits;
            let charged = accounts.charge_cost(principal, role, *allowance, cost, now);
            (charged, accounts.has_changes())
        };
        if has_changed {
            self.store.schedule_write();
        }
        charged.map_err(|refused| match refused {
            BudgetRefusal::RateExceeded { after } => CallError::RateExceeded {
                principal: Arc::clone(principal),
                after,
            },
            BudgetRefusal::BudgetExceeded {
                allowed,
                spent,
                after,
            } => CallError::BudgetExceeded {
                principal: Arc::clone(principal),
                limit: "budget",
                allowed,
                spent,
                after: Some(after),
            },
        })
    }
}

/// Charges a call to its run, if any. Without spending limits that is all: no count and no lock.
pub(crate) fn charge_run(call: &CallRequest) -> Result<(), CallError> {
    match &call.run {
        Some(run) if !matches!(call.subject, CallSubject::Task { .. }) => run
            .charge_call()
            .map_err(|exhausted| to_run_spent_error(&call.principal.name, exhausted)),
        Some(_) | None => Ok(()),
    }
}

fn to_run_spent_error(principal: &Arc<str>, exhausted: RunExhausted) -> CallError {
    CallError::BudgetExceeded {
        principal: Arc::clone(principal),
        limit: "run",
        allowed: exhausted.ceiling,
        spent: exhausted.spent,
        after: None,
    }
}

/// The limiter of a gateway.
#[derive(Clone, Debug)]
pub(crate) struct CallLimiter(Arc<Mutex<ConcurrencyCounter>>);

impl CallLimiter {
    pub(crate) fn new(limit: u32) -> Self {
        Self(Arc::new(Mutex::new(ConcurrencyCounter::new(limit))))
    }

    pub(crate) fn usage(&self) -> ConcurrencyView {
        lock(&self.0).view()
    }

    /// Changes the limit per principal; permits in use stay valid.
    pub(crate) fn set_limit(&self, limit: u32) {
        lock(&self.0).set_limit(limit);
    }

    pub(crate) fn acquire(&self, principal: &Arc<Principal>) -> Result<CallPermit, CallError> {
        lock(&self.0)
            .try_acquire(&principal.name)
            .map_err(|limit| CallError::TooManyCalls {
                principal: Arc::clone(&principal.name),
                limit,
            })?;
        Ok(CallPermit {
            limiter: self.clone(),
            principal: Arc::clone(principal),
        })
    }
}

/// Permission for a single call in flight.
#[derive(Debug)]
pub(crate) struct CallPermit {
    limiter: CallLimiter,
    principal: Arc<Principal>,
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        lock(&self.limiter.0).release_permit(&self.principal.name);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bowline_core::budget::{BudgetRule, RateRule};
    use bowline_core::call::{EndpointScope, Principal, RequestMessage, Role, TaskOperation};
    use bowline_core::run::AgentRun;
    use bytes::Bytes;

    use super::*;

    fn call(subject: CallSubject, run: &Arc<AgentRun>) -> CallRequest {
        CallRequest {
            principal: Arc::new(Principal::new("ann", Role::Named("r".into()))),
            scope: EndpointScope::All,
            subject,
            name_at: 0..0,
            wants_task: false,
            deadline: None,
            run: Some(Arc::clone(run)),
            idempotency_key: None,
            stateless: None,
            message: RequestMessage::new(Bytes::new()),
        }
    }

    #[tokio::test]
    async fn task_requests_cost_only_rate() {
        let per = Duration::from_secs(1);
        let (calls, burst) = (1, 4);
        let ceiling = BudgetLimits {
            role: "r".into(),
            allowance: CallAllowance {
                budget: Some(BudgetRule { calls: 1, per }),
                rate: Some(RateRule { calls, per, burst }),
            },
        };
        let purse = BudgetAccounts::new(
            Arc::new(bowline_journal::MemoryJournal::default()),
            Arc::new(bowline_runtime::SystemClock::start()),
            TaskTracker::default(),
        );
        let run = Arc::new(AgentRun::new("run", 1));
        let charge = |subject| purse.charge_call(&call(subject, &run), &ceiling, MonotonicTime(0));
        let get = || CallSubject::Task {
            id: "t".into(),
            operation: TaskOperation::Get,
        };
        assert_eq!(charge(CallSubject::Tool("s__do".into())), Ok(()));
        for _ in 0..3 {
            assert_eq!(charge(get()), Ok(()));
        }
        assert!(matches!(charge(get()), Err(CallError::RateExceeded { .. })));
        assert_eq!(run.spent_calls(), 1);
    }
}
