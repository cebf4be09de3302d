//! What the tests of several modules share.

pub(crate) mod fuzz;
pub(crate) mod oracle;
pub(crate) mod schema;
