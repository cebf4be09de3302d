//! Reads the same body again and again, over plain HTTP or through an executor, and says in one
//! JSON line how fast that was and what it cost.
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
use bowline_host::executor::{ClientOptions, ExecutorClient, Protocol, Request};
use bowline_link::http::client::{HttpClient as _, Outgoing, Wait};
use bowline_link::http::endpoint::Endpoint;
use bowline_link::http::hyper_client::{ClientLimits, HyperClient};
use http::Method;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

type Failure = Box<dyn Error + Send + Sync>;

/// Times that are kept at most: a median does not need more.
const TIMES_MAX: usize = 1_000_000;

/// How bodies are fetched.
#[derive(Clone, Debug)]
enum Way {
    Plain(Arc<HyperClient>),
    There(Arc<ExecutorClient>),
}

/// What was asked for.
#[derive(Clone, Debug, Default)]
struct Asked {
    words: Vec<String>,
    bytes: u64,
    streams: usize,
    seconds: f64,
    warm: f64,
}

/// What was measured so far.
#[derive(Debug, Default)]
struct Measured {
    over: AtomicBool,
    counts: AtomicBool,
    bytes: AtomicU64,
    exchanges: AtomicU64,
    times_us: std::sync::Mutex<Vec<u64>>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(said) => {
            // Nobody reads it when this fails.
            let _ = writeln!(std::io::stdout(), "{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "bodies: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<serde_json::Value, Failure> {
    bowline_core::heap::keep_freed();
    let asked = Asked::read()?;
    let way = Way::open(&asked).await?;
    let url = asked.words.get(1).ok_or("a URL is needed")?;
    let url = format!("{url}/{}", asked.bytes);
    let measured = Arc::new(Measured::default());
    let readers: Vec<_> = (0..asked.streams)
        .map(|_| {
            let (way, url, measured) = (way.clone(), url.clone(), Arc::clone(&measured));
            let wanted = asked.bytes;
            spawn(async move { way.read_on(&url, wanted, &measured).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs_f64(asked.warm)).await;
    let (cpu, start) = (cpu_us(), now());
    measured.counts.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs_f64(asked.seconds)).await;
    measured.counts.store(false, Ordering::SeqCst);
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_us() - cpu);
    measured.over.store(true, Ordering::SeqCst);
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

impl Asked {
    fn read() -> Result<Self, Failure> {
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

impl Way {
    async fn open(asked: &Asked) -> Result<Self, Failure> {
        let kind = asked.words.first().map_or("", String::as_str);
        let protocol = match kind {
            "plain" => {
                let client = HyperClient::new(ClientLimits::default())?;
                return Ok(Self::Plain(Arc::new(client)));
            }
            "bowline" => Protocol::Bowline,
            "exec-server" => Protocol::ExecServer,
            other => return Err(format!("no way `{other}`").into()),
        };
        let executor = asked.words.get(2).ok_or("an executor is needed")?;
        let options = ClientOptions {
            protocol,
            ..ClientOptions::default()
        };
        let client = ExecutorClient::connect(executor, None, options).await?;
        Ok(Self::There(Arc::new(client)))
    }

    /// Reads until it is over; a body that is not whole is a failure.
    async fn read_on(&self, url: &str, wanted: u64, measured: &Measured) -> Result<(), Failure> {
        let to = Endpoint::parse(url)?;
        while !measured.over.load(Ordering::SeqCst) {
            let start = now();
            let came = self.read(url, &to, measured).await?;
            if came != wanted {
                return Err(format!("{came} bytes of {wanted}").into());
            }
            if measured.counts.load(Ordering::SeqCst) {
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

    async fn read(&self, url: &str, to: &Endpoint, measured: &Measured) -> Result<u64, Failure> {
        let mut came = 0;
        let mut count = |length: usize| {
            came += length as u64;
            if measured.counts.load(Ordering::Relaxed) {
                measured.bytes.fetch_add(length as u64, Ordering::Relaxed);
            }
        };
        match self {
            Self::Plain(client) => {
                let wait = Wait {
                    connect: None,
                    first_byte: None,
                    leaving: &|| {},
                };
                let mut answer = client.send(Outgoing::new(Method::GET, to), wait).await?;
                while let Some(chunk) = answer.body.chunk().await {
                    count(chunk?.len());
                }
            }
            Self::There(client) => {
                let (_head, mut body) = client
                    .request_stream(Request::new(Method::GET, url))
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

/// Processor time of this process.
fn cpu_us() -> u64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(spent.tv_sec * 1_000_000 + spent.tv_nsec / 1_000).unwrap_or(0)
}

fn rss_mib() -> Result<f64, Failure> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split_whitespace().nth(1).ok_or("no memory")?;
    Ok(pages.parse::<f64>()? * 4096.0 / 1_048_576.0)
}
