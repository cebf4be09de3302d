//! The command line: what is asked, who answers, and with which exit code.

mod api;
mod args;
mod audit;
mod call;
mod check;
mod clean;
mod client;
mod connect;
mod daemon;
mod executor;
mod failure;
mod logs;
mod ls;
mod out;
mod outbox;
mod pin;
mod power;
mod pretty;
mod refresh;
mod reload;
mod role;
mod run;
mod search;
mod secret;
mod session;
mod status;
mod stdio;
mod table;
mod token;
mod trust;
mod up;
mod visit;
mod worker;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser as _;

pub use self::args::{Cli, Command, Global, Passed, Trust, Up};
pub use self::failure::{Exit, Failure};
pub use self::out::{Format, Out};
use crate::config::Env;

/// What every command is given.
#[derive(Debug)]
pub struct Context {
    /// Options that every command has.
    pub global: Global,
    /// The environment.
    pub env: Env,
    /// Where results and messages go.
    pub out: Out,
}

impl Context {
    /// The value of `--config`, when it was given.
    #[must_use]
    pub fn config(&self) -> Option<&Path> {
        self.global.config.as_deref()
    }
}

/// Reads the arguments of the process, answers, and says how it went.
pub fn main(arguments: impl IntoIterator<Item = OsString>, env: Env) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    // Started for every server, so it does without the rest of the program.
    if let [_, word, passed @ ..] = arguments.as_slice()
        && word == "__reaper"
    {
        return bowline_link::reaper::run(passed.iter().cloned());
    }
    match Cli::try_parse_from(&arguments) {
        Ok(Cli {
            command: Command::Fixture(args),
            ..
        }) => fixture(args),
        Ok(Cli { global, command }) => {
            keep_out();
            let format = if global.json {
                Format::Json
            } else {
                Format::Human
            };
            let mut context = Context {
                global,
                env,
                out: Out::process(format),
            };
            finish(run(&command, &mut context), &mut context.out)
        }
        Err(error) => {
            let json = arguments.iter().any(|argument| argument == "--json");
            let format = if json { Format::Json } else { Format::Human };
            usage(&error, &mut Out::process(format))
        }
    }
}

/// Lets no process of the same user, such as a server that we start, look into our memory and
/// environment, where secrets are. What we start itself can be looked at as before.
fn keep_out() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        // An old kernel that cannot do it is no reason to do nothing else.
        let _kept = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    }
}

/// Says what failed, and turns the outcome into the exit code of the process.
pub fn finish(outcome: Result<Exit, Failure>, out: &mut Out) -> ExitCode {
    match outcome {
        Ok(exit) => exit.into(),
        Err(failure) => {
            out.failure(&failure);
            failure.exit.into()
        }
    }
}

/// The one place where commands meet what carries them out.
pub fn run(command: &Command, context: &mut Context) -> Result<Exit, Failure> {
    match command {
        Command::Up(up) => up::run(up, context),
        Command::Trust(asked) => trust::run(asked, context),
        Command::Run(asked) => run::run(asked, context),
        Command::Connect(asked) => connect::run(asked, context),
        Command::RunEnd { parent, token } => run::end(*parent, token, context),
        Command::Stdio { server } => stdio::run(server.as_deref(), context),
        Command::Ls { target, tokens } => ls::run(target.as_ref(), *tokens, context),
        Command::Search(asked) => search::run(asked, context),
        Command::Call(call) => call::run(call, context),
        Command::Status { server, watch } => {
            let view = match (server, watch) {
                (Some(server), _) => status::View::One(server),
                (None, true) => status::View::Watch,
                (None, false) => status::View::All,
            };
            status::run(view, context)
        }
        Command::Logs {
            server,
            follow,
            lines,
        } => {
            let reach = if *follow {
                logs::Reach::Follow
            } else {
                logs::Reach::SoFar
            };
            logs::run(server.as_deref(), reach, *lines, context)
        }
        Command::Audit { command } => audit::run(command, context),
        Command::Check => check::run(context),
        Command::Start { server } => power::run(server, power::Turn::Start, context),
        Command::Stop { server } => power::run(server, power::Turn::Stop, context),
        Command::Restart { server } => power::run(server, power::Turn::Restart, context),
        Command::Reload { server } => reload::run(server.as_deref(), context),
        Command::Refresh(asked) => refresh::run(asked.server.as_deref(), context),
        Command::Role { command } => role::run(command, context),
        Command::Token { command } => token::run(command, context),
        Command::Session { command } => session::run(command, context),
        Command::Secret { command } => secret::run(command, context),
        Command::Pin { command } => pin::run(command, context),
        Command::Outbox { command } => outbox::run(command, context),
        Command::Worker { command } => worker::run(command, context),
        Command::Executor { command } => executor::run(command, context),
        Command::Visit(asked) => visit::run(asked, context),
        Command::Version => version(context),
        // Both are run before anything is set up for a command.
        Command::Fixture(_) | Command::Reaper(_) => Err(Failure::usage("run it as a program")),
    }
}

/// Serves as a test server; it may be told to end with any exit code.
fn fixture(args: crate::fixture::Args) -> ExitCode {
    match crate::fixture::serve(args) {
        Ok(()) => Exit::Ok.into(),
        Err(crate::fixture::Error::Exit { code }) => ExitCode::from(code),
        Err(error) => {
            let failure = Failure::unexpected(error.to_string());
            Out::process(Format::Human).failure(&failure);
            failure.exit.into()
        }
    }
}

fn version(context: &mut Context) -> Result<Exit, Failure> {
    let version = env!("CARGO_PKG_VERSION");
    context
        .out
        .result(&serde_json::json!({"v": 1, "version": version}), |out| {
            out.line(&format!("bowline {version}"))
        })?;
    Ok(Exit::Ok)
}

/// Help and version are answers; the rest is a mistake in the arguments.
fn usage(error: &clap::Error, out: &mut Out) -> ExitCode {
    if !error.use_stderr() {
        let _shown = error.print();
        return Exit::Ok.into();
    }
    let text = error.render().to_string();
    let message = text
        .trim_start_matches("error: ")
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned();
    let failure = Failure::new(Exit::Usage, "usage", message);
    match out.format() {
        Format::Json => out.failure(&failure),
        Format::Human => {
            let _shown = error.print();
        }
    }
    failure.exit.into()
}
