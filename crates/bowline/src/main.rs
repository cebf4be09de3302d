//! The `bowline` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    bowline::cli::main(std::env::args_os(), bowline_config::EnvVars::from_process())
}
