//! Writer process as seen by its parent, with the pipe of its records.

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

use crate::model::ExpectedState;
use crate::open::instant;
use crate::record::RecordReader;

/// How long a writer may take for its first acknowledgement, or to stop.
const PATIENCE: Duration = Duration::from_secs(60);

/// SIGKILL, which no process can catch.
const KILL: i32 = 9;

/// Running writer process; killed on drop.
#[derive(Debug)]
pub(crate) struct WriterProcess {
    child: Child,
    pipe: File,
    reader: RecordReader,
}

/// State of the pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PipeState {
    Open,
    Ended,
}

impl WriterProcess {
    /// Starts this program as a writer in a directory.
    pub(crate) fn start(dir: &Path, options: &[String], shim: &[(&str, String)]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("write").arg("--dir").arg(dir).args(options);
        command.envs(shim.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        if !shim.is_empty() {
            // Reports of injected faults would fill the terminal; panics show in the exit status.
            command.stderr(Stdio::null());
        }
        let mut child = command.spawn().context("start the writer")?;
        let stdout = child.stdout.take().context("the writer has no pipe")?;
        rustix::io::ioctl_fionbio(&stdout, true)?;
        let pipe = File::from(OwnedFd::from(stdout));
        Ok(Self {
            child,
            pipe,
            reader: RecordReader::default(),
        })
    }

    /// Reads records for `time`, or until the pipe ends.
    pub(crate) fn read_for(
        &mut self,
        expected: &mut ExpectedState,
        time: Duration,
    ) -> Result<PipeState> {
        let start = instant();
        loop {
            if self.drain_pipe(expected)? == PipeState::Ended {
                return Ok(PipeState::Ended);
            }
            let left = time.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(PipeState::Open);
            }
            self.poll_pipe(left)?;
        }
    }

    /// Reads records until the writer acknowledged an operation.
    pub(crate) fn wait_first_ack(&mut self, expected: &mut ExpectedState) -> Result<PipeState> {
        let (start, before) = (instant(), expected.acknowledged);
        while expected.acknowledged == before {
            if self.drain_pipe(expected)? == PipeState::Ended {
                return Ok(PipeState::Ended);
            }
            ensure!(
                start.elapsed() < PATIENCE,
                "the writer acknowledges nothing"
            );
            self.poll_pipe(Duration::from_millis(50))?;
        }
        Ok(PipeState::Open)
    }

    /// Reads records until the writer finished and waits to be killed.
    pub(crate) fn wait_finished(
        &mut self,
        expected: &mut ExpectedState,
        patience: Duration,
    ) -> Result<()> {
        let start = instant();
        while expected.over == 0 {
            ensure!(
                self.drain_pipe(expected)? == PipeState::Open,
                "the writer ended too early"
            );
            ensure!(start.elapsed() < patience, "the writer takes too long");
            self.poll_pipe(Duration::from_millis(50))?;
        }
        Ok(())
    }

    /// Reads all records in the pipe.
    pub(crate) fn drain_pipe(&mut self, expected: &mut ExpectedState) -> Result<PipeState> {
        let mut bytes = [0_u8; 64 * 1024];
        loop {
            match self.pipe.read(&mut bytes) {
                Ok(0) => return Ok(PipeState::Ended),
                Ok(read) => {
                    let read = bytes.get(..read).unwrap_or_default();
                    self.reader
                        .push_bytes(read, |record| expected.apply_record(record))?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(PipeState::Open);
                }
                Err(error) => return Err(error).context("read what the writer tells"),
            }
        }
    }

    fn poll_pipe(&self, time: Duration) -> Result<()> {
        let time = Timespec::try_from(time)?;
        let mut fds = [PollFd::from_borrowed_fd(self.pipe.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&time))?;
        Ok(())
    }

    fn pid(&self) -> Result<Pid> {
        let pid = i32::try_from(self.child.id())?;
        Pid::from_raw(pid).context("the writer has no number")
    }

    /// Stops every thread of the writer and waits until all are stopped.
    pub(crate) fn stop_threads(&self) -> Result<()> {
        kill_process(self.pid()?, Signal::STOP)?;
        let tasks = format!("/proc/{}/task", self.child.id());
        let start = instant();
        while !are_threads_stopped(Path::new(&tasks))? {
            ensure!(start.elapsed() < PATIENCE, "the writer does not stop");
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Kills the writer and reads the remaining records.
    pub(crate) fn kill_writer(&mut self, expected: &mut ExpectedState) -> Result<()> {
        self.child.kill()?;
        let status = self.child.wait()?;
        while self.drain_pipe(expected)? == PipeState::Open {}
        if status.signal() != Some(KILL) {
            bail!("the writer had ended before it was killed ({status})");
        }
        Ok(())
    }

    /// Reads records until the writer exits.
    pub(crate) fn wait_exit(&mut self, expected: &mut ExpectedState) -> Result<ExitStatus> {
        if self.read_for(expected, PATIENCE)? == PipeState::Open {
            bail!("the writer hangs");
        }
        Ok(self.child.wait()?)
    }
}

impl Drop for WriterProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns whether every thread is stopped. A thread waiting for the disk is not stopped yet: its
/// operation may still complete.
fn are_threads_stopped(tasks: &Path) -> Result<bool> {
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
