//! The command line: parses arguments, dispatches commands, and maps outcomes to exit codes.

mod api_client;
mod api_types;
mod args;
mod audit_command;
mod call_command;
mod check;
mod clean;
mod connect;
mod demo_server;
mod executor_command;
mod failure;
mod fixture_command;
mod gateway_finder;
mod lifecycle;
mod logs;
mod ls;
mod outbox_command;
mod output;
mod pin;
mod pretty;
mod probe;
mod refresh_command;
mod reload_command;
mod role;
mod run_command;
mod search_command;
mod secret;
mod session_command;
mod status_command;
mod stdio;
mod table;
mod token;
mod trust;
mod up;
mod worker_command;

#[cfg(test)]
mod fake_gateway;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser as _;

pub use self::args::{CliArgs, CliCommand, GlobalArgs, PassthroughArgs, TrustArgs, UpArgs};
pub use self::failure::{CliExit, CliFailure};
pub use self::output::{CliOutput, OutputFormat};
use bowline_config::EnvVars;

/// State passed to every command.
#[derive(Debug)]
pub struct CommandContext {
    /// The global options.
    pub global: GlobalArgs,
    /// The environment.
    pub env: EnvVars,
    /// Writers for results and messages.
    pub out: CliOutput,
}

impl CommandContext {
    /// Returns the value of `--config`, if given.
    #[must_use]
    pub fn config_path(&self) -> Option<&Path> {
        self.global.config.as_deref()
    }
}

/// Parses the arguments, runs the command, and returns the exit code.
pub fn main(arguments: impl IntoIterator<Item = OsString>, env: EnvVars) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    // The reaper runs for every server, so it skips the setup of the rest of the program.
    if let [_, word, passed @ ..] = arguments.as_slice()
        && word == "__reaper"
    {
        return bowline_link::reaper::run(passed.iter().cloned());
    }
    // Another program parses the arguments of the test server.
    if let [_, word, passed @ ..] = arguments.as_slice()
        && word == "fixture"
    {
        let mut out = CliOutput::for_process(OutputFormat::Human);
        return report_outcome(fixture_command::run(passed), &mut out);
    }
    match CliArgs::try_parse_from(&arguments) {
        Ok(CliArgs { global, command }) => {
            forbid_memory_access();
            let format = if global.json {
                OutputFormat::Json
            } else {
                OutputFormat::Human
            };
            let mut context = CommandContext {
                global,
                env,
                out: CliOutput::for_process(format),
            };
            report_outcome(dispatch_command(&command, &mut context), &mut context.out)
        }
        Err(error) => {
            let json = arguments.iter().any(|argument| argument == "--json");
            let format = if json {
                OutputFormat::Json
            } else {
                OutputFormat::Human
            };
            report_usage_error(&error, &mut CliOutput::for_process(format))
        }
    }
}

/// Keeps other processes of the same user, such as started servers, from reading the memory and
/// environment of this process, which hold secrets. Started processes are not affected.
fn forbid_memory_access() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        // An old kernel without support is no reason to fail.
        let _kept = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    }
}

/// Prints a failure, and maps the outcome to the exit code.
pub fn report_outcome(outcome: Result<CliExit, CliFailure>, out: &mut CliOutput) -> ExitCode {
    match outcome {
        Ok(exit) => exit.into(),
        Err(failure) => {
            out.write_failure(&failure);
            failure.exit.into()
        }
    }
}

/// Dispatches a command.
pub fn dispatch_command(
    command: &CliCommand,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    match command {
        CliCommand::Up(up) => up::run(up, context),
        CliCommand::Trust(args) => trust::run(args, context),
        CliCommand::Run(args) => run_command::run(args, context),
        CliCommand::Connect(args) => connect::run(args, context),
        CliCommand::RunEnd { parent, token } => run_command::end(*parent, token, context),
        CliCommand::Stdio { server } => stdio::run(server.as_deref(), context),
        CliCommand::Ls { target, tokens } => ls::run(target.as_ref(), *tokens, context),
        CliCommand::Search(args) => search_command::run(args, context),
        CliCommand::Call(call) => call_command::run(call, context),
        CliCommand::Status { server, watch } => {
            let view = match (server, watch) {
                (Some(server), _) => status_command::StatusView::One(server),
                (None, true) => status_command::StatusView::Watch,
                (None, false) => status_command::StatusView::All,
            };
            status_command::run(view, context)
        }
        CliCommand::Logs {
            server,
            follow,
            lines,
        } => {
            let reach = if *follow {
                logs::LogRange::Follow
            } else {
                logs::LogRange::Existing
            };
            logs::run(server.as_deref(), reach, *lines, context)
        }
        CliCommand::Audit { command } => audit_command::run(command, context),
        CliCommand::Check => check::run(context),
        CliCommand::Start { server } => {
            lifecycle::run(server, lifecycle::LifecycleAction::Start, context)
        }
        CliCommand::Stop { server } => {
            lifecycle::run(server, lifecycle::LifecycleAction::Stop, context)
        }
        CliCommand::Restart { server } => {
            lifecycle::run(server, lifecycle::LifecycleAction::Restart, context)
        }
        CliCommand::Reload { server } => reload_command::run(server.as_deref(), context),
        CliCommand::Refresh(args) => refresh_command::run(args.server.as_deref(), context),
        CliCommand::Role { command } => role::run(command, context),
        CliCommand::Token { command } => token::run(command, context),
        CliCommand::Session { command } => session_command::run(command, context),
        CliCommand::Secret { command } => secret::run(command, context),
        CliCommand::Pin { command } => pin::run(command, context),
        CliCommand::Outbox { command } => outbox_command::run(command, context),
        CliCommand::Worker { command } => worker_command::run(command, context),
        CliCommand::Executor { command } => executor_command::run(command, context),
        CliCommand::Visit(args) => probe::run(args, context),
        CliCommand::Version => print_version(context),
        CliCommand::Fixture(args) => fixture_command::run(&args.args),
        // `main` runs it before any setup.
        CliCommand::Reaper(_) => Err(CliFailure::usage("run it as a program")),
    }
}

fn print_version(context: &mut CommandContext) -> Result<CliExit, CliFailure> {
    let version = env!("CARGO_PKG_VERSION");
    context
        .out
        .write_result(&serde_json::json!({"v": 1, "version": version}), |out| {
            out.write_line(&format!("bowline {version}"))
        })?;
    Ok(CliExit::Ok)
}

/// Prints help and version as results, anything else as a usage error.
fn report_usage_error(error: &clap::Error, out: &mut CliOutput) -> ExitCode {
    if !error.use_stderr() {
        let _shown = error.print();
        return CliExit::Ok.into();
    }
    let text = error.render().to_string();
    let message = text
        .trim_start_matches("error: ")
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned();
    let failure = CliFailure::new(CliExit::Usage, "usage", message);
    match out.format() {
        OutputFormat::Json => out.write_failure(&failure),
        OutputFormat::Human => {
            let _shown = error.print();
        }
    }
    failure.exit.into()
}
