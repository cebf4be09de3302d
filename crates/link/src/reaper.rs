//! A small process between the gateway and a server: when either ends, no descendant remains.
//!
//! The reaper is the subreaper of the server, so detached descendants become its children. SIGTERM
//! requests a graceful end, SIGINT a kill. The reaper follows the gateway into death, however the
//! gateway died.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process,
    kill_process_group, pidfd_open, set_child_subreaper, wait,
};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use crate::child_limits::{
    ChildLimits, EXIT_OVER_MEMORY, EXIT_OVER_PROCESSES, EXIT_PROGRAM_NOT_FOUND,
};
use crate::process_mark::{MARK_ARG_PREFIX, MARK_VARIABLE};
use crate::process_usage;
use crate::sandbox::{
    ConfineError, ConfinedProgram, PrivateTempDir, SandboxLevel, SandboxPolicy, spawn_confined,
};
use crate::stdio::command_not_found_text;

mod resource_limits;
use resource_limits::{LimitExceeded, UsageMonitor};

/// Grace of a server after SIGTERM.
const TERM_GRACE: Duration = Duration::from_secs(2);

/// Grace after the death of the gateway.
const ORPHAN_GRACE: Duration = Duration::from_millis(700);

/// Longest wait for killed processes; beyond it the system itself is stuck.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// Interval of the search for killed processes without an exit report.
const SWEEP_INTERVAL: Duration = Duration::from_millis(20);

/// Interval of the gateway check on systems without pidfd.
const PARENT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

const EXIT_USAGE: u8 = 2;
const EXIT_FAILED: u8 = 125;
const EXIT_NOT_RUNNABLE: u8 = 126;

/// Exit codes of the reaper itself: a server with such a code is reported as failed.
const RESERVED_CODES: [u8; 3] = [
    EXIT_OVER_MEMORY,
    EXIT_OVER_PROCESSES,
    EXIT_PROGRAM_NOT_FOUND,
];

/// Runs `PARENT_PID [LIMIT]... -- COMMAND ARGS...` and returns the exit code of the command, or 128
/// plus its signal.
pub fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let code = match ReaperArgs::parse(args) {
        Some(order) => order.run_server().unwrap_or_else(|error| {
            print_error(&format!("reaper: {error}"));
            EXIT_FAILED
        }),
        None => {
            print_error("usage: PARENT_PID [LIMIT]... -- COMMAND ARGS...");
            EXIT_USAGE
        }
    };
    ExitCode::from(code)
}

/// Arguments of the reaper.
#[derive(Debug)]
struct ReaperArgs {
    parent: Pid,
    limits: ChildLimits,
    sandbox: SandboxPolicy,
    /// Value of the mark variable of all descendants.
    mark: Option<OsString>,
    command: OsString,
    args: Vec<OsString>,
}

impl ReaperArgs {
    fn parse(mut args: impl Iterator<Item = OsString>) -> Option<Self> {
        let parent = args.next()?.to_str()?.parse().ok()?;
        let (mut limits, mut sandbox) = (ChildLimits::default(), SandboxPolicy::allow_all());
        let mut mark = None;
        loop {
            let word = args.next()?;
            if word == "--" {
                break;
            }
            match word
                .to_str()
                .and_then(|word| word.strip_prefix(MARK_ARG_PREFIX))
            {
                Some(value) => mark = Some(value.into()),
                None => limits
                    .parse_arg(&word)
                    .or_else(|| sandbox.parse_arg(&word))?,
            }
        }
        Some(Self {
            parent: Pid::from_raw(parent)?,
            limits,
            sandbox,
            mark,
            command: args.next()?,
            args: args.collect(),
        })
    }

