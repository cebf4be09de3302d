//! A small process between the gateway and a server: when either goes, no descendant stays.
//!
//! It is the subreaper of all that the server starts, so that whatever detaches itself becomes
//! its child. It takes SIGTERM as the wish for an orderly end and SIGINT as the order to kill,
//! and it follows the gateway into death, however that died.

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

use crate::limits::{ChildLimits, EXIT_OVER_MEMORY, EXIT_OVER_PROCESSES, EXIT_PROGRAM_NOT_FOUND};
use crate::marks::{MARK_VARIABLE, MARK_WORD};
use crate::processes;
use crate::sandbox::{Confined, Level, NotConfined, PrivateTemp, Sandbox, confine};
use crate::stdio::command_not_found;

mod police;
use police::{Over, Police};

/// How long a server may take to go after SIGTERM.
const TERM_GRACE: Duration = Duration::from_secs(2);

/// The same when the gateway is gone: nobody listens any more.
const ORPHAN_GRACE: Duration = Duration::from_millis(700);

/// How long killed processes are waited for; longer, the system itself is stuck.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// How often killed processes are looked for again when none has reported its end.
const SWEEP_EVERY: Duration = Duration::from_millis(20);

/// How often the gateway is looked for where the system cannot report its end.
const PARENT_EVERY: Duration = Duration::from_secs(1);

const EXIT_USAGE: u8 = 2;
const EXIT_FAILED: u8 = 125;
const EXIT_NOT_RUNNABLE: u8 = 126;

/// Codes of the reaper itself: a server that exits with one of them is reported as failed.
const RESERVED: [u8; 3] = [
    EXIT_OVER_MEMORY,
    EXIT_OVER_PROCESSES,
    EXIT_PROGRAM_NOT_FOUND,
];

/// Runs `PARENT_PID [LIMIT]... -- COMMAND ARGS...` and returns how it ended: its own code, or 128
/// and the signal that ended it.
pub fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let code = match Order::read(args) {
        Some(order) => order.serve().unwrap_or_else(|error| {
            say(&format!("reaper: {error}"));
            EXIT_FAILED
        }),
        None => {
            say("usage: PARENT_PID [LIMIT]... -- COMMAND ARGS...");
            EXIT_USAGE
        }
    };
    ExitCode::from(code)
}

/// What is to be run, and for whom.
#[derive(Debug)]
struct Order {
    parent: Pid,
    limits: ChildLimits,
    sandbox: Sandbox,
    /// The value of the variable by which all that the server starts is found.
    mark: Option<OsString>,
    command: OsString,
    args: Vec<OsString>,
}

