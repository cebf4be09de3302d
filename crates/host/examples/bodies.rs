//! Benchmark: reads a body repeatedly, over plain HTTP or through an executor, and prints
//! throughput and cost as a JSON line.
//!
//! `bodies plain|bowline|exec-server URL [EXECUTOR] --bytes N --streams N --seconds S --warm S`,
//! where `URL/N` is a body of N bytes.

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_host::executor::{
    ExecutorClient, ExecutorClientOptions, ExecutorHttpRequest, ExecutorProtocol,
};
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::http_client::{HttpClient as _, HttpRequest, SendOptions};
use bowline_link::http::http1::{Http1Client, HttpClientLimits};
use http::Method;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

type BenchError = Box<dyn Error + Send + Sync>;

/// Maximum number of recorded durations; enough for a median.
const TIMES_MAX: usize = 1_000_000;

/// How bodies are fetched.
#[derive(Clone, Debug)]
enum FetchPath {
    Plain(Arc<Http1Client>),
    Executor(Arc<ExecutorClient>),
}

/// Command-line arguments.
#[derive(Clone, Debug, Default)]
struct BenchArgs {
    words: Vec<String>,
    bytes: u64,
    streams: usize,
    seconds: f64,
    warm: f64,
}

/// Measurements so far.
#[derive(Debug, Default)]
struct Measurements {
    is_over: AtomicBool,
    is_counting: AtomicBool,
    bytes: AtomicU64,
    exchanges: AtomicU64,
    times_us: std::sync::Mutex<Vec<u64>>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run_benchmark().await {
        Ok(said) => {
            // A failure to print is ignored.
            let _ = writeln!(std::io::stdout(), "{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "bodies: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run_benchmark() -> Result<serde_json::Value, BenchError> {
    bowline_core::heap::retain_freed_memory();
    let asked = BenchArgs::parse_args()?;
    let way = FetchPath::open_client(&asked).await?;
    let url = asked.words.get(1).ok_or("a URL is needed")?;
    let url = format!("{url}/{}", asked.bytes);
    let measured = Arc::new(Measurements::default());
    let readers: Vec<_> = (0..asked.streams)
        .map(|_| {
            let (way, url, measured) = (way.clone(), url.clone(), Arc::clone(&measured));
            let wanted = asked.bytes;
            spawn(async move { way.read_repeatedly(&url, wanted, &measured).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs_f64(asked.warm)).await;
    let (cpu, start) = (cpu_us(), now());
    measured.is_counting.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs_f64(asked.seconds)).await;
    measured.is_counting.store(false, Ordering::SeqCst);
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_us() - cpu);
    measured.is_over.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await??;
    }
    let mut times = std::mem::take(&mut *lock(&measured.times_us));
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).copied();
    Ok(serde_json::json!({
        "bytes": measured.bytes.load(Ordering::SeqCst),
        "exchanges": measured.exchanges.load(Ordering::SeqCst),
        "seconds": seconds, "cpu_us": cpu, "p50_us": at(50).unwrap_or(0),
        "p99_us": at(99).unwrap_or(0), "rss_mib": rss_mib()?,
    }))
}

impl BenchArgs {
    fn parse_args() -> Result<Self, BenchError> {
        let mut asked = Self {
            streams: 1,
            ..Self::default()
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || {
                words
                    .next()
                    .ok_or_else(|| format!("`{word}` needs a value"))
            };
            match word.as_str() {
                "--bytes" => asked.bytes = value()?.parse()?,
                "--streams" => asked.streams = value()?.parse()?,
                "--seconds" => asked.seconds = value()?.parse()?,
                "--warm" => asked.warm = value()?.parse()?,
                _ => asked.words.push(word),
            }
        }
        Ok(asked)
    }
}

impl FetchPath {
    async fn open_client(asked: &BenchArgs) -> Result<Self, BenchError> {
        let kind = asked.words.first().map_or("", String::as_str);
        let protocol = match kind {
            "plain" => {
                let client = Http1Client::new(HttpClientLimits::default())?;
                return Ok(Self::Plain(Arc::new(client)));
            }
            "bowline" => ExecutorProtocol::Bowline,
            "exec-server" => ExecutorProtocol::ExecServer,
            other => return Err(format!("no way `{other}`").into()),
        };
        let executor = asked.words.get(2).ok_or("an executor is needed")?;
        let options = ExecutorClientOptions {
            protocol,
            ..ExecutorClientOptions::default()
        };
        let client = ExecutorClient::connect(executor, None, options).await?;
        Ok(Self::Executor(Arc::new(client)))
    }

    /// Reads until the end of the measurement; an incomplete body is an error.
    async fn read_repeatedly(
        &self,
        url: &str,
        wanted: u64,
        measured: &Measurements,
    ) -> Result<(), BenchError> {
        let to = HttpEndpoint::parse(url)?;
        while !measured.is_over.load(Ordering::SeqCst) {
            let start = now();
            let came = self.read_body(url, &to, measured).await?;
            if came != wanted {
                return Err(format!("{came} bytes of {wanted}").into());
            }
            if measured.is_counting.load(Ordering::SeqCst) {
                measured.exchanges.fetch_add(1, Ordering::SeqCst);
                let took = u64::try_from(start.elapsed().as_micros())?;
                let mut times = lock(&measured.times_us);
                if times.len() < TIMES_MAX {
                    times.push(took);
                }
            }
        }
        Ok(())
    }

    async fn read_body(
        &self,
        url: &str,
        to: &HttpEndpoint,
        measured: &Measurements,
    ) -> Result<u64, BenchError> {
        let mut came = 0;
        let mut count = |length: usize| {
            came += length as u64;
            if measured.is_counting.load(Ordering::Relaxed) {
                measured.bytes.fetch_add(length as u64, Ordering::Relaxed);
            }
        };
        match self {
            Self::Plain(client) => {
                let wait = SendOptions {
                    connect_by: None,
                    first_byte_by: None,
                    on_send: &|| {},
                };
                let mut answer = client.send(HttpRequest::new(Method::GET, to), wait).await?;
                while let Some(chunk) = answer.body.next_chunk().await {
                    count(chunk?.len());
                }
            }
            Self::Executor(client) => {
                let (_head, mut body) = client
                    .request_stream(ExecutorHttpRequest::new(Method::GET, url))
                    .await?;
                while let Some(chunk) = body.recv().await {
                    count(chunk?.len());
                }
            }
        }
        Ok(came)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a measurement owns its runtime and waits for all that it starts"
)]
fn spawn<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(task)
}

#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn now() -> Instant {
    Instant::now()
}

/// CPU time of this process.
fn cpu_us() -> u64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(spent.tv_sec * 1_000_000 + spent.tv_nsec / 1_000).unwrap_or(0)
}

fn rss_mib() -> Result<f64, BenchError> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split_whitespace().nth(1).ok_or("no memory")?;
    Ok(pages.parse::<f64>()? * 4096.0 / 1_048_576.0)
}
