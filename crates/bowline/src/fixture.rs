//! Test MCP server with well-behaved tools and faults on request.

mod client_requests;
mod client_sink;
mod clock;
mod connection_state;
mod content;
mod era;
mod execution_ledger;
mod faults;
mod fixture_server;
mod http;
mod input_rounds;
mod legacy_tasks;
mod listen_streams;
mod modern_methods;
mod modern_tasks;
mod pipe_sink;
mod prompts;
mod resources;
mod responses;
mod shared_state;
mod stateless_request;
mod tools;

#[cfg(test)]
mod tests;

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use bowline_core::sync::lock;
use thiserror::Error;

pub use era::{FixtureEra, ParseEraError};
pub use faults::{FixtureFault, ParseFaultError, RedirectTarget};
pub use tools::{ParseToolsetError, Toolset};

use faults::FaultSet;
use fixture_server::FixtureServer;
use http::FixtureTransport;
use pipe_sink::PipeSink;
use shared_state::FixtureShared;

/// Longest input line.
const LINE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Lines read ahead of the line being handled.
const EVENTS_MAX: usize = 64;
/// How long running calls may finish after the client closed stdin.
const DRAIN_MS_MAX: u64 = 1_000;

/// Command line of `bowline fixture`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Tools to offer: `conformance`, `demo`, `writes` or `many=N`
    #[arg(long, value_name = "SET", default_value = "conformance")]
    pub toolset: Toolset,
    /// Misbehave on purpose; may be given several times, and an unknown NAME lists them all
    #[arg(long = "fault", value_name = "NAME[=ARG]")]
    pub faults: Vec<FixtureFault>,
    /// Serve streamable HTTP at `/mcp` of this address, not stdin and stdout; prints its URL
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "http_sse")]
    pub http: Option<SocketAddr>,
    /// Serve the older HTTP+SSE transport at `/sse` of this address; prints its URL
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub http_sse: Option<SocketAddr>,
    /// Era of the protocol to speak: `legacy` (up to 2025-11-25), `modern` (2026-07-28) or `both`
    #[arg(long, value_name = "ERA", default_value = "legacy")]
    pub era: FixtureEra,
    /// Append each execution of `effect`, `write_once` and `write_again` to this file
    #[arg(long, value_name = "FILE")]
    pub ledger: Option<PathBuf>,
}

/// Tools and faults of a fixture.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Offered tools, prompts and resources.
    pub toolset: Toolset,
    /// Supported protocol era.
    pub era: FixtureEra,
    /// Active faults.
    pub faults: Vec<FixtureFault>,
    /// File that also records executions of `effect`.
    pub ledger: Option<PathBuf>,
}

impl From<Args> for Options {
    fn from(args: Args) -> Self {
        Self {
            toolset: args.toolset,
            era: args.era,
            faults: args.faults,
            ledger: args.ledger,
        }
    }
}

