//! Bodies without a gateway: a program reads them through each variant in turn; this module also
//! contains the server that serves them.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{CODEX, DIALED, DIRECT, RELAY, added_latency_ratio, executor_targets, pair_runs};
use crate::{
    bench::{
        BenchPlan,
        bench_report::BenchReport,
        bench_target::HelperProcess,
        bench_tools::BenchTools,
        measure::{self, LoadRun},
    },
    codex_process::CodexProcess,
    process,
};

/// Body sizes in bytes: large, the largest that an exec-server sends before a slow reader fails,
/// and small.
const LARGE_BYTES: usize = 64_000_000;
const MIDDLE_BYTES: usize = 1_000_000;
const SMALL_BYTES: usize = 100;

/// Chunk size of a large body, in bytes.
const CHUNK_BYTES: usize = 256 * 1024;

/// Longest line of a request, in bytes.
const LINE_BYTES_MAX: u64 = 8 * 1024;

/// One variant: arguments of the reading program, and helper processes that forward bytes.
#[derive(Debug)]
struct BodyVariant {
    name: &'static str,
    arguments: Vec<String>,
    helpers: Vec<HelperProcess>,
}

/// Serves bodies until the process is killed: `GET /N` returns N bytes.
pub(in crate::bench) fn serve_bodies(words: &[String]) -> Result<()> {
    let [listen] = words else {
        bail!("where to listen?");
    };
    let listener = TcpListener::bind(listen).with_context(|| format!("listen at {listen}"))?;
    for came in listener.incoming() {
        let came = came.context("accept")?;
        // An error ends only this connection.
        thread::spawn(move || serve_connection(&came));
    }
    Ok(())
}

fn serve_connection(stream: &TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let piece: Vec<u8> = (0..CHUNK_BYTES).map(|nth| (nth % 251) as u8).collect();
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    loop {
        let Some(mut left) = read_request(&mut reader)? else {
            return Ok(());
        };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {left}\r\n\r\n");
        let first = piece.get(..left.min(piece.len())).unwrap_or_default();
        writer.write_all(&[head.as_bytes(), first].concat())?;
        left -= first.len();
        while left > 0 {
            let next = piece.get(..left.min(piece.len())).unwrap_or_default();
            writer.write_all(next)?;
            left -= next.len();
        }
    }
}

/// Reads one request; returns the requested number of bytes.
fn read_request(reader: &mut BufReader<&TcpStream>) -> Result<Option<usize>> {
    use std::io::Read as _;
    let mut wanted = None;
    loop {
        let mut line = String::new();
        if reader.by_ref().take(LINE_BYTES_MAX).read_line(&mut line)? == 0 {
            return Ok(None);
        }
        match line.trim_end() {
            "" => return Ok(wanted),
            line if wanted.is_none() => {
                let path = line.split(' ').nth(1).unwrap_or_default();
                wanted = Some(path.trim_start_matches('/').parse().context("a number")?);
            }
            _ => {}
        }
    }
}

