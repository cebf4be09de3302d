//! Crash test of the journal: acknowledged operations must survive kills, power cuts, bit flips and
//! disk faults.
//!
//! `write` is the program under test; the remaining commands start the writer, inject faults, open
//! the journal and compare. Each command prints a JSON line, and fails on a broken promise.

mod args;
mod bench;
mod child;
mod cut;
mod disk;
mod fault;
mod flip;
mod full;
mod kill;
mod model;
mod open;
mod plan;
mod record;
mod script;
mod shim;
mod tail;
mod writer;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, bail};
use serde_json::Value;

use args::Args;

/// Report of a command.
#[derive(Debug)]
struct PartReport {
    /// Figures, as a JSON object.
    tally: Value,
    /// Whether every promise was kept.
    is_passed: bool,
}

fn main() -> ExitCode {
    // Panics of any thread count.
    let panics = Arc::new(AtomicU64::new(0));
    let (before, counted) = (std::panic::take_hook(), Arc::clone(&panics));
    std::panic::set_hook(Box::new(move |info| {
        counted.fetch_add(1, Ordering::Relaxed);
        before(info);
    }));
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let outcome = Args::parse(words, panics).and_then(|args| run_command(&command, &args));
    match outcome {
        Ok(Some(outcome)) => {
            let told = writeln!(std::io::stdout(), "{}", outcome.tally);
            match outcome.is_passed && told.is_ok() {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            }
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "crash_test {command}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_command(command: &str, args: &Args) -> Result<Option<PartReport>> {
    match command {
        "write" => writer::run_writer(args).map(|()| None),
        "kill" => kill::run_kills(args).map(Some),
        "cut" => cut::run_power_cuts(args).map(Some),
        "flips" => flip::run_flips(args).map(Some),
        "tail" => tail::run_truncations(args).map(Some),
        "bench" => bench::run_benchmarks(args).map(Some),
        "full" => full::run_full_disk(args).map(Some),
        "faults" => fault::run_faults(args).map(Some),
        other => bail!("unknown word `{other}`"),
    }
}

/// Adds the members of an object to a second object.
fn merge_objects(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}