impl Order {
    fn read(mut args: impl Iterator<Item = OsString>) -> Option<Self> {
        let parent = args.next()?.to_str()?.parse().ok()?;
        let (mut limits, mut sandbox) = (ChildLimits::default(), Sandbox::off());
        let mut mark = None;
        loop {
            let word = args.next()?;
            if word == "--" {
                break;
            }
            match word.to_str().and_then(|word| word.strip_prefix(MARK_WORD)) {
                Some(value) => mark = Some(value.into()),
                None => limits.take(&word).or_else(|| sandbox.take(&word))?,
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

    fn serve(self) -> io::Result<u8> {
        let signals = Signals::new()?;
        let parent = pidfd_open(self.parent, PidfdFlags::empty()).ok();
        // Checked after it is watched: the number could have come to mean another process.
        if getppid() != Some(self.parent) {
            return Ok(EXIT_FAILED);
        }
        set_child_subreaper(Some(getpid()))?;
        rustix::thread::set_no_new_privs(true)?;
        police::limit_children(&self.limits);

        // Removed when all that the server started is gone.
        let temp = match self.sandbox.level {
            Level::Off => None,
            Level::Default | Level::Strict => Some(PrivateTemp::new()?),
        };
        let child = match self.spawn(temp.as_ref()) {
            Ok(child) => child,
            Err(NotConfined::Program(error)) => return Ok(self.not_started(&error)),
            Err(NotConfined::Sandbox(error)) => {
                let level = self.sandbox.level.as_str();
                say(&format!(
                    "no sandbox of level `{level}` can be had here: {error}"
                ));
                return Ok(EXIT_FAILED);
            }
        };
        let child = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let child = child.ok_or(io::ErrorKind::InvalidData)?;
        police::put_last(child);
        // The server's pipes end with the server, not with us.
        let null = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;

        let mut watch = Watch {
            parent_pid: self.parent,
            parent,
            signals,
            child,
            stage: Stage::Serving,
            police: Police::new(self.limits, getpid(), now()),
            over: None,
        };
        let status = watch.until_child_is_gone();
        watch.sweep();
        Ok(match (watch.over, status) {
            (Some(over), _) => over.code(),
            (None, Some(status)) => exit_code(status),
            (None, None) => EXIT_FAILED,
        })
    }
}

impl Order {
    fn spawn(&self, temp: Option<&PrivateTemp>) -> Result<Child, NotConfined> {
        let mut command = Command::new(&self.command);
        command.args(&self.args).process_group(0);
        if let Some(mark) = &self.mark {
            command.env(MARK_VARIABLE, mark);
        }
        let Some(temp) = temp.map(PrivateTemp::path) else {
            return command.spawn().map_err(NotConfined::Program);
        };
        command.env("TMPDIR", temp);
        let program = Confined {
            command: &self.command,
            args: &self.args,
            temp,
        };
        confine(&self.sandbox, &program, command)
    }

    fn not_started(&self, error: &io::Error) -> u8 {
        let command = self.command.to_string_lossy();
        match error.kind() {
            io::ErrorKind::NotFound => {
                say(&command_not_found(&self.command));
                return EXIT_PROGRAM_NOT_FOUND;
            }
            io::ErrorKind::PermissionDenied if self.sandbox.level != Level::Off => {
                let level = self.sandbox.level.as_str();
                say(&format!(
                    "cannot run {command}: {error}; sandbox is \"{level}\", add its directory to fs"
                ));
            }
            _ => say(&format!("cannot run {command}: {error}")),
        }
        EXIT_NOT_RUNNABLE
    }
}

/// Signals as readable streams.
#[derive(Debug)]
struct Signals {
    child: UnixStream,
    terminate: UnixStream,
    kill: UnixStream,
}

impl Signals {
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

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Serving,
    /// Told to go; killed at that moment.
    Terminating(Instant),
    Killed,
}

/// What happened.
#[derive(Debug, Default)]
struct Seen {
    parent_gone: bool,
    terminate: bool,
    kill: bool,
}

#[derive(Debug)]
struct Watch {
    parent_pid: Pid,
    /// Readable when the gateway is gone; absent where the system has no such thing.
    parent: Option<OwnedFd>,
    signals: Signals,
    child: Pid,
    stage: Stage,
    police: Police,
    /// Why we ended the server, where we did so by ourselves.
    over: Option<Over>,
}

impl Watch {
    fn until_child_is_gone(&mut self) -> Option<WaitStatus> {
        loop {
            match self.reap() {
                Reaped::Child(status) => return Some(status),
                Reaped::All => return None,
                Reaped::Waiting => {}
            }
            let seen = self.pause(self.patience());
            if seen.kill {
                self.kill();
            }
            self.look();
            if let Stage::Terminating(until) = self.stage
                && now() >= until
            {
                self.kill();
            }
            if self.stage == Stage::Serving && (seen.parent_gone || seen.terminate) {
                let grace = if seen.parent_gone {
                    ORPHAN_GRACE
                } else {
                    TERM_GRACE
                };
                let _ = kill_process_group(self.child, Signal::TERM);
                self.stage = Stage::Terminating(now() + grace);
            }
            if self.stage != Stage::Serving && seen.parent_gone {
                self.parent = None;
            }
        }
    }

    /// How long nothing need be done.
    fn patience(&self) -> Option<Duration> {
        let look = self.police.patience(now());
        let own = match self.stage {
            Stage::Terminating(until) => Some(until.saturating_duration_since(now())),
            Stage::Serving if self.parent.is_none() => Some(PARENT_EVERY),
            Stage::Serving => None,
            Stage::Killed => return None,
        };
        look.into_iter().chain(own).min()
    }

    /// Ends the server when it uses too much.
    fn look(&mut self) {
        if self.stage == Stage::Killed {
            return;
        }
        if let Some(over) = self.police.look(now()) {
            self.over = Some(over);
            self.kill();
        }
    }

    fn kill(&mut self) {
        let _ = kill_process_group(self.child, Signal::KILL);
        let _ = kill_process(self.child, Signal::KILL);
        self.stage = Stage::Killed;
    }

    /// Kills whatever has become our child, until nothing does any more.
    fn sweep(&mut self) {
        // Its end would wake us over and over, and changes nothing any more.
        self.parent = None;
        // The leader is reaped, but as long as one of its group lives the number is theirs.
        let _ = kill_process_group(self.child, Signal::KILL);
        let until = now() + KILL_GRACE;
        loop {
            // Who forks faster than one generation is killed is caught with its parents.
            for pid in processes::below(getpid().as_raw_pid().unsigned_abs()) {
                let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
                if let Some(pid) = pid {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            if let Reaped::All = self.reap() {
                return;
            }
            if now() >= until {
                return;
            }
            self.pause(Some(SWEEP_EVERY));
        }
    }

    /// Takes the ends of all children that have ended.
    fn reap(&self) -> Reaped {
        let mut of_child = None;
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.child => of_child = Some(status),
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return of_child.map_or(Reaped::Waiting, Reaped::Child),
                Err(_) => return of_child.map_or(Reaped::All, Reaped::Child),
            }
        }
    }

    /// Waits until something happens.
    fn pause(&self, patience: Option<Duration>) -> Seen {
        let patience = patience.and_then(|patience| Timespec::try_from(patience).ok());
        let signals = &self.signals;
        // Without a handle on the gateway, a signal stream stands in and its place is not read.
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
        if poll(&mut fds, patience.as_ref()).is_err() {
            return Seen::default();
        }
        drain(&signals.child);
        let [handle, ..] = &fds;
        let ended = self.parent.is_some() && !handle.revents().is_empty();
        Seen {
            // Only the gateway is our parent; when it dies, another is.
            parent_gone: ended || getppid() != Some(self.parent_pid),
            terminate: drain(&signals.terminate),
            kill: drain(&signals.kill),
        }
    }
}

/// What `wait` told.
#[derive(Debug)]
enum Reaped {
    /// The server is gone.
    Child(WaitStatus),
    /// Nothing is left.
    All,
    /// Some live on.
    Waiting,
}

/// Empties a signal stream; `true` when there was something in it.
fn drain(mut stream: &UnixStream) -> bool {
    let mut chunk = [0; 64];
    let mut any = false;
    while let Ok(1..) = stream.read(&mut chunk) {
        any = true;
    }
    any
}

fn exit_code(status: WaitStatus) -> u8 {
    let signal = status.terminating_signal().map(|signal| 128 + signal);
    let code = status.exit_status().or(signal);
    code.and_then(|code| u8::try_from(code).ok())
        // These say something that only we know.
        .filter(|code| !RESERVED.contains(code))
        .unwrap_or(EXIT_FAILED)
}

fn say(text: &str) {
    // There is nobody to tell when this fails.
    let _ = writeln!(io::stderr(), "{text}");
}

#[expect(
    clippy::disallowed_methods,
    reason = "the reaper is a process of its own, and this is its only clock"
)]
fn now() -> Instant {
    Instant::now()
}
