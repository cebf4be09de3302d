//! A server that an executor runs for us: its streams and its end.
//!
//! A connection that is lost does not end it. What was written to it is kept until it surely came,
//! and both directions go on where they were cut, in the middle of a line if need be.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bowline_core::ordered::Taken;
use bowline_core::resume::{AGAIN_BYTES_MAX, Receiving, Sending};
use bowline_core::sync::lock;
use bowline_wire::executor::{
    self, DATA_BYTES_MAX, Fault, FaultCode, Frame, Mark, SERVER_WINDOW_BYTES,
};
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::exits;
use super::session::{Cut, Session, Stream, Took};
use super::voice::Voice;
use crate::link::Exit;
use crate::websocket::Ended;

mod ends;
mod start;

pub use ends::{Distant, Stderr, Stdin, Stdout};

/// What of its stderr waits to be read; more is thrown away.
const STDERR_BYTES_MAX: usize = 256 * 1024;

/// One server, as its session knows it.
#[derive(Debug)]
struct Running {
    number: u64,
    session: Arc<Session>,
    state: Mutex<State>,
    /// Follows `State`, for those who wait.
    standing: watch::Sender<Standing>,
}

#[derive(Debug)]
struct State {
    /// What is said over the connection, while there is one.
    voice: Option<Voice>,
    stdin: Sending,
    stdin_waker: Option<Waker>,
    /// Nothing more is written.
    is_stdin_closed: bool,
    stdout: Receiving<()>,
    stdout_waker: Option<Waker>,
    stderr: VecDeque<Bytes>,
    /// Invariant: the sum of the lengths in `stderr`.
    stderr_bytes: usize,
    stderr_waker: Option<Waker>,
    pid: u32,
    /// It was told to go: at once, or in order.
    stop: Option<AtOnce>,
    is_over: bool,
    /// Its place among the streams that the executor takes.
    place: Option<OwnedSemaphorePermit>,
}

/// Whether a server is to go at once.
type AtOnce = bool;

/// How far a server has come.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Standing {
    /// Whether there is a connection.
    is_connected: bool,
    stage: Stage,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// It was asked for.
    Asked,
    /// It runs.
    Runs,
    /// It is over.
    Over(Exit, Option<Fault>),
}

