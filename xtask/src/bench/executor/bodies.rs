//! Bodies alone, without a gateway: a program that reads them in one way after the other, and the
//! server that has them.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{CODEX, DIRECT, OURS, RELAY, added, pairs, ways};
use crate::{
    bench::{
        Plan,
        measure::{self, Run},
        report::Report,
        target::Beside,
        tools::Tools,
    },
    codex::Codex,
    process,
};

/// A large body, one that an exec-server can send before its reader is too slow for it, and a small
/// one, in bytes.
const LARGE_BYTES: usize = 64_000_000;
const MIDDLE_BYTES: usize = 1_000_000;
const SMALL_BYTES: usize = 100;

/// What a large body is made of, in bytes.
const PIECE_BYTES: usize = 256 * 1024;

/// Longest line of a request, in bytes.
const LINE_BYTES_MAX: u64 = 8 * 1024;

/// One way to the server: how the program is told of it, and who carries.
#[derive(Debug)]
struct Way {
    name: &'static str,
    words: Vec<String>,
    carriers: Vec<Beside>,
}

/// Serves bodies for as long as the process lives: `GET /N` is N bytes.
pub(in crate::bench) fn serve(words: &[String]) -> Result<()> {
    let [listen] = words else {
        bail!("where to listen?");
    };
    let listener = TcpListener::bind(listen).with_context(|| format!("listen at {listen}"))?;
    for came in listener.incoming() {
        let came = came.context("accept")?;
        // Whoever came sees the end, and takes no other with it.
        thread::spawn(move || answer(&came));
    }
    Ok(())
}

