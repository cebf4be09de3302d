//! The fixture server over HTTP as a child process that a harness can kill and restart.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result};

use crate::process;

const READY_SECONDS_MAX: u64 = 60;
const STOP_SECONDS_MAX: u64 = 10;

/// A running fixture; dropping terminates the process.
#[derive(Debug)]
pub(crate) struct HttpFixture {
    child: Child,
    binary: PathBuf,
    ledger: PathBuf,
    log: PathBuf,
    /// URL of the server; the same after a restart.
    pub(crate) url: String,
}

impl HttpFixture {
    /// Starts the fixture beside the gateway `binary` with the toolset `writes`, which records each
    /// write in `ledger`.
    pub(crate) fn start(binary: &Path, ledger: &Path, log: &Path) -> Result<Self> {
        let (child, url) = spawn_fixture(binary, "127.0.0.1:0", ledger, log)?;
        Ok(Self {
            child,
            binary: binary.to_owned(),
            ledger: ledger.to_owned(),
            log: log.to_owned(),
            url,
        })
    }

    /// Returns host and port of the URL.
    pub(crate) fn authority(&self) -> &str {
        let rest = self.url.trim_start_matches("http://");
        rest.split('/').next().unwrap_or_default()
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills the process and starts a new one at the same address.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.kill();
        let authority = self.authority().to_owned();
        self.child = spawn_fixture(&self.binary, &authority, &self.ledger, &self.log)?.0;
        Ok(())
    }

    /// Returns whether the process still runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for HttpFixture {
    fn drop(&mut self) {
        process::terminate(&mut self.child, STOP_SECONDS_MAX);
    }
}

fn spawn_fixture(
    binary: &Path,
    address: &str,
    ledger: &Path,
    log: &Path,
) -> Result<(Child, String)> {
    let mut command = Command::new(process::fixture_binary(binary));
    command.args(["--http", address, "--toolset", "writes"]);
    command.arg("--ledger").arg(ledger);
    let stderr = fs::OpenOptions::new().create(true).append(true).open(log)?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr);
    let mut child = command.spawn().context("could not start the fixture")?;
    match process::read_ready_line(&mut child, READY_SECONDS_MAX) {
        Ok(line) => Ok((child, line.trim().to_owned())),
        Err(error) => {
            process::terminate(&mut child, STOP_SECONDS_MAX);
            let log = fs::read_to_string(log).unwrap_or_default();
            Err(error.context(format!("the fixture wrote: {}", log.trim())))
        }
    }
}
