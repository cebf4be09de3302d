//! `executor`: runs an executor, and lists the executors of a gateway.

mod executor_join;
mod executor_listen;
mod executor_ls;
mod setup;

use super::CommandContext;
use super::args::ExecutorCommand;
use super::failure::{CliExit, CliFailure};

pub(super) fn run(
    command: &ExecutorCommand,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    match command {
        ExecutorCommand::Join(asked) => executor_join::run(asked, context),
        ExecutorCommand::Listen(asked) => executor_listen::run(asked, context),
        ExecutorCommand::Ls => executor_ls::run(context),
    }
}
