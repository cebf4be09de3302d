//! Shared test support.

pub(crate) mod fuzz;
pub(crate) mod oracle;
