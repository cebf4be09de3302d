//! The requests that one connection carries, by their streams, and what each may send.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bowline_core::error::Execution;
use bowline_core::flow::{Budget, Credit, FlowLimits, Window};
use bowline_core::ordered::{Crowded, Numbered, Ordered, Room, Taken, Unfit};
use bowline_core::sync::lock;
use bowline_link::executor::Voice;
use bowline_link::http::client::{Chunks, HttpError};
use bowline_wire::executor::{Asked, Fault, FaultCode, Frame};
use bytes::Bytes;
use tokio::sync::Notify;

/// Pieces of a request that wait to be sent on; more are joined.
const PIECES_MAX: usize = 256;

/// All requests of a connection.
#[derive(Debug)]
pub(super) struct Streams {
    table: Mutex<Table>,
    limits: FlowLimits,
    voice: Voice,
}

#[derive(Debug)]
struct Table {
    live: HashMap<u64, Arc<Stream>>,
    budget: Budget,
    /// Nothing more is taken.
    is_over: bool,
}

/// One request.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) number: u64,
    state: Mutex<State>,
    /// Wakes who performs it, when it is stopped.
    stopped: Notify,
}

#[derive(Debug)]
struct State {
    upload: Ordered<HttpError>,
    /// Absent once the stream is over.
    window: Option<Window>,
    /// What follows the body of the request.
    trailers: Bytes,
    /// Waits for more of the request.
    reader: Option<Waker>,
    credit: Credit,
    /// Waits for credit.
    writer: Option<Waker>,
    stopped: Option<Stopped>,
}

/// Why a request is not carried on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// Nobody wants it.
    Cancelled,
    /// This is told.
    Fault(Fault),
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// Too many are carried.
    Busy,
    /// Its number is in use.
    InUse,
    /// The connection is over.
    Over,
}

impl Streams {
    pub(super) fn new(limits: FlowLimits, voice: Voice) -> Self {
        let table = Table {
            live: HashMap::new(),
            budget: Budget::new(limits),
            is_over: false,
        };
        Self {
            table: Mutex::new(table),
            limits,
            voice,
        }
    }

    /// Takes a request on. Where its body may be longer than what every gateway may send at
    /// first, more is allowed at once.
    pub(super) fn open(&self, number: u64, asked: &Asked) -> Result<Arc<Stream>, NotTaken> {
        let mut table = lock(&self.table);
        if table.is_over {
            return Err(NotTaken::Over);
        }
        if table.live.contains_key(&number) {
            return Err(NotTaken::InUse);
        }
        let window = table.budget.open().ok_or(NotTaken::Busy)?;
        let more = window.size().saturating_sub(self.limits.floor());
        let room = Room {
            pieces_max: PIECES_MAX,
            bytes_max: usize::try_from(self.limits.stream_bytes_max).unwrap_or(usize::MAX),
            crowded: Crowded::Joins,
        };
        let state = State {
            upload: Ordered::new(Numbered::ByByte, room),
            window: Some(window),
            trailers: Bytes::new(),
            reader: None,
            credit: Credit::new(asked.credit),
            writer: None,
            stopped: None,
        };
        let stream = Arc::new(Stream {
            number,
            state: Mutex::new(state),
            stopped: Notify::new(),
        });
        table.live.insert(number, Arc::clone(&stream));
        drop(table);
        let is_short = asked
            .length
            .is_some_and(|bytes| bytes <= self.limits.floor());
        if more > 0 && !is_short {
            self.voice.say(&Frame::Credit {
                stream: number,
                bytes: more,
            });
        }
        Ok(stream)
    }

    /// Returns a request that is carried.
    pub(super) fn get(&self, number: u64) -> Option<Arc<Stream>> {
        lock(&self.table).live.get(&number).cloned()
    }

    /// Takes a request off the table, with its place, before its end is told.
    pub(super) fn close(&self, stream: &Stream) {
        let window = lock(&stream.state).window.take();
        let mut table = lock(&self.table);
        if let Some(window) = window {
            table.budget.close(&window);
            table.live.remove(&stream.number);
        }
    }

    /// Stops a request; its place is free at once.
    pub(super) fn stop(&self, stream: &Stream, why: Stopped) {
        self.close(stream);
        let mut state = lock(&stream.state);
        state.stopped.get_or_insert(why);
        drop(state);
        stream.stopped.notify_one();
    }