fn answer(stream: &TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let piece: Vec<u8> = (0..PIECE_BYTES).map(|nth| (nth % 251) as u8).collect();
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    loop {
        let Some(mut left) = asked(&mut reader)? else {
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

/// Reads one request; says how many bytes it wants.
fn asked(reader: &mut BufReader<&TcpStream>) -> Result<Option<usize>> {
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

/// Reads large bodies and small ones in every way, in turn.
pub(super) fn measure(tools: &Tools, plan: &Plan, report: &mut Report) -> Result<()> {
    let backend = format!("127.0.0.1:{}", process::free_port()?);
    let mut command = Command::new(&tools.xtask);
    command.args(["bench", "--bodies", &backend]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let _backend = Beside(command.spawn().context("could not start the server")?);
    let mut ways = Vec::new();
    let mut take = |name: &str, made: Result<Way>| match made {
        Ok(way) => ways.push(way),
        Err(error) => report.leave_out(&format!("{name}, bodies"), &format!("{error:#}")),
    };
    take(DIRECT, Ok(plain(DIRECT, &backend, Vec::new())));
    let relay = ways::relays(tools, &backend);
    take(
        RELAY,
        relay.map(|(near, carriers)| plain(RELAY, &near, carriers)),
    );
    take(OURS, ours(tools, &backend));
    take(CODEX, codex(tools, &backend));
    for (what, bytes, streams) in [
        (", 64 MB", LARGE_BYTES, 1),
        (", 64 MB", LARGE_BYTES, 4),
        (", 1 MB", MIDDLE_BYTES, 1),
        (", 1 MB", MIDDLE_BYTES, 4),
        (", 100 B", SMALL_BYTES, 1),
        (", 100 B", SMALL_BYTES, 16),
    ] {
        let (runs, failed) = interleaved(tools, plan, &mut ways, bytes, streams);
        for (name, error) in failed {
            let name = format!("{name}{what}, {streams} at once");
            report.leave_out(&name, &format!("{error:#}"));
        }
        tell(report, what, streams, &runs);
    }
    Ok(())
}

fn plain(name: &'static str, address: &str, carriers: Vec<Beside>) -> Way {
    Way {
        name,
        words: vec!["plain".to_owned(), format!("http://{address}")],
        carriers,
    }
}

fn ours(tools: &Tools, backend: &str) -> Result<Way> {
    let (address, executor) = ways::listening(tools, backend)?;
    Ok(Way {
        name: OURS,
        words: vec![
            "bowline".to_owned(),
            format!("http://{backend}"),
            format!("ws://{address}"),
        ],
        carriers: vec![executor],
    })
}

fn codex(tools: &Tools, backend: &str) -> Result<Way> {
    let folder = tools.folder("codex-home")?;
    let codex = Codex::start(&tools.root, &folder, ways::CODEX_REQUESTS)?;
    Ok(Way {
        name: CODEX,
        words: vec![
            "exec-server".to_owned(),
            format!("http://{backend}"),
            format!("ws://{}", codex.address),
        ],
        carriers: vec![codex.into()],
    })
}

type Runs = BTreeMap<&'static str, Vec<Run>>;

/// Measures every way in turn. One that fails is measured no more, and its error returned: a wire
/// without credit loses a body that comes faster than it is read.
fn interleaved(
    tools: &Tools,
    plan: &Plan,
    ways: &mut [Way],
    bytes: usize,
    streams: usize,
) -> (Runs, BTreeMap<&'static str, anyhow::Error>) {
    let mut runs = Runs::new();
    let mut failed = BTreeMap::new();
    for turn in 0..plan.pairs {
        // Neighbours stay neighbours, but who goes first changes.
        if turn > 0 {
            ways.reverse();
        }
        for way in ways.iter() {
            if failed.contains_key(way.name) {
                continue;
            }
            match one(tools, plan, way, bytes, streams) {
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

/// One run. A large body counts by the megabyte, so that its rate is MB/s and its cost CPU per MB;
/// a small one by the exchange. The cost is that of everybody but the server.
fn one(tools: &Tools, plan: &Plan, way: &Way, bytes: usize, streams: usize) -> Result<Run> {
    let carriers = || -> u64 {
        // A relay has a thread for each connection, which is gone by then.
        let carriers = way.carriers.iter();
        carriers.map(|one| process::cpu_whole_us(one.0.id())).sum()
    };
    let mut command = Command::new(&tools.bodies);
    command.args(&way.words);
    command.args([
        "--bytes",
        &bytes.to_string(),
        "--streams",
        &streams.to_string(),
    ]);
    command.args(["--seconds", plan.run_seconds, "--warm", plan.warm_seconds]);
    let (before, busy) = (carriers(), process::busy_us());
    let start = process::now();
    let said = process::quiet(&mut command)?;
    let (spent, busy) = (carriers() - before, process::busy_us().saturating_sub(busy));
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
    // The backend's own work is not told apart from that of strangers, except by a run alone.
    let others = (busy as f64 - own - spent as f64) / 1e6 / wall;
    Ok(Run {
        raw: json!({
            "rps": counted / number("seconds")?,
            "p50_us": number("p50_us")?, "p99_us": number("p99_us")?,
            "gw_cpu_us": (own + spent as f64) / counted, "gw_rss_mib": number("rss_mib")?,
            "other_cores": others, "said": said,
        }),
    })
}

fn tell(report: &mut Report, what: &str, streams: usize, runs: &Runs) {
    for name in [DIRECT, RELAY, OURS, CODEX] {
        if let Some(runs) = runs.get(name) {
            let name = format!("{name}{what}");
            report.runs.push(measure::summary(&name, streams, runs));
        }
    }
    for (name, floor) in [(OURS, RELAY), (CODEX, RELAY), (OURS, CODEX)] {
        if let Some(pairs) = pairs(runs, floor, name) {
            report.compare(&format!("{name}/{floor}{what}"), streams, &pairs);
            let goal = match (name, floor, what, streams) {
                (OURS, RELAY, ", 64 MB", 1) => Some("executor_relay"),
                (OURS, CODEX, ", 1 MB", 1) => Some("executor_codex"),
                _ => None,
            };
            if let Some(goal) = goal {
                report.set(goal, measure::ratio(&pairs, "rps"));
            }
        }
    }
    if streams == 1 && what == ", 100 B" {
        report.set("executor_p50", added(runs));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_body_is_as_long_as_it_was_asked_for_and_the_connection_stays() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || answer(&listener.accept().unwrap().0));
        let mut stream = TcpStream::connect(address).unwrap();
        for length in [0, 5, PIECE_BYTES, PIECE_BYTES + 1] {
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
