//! `mcpbench first`: from the start of a command to the first right response to a call.

use std::{
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::{LoadOperation, parse_endpoint};
use crate::build_runtime;
use crate::client::BenchClient;
use crate::options::ToolOptions;
use crate::process_usage::tree_usage;

const POLL_INTERVAL: Duration = Duration::from_millis(1);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Checks whether a stopped command has exited, and the time between two checks.
const EXIT_CHECKS_MAX: usize = 200;
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(25);
const KIB_PER_MIB: f64 = 1024.0;

/// Times after the start of the command.
#[derive(Debug, Default)]
struct FirstCall {
    call: Option<Duration>,
    /// The first accepted connection, if the first calls failed.
    accepted: Option<Duration>,
    last_error: Option<String>,
}

/// Starts `--cmd`, calls until a response is right, prints one JSON line and ends the command.
pub(crate) fn time_first_call(options: &ToolOptions) -> Result<()> {
    let command = options.require("cmd")?;
    build_runtime()?.block_on(async {
        let start = Instant::now();
        let mut child = Command::new("sh")
            .args(["-c", &format!("exec {command}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("could not start `{command}`"))?;
        let first = await_first_call(options, start).await;
        let usage = tree_usage(child.id());
        end_child(&mut child).await;
        let first = first?;
        let milliseconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1e3);
        let report = json!({
            "first_call_ms": milliseconds(first.call),
            "first_answer_ms": milliseconds(first.accepted),
            "cpu_ms": usage.gateway.cpu_us as f64 / 1e3,
            "rss_mib": usage.gateway.rss_kib as f64 / KIB_PER_MIB,
            "procs": usage.gateway.processes, "child_procs": usage.backends.processes,
            "last_error": first.last_error.filter(|_| first.call.is_none()),
        });
        println!("{report}");
        Ok(())
    })
}

async fn await_first_call(options: &ToolOptions, start: Instant) -> Result<FirstCall> {
    let endpoint = parse_endpoint(options)?;
    let operation = LoadOperation::from_options(options)?;
    let limit = Duration::from_secs(options.number("limit", 60)?);
    let mut first = FirstCall::default();
    while start.elapsed() <= limit {
        let mut client = BenchClient::new(endpoint.clone());
        let attempt = operation.run_in_new_session(&mut client, 1);
        let called = timeout(ATTEMPT_TIMEOUT, attempt).await.context("timeout");
        match called.and_then(|called| called) {
            Ok(()) => {
                first.call = Some(start.elapsed());
                break;
            }
            Err(error) => {
                if client.connects() > 0 && first.accepted.is_none() {
                    first.accepted = Some(start.elapsed());
                }
                first.last_error = Some(format!("{error:#}"));
            }
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(first)
}

/// Ends the command; children of the command end when the pipes close.
async fn end_child(child: &mut Child) {
    let _ = Command::new("kill").arg(child.id().to_string()).status();
    for _ in 0..EXIT_CHECKS_MAX {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        sleep(EXIT_POLL_INTERVAL).await;
    }
    let _ = child.kill();
    let _ = child.wait();
}
