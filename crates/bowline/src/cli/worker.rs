//! `worker`: peers of the broker, and what waits in their mailboxes.

mod join;
mod ls;
mod mail;

use super::Context;
use super::args::WorkerCommand;
use super::failure::{Exit, Failure};

pub(super) fn run(command: &WorkerCommand, context: &mut Context) -> Result<Exit, Failure> {
    match command {
        WorkerCommand::Join(join) => join::run(join, context),
        WorkerCommand::Ls => ls::run(context),
        WorkerCommand::Mail { command } => mail::run(command, context),
    }
}