    fn run_server(self) -> io::Result<u8> {
        let signals = SignalStreams::new()?;
        let parent = pidfd_open(self.parent, PidfdFlags::empty()).ok();
        // Checked after the pidfd is open: the process id could have been reused before.
        if getppid() != Some(self.parent) {
            return Ok(EXIT_FAILED);
        }
        set_child_subreaper(Some(getpid()))?;
        rustix::thread::set_no_new_privs(true)?;
        resource_limits::set_child_rlimits(&self.limits);

        // Removed after the last descendant.
        let temp = match self.sandbox.level {
            SandboxLevel::Off => None,
            SandboxLevel::Default | SandboxLevel::Strict => Some(PrivateTempDir::new()?),
        };
        let child = match self.spawn_server(temp.as_ref()) {
            Ok(child) => child,
            Err(ConfineError::Program(error)) => return Ok(self.report_spawn_error(&error)),
            Err(ConfineError::Sandbox(error)) => {
                let level = self.sandbox.level.as_str();
                print_error(&format!(
                    "no sandbox of level `{level}` can be had here: {error}"
                ));
                return Ok(EXIT_FAILED);
            }
        };
        let child = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let child = child.ok_or(io::ErrorKind::InvalidData)?;
        resource_limits::lower_priority(child);
        // The server's pipes end with the server, not with the reaper.
        let null = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;

        let mut watch = ChildWatch {
            parent_pid: self.parent,
            parent,
            signals,
            child,
            stage: ShutdownStage::Serving,
            monitor: UsageMonitor::new(self.limits, getpid(), now()),
            exceeded: None,
        };
        let status = watch.wait_child();
        watch.kill_descendants();
        Ok(match (watch.exceeded, status) {
            (Some(exceeded), _) => exceeded.exit_code(),
            (None, Some(status)) => to_exit_code(status),
            (None, None) => EXIT_FAILED,
        })
    }
}

impl ReaperArgs {
    fn spawn_server(&self, temp: Option<&PrivateTempDir>) -> Result<Child, ConfineError> {
        let mut command = Command::new(&self.command);
        command.args(&self.args).process_group(0);
        if let Some(mark) = &self.mark {
            command.env(MARK_VARIABLE, mark);
        }
        let Some(temp) = temp.map(PrivateTempDir::path) else {
            return command.spawn().map_err(ConfineError::Program);
        };
        command.env("TMPDIR", temp);
        let program = ConfinedProgram {
            command: &self.command,
            args: &self.args,
            temp,
        };
        spawn_confined(&self.sandbox, &program, command)
    }

    fn report_spawn_error(&self, error: &io::Error) -> u8 {
        let command = self.command.to_string_lossy();
        match error.kind() {
            io::ErrorKind::NotFound => {
                print_error(&command_not_found_text(&self.command));
                return EXIT_PROGRAM_NOT_FOUND;
            }
            io::ErrorKind::PermissionDenied if self.sandbox.level != SandboxLevel::Off => {
                let level = self.sandbox.level.as_str();
                print_error(&format!(
                    "cannot run {command}: {error}; sandbox is \"{level}\", add its directory to fs"
                ));
            }
            _ => print_error(&format!("cannot run {command}: {error}")),
        }
        EXIT_NOT_RUNNABLE
    }
}

/// Signals as readable streams.
#[derive(Debug)]
struct SignalStreams {
    child: UnixStream,
    terminate: UnixStream,
    kill: UnixStream,
}

impl SignalStreams {
    fn new() -> io::Result<Self> {
        let listen = |signal| {
            let (ours, handler) = UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            pipe::register(signal, handler)?;
            Ok::<_, io::Error>(ours)
        };
        Ok(Self {
            child: listen(SIGCHLD)?,
            terminate: listen(SIGTERM)?,
            kill: listen(SIGINT)?,
        })
    }
}

/// Progress of the shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShutdownStage {
    Serving,
    /// SIGTERM was sent; SIGKILL follows at this time.
    Terminating(Instant),
    Killed,
}

/// Events of a wait.
#[derive(Debug, Default)]
struct ReaperEvents {
    parent_gone: bool,
    terminate: bool,
    kill: bool,
}

#[derive(Debug)]
struct ChildWatch {
    parent_pid: Pid,
    /// Pidfd of the gateway; absent on systems without pidfd.
    parent: Option<OwnedFd>,
    signals: SignalStreams,
    child: Pid,
    stage: ShutdownStage,
    monitor: UsageMonitor,
    /// Limit that the reaper enforced.
    exceeded: Option<LimitExceeded>,
}

impl ChildWatch {
    fn wait_child(&mut self) -> Option<WaitStatus> {
        loop {
            match self.reap_children() {
                ReapResult::Child(status) => return Some(status),
                ReapResult::NoChildren => return None,
                ReapResult::Running => {}
            }
            let events = self.wait_events(self.next_timeout());
            if events.kill {
                self.kill_child();
            }
            self.check_limits();
            if let ShutdownStage::Terminating(until) = self.stage
                && now() >= until
            {
                self.kill_child();
            }
            if self.stage == ShutdownStage::Serving && (events.parent_gone || events.terminate) {
                let grace = if events.parent_gone {
                    ORPHAN_GRACE
                } else {
                    TERM_GRACE
                };
                let _ = kill_process_group(self.child, Signal::TERM);
                self.stage = ShutdownStage::Terminating(now() + grace);
            }
            if self.stage != ShutdownStage::Serving && events.parent_gone {
                self.parent = None;
            }
        }
    }

