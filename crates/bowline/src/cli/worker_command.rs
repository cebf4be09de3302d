//! `worker`: joins a hub, lists broker peers, and manages dead letters.

mod mail;
mod worker_join;
mod worker_ls;

use super::CommandContext;
use super::args::WorkerCommand;
use super::failure::{CliExit, CliFailure};

pub(super) fn run(
    command: &WorkerCommand,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    match command {
        WorkerCommand::Join(join) => worker_join::run(join, context),
        WorkerCommand::Ls => worker_ls::run(context),
        WorkerCommand::Mail { command } => mail::run(command, context),
    }
}
