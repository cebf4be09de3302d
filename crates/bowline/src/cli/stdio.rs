//! `stdio`: an MCP client that starts programs speaks to the gateway through this shim.

use super::Context;
use super::failure::{Exit, Failure};

pub(super) fn run(_server: Option<&str>, _context: &mut Context) -> Result<Exit, Failure> {
    Err(Failure::unexpected("not built yet"))
}
