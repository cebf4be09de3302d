//! `fixture`: becomes the test server `bowline-fixture` that is installed beside this binary.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use super::failure::{CliExit, CliFailure};
use crate::assemble::AssembleError;

/// Name of the test server's binary.
const FIXTURE_BINARY: &str = "bowline-fixture";

/// Replaces this process; returns only if that fails.
pub(super) fn run(args: &[OsString]) -> Result<CliExit, CliFailure> {
    let own_path = std::env::current_exe().map_err(AssembleError::OwnPath)?;
    let program = own_path.with_file_name(FIXTURE_BINARY);
    let error = Command::new(&program).args(args).exec();
    let message = format!("cannot start the test server `{}`", program.display());
    let failure = CliFailure::new(CliExit::Unexpected, "fixture", message);
    Err(match error.kind() {
        io::ErrorKind::NotFound => failure
            .with_hint("cause: it is a program of its own, and not installed beside this one")
            .with_hint("fix: cargo build --release --package bowline-fixture"),
        _ => failure.with_hint(format!("cause: {error}")),
    })
}
