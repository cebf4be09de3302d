//! `cargo xtask endurance`: half an hour of calls and queued writes with the shipped defaults,
//! while servers are killed and come back.
//!
//! At the end no write may be lost, repeated or out of order, the outbox must be empty, and the
//! gateway's memory must not have grown: its slope is the regression over the last two thirds of
//! the run, with one sample a second.

mod faults;
mod load;
mod report;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::{
    gateway::{RunningGateway, build_release},
    http_fixture::HttpFixture,
    process,
};
use faults::Faults;
use load::Load;
use report::Report;

/// The server that is a process of the gateway, and the one over HTTP.
const PIPE: &str = "pipe";
const WEB: &str = "web";

/// How long the outbox may take to become empty after the load.
const DRAIN_SECONDS_MAX: u64 = 60;

const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// How long and how hard.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    seconds: u64,
    calls_per_second: u32,
    /// The gateway to run; built where none is named.
    binary: Option<PathBuf>,
    json: bool,
}

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    let plan = parse_plan(rest)?;
    let binary = match &plan.binary {
        Some(binary) => binary.clone(),
        None => build_release(root)?,
    };
    let report = measure(root, &binary, &plan)?;
    if plan.json {
        println!("{}", serde_json::to_string_pretty(&report.to_json())?);
    } else {
        print!("{}", report.table());
    }
    Ok(if report.missed().is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A directory that is removed when dropped.
#[derive(Debug)]
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn measure(root: &Path, binary: &Path, plan: &Plan) -> Result<Report> {
    let folder = Folder(root.join(format!("target/endurance-{}", std::process::id())));
    fs::create_dir_all(&folder.0)?;
    let ledger = folder.0.join("ledger");
    let web = HttpFixture::start(binary, &ledger, &folder.0.join("web.stderr"))?;
    let gateway = RunningGateway::start(root, Command::new(binary), &config(binary, &web.url))?;
    let end = process::now() + Duration::from_secs(plan.seconds);
    let load = Load::new(gateway.address, &gateway.owner, plan.calls_per_second);
    let faults = Faults::new(web);
    let samples = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let sampler = scope.spawn(|| sample_memory(gateway.pid(), end, &samples));
        let faults = scope.spawn(|| faults.run(&gateway, end));
        let calls = load.run(end)?;
        let faults = faults.join().ok().context("the faults panicked")??;
        sampler.join().ok().context("the sampler panicked")??;
        let left = drain(&gateway)?;
        let samples = samples.lock().unwrap_or_else(PoisonError::into_inner);
        let ledger = fs::read_to_string(&ledger).unwrap_or_default();
        Ok(Report::new(calls, &faults, &ledger, left, &samples))
    })
}

fn config(binary: &Path, url: &str) -> String {
    format!(
        "[servers.{PIPE}]\ncommand = {}\nargs = [\"fixture\"]\n\
         [servers.{WEB}]\nurl = {}\n\
         [servers.{WEB}.tools.write_once]\nqueue = \"1h\"\n\
         idempotency = \"header:Idempotency-Key\"\n",
        json!(binary),
        json!(url)
    )
}

/// Appends the resident memory of a process once a second, in KiB.
fn sample_memory(pid: u32, end: Instant, samples: &Mutex<Vec<u64>>) -> Result<()> {
    let mut next = process::now();
    while next < end {
        thread::sleep(next.saturating_duration_since(process::now()));
        let rss = process::rss_kib(pid).context("the gateway is gone")?;
        samples
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(rss);
        next += SAMPLE_EVERY;
    }
    Ok(())
}

/// Waits until the outbox is empty, and returns how many writes are left in it.
fn drain(gateway: &RunningGateway) -> Result<usize> {
    let start = process::now();
    loop {
        let outbox = gateway.api()?.api("GET", "/api/v1/outbox")?;
        let entries = outbox.get("entries").and_then(Value::as_array);
        let left = entries.context("no entries")?.len();
        if left == 0 || start.elapsed().as_secs() > DRAIN_SECONDS_MAX {
            return Ok(left);
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn parse_plan(rest: &[String]) -> Result<Plan> {
    let mut plan = Plan {
        seconds: 30 * 60,
        calls_per_second: 300,
        binary: None,
        json: false,
    };
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        let mut value = || {
            let value = words.next();
            value.with_context(|| format!("`{word}` needs a value"))
        };
        let number = |value: &str| -> Result<u64> {
            let number = value.parse();
            number.with_context(|| format!("`{word}` needs a number"))
        };
        match word.as_str() {
            "--minutes" => plan.seconds = number(value()?)? * 60,
            "--seconds" => plan.seconds = number(value()?)?,
            "--rate" => plan.calls_per_second = u32::try_from(number(value()?)?)?,
            "--binary" => plan.binary = Some(PathBuf::from(value()?)),
            "--json" => plan.json = true,
            other => bail!(
                "unknown option `{other}`; known: --minutes N, --seconds N, --rate N, \
                 --binary PATH, --json"
            ),
        }
    }
    if plan.seconds < 30 || plan.calls_per_second < 32 {
        bail!("at least 30 seconds and 32 calls a second");
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_takes_options_and_names_unknown_ones() {
        let parse = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            parse_plan(&words)
        };
        let plan = parse(&["--minutes", "2", "--rate", "64", "--json"]).unwrap();
        assert_eq!((plan.seconds, plan.calls_per_second), (120, 64));
        assert!(plan.json);
        for (words, named) in [(&["--rate"][..], "--rate"), (&["--fast"], "--fast")] {
            let error = parse(words).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
