//! `cargo xtask endurance`: half an hour of calls and queued writes with default settings, while
//! servers are killed and restarted.
//!
//! At the end no write may be lost, repeated or out of order, the outbox must be empty, and the
//! gateway's memory must not have grown: the slope is a linear regression over the last two thirds
//! of the run, with a sample per second.

mod endurance_faults;
mod endurance_load;
mod endurance_report;

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
    http_fixture::HttpFixture,
    process,
    running_gateway::{RunningGateway, build_dist},
};
use endurance_faults::EnduranceFaults;
use endurance_load::EnduranceLoad;
use endurance_report::EnduranceReport;

/// The server that runs as a child process of the gateway, and the HTTP server.
const PIPE: &str = "pipe";
const WEB: &str = "web";

/// Time limit for the outbox to become empty after the load.
const DRAIN_SECONDS_MAX: u64 = 60;

const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Duration and rate of a run.
#[derive(Debug, PartialEq, Eq)]
struct EndurancePlan {
    seconds: u64,
    calls_per_second: u32,
    /// The gateway binary; built if `None`.
    binary: Option<PathBuf>,
    json: bool,
}

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    let plan = parse_plan(rest)?;
    let binary = match &plan.binary {
        Some(binary) => binary.clone(),
        None => build_dist(root)?,
    };
    let report = run_plan(root, &binary, &plan)?;
    if plan.json {
        println!("{}", serde_json::to_string_pretty(&report.to_json())?);
    } else {
        print!("{}", report.to_table());
    }
    Ok(if report.missed_goals().is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A directory that is removed on drop.
#[derive(Debug)]
struct EnduranceFolder(PathBuf);

impl Drop for EnduranceFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run_plan(root: &Path, binary: &Path, plan: &EndurancePlan) -> Result<EnduranceReport> {
    let folder = EnduranceFolder(root.join(format!("target/endurance-{}", std::process::id())));
    fs::create_dir_all(&folder.0)?;
    let ledger = folder.0.join("ledger");
    let web = HttpFixture::start(binary, &ledger, &folder.0.join("web.stderr"))?;
    let gateway = RunningGateway::start(
        root,
        Command::new(binary),
        &gateway_config(binary, &web.url),
    )?;
    let end = process::now() + Duration::from_secs(plan.seconds);
    let load = EnduranceLoad::new(gateway.address, &gateway.owner_token, plan.calls_per_second);
    let faults = EnduranceFaults::new(web);
    let samples = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let sampler = scope.spawn(|| sample_memory(gateway.pid(), end, &samples));
        let faults = scope.spawn(|| faults.run(&gateway, end));
        let calls = load.run(end)?;
        let faults = faults.join().ok().context("the faults panicked")??;
        sampler.join().ok().context("the sampler panicked")??;
        let left = wait_for_empty_outbox(&gateway)?;
        let samples = samples.lock().unwrap_or_else(PoisonError::into_inner);
        let ledger = fs::read_to_string(&ledger).unwrap_or_default();
        Ok(EnduranceReport::new(
            calls, &faults, &ledger, left, &samples,
        ))
    })
}

fn gateway_config(binary: &Path, url: &str) -> String {
    format!(
        "[servers.{PIPE}]\ncommand = {}\n\
         [servers.{WEB}]\nurl = {}\n\
         [servers.{WEB}.tools.write_once]\nqueue = \"1h\"\n\
         idempotency = \"header:Idempotency-Key\"\n",
        json!(process::fixture_binary(binary)),
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

/// Waits until the outbox is empty; returns the number of writes left after the time limit.
fn wait_for_empty_outbox(gateway: &RunningGateway) -> Result<usize> {
    let start = process::now();
    loop {
        let outbox = gateway.api_client()?.call_api("GET", "/api/v1/outbox")?;
        let entries = outbox.get("entries").and_then(Value::as_array);
        let left = entries.context("no entries")?.len();
        if left == 0 || start.elapsed().as_secs() > DRAIN_SECONDS_MAX {
            return Ok(left);
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn parse_plan(rest: &[String]) -> Result<EndurancePlan> {
    let mut plan = EndurancePlan {
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
    fn plan_parses_options_or_names_unknown() {
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
