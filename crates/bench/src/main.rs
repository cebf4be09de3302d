//! `mcpbench`: an MCP backend, floors, and a closed-loop load generator that checks every response.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a measuring tool reads real time, spawns and prints; no part of the product"
)]

mod bridge;
mod client;
mod http_backend;
mod http_listener;
mod load;
mod mcp_server;
mod options;
mod process_usage;
mod relay;
mod stdio_backend;

use std::process::ExitCode;

use anyhow::{Result, bail};

use options::ToolOptions;

const USAGE: &str = "\
usage: mcpbench serve|stdio|relay|bridge|load|open|first|probe [--key value].. (see README.md)";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    match run_command(&command, &ToolOptions::from_words(words)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("mcpbench {command}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_command(command: &str, options: &ToolOptions) -> Result<ExitCode> {
    match command {
        "serve" => http_backend::serve(options)?,
        "stdio" => stdio_backend::serve(options)?,
        "relay" => relay::serve(options)?,
        "bridge" => bridge::serve(options)?,
        "load" => return load::run_load(options),
        "open" => load::open_sessions(options)?,
        "first" => load::time_first_call(options)?,
        "probe" => load::probe_target(options)?,
        _ => bail!("{USAGE}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds the runtime of every command: one thread, as in the gateway.
fn build_runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    Ok(builder.enable_all().build()?)
}
