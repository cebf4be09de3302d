//! The process beside a client: it notices the end of the client and ends its token. However the
//! client ends, be it killed, the token does not outlive it for long.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use tokio::signal::unix::{SignalKind, signal};

use super::tell_end;
use crate::cli::Context;
use crate::cli::client::{self, Client as Api};
use crate::cli::daemon::{Daemon, Finder};
use crate::cli::failure::{Exit, Failure};

/// How often a gateway is told that does not answer; it may be on its way back.
const TELLS_MAX: u32 = 60;

/// How long to wait between.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// How often the client is looked for where the system cannot report its end.
const LOOK_EVERY: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Starts the process that ends the token `id` after this one, whatever this one becomes.
pub(super) fn watch(id: &str, daemon: &Daemon, context: &Context) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::unexpected(format!("cannot watch over the client: {error}"))
    };
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    let finder = Finder::new(context);
    if let Some(state) = &finder.state {
        command.arg("--state").arg(state);
    }
    if finder.is_fixed() {
        command.args(["--url", &daemon.url]);
        if context.global.insecure {
            command.arg("--insecure");
        }
    }
    command.arg("--token-file").arg(&daemon.token_file);
    let spawned = command
        .arg("__run-end")
        .args([&std::process::id().to_string(), id])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Out of the way of what the terminal says to the client.
        .process_group(0)
        .spawn();
    // Nobody waits for it: it ends after whoever could.
    spawned.map(drop).map_err(failed)
}

/// Waits for the end of the process `parent`, and ends the token `id`.
pub(in crate::cli) fn run(parent: u32, id: &str, context: &Context) -> Result<Exit, Failure> {
    let parent = i32::try_from(parent).ok().and_then(Pid::from_raw);
    let parent = parent.ok_or_else(|| Failure::usage("no such process"))?;
    let runtime = client::runtime()?;
    let _deaf = {
        let _inside = runtime.enter();
        // Whoever ends the client may end all that is around it: this comes after the client.
        [
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        ]
    };
    wait_for(parent);
    for _ in 0..TELLS_MAX {
        match Api::new(context).and_then(|api| tell_end(&api, id)) {
            Err(failure) if failure.exit == Exit::Unreachable => {
                runtime.block_on(async { tokio::time::sleep(TELL_EVERY).await });
            }
            told => return told.map(|()| Exit::Ok),
        }
    }
    Ok(Exit::Unreachable)
}

/// Waits for the end of the process that started this one.
fn wait_for(parent: Pid) {
    let watched = pidfd_open(parent, PidfdFlags::empty()).ok();
    // Asked after it is watched: the number could have come to mean another process.
    while getppid() == Some(parent) {
        // A signal cuts the wait short, and is not what is waited for.
        let _ended = match &watched {
            Some(fd) => poll(&mut [PollFd::new(fd, PollFlags::IN)], None),
            None => poll(&mut [], Some(&LOOK_EVERY)),
        };
    }
}
