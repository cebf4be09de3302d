//! The load generator: one operation over and over from some connections, each with a session.

mod first_call;
mod load_report;
mod session_memory;

use std::{
    process::ExitCode,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::{sync::Semaphore, time::timeout};

use crate::build_runtime;
use crate::client::{BenchClient, TargetEndpoint, TextCheck};
use crate::mcp_server::{BLOB_UNIT, BLOB_UNITS_PER_KIB};
use crate::options::ToolOptions;
pub(crate) use first_call::time_first_call;
use load_report::{LoadStats, UsageSnapshot, write_report};
pub(crate) use session_memory::open_sessions;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause of a caller after a failed operation.
const ERROR_PAUSE: Duration = Duration::from_millis(5);
/// Sessions that are opened at the same time before a run.
const OPENING_MAX: usize = 8;
/// Names of tools that `probe` prints.
const PROBE_NAMES_MAX: usize = 12;

/// What callers do over and over.
#[derive(Debug, Clone)]
enum LoadOperation {
    Call {
        tool: String,
        /// JSON with `$MSG` for a text that is unique to each call.
        arguments: String,
        check: TextCheck,
        /// Text of the result; the unique text if `None`.
        expected: Option<String>,
        /// Bytes that make the unique text longer.
        padding: String,
    },
    List {
        tools_min: usize,
    },
    Session {
        ends_session: bool,
        reconnects: bool,
    },
}

impl LoadOperation {
    fn from_options(options: &ToolOptions) -> Result<Self> {
        let operation = options.get("op").unwrap_or("call");
        Ok(match operation {
            "call" => Self::Call {
                tool: options.get("tool").unwrap_or("echo").to_owned(),
                arguments: options
                    .get("args")
                    .unwrap_or(r#"{"message":"$MSG"}"#)
                    .to_owned(),
                check: if options.has_flag("contains") {
                    TextCheck::Contains
                } else {
                    TextCheck::Equals
                },
                expected: match options.number("expect-len", 0)? {
                    0 => None,
                    kib => Some(BLOB_UNIT.repeat(BLOB_UNITS_PER_KIB * kib)),
                },
                padding: "x".repeat(options.number("pad", 0)?),
            },
            "list" => Self::List {
                tools_min: options.number("expect", 1)?,
            },
            "session" => Self::Session {
                ends_session: !options.has_flag("no-delete"),
                reconnects: options.has_flag("reconnect"),
            },
            other => bail!("--op {other}: known are call, list and session"),
        })
    }

    /// Runs the operation once; returns when it was complete.
    async fn run_once(&self, client: &mut BenchClient, caller: usize, nth: u64) -> Result<Instant> {
        match self {
            Self::Call {
                tool,
                arguments,
                check,
                expected,
                padding,
            } => {
                let message = format!("m-{caller}-{nth}-{padding}");
                let arguments = arguments.replace("$MSG", &message);
                let expected = expected.as_deref().unwrap_or(&message);
                client.call_tool(tool, &arguments, expected, *check).await?;
            }
            Self::List { tools_min } => {
                let tools = client.count_tools().await?;
                ensure!(tools >= *tools_min, "{tools} tools, {tools_min} expected");
            }
            Self::Session {
                ends_session,
                reconnects,
            } => {
                client.initialize().await?;
                client.count_tools().await?;
                let done_at = client.response_at();
                if *ends_session && client.session().is_some() {
                    client.delete_session().await?;
                }
                if *reconnects {
                    client.reset();
                }
                return Ok(done_at);
            }
        }
        Ok(client.response_at())
    }

    /// Like [`Self::run_once`], in a new session.
    async fn run_in_new_session(&self, client: &mut BenchClient, nth: u64) -> Result<()> {
        let run = async {
            client.initialize().await?;
            self.run_once(client, 0, nth).await.map(drop)
        };
        timeout(REQUEST_TIMEOUT, run).await.context("timeout")?
    }
}

fn parse_endpoint(options: &ToolOptions) -> Result<TargetEndpoint> {
    let headers = options.values("header").map(str::to_owned).collect();
    let revision = options.get("proto").unwrap_or("2025-06-18");
    TargetEndpoint::new(options.require("url")?, headers, revision)
}

/// The measured time of a run: from the end of the warm-up to the end of the load.
#[derive(Debug, Clone, Copy)]
struct LoadPeriod {
    from: Instant,
    to: Instant,
}

/// `mcpbench load`: a closed loop over `--c` connections for `--d` seconds; prints one JSON line.
pub(crate) fn run_load(options: &ToolOptions) -> Result<ExitCode> {
    let callers = options.number("c", 1)?;
    let seconds = Duration::from_secs_f64(options.number("d", 5.0)?);
    let warm = Duration::from_secs_f64(options.number("warm", 1.0)?);
    let operation = LoadOperation::from_options(options)?;
    let (gateways, backends) = (options.numbers("pid")?, options.numbers("backend-pid")?);
    let stats = Rc::new(LoadStats::default());
    let measured = LocalSet::new().block_on(&build_runtime()?, async {
        let clients = open_clients(options, &operation, callers).await?;
        let from = Instant::now() + warm;
        let period = LoadPeriod {
            from,
            to: from + seconds,
        };
        let clients = clients.into_iter().enumerate();
        let loops: Vec<JoinHandle<()>> = clients
            .map(|(caller, client)| {
                let (operation, stats) = (operation.clone(), Rc::clone(&stats));
                spawn_local(run_caller(client, operation, caller, period, stats))
            })
            .collect();
        tokio::time::sleep_until(period.from.into()).await;
        let before = UsageSnapshot::take(&gateways, &backends);
        tokio::time::sleep_until(period.to.into()).await;
        let after = UsageSnapshot::take(&gateways, &backends);
        for caller in loops {
            caller.await?;
        }
        Ok::<_, anyhow::Error>((before, after))
    });
    match measured {
        Ok((before, after)) => {
            println!("{}", write_report(callers, &stats, &before, &after));
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            let failed = json!({"c": callers, "failed": format!("{error:#}")});
            println!("{failed}");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Opens the session of every caller; an operation that opens sessions needs none before.
async fn open_clients(
    options: &ToolOptions,
    operation: &LoadOperation,
    callers: usize,
) -> Result<Vec<BenchClient>> {
    let endpoint = parse_endpoint(options)?;
    let opens_sessions = matches!(operation, LoadOperation::Session { .. });
    let initializes = !opens_sessions && !options.has_flag("no-init");
    let permits = Rc::new(Semaphore::new(OPENING_MAX));
    let openings: Vec<JoinHandle<Result<BenchClient>>> = (0..callers)
        .map(|_| {
            let (endpoint, permits) = (endpoint.clone(), Rc::clone(&permits));
            spawn_local(async move {
                let mut client = BenchClient::new(endpoint);
                if initializes {
                    let _permit = permits.acquire().await?;
                    let opened = timeout(REQUEST_TIMEOUT, client.initialize()).await;
                    opened.context("initialize: timeout")??;
                }
                Ok(client)
            })
        })
        .collect();
    let mut clients = Vec::with_capacity(callers);
    for opening in openings {
        clients.push(opening.await??);
    }
    Ok(clients)
}

/// Repeats the operation of one caller until the period ends.
async fn run_caller(
    mut client: BenchClient,
    operation: LoadOperation,
    caller: usize,
    period: LoadPeriod,
    stats: Rc<LoadStats>,
) {
    let connects = client.connects();
    let mut nth = 0;
    loop {
        let start = Instant::now();
        if start >= period.to {
            break;
        }
        nth += 1;
        let run = operation.run_once(&mut client, caller, nth);
        let done = timeout(REQUEST_TIMEOUT, run).await.context("timeout");
        match done.and_then(|done| done) {
            Ok(done_at) if start >= period.from && done_at <= period.to => {
                stats.record_latency(done_at - start);
            }
            Ok(_) => {}
            Err(error) => {
                if start >= period.from {
                    stats.record_error(format!("{error:#}"));
                }
                tokio::time::sleep(ERROR_PAUSE).await;
            }
        }
    }
    stats.add_reconnects(client.connects().saturating_sub(connects));
}

/// `mcpbench probe`: prints the names of the tools, and the outcome of a call where `--tool` is
/// given.
pub(crate) fn probe_target(options: &ToolOptions) -> Result<()> {
    let operation = LoadOperation::from_options(options)?;
    let mut client = BenchClient::new(parse_endpoint(options)?);
    build_runtime()?.block_on(async {
        client.initialize().await.context("initialize failed")?;
        println!("session: {:?}", client.session());
        match client.list_tool_names().await {
            Ok(names) => {
                let shown = names.get(..PROBE_NAMES_MAX).unwrap_or(&names);
                println!("{} tools: {shown:?}", names.len());
            }
            Err(error) => println!("list failed: {error:#}"),
        }
        if options.get("tool").is_some() {
            let called = operation.run_once(&mut client, 0, 1).await;
            println!("call: {:?}", called.map(drop));
        }
        Ok(())
    })
}
