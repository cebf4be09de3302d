//! The helper process beside a client: detects the client's end and ends the token. The token does
//! not outlive the client for long, even if the client is killed.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use tokio::signal::unix::{SignalKind, signal};

use super::report_run_end;
use crate::cli::CommandContext;
use crate::cli::api_client::{self, ApiClient as Api};
use crate::cli::failure::{CliExit, CliFailure};
use crate::cli::gateway_finder::GatewayFinder;
use bowline_edge::GatewayAccess;

/// Maximum attempts to reach an unresponsive gateway, which may be restarting.
const REPORT_ATTEMPTS_MAX: u32 = 60;

/// Interval between attempts.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Poll interval when the system cannot report the client's end.
const PARENT_POLL_INTERVAL: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Spawns the helper process that ends the token `id` after this process, even across an exec.
pub(super) fn spawn_reaper(
    id: &str,
    gateway: &GatewayAccess,
    context: &CommandContext,
) -> Result<(), CliFailure> {
    let failed = |error: std::io::Error| {
        CliFailure::unexpected(format!("cannot watch over the client: {error}"))
    };
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    let finder = GatewayFinder::new(context);
    if let Some(state) = &finder.state {
        command.arg("--state").arg(state);
    }
    if finder.has_explicit_url() {
        command.args(["--url", &gateway.url]);
        if context.global.insecure {
            command.arg("--insecure");
        }
    }
    command.arg("--token-file").arg(&gateway.token_file);
    let spawned = command
        .arg("__run-end")
        .args([&std::process::id().to_string(), id])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A separate process group does not receive the terminal's signals.
        .process_group(0)
        .spawn();
    // The helper outlives this process, so nothing waits for it.
    spawned.map(drop).map_err(failed)
}

/// Waits for the end of the process `parent`, and ends the token `id`.
pub(in crate::cli) fn end_token_after(
    parent: u32,
    id: &str,
    context: &CommandContext,
) -> Result<CliExit, CliFailure> {
    let parent = i32::try_from(parent).ok().and_then(Pid::from_raw);
    let parent = parent.ok_or_else(|| CliFailure::usage("no such process"))?;
    let runtime = api_client::create_runtime()?;
    let _ignored_signals = {
        let _inside = runtime.enter();
        // The helper ignores signals, since they may reach it before the client has ended.
        [
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        ]
    };
    wait_for_parent_exit(parent);
    for _ in 0..REPORT_ATTEMPTS_MAX {
        match Api::new(context).and_then(|api| report_run_end(&api, id)) {
            Err(failure) if failure.exit == CliExit::Unreachable => {
                runtime.block_on(async { tokio::time::sleep(REPORT_INTERVAL).await });
            }
            told => return told.map(|()| CliExit::Ok),
        }
    }
    Ok(CliExit::Unreachable)
}

/// Waits for the end of the parent process.
fn wait_for_parent_exit(parent: Pid) {
    let pidfd = pidfd_open(parent, PidfdFlags::empty()).ok();
    // Checked after opening the pidfd, since the pid may have been reused.
    while getppid() == Some(parent) {
        // A signal may interrupt the wait.
        let _ended = match &pidfd {
            Some(fd) => poll(&mut [PollFd::new(fd, PollFlags::IN)], None),
            None => poll(&mut [], Some(&PARENT_POLL_INTERVAL)),
        };
    }
}
