//! The `bowline` binary.

use std::process::ExitCode;

/// Costs less than the system's per call; see docs/decisions/0006-allocator.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    bowline::cli::main(std::env::args_os(), bowline::config::Env::process())
}