    /// Takes a piece of a request. A wrong one ends its stream and nothing else.
    pub(super) fn data(&self, stream: &Stream, offset: u64, bytes: Bytes) {
        let mut state = lock(&stream.state);
        let Some(window) = &mut state.window else {
            return;
        };
        let count = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let taken = match window.arrived(count) {
            Err(_overdrawn) => Err(Unfit::Overflow),
            Ok(()) => state.upload.push(offset, bytes),
        };
        let reader = state.reader.take();
        drop(state);
        self.taken(stream, taken);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Takes the end of a request.
    pub(super) fn end(&self, stream: &Stream, offset: u64, trailers: Bytes) {
        let mut state = lock(&stream.state);
        let expected = state.upload.next();
        let taken = match expected == offset {
            true => {
                state.trailers = trailers;
                state.upload.end();
                Ok(())
            }
            false => Err(Unfit::Order {
                expected,
                found: offset,
            }),
        };
        let reader = state.reader.take();
        drop(state);
        self.taken(stream, taken);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// A piece that has no place ends its stream: what is missing cannot be sent on.
    fn taken(&self, stream: &Stream, taken: Result<(), Unfit>) {
        let (code, reason) = match taken {
            Ok(()) | Err(Unfit::Late) => return,
            Err(Unfit::Overflow) => (FaultCode::Overflow, "more came than was allowed"),
            Err(Unfit::Order { .. }) => (FaultCode::Order, "a piece of the request has no place"),
        };
        let fault = Fault {
            code,
            execution: Execution::Unknown,
            reason: reason.into(),
        };
        self.stop(stream, Stopped::Fault(fault));
    }

    /// Notes that so much of a request was sent on; the gateway may then send more.
    fn read(&self, stream: &Stream, state: &mut State, bytes: usize) {
        let Some(window) = &mut state.window else {
            return;
        };
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let more = lock(&self.table).budget.read(window, bytes);
        // Who has sent all of it needs no more.
        if let Some(bytes) = more
            && !state.upload.is_over()
        {
            self.voice.say(&Frame::Credit {
                stream: stream.number,
                bytes,
            });
        }
    }

    /// The connection is over, or is to be: all are stopped, and no more are taken.
    pub(super) fn clear(&self, why: &Stopped) {
        let mut table = lock(&self.table);
        table.is_over = true;
        let live: Vec<_> = table.live.values().cloned().collect();
        drop(table);
        for stream in live {
            self.stop(&stream, why.clone());
        }
    }

    /// Returns how many there are.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        lock(&self.table).live.len()
    }
}

impl Stream {
    /// Adds what the gateway takes more of the answer.
    pub(super) fn credit(&self, bytes: u64) {
        let mut state = lock(&self.state);
        state.credit.add(bytes);
        if let Some(writer) = state.writer.take() {
            writer.wake();
        }
    }

    /// Returns how much of the answer may be sent now, once that is something.
    pub(super) fn poll_credit(&self, cx: &mut Context<'_>) -> Poll<u64> {
        let mut state = lock(&self.state);
        match state.credit.left() {
            0 => {
                state.writer = Some(cx.waker().clone());
                Poll::Pending
            }
            left => Poll::Ready(left),
        }
    }

    /// Takes as much of what may be sent as is wanted.
    pub(super) fn take_credit(&self, wanted: usize) -> usize {
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        let taken = lock(&self.state).credit.take(wanted);
        usize::try_from(taken).unwrap_or(usize::MAX)
    }

    /// Waits until it is stopped.
    pub(super) async fn stopped(&self) -> Stopped {
        loop {
            if let Some(why) = lock(&self.state).stopped.clone() {
                return why;
            }
            // A permit is kept where it is stopped between these two.
            self.stopped.notified().await;
        }
    }
}

/// The body of a request, as it comes from the gateway.
#[derive(Debug)]
pub(super) struct Arriving {
    pub(super) streams: Arc<Streams>,
    pub(super) stream: Arc<Stream>,
}

impl Chunks for Arriving {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        let mut state = lock(&self.stream.state);
        match state.upload.take() {
            Some(Taken::Piece(piece)) => {
                self.streams.read(&self.stream, &mut state, piece.len());
                Poll::Ready(Some(Ok(piece)))
            }
            Some(Taken::End) => Poll::Ready(None),
            Some(Taken::Broken(error)) => Poll::Ready(Some(Err(error))),
            None => {
                state.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn trailers(&mut self) -> Bytes {
        std::mem::take(&mut lock(&self.stream.state).trailers)
    }
}
