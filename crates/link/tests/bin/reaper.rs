//! The reaper as a separate program, for tests.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    bowline_link::reaper::run(std::env::args_os().skip(1))
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}
