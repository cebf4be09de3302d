//! The ordeal of the journal: is what was acknowledged still there after a kill, a power cut, a
//! flipped bit or a failing disk?
//!
//! `write` is the program that suffers; the other words start it, hurt it, open what it left and
//! compare. Each prints one JSON line at its end, and fails where a promise was broken.

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

/// What a part of the ordeal found.
#[derive(Debug)]
struct Outcome {
    /// For programs, and for people who read one line.
    tally: Value,
    /// Whether every promise was kept.
    kept: bool,
}

fn main() -> ExitCode {
    // Whichever thread panics, it counts.
    let panics = Arc::new(AtomicU64::new(0));
    let (before, counted) = (std::panic::take_hook(), Arc::clone(&panics));
    std::panic::set_hook(Box::new(move |info| {
        counted.fetch_add(1, Ordering::Relaxed);
        before(info);
    }));
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let outcome = Args::read(words, panics).and_then(|args| run(&command, &args));
    match outcome {
        Ok(Some(outcome)) => {
            let told = writeln!(std::io::stdout(), "{}", outcome.tally);
            match outcome.kept && told.is_ok() {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            }
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "ordeal {command}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &str, args: &Args) -> Result<Option<Outcome>> {
    match command {
        "write" => writer::run(args).map(|()| None),
        "kill" => kill::run(args).map(Some),
        "cut" => cut::run(args).map(Some),
        "flips" => flip::run(args).map(Some),
        "tail" => tail::run(args).map(Some),
        "bench" => bench::run(args).map(Some),
        "full" => full::run(args).map(Some),
        "faults" => fault::run(args).map(Some),
        other => bail!("unknown word `{other}`"),
    }
}

/// Adds the fields of one object to another.
fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}
