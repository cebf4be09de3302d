//! Starts a gateway in the background when none runs, once however many shims want one.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::cli::Context;
use crate::cli::daemon::{Daemon, Finder};
use crate::cli::failure::{Exit, Failure};
use crate::state::State;

/// Longest wait for a gateway that is being started.
const READY: Duration = Duration::from_secs(30);
/// How often to look whether it is there.
const LOOK: Duration = Duration::from_millis(50);
/// Longest wait for a connection that only shows that somebody listens.
const PROBE: Duration = Duration::from_secs(2);
/// The log of a gateway in the background starts anew beyond this.
const LOG_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Lines of that log that are repeated when the gateway does not start.
const LOG_LINES_SHOWN_MAX: usize = 8;

/// The command that starts a gateway.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Starter {
    pub(super) program: PathBuf,
    pub(super) args: Vec<OsString>,
}

impl Starter {
    /// This binary, with the options that this command was given.
    pub(in crate::cli) fn new(context: &Context) -> Result<Self, Failure> {
        Self::with(context, vec!["up".into(), "--for-client".into()])
    }

    /// This binary with these arguments, and the options that this command was given.
    pub(in crate::cli) fn with(
        context: &Context,
        mut args: Vec<OsString>,
    ) -> Result<Self, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::unexpected(format!("cannot find this binary: {error}")))?;
        let paths = [
            ("--config", &context.global.config),
            ("--state", &context.global.state),
        ];
        for (flag, path) in paths {
            if let Some(path) = path {
                args.extend([flag.into(), path.clone().into_os_string()]);
            }
        }
        Ok(Self { program, args })
    }
}

/// A gateway that listens: the one that runs, or a new one.
pub(in crate::cli) async fn ensure(finder: &Finder, starter: &Starter) -> Result<Daemon, Failure> {
    if finder.is_fixed() {
        return finder.find();
    }
    let Some(directory) = finder.state.clone() else {
        return finder.find();
    };
    let state = State::open(directory)?;
    let started = async {
        let mut lock = None;
        let mut child: Option<Child> = None;
        loop {
            if let Some(daemon) = listening(finder).await? {
                return Ok(daemon);
            }
            if lock.is_none() {
                lock = state.starter()?;
            } else if child.is_none() {
                // Looked once more after the lock was taken: nobody else has started one.
                child = Some(spawn(starter, &state)?);
            }
            if let Some(Ok(Some(status))) = child.as_mut().map(Child::try_wait) {
                // It also ends when someone else was quicker.
                return listening(finder).await?.ok_or_else(|| died(status, &state));
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(READY, started)
        .await
        .unwrap_or_else(|_elapsed| {
            let message = "the gateway did not become ready within 30 s";
            Err(not_ready(message, &state))
        })
}

/// The gateway on record, if it really listens.
pub(in crate::cli) async fn listening(finder: &Finder) -> Result<Option<Daemon>, Failure> {
    let daemon = match finder.find() {
        Ok(daemon) => daemon,
        Err(failure) if failure.code == "not_running" => return Ok(None),
        Err(failure) => return Err(failure),
    };
    let authority = daemon.url.trim_start_matches("http://").to_owned();
    let authority = authority.split('/').next().unwrap_or_default().to_owned();
    let probe = tokio::net::TcpStream::connect(authority);
    let reached = tokio::time::timeout(PROBE, probe)
        .await
        .is_ok_and(|stream| stream.is_ok());
    Ok(reached.then_some(daemon))
}

fn spawn(starter: &Starter, state: &State) -> Result<Child, Failure> {
    let log = state.append("up.log")?;
    if log
        .metadata()
        .is_ok_and(|metadata| metadata.len() > LOG_BYTES_MAX)
    {
        // A log that cannot be cut is still a log.
        let _cut = log.set_len(0);
    }
    let failed = |error: std::io::Error| {
        Failure::unexpected(format!(
            "cannot start `{}`: {error}",
            starter.program.display()
        ))
    };
    let errors = log.try_clone().map_err(failed)?;
    Command::new(&starter.program)
        .args(&starter.args)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        // It begins a session of its own, so that it survives the client's signals and terminal.
        .spawn()
        .map_err(failed)
}

fn died(status: std::process::ExitStatus, state: &State) -> Failure {
    not_ready(
        &format!("the gateway ended before it was ready ({status})"),
        state,
    )
}

/// The client shows our stderr, not the log, so the end of the log is repeated here.
fn not_ready(message: &str, state: &State) -> Failure {
    let path = state.path().join("up.log");
    let log = std::fs::read(&path).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().collect();
    let last = lines
        .iter()
        .skip(lines.len().saturating_sub(LOG_LINES_SHOWN_MAX));
    let mut failure = Failure::new(Exit::Unreachable, "not_ready", message);
    failure.hints.extend(last.map(|line| format!("| {line}")));
    failure.hint(format!("see {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::fake::Fake;
    use crate::cli::{Format, Global, out};
    use crate::config::Env;

    fn finder(state: &std::path::Path) -> Finder {
        let (out, ..) = out::captured::out(Format::Human);
        let global = Global {
            state: Some(state.to_owned()),
            ..Global::default()
        };
        Finder::new(&Context {
            global,
            env: Env::default(),
            out,
        })
    }

    fn shell(script: &str) -> Starter {
        Starter {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
        }
    }

    #[tokio::test]
    async fn a_running_gateway_is_taken_and_nothing_is_started() {
        let fake = Fake::start([]);
        let starter = Starter {
            program: "/nonexistent".into(),
            args: Vec::new(),
        };
        let daemon = ensure(&finder(fake.state.path()), &starter).await.unwrap();
        assert!(daemon.url.starts_with("http://127.0.0.1:"));
    }

    #[tokio::test]
    async fn several_shims_start_one_gateway() {
        // The stand-in for `up` counts its starts and puts the record of a real listener in place.
        let fake = Fake::start([]);
        let record = std::fs::read_to_string(fake.state.path().join("run.json")).unwrap();
        fake.state.remove_run().unwrap();
        let state = fake.state.path().display();
        let script = format!(
            "echo started; umask 077; cd {state}; printf '%s' '{record}' > x && mv x run.json"
        );
        let (finder, starter) = (finder(fake.state.path()), shell(&script));
        let (a, b, c) = tokio::join!(
            ensure(&finder, &starter),
            ensure(&finder, &starter),
            ensure(&finder, &starter)
        );
        for daemon in [a, b, c] {
            daemon.unwrap();
        }
        let log = std::fs::read_to_string(fake.state.path().join("up.log")).unwrap();
        assert_eq!(log, "started\n");
    }

    #[tokio::test]
    async fn a_gateway_that_ends_at_once_is_reported_with_its_log() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("s");
        let failure = ensure(&finder(&state), &shell("echo no >&2; exit 2"))
            .await
            .unwrap_err();
        assert_eq!(
            (failure.exit, failure.code.as_str()),
            (Exit::Unreachable, "not_ready")
        );
        let see = format!("see {}", state.join("up.log").display());
        assert_eq!(failure.hints, ["| no", see.as_str()]);
        assert_eq!(
            std::fs::read_to_string(state.join("up.log")).unwrap(),
            "no\n"
        );
    }
}
