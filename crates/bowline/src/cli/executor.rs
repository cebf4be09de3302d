//! `executor`: to be one, and to look at those of a gateway.

mod join;
mod listen;
mod ls;
mod means;

use super::Context;
use super::args::ExecutorCommand;
use super::failure::{Exit, Failure};

pub(super) fn run(command: &ExecutorCommand, context: &mut Context) -> Result<Exit, Failure> {
    match command {
        ExecutorCommand::Join(asked) => join::run(asked, context),
        ExecutorCommand::Listen(asked) => listen::run(asked, context),
        ExecutorCommand::Ls => ls::run(context),
    }
}
