//! One server that runs here: what is between its streams and the gateway.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard};
use std::task::{Poll, Waker};

use bowline_core::ordered::Taken;
use bowline_core::resume::{AGAIN_BYTES_MAX, Receiving, Sending};
use bowline_core::sync::lock;
use bowline_link::Exit;
use bowline_link::executor::{Voice, exited};
use bowline_wire::executor::{self, DATA_BYTES_MAX, Fault, Frame, Mark, SERVER_WINDOW_BYTES};
use bytes::Bytes;
use tokio::sync::watch;

use super::closing;

/// What of its stderr is kept for a gateway that does not take it now; older pieces are dropped.
const STDERR_BYTES_MAX: usize = 64 * 1024;

/// A server, as its session knows it.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) stream: u64,
    state: Mutex<State>,
    /// How it is to go, for who keeps it.
    haste: watch::Sender<Haste>,
}

/// How a server is to go. Later ones count for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Haste {
    /// Not at all.
    None,
    /// With time to finish.
    InOrder,
    /// At once.
    AtOnce,
    /// At once, and nobody is told.
    Forgotten,
}

/// The last word on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Last {
    Exited(Exit),
    Failed(Fault),
}

#[derive(Debug)]
struct State {
    /// What is said over the connection, while there is one.
    voice: Option<Voice>,
    pid: Option<u32>,
    stdin: Receiving<()>,
    stdin_waker: Option<Waker>,
    stdout: Sending,
    stdout_waker: Option<Waker>,
    is_stdout_over: bool,
    stderr: VecDeque<Bytes>,
    /// Invariant: the sum of the lengths in `stderr`.
    stderr_bytes: usize,
    last: Option<Last>,
}

