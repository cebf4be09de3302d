//! `executor`: to be one, and to look at those of a gateway.

mod ls;

use super::Context;
use super::args::ExecutorCommand;
use super::failure::{Exit, Failure};

pub(super) fn run(command: &ExecutorCommand, context: &mut Context) -> Result<Exit, Failure> {
    match command {
        ExecutorCommand::Join(_) => Err(Failure::unexpected("not yet")),
        ExecutorCommand::Listen(_) => Err(Failure::unexpected("not yet")),
        ExecutorCommand::Ls => ls::run(context),
    }
}