/// Reads large and small bodies through every variant in turn.
pub(super) fn measure_bodies(
    tools: &BenchTools,
    plan: &BenchPlan,
    report: &mut BenchReport,
) -> Result<()> {
    let backend = format!("127.0.0.1:{}", process::free_port()?);
    let mut command = Command::new(&tools.xtask);
    command.args(["bench", "--bodies", &backend]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let _backend = HelperProcess(command.spawn().context("could not start the server")?);
    let mut ways = Vec::new();
    let mut take = |name: &str, made: Result<BodyVariant>| match made {
        Ok(way) => ways.push(way),
        Err(error) => report.skip_part(&format!("{name}, bodies"), &format!("{error:#}")),
    };
    take(DIRECT, Ok(plain_variant(DIRECT, &backend, Vec::new())));
    let relay = executor_targets::start_relay_pair(tools, &backend);
    take(
        RELAY,
        relay.map(|(near, carriers)| plain_variant(RELAY, &near, carriers)),
    );
    take(DIALED, executor_variant(tools, &backend));
    take(CODEX, codex_variant(tools, &backend));
    for (what, bytes, streams) in [
        (", 64 MB", LARGE_BYTES, 1),
        (", 64 MB", LARGE_BYTES, 4),
        (", 1 MB", MIDDLE_BYTES, 1),
        (", 1 MB", MIDDLE_BYTES, 4),
        (", 100 B", SMALL_BYTES, 1),
        (", 100 B", SMALL_BYTES, 16),
    ] {
        let (runs, failed) = run_interleaved(tools, plan, &mut ways, bytes, streams);
        for (name, error) in failed {
            let name = format!("{name}{what}, {streams} at once");
            report.skip_part(&name, &format!("{error:#}"));
        }
        report_runs(report, what, streams, &runs);
    }
    Ok(())
}

fn plain_variant(name: &'static str, address: &str, carriers: Vec<HelperProcess>) -> BodyVariant {
    BodyVariant {
        name,
        arguments: vec!["plain".to_owned(), format!("http://{address}")],
        helpers: carriers,
    }
}

fn executor_variant(tools: &BenchTools, backend: &str) -> Result<BodyVariant> {
    let (address, executor) = executor_targets::start_listening_executor(tools, backend)?;
    Ok(BodyVariant {
        name: DIALED,
        arguments: vec![
            "bowline".to_owned(),
            format!("http://{backend}"),
            format!("ws://{address}"),
        ],
        helpers: vec![executor],
    })
}

fn codex_variant(tools: &BenchTools, backend: &str) -> Result<BodyVariant> {
    let folder = tools.new_folder("codex-home")?;
    let codex = CodexProcess::start(&tools.root, &folder, executor_targets::CODEX_REQUESTS)?;
    Ok(BodyVariant {
        name: CODEX,
        arguments: vec![
            "exec-server".to_owned(),
            format!("http://{backend}"),
            format!("ws://{}", codex.address),
        ],
        helpers: vec![codex.into()],
    })
}

type BodyRuns = BTreeMap<&'static str, Vec<LoadRun>>;

/// Runs every variant in turn. A failed variant is skipped from then on and its error returned: a
/// protocol without flow control loses a body that arrives faster than the reader reads.
fn run_interleaved(
    tools: &BenchTools,
    plan: &BenchPlan,
    ways: &mut [BodyVariant],
    bytes: usize,
    streams: usize,
) -> (BodyRuns, BTreeMap<&'static str, anyhow::Error>) {
    let mut runs = BodyRuns::new();
    let mut failed = BTreeMap::new();
    for turn in 0..plan.pairs {
        // Reversing keeps neighbours adjacent and alternates the order.
        if turn > 0 {
            ways.reverse();
        }
        for way in ways.iter() {
            if failed.contains_key(way.name) {
                continue;
            }
            match run_variant(tools, plan, way, bytes, streams) {
                Ok(run) => runs.entry(way.name).or_default().push(run),
                Err(error) => {
                    runs.remove(way.name);
                    failed.insert(way.name, error);
                }
            }
        }
    }
    (runs, failed)
}

/// Runs one variant. A large body counts in megabytes (MB/s, CPU per MB), a small body in
/// exchanges. CPU covers all processes except the server.
fn run_variant(
    tools: &BenchTools,
    plan: &BenchPlan,
    way: &BodyVariant,
    bytes: usize,
    streams: usize,
) -> Result<LoadRun> {
    let carriers = || -> u64 {
        // A relay's thread per connection has exited by now: use the process total.
        let carriers = way.helpers.iter();
        carriers
            .map(|one| process::process_cpu_us(one.0.id()))
            .sum()
    };
    let mut command = Command::new(&tools.bodies);
    command.args(&way.arguments);
    command.args([
        "--bytes",
        &bytes.to_string(),
        "--streams",
        &streams.to_string(),
    ]);
    command.args(["--seconds", plan.run_seconds, "--warm", plan.warm_seconds]);
    let (before, busy) = (carriers(), process::machine_cpu_us());
    let start = process::now();
    let said = process::run_captured(&mut command)?;
    let (spent, busy) = (
        carriers() - before,
        process::machine_cpu_us().saturating_sub(busy),
    );
    let wall = start.elapsed().as_secs_f64();
    let said: Value = serde_json::from_str(said.trim()).context("what `bodies` said")?;
    let number = |key: &str| {
        let number = said.get(key).and_then(Value::as_f64);
        number.with_context(|| format!("no `{key}` in {said}"))
    };
    let counted = if bytes >= MIDDLE_BYTES {
        number("bytes")? / 1e6
    } else {
        number("exchanges")?
    };
    let own = number("cpu_us")?;
    // Includes the backend's CPU time; only an otherwise idle machine separates both.
    let others = (busy as f64 - own - spent as f64) / 1e6 / wall;
    Ok(LoadRun {
        raw: json!({
            "rps": counted / number("seconds")?,
            "p50_us": number("p50_us")?, "p99_us": number("p99_us")?,
            "gw_cpu_us": (own + spent as f64) / counted, "gw_rss_mib": number("rss_mib")?,
            "other_cores": others, "said": said,
        }),
    })
}

fn report_runs(report: &mut BenchReport, what: &str, streams: usize, runs: &BodyRuns) {
    for name in [DIRECT, RELAY, DIALED, CODEX] {
        if let Some(runs) = runs.get(name) {
            let name = format!("{name}{what}");
            report
                .runs
                .push(measure::summarize_runs(&name, streams, runs));
        }
    }
    for (name, floor) in [(DIALED, RELAY), (CODEX, RELAY), (DIALED, CODEX)] {
        if let Some(pairs) = pair_runs(runs, floor, name) {
            report.add_ratios(&format!("{name}/{floor}{what}"), streams, &pairs);
            let goal = match (name, floor, what, streams) {
                (DIALED, RELAY, ", 64 MB", 1) => Some("executor_relay"),
                (DIALED, CODEX, ", 1 MB", 1) => Some("executor_codex"),
                _ => None,
            };
            if let Some(goal) = goal {
                report.set_figure(goal, measure::median_ratio(&pairs, "rps"));
            }
        }
    }
    if streams == 1 && what == ", 100 B" {
        report.set_figure("executor_p50", added_latency_ratio(runs));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn body_has_requested_length_on_kept_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || serve_connection(&listener.accept().unwrap().0));
        let mut stream = TcpStream::connect(address).unwrap();
        for length in [0, 5, CHUNK_BYTES, CHUNK_BYTES + 1] {
            write!(stream, "GET /{length} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            let mut came = vec![0; head.len() + length];
            stream.read_exact(&mut came).unwrap();
            assert!(came.starts_with(head.as_bytes()), "{length}");
        }
        drop(stream);
        server.join().unwrap().unwrap();
    }
}