/// Why the fixture stopped, other than by end of input.
#[derive(Debug, Error)]
pub enum Error {
    /// A tool or fault requested an exit; the process should end with the code at once.
    #[error("the fixture was told to exit with code {code}")]
    Exit {
        /// Requested exit code.
        code: u8,
    },
    /// An input line exceeds the limit.
    #[error("a line is longer than {LINE_BYTES_MAX} bytes")]
    LineTooLong,
    /// The ledger file cannot be opened for appending.
    #[error("cannot open the ledger `{}`", path.display())]
    Ledger {
        /// Path from the options.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A fault could not be set up.
    #[error("cannot set up the fault `{fault}`")]
    Fault {
        /// Name of the fault.
        fault: &'static str,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The reader thread could not start.
    #[error("cannot start the reader")]
    Reader(#[source] io::Error),
    /// The address cannot be served.
    #[error("cannot serve `{address}`")]
    Listen {
        /// Requested address.
        address: SocketAddr,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// Serves according to the arguments: on stdin and stdout until stdin closes, or over HTTP until a
/// signal.
///
/// # Errors
/// As [`run`], and if the address cannot be served; on [`Error::Exit`] the caller ends the process
/// with the code.
pub fn serve(args: Args) -> Result<(), Error> {
    let streamable = args
        .http
        .map(|address| (FixtureTransport::Streamable, address));
    let sse = args
        .http_sse
        .map(|address| (FixtureTransport::Sse, address));
    match streamable.or(sse) {
        Some((transport, address)) => {
            let options = Options::from(args);
            let faults = options.faults.clone();
            let stop = async move || http::wait_for_signal(&faults).await;
            http::serve_http(options, transport, address, io::stdout(), stop)
        }
        None => run(args.into(), io::stdin(), ProcessStdout),
    }
}

/// Serves a client on a pair of byte streams until `input` ends.
///
/// # Errors
/// A fault or a tool requested an exit, or the setup failed.
pub fn run(
    options: Options,
    input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
) -> Result<(), Error> {
    let faults = FaultSet::new(options.faults.clone());
    faults.apply_start_faults()?;
    let (events, queue) = mpsc::sync_channel(EVENTS_MAX);
    let output = PipeSink::new(output, faults.clone());
    let waker = events.clone();
    // A full queue wakes the loop as well.
    let wake = move || drop(waker.try_send(FixtureEvent::Wake));
    let shared = FixtureShared::new(options, faults.clone(), wake)?;
    let server = FixtureServer::new(Arc::new(shared), output);
    let stops_after = faults.stops_reading();
    thread::Builder::new()
        .name("fixture-reader".to_owned())
        .spawn(move || read_lines(input, stops_after, &events))
        .map_err(Error::Reader)?;
    handle_events(&Arc::new(server), &faults, &queue)
}

/// Event for the main loop, from the reader or a call.
#[derive(Debug)]
enum FixtureEvent {
    /// Input line without its line end.
    Line(Vec<u8>),
    /// End of input.
    End,
    /// Input line above the limit.
    TooLong,
    /// A call requested an exit.
    Wake,
}

fn handle_events(
    server: &Arc<FixtureServer>,
    faults: &FaultSet,
    queue: &Receiver<FixtureEvent>,
) -> Result<(), Error> {
    // The server holds a sender, so the queue ends only through an event.
    while let Ok(event) = queue.recv() {
        if let Some(exit) = server.shared.exit_request() {
            return Err(Error::Exit { code: exit.code });
        }
        match event {
            FixtureEvent::Line(_) if faults.contains(&FixtureFault::HangAtStart) => {}
            FixtureEvent::Line(line) => server.handle_line(&line),
            FixtureEvent::TooLong => return Err(Error::LineTooLong),
            FixtureEvent::End if faults.contains(&FixtureFault::IgnoresEof) => {}
            FixtureEvent::End => {
                server.drain(Duration::from_millis(DRAIN_MS_MAX));
                return match server.shared.exit_request() {
                    Some(exit) => Err(Error::Exit { code: exit.code }),
                    None => Ok(()),
                };
            }
            FixtureEvent::Wake => {}
        }
        if let Some(exit) = server.shared.exit_request() {
            return Err(Error::Exit { code: exit.code });
        }
    }
    Ok(())
}

/// Reads lines until the input ends; after `stops_after` messages, blocks for ever.
fn read_lines(input: impl Read, stops_after: Option<u64>, events: &SyncSender<FixtureEvent>) {
    let mut input = BufReader::new(input);
    let mut messages = 0;
    loop {
        if stops_after.is_some_and(|limit| messages >= limit) {
            // The input stays open: the client must see a full pipe, not a closed pipe.
            loop {
                thread::park();
            }
        }
        let mut line = Vec::new();
        let event = match input
            .by_ref()
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)
        {
            Ok(0) | Err(_) => FixtureEvent::End,
            Ok(_) if line.last() != Some(&b'\n') && line.len() as u64 >= LINE_BYTES_MAX => {
                FixtureEvent::TooLong
            }
            Ok(_) => FixtureEvent::Line(line),
        };
        let last = !matches!(event, FixtureEvent::Line(_));
        messages += 1;
        if events.send(event).is_err() || last {
            return;
        }
    }
}

/// Stdout of the process; dropping closes the pipe read by the client.
#[derive(Debug)]
struct ProcessStdout;

impl Write for ProcessStdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stdout().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}

impl Drop for ProcessStdout {
    fn drop(&mut self) {
        // No owned handle exists for descriptor 1, so the null device replaces the pipe.
        if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
            let _closed = rustix::stdio::dup2_stdout(null);
        }
    }
}
