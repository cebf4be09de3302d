//! Starts a gateway in the background if none runs, only once for concurrent shims.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::cli::CommandContext;
use crate::cli::failure::{CliExit, CliFailure};
use crate::cli::gateway_finder::GatewayFinder;
use bowline_config::state::StateDir;
use bowline_edge::GatewayAccess;

/// Maximum wait for a starting gateway.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Poll interval.
const READY_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Timeout of a probe connection to the listener.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Truncation size of the log of a background gateway.
const LOG_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Log lines printed when the gateway does not start.
const LOG_LINES_SHOWN_MAX: usize = 8;

/// The command to start a gateway.
#[derive(Clone, Debug)]
pub(in crate::cli) struct GatewayStarter {
    pub(super) program: PathBuf,
    pub(super) args: Vec<OsString>,
}

impl GatewayStarter {
    /// Builds the command from this binary and the options of this command.
    pub(in crate::cli) fn new(context: &CommandContext) -> Result<Self, CliFailure> {
        Self::with_arguments(context, vec!["up".into(), "--for-client".into()])
    }

    /// Like [`new`](Self::new), with explicit arguments.
    pub(in crate::cli) fn with_arguments(
        context: &CommandContext,
        mut args: Vec<OsString>,
    ) -> Result<Self, CliFailure> {
        let program = std::env::current_exe()
            .map_err(|error| CliFailure::unexpected(format!("cannot find this binary: {error}")))?;
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

/// Returns a listening gateway: already running, or newly started.
pub(in crate::cli) async fn ensure_gateway(
    finder: &GatewayFinder,
    starter: &GatewayStarter,
) -> Result<GatewayAccess, CliFailure> {
    if finder.has_explicit_url() {
        return finder.find_gateway();
    }
    let Some(directory) = finder.state.clone() else {
        return finder.find_gateway();
    };
    let state = StateDir::open(directory)?;
    let started = async {
        let mut lock = None;
        let mut child: Option<Child> = None;
        loop {
            if let Some(gateway) = find_listening(finder).await? {
                return Ok(gateway);
            }
            if lock.is_none() {
                lock = state.try_lock_start()?;
            } else if child.is_none() {
                // Rechecked under the lock: no other process has started a gateway.
                child = Some(spawn_gateway(starter, &state)?);
            }
            if let Some(Ok(Some(status))) = child.as_mut().map(Child::try_wait) {
                // The child also exits when another gateway was faster.
                return find_listening(finder)
                    .await?
                    .ok_or_else(|| exited_failure(status, &state));
            }
            tokio::time::sleep(READY_POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(READY_TIMEOUT, started)
        .await
        .unwrap_or_else(|_elapsed| {
            let message = "the gateway did not become ready within 30 s";
            Err(not_ready_failure(message, &state))
        })
}

/// Returns the recorded gateway, if listening.
pub(in crate::cli) async fn find_listening(
    finder: &GatewayFinder,
) -> Result<Option<GatewayAccess>, CliFailure> {
    let gateway = match finder.find_gateway() {
        Ok(gateway) => gateway,
        Err(failure) if failure.code == "not_running" => return Ok(None),
        Err(failure) => return Err(failure),
    };
    let authority = gateway.url.trim_start_matches("http://").to_owned();
    let authority = authority.split('/').next().unwrap_or_default().to_owned();
    let probe = tokio::net::TcpStream::connect(authority);
    let is_reachable = tokio::time::timeout(PROBE_TIMEOUT, probe)
        .await
        .is_ok_and(|stream| stream.is_ok());
    Ok(is_reachable.then_some(gateway))
}

fn spawn_gateway(starter: &GatewayStarter, state: &StateDir) -> Result<Child, CliFailure> {
    let log = state.open_log_file("up.log")?;
    if log
        .metadata()
        .is_ok_and(|metadata| metadata.len() > LOG_BYTES_MAX)
    {
        // A failed truncation leaves a usable log.
        let _cut = log.set_len(0);
    }
    let failed = |error: std::io::Error| {
        CliFailure::unexpected(format!(
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
        // The child starts a new session, so it survives the client's signals and terminal.
        .spawn()
        .map_err(failed)
}

fn exited_failure(status: std::process::ExitStatus, state: &StateDir) -> CliFailure {
    not_ready_failure(
        &format!("the gateway ended before it was ready ({status})"),
        state,
    )
}

/// Builds the failure with the end of the log, since the client shows our stderr only.
fn not_ready_failure(message: &str, state: &StateDir) -> CliFailure {
    let path = state.path().join("up.log");
    let log = std::fs::read(&path).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().collect();
    let last = lines
        .iter()
        .skip(lines.len().saturating_sub(LOG_LINES_SHOWN_MAX));
    let mut failure = CliFailure::new(CliExit::Unreachable, "not_ready", message);
    failure.hints.extend(last.map(|line| format!("| {line}")));
    failure.with_hint(format!("see {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::fake_gateway::FakeGateway;
    use crate::cli::{GlobalArgs, OutputFormat, output};
    use bowline_config::EnvVars;

    fn test_finder(state: &std::path::Path) -> GatewayFinder {
        let (out, ..) = output::captured::captured_output(OutputFormat::Human);
        let global = GlobalArgs {
            state: Some(state.to_owned()),
            ..GlobalArgs::default()
        };
        GatewayFinder::new(&CommandContext {
            global,
            env: EnvVars::default(),
            out,
        })
    }

    fn shell_starter(script: &str) -> GatewayStarter {
        GatewayStarter {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
        }
    }

    #[tokio::test]
    async fn running_gateway_is_used() {
        let fake = FakeGateway::start([]);
        let starter = GatewayStarter {
            program: "/nonexistent".into(),
            args: Vec::new(),
        };
        let daemon = ensure_gateway(&test_finder(fake.state.path()), &starter)
            .await
            .unwrap();
        assert!(daemon.url.starts_with("http://127.0.0.1:"));
    }

    #[tokio::test]
    async fn concurrent_shims_start_one_gateway() {
        // The stand-in for `up` counts starts and writes the record of a real listener.
        let fake = FakeGateway::start([]);
        let record = std::fs::read_to_string(fake.state.path().join("run.json")).unwrap();
        fake.state.remove_run().unwrap();
        let state = fake.state.path().display();
        let script = format!(
            "echo started; umask 077; cd {state}; printf '%s' '{record}' > x && mv x run.json"
        );
        let (finder, starter) = (test_finder(fake.state.path()), shell_starter(&script));
        let (a, b, c) = tokio::join!(
            ensure_gateway(&finder, &starter),
            ensure_gateway(&finder, &starter),
            ensure_gateway(&finder, &starter)
        );
        for daemon in [a, b, c] {
            daemon.unwrap();
        }
        let log = std::fs::read_to_string(fake.state.path().join("up.log")).unwrap();
        assert_eq!(log, "started\n");
    }

    #[tokio::test]
    async fn exited_gateway_is_reported_with_log() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("s");
        let failure = ensure_gateway(&test_finder(&state), &shell_starter("echo no >&2; exit 2"))
            .await
            .unwrap_err();
        assert_eq!(
            (failure.exit, failure.code.as_str()),
            (CliExit::Unreachable, "not_ready")
        );
        let see = format!("see {}", state.join("up.log").display());
        assert_eq!(failure.hints, ["| no", see.as_str()]);
        assert_eq!(
            std::fs::read_to_string(state.join("up.log")).unwrap(),
            "no\n"
        );
    }
}