    /// Returns the time until the next check.
    fn next_timeout(&self) -> Option<Duration> {
        let next_check = self.monitor.next_check_in(now());
        let stage_timeout = match self.stage {
            ShutdownStage::Terminating(until) => Some(until.saturating_duration_since(now())),
            ShutdownStage::Serving if self.parent.is_none() => Some(PARENT_CHECK_INTERVAL),
            ShutdownStage::Serving => None,
            ShutdownStage::Killed => return None,
        };
        next_check.into_iter().chain(stage_timeout).min()
    }

    /// Kills the server if it exceeds a limit.
    fn check_limits(&mut self) {
        if self.stage == ShutdownStage::Killed {
            return;
        }
        if let Some(exceeded) = self.monitor.check(now()) {
            self.exceeded = Some(exceeded);
            self.kill_child();
        }
    }

    fn kill_child(&mut self) {
        let _ = kill_process_group(self.child, Signal::KILL);
        let _ = kill_process(self.child, Signal::KILL);
        self.stage = ShutdownStage::Killed;
    }

    /// Kills all descendants until none is left.
    fn kill_descendants(&mut self) {
        // The death of the gateway would wake the poll again and again.
        self.parent = None;
        // The leader is reaped, but its group id stays reserved while a member lives.
        let _ = kill_process_group(self.child, Signal::KILL);
        let until = now() + KILL_GRACE;
        loop {
            // A fast-forking process is killed together with its parents.
            for pid in process_usage::descendants(getpid().as_raw_pid().unsigned_abs()) {
                let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
                if let Some(pid) = pid {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            if let ReapResult::NoChildren = self.reap_children() {
                return;
            }
            if now() >= until {
                return;
            }
            self.wait_events(Some(SWEEP_INTERVAL));
        }
    }

    /// Reaps all exited children.
    fn reap_children(&self) -> ReapResult {
        let mut of_child = None;
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.child => of_child = Some(status),
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return of_child.map_or(ReapResult::Running, ReapResult::Child),
                Err(_) => return of_child.map_or(ReapResult::NoChildren, ReapResult::Child),
            }
        }
    }

    /// Waits for events.
    fn wait_events(&self, timeout: Option<Duration>) -> ReaperEvents {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let signals = &self.signals;
        // Without a pidfd, a signal stream fills the slot, and the slot is ignored.
        let parent = self
            .parent
            .as_ref()
            .map_or_else(|| signals.child.as_fd(), AsFd::as_fd);
        let mut fds = [
            PollFd::from_borrowed_fd(parent, PollFlags::IN),
            PollFd::from_borrowed_fd(signals.child.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(signals.terminate.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(signals.kill.as_fd(), PollFlags::IN),
        ];
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return ReaperEvents::default();
        }
        drain_stream(&signals.child);
        let [handle, ..] = &fds;
        let is_parent_gone = self.parent.is_some() && !handle.revents().is_empty();
        ReaperEvents {
            // A different parent means that the gateway died.
            parent_gone: is_parent_gone || getppid() != Some(self.parent_pid),
            terminate: drain_stream(&signals.terminate),
            kill: drain_stream(&signals.kill),
        }
    }
}

/// Result of reaping.
#[derive(Debug)]
enum ReapResult {
    /// The server has exited.
    Child(WaitStatus),
    /// No child is left.
    NoChildren,
    /// Some children are running.
    Running,
}

/// Empties a signal stream; `true` if it had content.
fn drain_stream(mut stream: &UnixStream) -> bool {
    let mut chunk = [0; 64];
    let mut any = false;
    while let Ok(1..) = stream.read(&mut chunk) {
        any = true;
    }
    any
}

fn to_exit_code(status: WaitStatus) -> u8 {
    let signal = status.terminating_signal().map(|signal| 128 + signal);
    let code = status.exit_status().or(signal);
    code.and_then(|code| u8::try_from(code).ok())
        // Only the reaper itself may use these codes.
        .filter(|code| !RESERVED_CODES.contains(code))
        .unwrap_or(EXIT_FAILED)
}

fn print_error(text: &str) {
    // Nothing can be done if stderr is closed.
    let _ = writeln!(io::stderr(), "{text}");
}

#[expect(
    clippy::disallowed_methods,
    reason = "the reaper is a process of its own, and this is its only clock"
)]
fn now() -> Instant {
    Instant::now()
}
