//! What a call costs its principal: one unit, before anything else is done for it.

use std::sync::Arc;

use bowline_core::budget::Allowance;
use bowline_core::call::Call;
use bowline_core::error::CallError;
use bowline_core::time::Now;

/// What principals have spent.
#[derive(Debug, Default)]
pub(crate) struct Purse {}

impl Purse {
    /// Charges one unit to the principal of `call` and to its run.
    pub(crate) fn charge(
        &self,
        call: &Call,
        _allowance: Allowance,
        _now: Now,
    ) -> Result<(), CallError> {
        let Some(run) = &call.run else {
            return Ok(());
        };
        run.charge().map_err(|over| CallError::BudgetSpent {
            principal: Arc::clone(&call.principal.name),
            limit: "run",
            allowed: over.ceiling,
            spent: over.spent,
            after: None,
        })
    }
}
