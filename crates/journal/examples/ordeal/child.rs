//! The writer as its parent sees it: a process, and the pipe through which it tells.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

use crate::model::Truth;
use crate::open::instant;
use crate::record::Reader;

/// How long a writer may take to do its first thing, or to stop.
const PATIENCE: Duration = Duration::from_secs(60);

/// The signal that nobody can catch.
const KILL: i32 = 9;

/// A writer that runs; dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Suffering {
    child: Child,
    pipe: File,
    reader: Reader,
}

/// Whether more can come through the pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pipe {
    Open,
    Ended,
}

impl Suffering {
    /// Starts this program as a writer in a directory.
    pub(crate) fn start(dir: &Path, options: &[String], shim: &[(&str, String)]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("write").arg("--dir").arg(dir).args(options);
        command.envs(shim.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        if !shim.is_empty() {
            // What it says of its faults would fill the terminal; panics are told by its end.
            command.stderr(Stdio::null());
        }
        let mut child = command.spawn().context("start the writer")?;
        let stdout = child.stdout.take().context("the writer has no pipe")?;
        rustix::io::ioctl_fionbio(&stdout, true)?;
        let pipe = File::from(OwnedFd::from(stdout));
        Ok(Self {
            child,
            pipe,
            reader: Reader::default(),
        })
    }

    /// Takes in what it tells for so long, or until it ends.
    pub(crate) fn listen(&mut self, truth: &mut Truth, time: Duration) -> Result<Pipe> {
        let start = instant();
        loop {
            if self.drain(truth)? == Pipe::Ended {
                return Ok(Pipe::Ended);
            }
            let left = time.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(Pipe::Open);
            }
            self.poll(left)?;
        }
    }

    /// Takes in what it tells until it has acknowledged something.
    pub(crate) fn first(&mut self, truth: &mut Truth) -> Result<Pipe> {
        let (start, before) = (instant(), truth.acknowledged);
        while truth.acknowledged == before {
            if self.drain(truth)? == Pipe::Ended {
                return Ok(Pipe::Ended);
            }
            ensure!(
                start.elapsed() < PATIENCE,
                "the writer acknowledges nothing"
            );
            self.poll(Duration::from_millis(50))?;
        }
        Ok(Pipe::Open)
    }

    /// Takes in what it tells until it has come to its end, and lingers.
    pub(crate) fn over(&mut self, truth: &mut Truth, patience: Duration) -> Result<()> {
        let start = instant();
        while truth.over == 0 {
            ensure!(
                self.drain(truth)? == Pipe::Open,
                "the writer ended too early"
            );
            ensure!(start.elapsed() < patience, "the writer takes too long");
            self.poll(Duration::from_millis(50))?;
        }
        Ok(())
    }

    /// Takes in what lies in the pipe.
    pub(crate) fn drain(&mut self, truth: &mut Truth) -> Result<Pipe> {
        let mut bytes = [0_u8; 64 * 1024];
        loop {
            match self.pipe.read(&mut bytes) {
                Ok(0) => return Ok(Pipe::Ended),
                Ok(read) => {
                    let read = bytes.get(..read).unwrap_or_default();
                    self.reader.take(read, |record| truth.take(record))?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Pipe::Open),
                Err(error) => return Err(error).context("read what the writer tells"),
            }
        }
    }

    fn poll(&self, time: Duration) -> Result<()> {
        let time = Timespec::try_from(time)?;
        let mut fds = [PollFd::from_borrowed_fd(self.pipe.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&time))?;
        Ok(())
    }

    fn pid(&self) -> Result<Pid> {
        let pid = i32::try_from(self.child.id())?;
        Pid::from_raw(pid).context("the writer has no number")
    }

    /// Stops every thread of it where it is, and returns when all stand still.
    pub(crate) fn stop(&self) -> Result<()> {
        kill_process(self.pid()?, Signal::STOP)?;
        let tasks = format!("/proc/{}/task", self.child.id());
        let start = instant();
        while !still(Path::new(&tasks))? {
            ensure!(start.elapsed() < PATIENCE, "the writer does not stop");
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Kills it and takes in what it still told.
    pub(crate) fn kill(&mut self, truth: &mut Truth) -> Result<()> {
        self.child.kill()?;
        let status = self.child.wait()?;
        while self.drain(truth)? == Pipe::Open {}
        if status.signal() != Some(KILL) {
            bail!("the writer had ended before it was killed ({status})");
        }
        Ok(())
    }

    /// Takes in what it tells until it ends by itself.
    pub(crate) fn end(&mut self, truth: &mut Truth) -> Result<ExitStatus> {
        if self.listen(truth, PATIENCE)? == Pipe::Open {
            bail!("the writer hangs");
        }
        Ok(self.child.wait()?)
    }
}

impl Drop for Suffering {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether every thread is stopped. One that waits for the disk is not yet: what it waits for may
/// still reach it.
fn still(tasks: &Path) -> Result<bool> {
    for task in fs::read_dir(tasks)? {
        let stat = fs::read_to_string(task?.path().join("stat"))?;
        let state = stat
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next());
        if state != Some('T') {
            return Ok(false);
        }
    }
    Ok(true)
}
