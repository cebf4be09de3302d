//! Whether an answer is what its tool promised.

use bowline_core::call::{Call, Reply, Route};
use bowline_core::error::CallError;

/// Knows the schemas of tools.
#[derive(Debug, Default)]
pub(crate) struct Checker {}

impl Checker {
    /// Checks structured content against the schema of its tool.
    #[expect(clippy::unnecessary_wraps, reason = "no schema is known yet")]
    pub(crate) fn check(
        &self,
        _call: &Call,
        _route: &Route,
        _reply: &Reply,
    ) -> Result<(), CallError> {
        Ok(())
    }
}