impl Served {
    /// Returns a server that was asked for; the gateway takes so many bytes of its output.
    pub(super) fn new(stream: u64, credit: u64, voice: Voice) -> Self {
        Self {
            stream,
            state: Mutex::new(State {
                voice: Some(voice),
                pid: None,
                stdin: Receiving::new(SERVER_WINDOW_BYTES),
                stdin_waker: None,
                // What is kept of it is bounded here, whatever a gateway says.
                stdout: Sending::new(credit.min(SERVER_WINDOW_BYTES)),
                stdout_waker: None,
                is_stdout_over: false,
                stderr: VecDeque::new(),
                stderr_bytes: 0,
                last: None,
            }),
            haste: watch::Sender::new(Haste::None),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Goes on from where the gateway is. Returns how far we are; nothing where it lacks what is
    /// not kept any more.
    pub(super) fn resume(&self, mark: &Mark) -> Option<Mark> {
        let mut state = self.lock();
        state.stdout.resume(mark.received, mark.credit).ok()?;
        let (received, credit) = state.stdin.mark();
        Some(Mark {
            stream: self.stream,
            received,
            credit,
        })
    }

    /// Says all that the gateway may have missed.
    pub(super) fn attach(&self, voice: &Voice) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let stream = self.stream;
        state.voice = Some(voice.clone());
        if let Some(pid) = state.pid {
            voice.say(&Frame::Started { stream, pid });
        }
        for (place, piece) in state.stdout.pieces(AGAIN_BYTES_MAX) {
            voice.put(executor::data(stream, place, &piece));
        }
        if let Some(bytes) = state.stdin.resumed() {
            voice.say(&Frame::Credit { stream, bytes });
        }
        self.flush_stderr(state);
        if state.is_stdout_over {
            voice.say(&self.stdout_end(state));
        }
        if let Some(last) = &state.last {
            voice.say(&self.last_word(last));
        }
        let waker = state.stdout_waker.take();
        drop(guard);
        waker.into_iter().for_each(Waker::wake);
    }

    pub(super) fn detach(&self) {
        self.lock().voice = None;
    }

    /// Takes input.
    pub(super) fn arrived(&self, place: u64, bytes: Bytes) {
        let mut state = self.lock();
        let is_fit = state.stdin.push(place, bytes).is_ok();
        self.input(state, is_fit);
    }

    /// Nothing more comes as input.
    pub(super) fn closed(&self, place: u64) {
        let mut state = self.lock();
        let is_fit = state.stdin.end(place).is_ok();
        self.input(state, is_fit);
    }

    fn input(&self, mut state: MutexGuard<'_, State>, is_fit: bool) {
        if !is_fit {
            state.stdin.fail(());
        }
        let waker = state.stdin_waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        if !is_fit {
            tracing::warn!(stream = self.stream, "the input of a server has a gap");
            self.stop(Haste::AtOnce);
        }
    }

    /// The gateway takes more output.
    pub(super) fn credited(&self, bytes: u64) {
        let mut state = self.lock();
        state.stdout.credited(bytes);
        let waker = state.stdout_waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// It is to go. The haste only grows.
    pub(super) fn stop(&self, haste: Haste) {
        self.haste.send_if_modified(|now| {
            let is_more = haste > *now;
            *now = haste.max(*now);
            is_more
        });
        if haste == Haste::Forgotten {
            let mut state = self.lock();
            state.voice = None;
            let waker = state.stdout_waker.take();
            drop(state);
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// Waits until it is to go, at least so fast.
    pub(super) async fn hurried(&self, least: Haste) {
        let mut haste = self.haste.subscribe();
        // The sender is ours, so the channel cannot close under us.
        let _ = haste.wait_for(|now| *now >= least).await;
    }

    /// It runs.
    pub(super) fn started(&self, pid: u32) {
        let mut state = self.lock();
        state.pid = Some(pid);
        let stream = self.stream;
        say(&state, &Frame::Started { stream, pid });
    }

    /// Returns the next piece of input, and gives room for more; nothing at the end.
    pub(super) async fn input_piece(&self) -> Option<Bytes> {
        poll_fn(|cx| {
            let mut state = self.lock();
            let Some((taken, more)) = state.stdin.take() else {
                state.stdin_waker = Some(cx.waker().clone());
                return Poll::Pending;
            };
            if let Some(bytes) = more {
                let stream = self.stream;
                say(&state, &Frame::Credit { stream, bytes });
            }
            match taken {
                Taken::Piece(piece) => Poll::Ready(Some(piece)),
                Taken::End | Taken::Broken(()) => Poll::Ready(None),
            }
        })
        .await
    }

    /// Waits until output is taken; returns how much, and nothing where nobody will.
    pub(super) async fn output_room(&self) -> usize {
        poll_fn(|cx| {
            let mut state = self.lock();
            if *self.haste.borrow() == Haste::Forgotten {
                return Poll::Ready(0);
            }
            match usize::try_from(state.stdout.room()).unwrap_or(usize::MAX) {
                0 => {
                    state.stdout_waker = Some(cx.waker().clone());
                    Poll::Pending
                }
                room => Poll::Ready(room.min(DATA_BYTES_MAX)),
            }
        })
        .await
    }

    /// Whether output waits for the gateway to take it.
    pub(super) fn is_output_held(&self) -> bool {
        let state = self.lock();
        !state.is_stdout_over && state.stdout.room() == 0
    }

    /// Sends output, of which there is room for all.
    pub(super) fn output(&self, bytes: &[u8]) {
        let mut state = self.lock();
        let place = state.stdout.push(bytes);
        if let Some(voice) = &state.voice {
            voice.put(executor::data(self.stream, place, bytes));
        }
    }

    /// No more output comes.
    pub(super) fn output_over(&self) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.is_stdout_over, true) {
            let frame = self.stdout_end(&state);
            say(&state, &frame);
        }
    }

    /// Sends what it says beside, as far as there is room.
    pub(super) fn stderr(&self, bytes: &[u8]) {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.stderr_bytes += bytes.len();
        state.stderr.push_back(Bytes::copy_from_slice(bytes));
        while state.stderr_bytes > STDERR_BYTES_MAX
            && let Some(oldest) = state.stderr.pop_front()
        {
            state.stderr_bytes -= oldest.len();
        }
        self.flush_stderr(state);
    }

    fn flush_stderr(&self, state: &mut State) {
        let (Some(voice), stream) = (&state.voice, self.stream) else {
            return;
        };
        while let Some(bytes) = state.stderr.pop_front() {
            let frame = Frame::Stderr {
                stream,
                bytes: bytes.clone(),
            };
            if voice.offer(frame.to_bytes()).is_err() {
                return state.stderr.push_front(bytes);
            }
            state.stderr_bytes -= bytes.len();
        }
    }

    /// Says the last word, which is kept until the gateway has heard it.
    pub(super) fn end(&self, last: Last) {
        let mut guard = self.lock();
        let state = &mut *guard;
        self.flush_stderr(state);
        say(state, &self.last_word(&last));
        state.last = Some(last);
    }

    /// Says that nothing more will be said, to whoever is connected.
    pub(super) fn farewell(&self) {
        let state = self.lock();
        if state.last.is_none() {
            say(&state, &self.last_word(&Last::Failed(closing())));
        }
    }

    fn last_word(&self, last: &Last) -> Frame {
        let stream = self.stream;
        match last {
            Last::Exited(exit) => Frame::Exited {
                stream,
                exited: exited(*exit),
            },
            Last::Failed(fault) => Frame::Failed {
                stream,
                fault: fault.clone(),
            },
        }
    }

    fn stdout_end(&self, state: &State) -> Frame {
        Frame::End {
            stream: self.stream,
            offset: state.stdout.sent(),
            trailers: Bytes::new(),
        }
    }
}

/// Says something; without a connection it is said when there is one again.
fn say(state: &State, frame: &Frame) {
    if let Some(voice) = &state.voice {
        voice.say(frame);
    }
}