impl Running {
    fn new(
        number: u64,
        session: Arc<Session>,
        (voice, place): (Voice, OwnedSemaphorePermit),
    ) -> Self {
        Self {
            number,
            session,
            state: Mutex::new(State {
                voice: Some(voice),
                stdin: Sending::new(SERVER_WINDOW_BYTES),
                stdin_waker: None,
                is_stdin_closed: false,
                stdout: Receiving::new(SERVER_WINDOW_BYTES),
                stdout_waker: None,
                stderr: VecDeque::new(),
                stderr_bytes: 0,
                stderr_waker: None,
                pid: 0,
                stop: None,
                is_over: false,
                place: Some(place),
            }),
            standing: watch::Sender::new(Standing {
                is_connected: true,
                stage: Stage::Asked,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn say(&self, state: &State, frame: &Frame) {
        // Without a connection it is said when there is one again.
        if let Some(voice) = &state.voice {
            voice.say(frame);
        }
    }

    /// Ends it; the first end counts. What came before is still read.
    fn end(&self, exit: Exit, fault: Option<Fault>) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.is_over, true) {
            return;
        }
        state.stdout.fail(());
        state.place = None;
        // The executor keeps nothing of it any more.
        let stream = self.number;
        self.say(&state, &Frame::Cancel { stream });
        state.voice = None;
        let wakers = [
            state.stdin_waker.take(),
            state.stdout_waker.take(),
            state.stderr_waker.take(),
        ];
        self.standing
            .send_modify(|standing| standing.stage = Stage::Over(exit, fault));
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Writes as much as the executor takes now.
    fn poll_write(&self, cx: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.lock();
        if state.is_over || state.is_stdin_closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = usize::try_from(state.stdin.room()).unwrap_or(usize::MAX);
        let count = bytes.len().min(room).min(DATA_BYTES_MAX);
        let piece = bytes.get(..count).unwrap_or_default();
        if piece.is_empty() && !bytes.is_empty() {
            state.stdin_waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let place = state.stdin.push(piece);
        if let Some(voice) = &state.voice {
            voice.put(executor::data(self.number, place, piece));
        }
        Poll::Ready(Ok(piece.len()))
    }

    /// Closes its stdin.
    fn close_stdin(&self) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.is_stdin_closed, true) && !state.is_over {
            let frame = self.stdin_end(&state);
            self.say(&state, &frame);
        }
    }

    fn stdin_end(&self, state: &State) -> Frame {
        Frame::End {
            stream: self.number,
            offset: state.stdin.sent(),
            trailers: Bytes::new(),
        }
    }

    /// Returns the next piece of its output; nothing at the end.
    fn poll_stdout(&self, cx: &Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.lock();
        let Some((taken, more)) = state.stdout.take() else {
            state.stdout_waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        if let Some(bytes) = more {
            let stream = self.number;
            self.say(&state, &Frame::Credit { stream, bytes });
        }
        match taken {
            Taken::Piece(piece) => Poll::Ready(Some(piece)),
            Taken::End | Taken::Broken(()) => Poll::Ready(None),
        }
    }

    /// Returns the next piece of its stderr; nothing at the end.
    fn poll_stderr(&self, cx: &Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.lock();
        if let Some(piece) = state.stderr.pop_front() {
            state.stderr_bytes -= piece.len();
            return Poll::Ready(Some(piece));
        }
        if state.is_over {
            return Poll::Ready(None);
        }
        state.stderr_waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Tells it to go. The haste only grows.
    fn stop(&self, at_once: AtOnce) {
        let mut state = self.lock();
        if state.is_over || state.stop.is_some_and(|so| so || !at_once) {
            return;
        }
        state.stop = Some(at_once);
        let stream = self.number;
        self.say(&state, &Frame::Stop { stream, at_once });
    }

    /// Takes output; returns whether it was fit.
    fn arrived(&self, place: u64, bytes: Bytes) -> bool {
        let mut state = self.lock();
        let is_fit = state.stdout.push(place, bytes).is_ok();
        let waker = state.stdout_waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        is_fit
    }

    fn ended(&self, place: u64) -> bool {
        let mut state = self.lock();
        let is_fit = state.stdout.end(place).is_ok();
        let waker = state.stdout_waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        is_fit
    }

    fn said(&self, bytes: Bytes) {
        let mut state = self.lock();
        if state.is_over || state.stderr_bytes + bytes.len() > STDERR_BYTES_MAX {
            return;
        }
        state.stderr_bytes += bytes.len();
        state.stderr.push_back(bytes);
        let waker = state.stderr_waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    fn credited(&self, bytes: u64) {
        let mut state = self.lock();
        state.stdin.credited(bytes);
        let waker = state.stdin_waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    fn started(&self, pid: u32) {
        self.lock().pid = pid;
        self.standing.send_if_modified(|standing| {
            let is_news = standing.stage == Stage::Asked;
            if is_news {
                standing.stage = Stage::Runs;
            }
            is_news
        });
    }
}

impl Stream for Running {
    fn take(&self, frame: Frame, _voice: &Voice) -> Took {
        let is_fit = match frame {
            Frame::Started { pid, .. } => {
                self.started(pid);
                true
            }
            Frame::Data { offset, bytes, .. } => self.arrived(offset, bytes),
            Frame::End { offset, .. } => self.ended(offset),
            Frame::Credit { bytes, .. } => {
                self.credited(bytes);
                true
            }
            Frame::Stderr { bytes, .. } => {
                self.said(bytes);
                true
            }
            Frame::Exited { exited, .. } => {
                self.end(exits::exit(&exited), None);
                return Took::Over;
            }
            Frame::Failed { fault, .. } => {
                let exit = match fault.code {
                    FaultCode::Closing => Exit::Away,
                    _ => Exit::Gone,
                };
                self.end(exit, Some(fault));
                return Took::Over;
            }
            // Not for servers.
            _ => true,
        };
        if is_fit {
            return Took::More;
        }
        tracing::warn!(stream = self.number, "the output of a server has a gap");
        self.end(Exit::Gone, None);
        Took::Over
    }

    fn cut(&self, _ended: &Ended) -> Cut {
        let mut state = self.lock();
        if state.is_over {
            return Cut::Over;
        }
        state.voice = None;
        // Its place was one on that connection.
        state.place = None;
        self.standing
            .send_modify(|standing| standing.is_connected = false);
        Cut::Waits
    }

    fn mark(&self) -> Option<Mark> {
        let mut state = self.lock();
        if state.is_over {
            return None;
        }
        let (received, credit) = state.stdout.mark();
        Some(Mark {
            stream: self.number,
            received,
            credit,
        })
    }

    fn resume(&self, mark: &Mark, voice: &Voice) {
        let mut state = self.lock();
        if state.is_over {
            return;
        }
        state.voice = Some(voice.clone());
        if state.stdin.resume(mark.received, mark.credit).is_err() {
            drop(state);
            tracing::warn!(stream = self.number, "the input of a server has a gap");
            return self.gone("it lacks what is not kept any more");
        }
        for (place, piece) in state.stdin.pieces(AGAIN_BYTES_MAX) {
            voice.put(executor::data(self.number, place, &piece));
        }
        let stream = self.number;
        if state.is_stdin_closed {
            voice.say(&self.stdin_end(&state));
        }
        if let Some(at_once) = state.stop {
            voice.say(&Frame::Stop { stream, at_once });
        }
        if let Some(bytes) = state.stdout.resumed() {
            voice.say(&Frame::Credit { stream, bytes });
        }
        self.standing
            .send_modify(|standing| standing.is_connected = true);
        let waker = state.stdin_waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    fn gone(&self, _reason: &str) {
        self.end(Exit::Away, None);
    }
}
