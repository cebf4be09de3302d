//! A test MCP server that behaves well, or badly in exactly the way a test asks for.

mod answers;
mod asking;
mod clock;
mod common;
mod content;
mod era;
mod faults;
mod http;
mod jobs;
mod ledger;
mod listen;
mod modern;
mod outlet;
mod output;
mod prompts;
mod protocol;
mod resources;
mod rounds;
mod session;
mod stateless;
mod tasks;
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

pub use era::{Era, ParseEraError};
pub use faults::{Fault, ParseFaultError, Redirect};
pub use tools::{ParseToolsetError, Toolset};

use common::Common;
use faults::Faults;
use http::Transport;
use output::Output;
use protocol::Server;

/// Longest line a client may send.
const LINE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Lines read ahead of the one being handled.
const EVENTS_MAX: usize = 64;
/// How long calls may still finish after the client closed its side.
const DRAIN_MS_MAX: u64 = 1_000;

/// Command line of `bowline fixture`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Tools to offer: `conformance`, `demo`, `writes` or `many=N`
    #[arg(long, value_name = "SET", default_value = "conformance")]
    pub toolset: Toolset,
    /// Misbehave on purpose; may be given several times, and an unknown NAME lists them all
    #[arg(long = "fault", value_name = "NAME[=ARG]")]
    pub faults: Vec<Fault>,
    /// Serve streamable HTTP at `/mcp` of this address, not stdin and stdout; prints its URL
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "http_sse")]
    pub http: Option<SocketAddr>,
    /// Serve the older HTTP+SSE transport at `/sse` of this address; prints its URL
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub http_sse: Option<SocketAddr>,
    /// Era of the protocol to speak: `legacy` (up to 2025-11-25), `modern` (2026-07-28) or `both`
    #[arg(long, value_name = "ERA", default_value = "legacy")]
    pub era: Era,
    /// Append each execution of `effect`, `write_once` and `write_again` to this file
    #[arg(long, value_name = "FILE")]
    pub ledger: Option<PathBuf>,
}

/// What the fixture offers and how it misbehaves.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The tools, prompts and resources on offer.
    pub toolset: Toolset,
    /// The era of the protocol that it speaks.
    pub era: Era,
    /// The ways in which it misbehaves.
    pub faults: Vec<Fault>,
    /// Where executions of `effect` are recorded besides memory.
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

/// Why the fixture stopped other than by the client closing its side.
#[derive(Debug, Error)]
pub enum Error {
    /// A tool or a fault asked for this exit; the process should end with the code at once.
    #[error("the fixture was told to exit with code {code}")]
    Exit {
        /// The exit code asked for.
        code: u8,
    },
    /// The client sent a line longer than the fixture holds.
    #[error("a line is longer than {LINE_BYTES_MAX} bytes")]
    LineTooLong,
    /// The ledger file cannot be opened for appending.
    #[error("cannot open the ledger `{}`", path.display())]
    Ledger {
        /// The file named by the options.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A fault could not be set up.
    #[error("cannot set up the fault `{fault}`")]
    Fault {
        /// The fault's name.
        fault: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// What reads could not start.
    #[error("cannot start the reader")]
    Reader(#[source] io::Error),
    /// The address cannot be served.
    #[error("cannot serve `{address}`")]
    Listen {
        /// The address as asked for.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Serves as the arguments say: on the process's own stdin and stdout until the client closes
/// stdin, or over HTTP until a signal.
///
/// # Errors
/// As [`run`], and when the address cannot be served; on [`Error::Exit`] the caller ends the
/// process with that code.
pub fn serve(args: Args) -> Result<(), Error> {
    let streamable = args.http.map(|address| (Transport::Streamable, address));
    let sse = args.http_sse.map(|address| (Transport::Sse, address));
    match streamable.or(sse) {
        Some(place) => {
            let options = Options::from(args);
            let faults = options.faults.clone();
            let stop = async move || http::signalled(&faults).await;
            http::serve(options, place, io::stdout(), stop)
        }
        None => run(args.into(), io::stdin(), Stdout),
    }
}

/// Serves one client on a pair of byte streams until `input` ends.
///
/// # Errors
/// When a fault or a tool asks for an exit, or the fixture cannot be set up.
pub fn run(
    options: Options,
    input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
) -> Result<(), Error> {
    let faults = Faults::new(options.faults.clone());
    faults.before_start()?;
    let (events, queue) = mpsc::sync_channel(EVENTS_MAX);
    let output = Output::new(output, faults.clone());
    let waker = events.clone();
    // A full queue wakes the loop just as well.
    let wake = move || drop(waker.try_send(Event::Wake));
    let common = Common::new(options, faults.clone(), wake)?;
    let server = Server::new(Arc::new(common), output);
    let reading = faults.stops_reading();
    thread::Builder::new()
        .name("fixture-reader".to_owned())
        .spawn(move || read(input, reading, &events))
        .map_err(Error::Reader)?;
    serve_queue(&Arc::new(server), &faults, &queue)
}

/// What the reader and the calls tell the loop.
#[derive(Debug)]
enum Event {
    /// One line from the client, without its end.
    Line(Vec<u8>),
    /// The client closed its side.
    End,
    /// The client sent a line that is too long.
    TooLong,
    /// A call asked for an exit.
    Wake,
}

fn serve_queue(
    server: &Arc<Server>,
    faults: &Faults,
    queue: &Receiver<Event>,
) -> Result<(), Error> {
    // The server holds a sender, so the queue ends only through an event.
    while let Ok(event) = queue.recv() {
        if let Some(exit) = server.common.exit() {
            return Err(Error::Exit { code: exit.code });
        }
        match event {
            Event::Line(_) if faults.has(&Fault::HangAtStart) => {}
            Event::Line(line) => server.handle(&line),
            Event::TooLong => return Err(Error::LineTooLong),
            Event::End if faults.has(&Fault::IgnoresEof) => {}
            Event::End => {
                server.drain(Duration::from_millis(DRAIN_MS_MAX));
                return match server.common.exit() {
                    Some(exit) => Err(Error::Exit { code: exit.code }),
                    None => Ok(()),
                };
            }
            Event::Wake => {}
        }
        if let Some(exit) = server.common.exit() {
            return Err(Error::Exit { code: exit.code });
        }
    }
    Ok(())
}

/// Reads lines until the input ends, or for ever stops after `stops_after` messages.
fn read(input: impl Read, stops_after: Option<u64>, events: &SyncSender<Event>) {
    let mut input = BufReader::new(input);
    let mut messages = 0;
    loop {
        if stops_after.is_some_and(|limit| messages >= limit) {
            // The input stays open: the client must see a full pipe, not a closed one.
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
            Ok(0) | Err(_) => Event::End,
            Ok(_) if line.last() != Some(&b'\n') && line.len() as u64 >= LINE_BYTES_MAX => {
                Event::TooLong
            }
            Ok(_) => Event::Line(line),
        };
        let last = !matches!(event, Event::Line(_));
        messages += 1;
        if events.send(event).is_err() || last {
            return;
        }
    }
}

/// The process's stdout; dropping it closes the pipe that the client reads.
#[derive(Debug)]
struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stdout().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}

impl Drop for Stdout {
    fn drop(&mut self) {
        // Nothing owns descriptor 1, so it is closed by putting the null device in its place.
        if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
            let _closed = rustix::stdio::dup2_stdout(null);
        }
    }
}
