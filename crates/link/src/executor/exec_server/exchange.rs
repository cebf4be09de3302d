//! One exchange over HTTP that an exec-server performs: its answer, and the pieces of its body.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bowline_core::error::{Class, Execution, Failure, Origin, Retry};
use bowline_core::ordered::{Crowded, Numbered, Ordered, Room, Taken, Unfit};
use bowline_core::sync::lock;
use bowline_wire::FrameError;
use bowline_wire::execserver::{Answered, Delta, Refusal, code};
use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::executor::faults::{self, EXECUTOR_REFUSED};
use crate::executor::waiter::{Awaited, Waiter, wake};
use crate::http::client::HttpError;
use crate::http::clock;
use crate::websocket::Ended;

/// Pieces of one answer that wait to be read; more are joined to the last one.
const PIECES_MAX: usize = 256;

/// Bytes of all answers of a connection that wait to be read. While there are so many, the socket
/// is not read.
const CONNECTION_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Bytes of one answer that wait while its reader has stopped to read.
const STALLED_BYTES_MAX: usize = 1024 * 1024;

/// How long a reader may not read, and how long slow reading may hold up other answers of the
/// connection.
const STALL_MAX: Duration = Duration::from_secs(2);

/// How long a reader that seems to have stopped is waited for: the whole process may have stood
/// still.
pub(super) const READ_GRACE: Duration = Duration::from_millis(100);

/// How the body of an answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// In pieces.
    Streamed,
    /// With the answer.
    Whole,
}

/// Whether more may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Took {
    More,
    Over,
    /// Nothing was taken, because the connection holds as many bytes as it may.
    NoRoom,
    /// Nothing was taken, because its reader seems to have stopped.
    Stalled,
}

/// Bytes that wait to be read on one connection.
#[derive(Debug, Default)]
pub(super) struct Budget {
    waiting_bytes: AtomicUsize,
    /// Rung when bytes were given back.
    given_back: Notify,
}

impl Budget {
    fn take(&self, bytes: usize) -> bool {
        let add = |waiting: usize| {
            let sum = waiting.checked_add(bytes)?;
            (sum <= CONNECTION_BYTES_MAX).then_some(sum)
        };
        let order = Ordering::Relaxed;
        self.waiting_bytes.fetch_update(order, order, add).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.given_back.notify_one();
        }
    }

    /// Waits until bytes are given back; `false` where none were in time.
    pub(super) async fn wait_until(&self, deadline: Instant) -> bool {
        timeout_at(deadline, self.given_back.notified())
            .await
            .is_ok()
    }
}

/// One exchange, from the side of whoever waits for it.
#[derive(Debug)]
pub(super) struct Exchange {
    stream: u64,
    budget: Arc<Budget>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    head: Head,
    body: Ordered<HttpError>,
    /// Nobody reads it any more.
    is_left: bool,
    /// Since when something waits of which nothing was read.
    unread_since: Instant,
    /// How long other answers were held up for this one since its reader last caught up.
    held_up: Duration,
    /// Who waits, for the head or for the next piece.
    waiter: Waiter,
}

#[derive(Debug)]
enum Head {
    Awaited,
    Here(Result<Bytes, HttpError>),
    Taken,
}

impl Exchange {
    pub(super) fn new(stream: u64, budget: Arc<Budget>) -> Self {
        let room = Room {
            pieces_max: PIECES_MAX,
            bytes_max: CONNECTION_BYTES_MAX,
            crowded: Crowded::Joins,
        };
        let state = State {
            head: Head::Awaited,
            body: Ordered::new(Numbered::ByPiece, room),
            is_left: false,
            unread_since: clock::now(),
            held_up: Duration::ZERO,
            waiter: Waiter::default(),
        };
        Self {
            stream,
            budget,
            state: Mutex::new(state),
        }
    }

    /// Returns the number of its stream; 0 where it has none.
    pub(super) const fn stream(&self) -> u64 {
        self.stream
    }

    /// Waits for the answer.
    pub(super) async fn head(&self) -> Result<Answered, HttpError> {
        let answer = poll_fn(|cx| {
            let mut state = lock(&self.state);
            match std::mem::replace(&mut state.head, Head::Taken) {
                Head::Here(answer) => Poll::Ready(answer),
                Head::Awaited | Head::Taken => {
                    state.head = Head::Awaited;
                    state.waiter.wait(cx)
                }
            }
        });
        let answer = answer.await?;
        Answered::read(&answer).map_err(|error| HttpError::Head(error.to_string().into()))
    }

    /// Returns the body where all of it is here in one piece.
    pub(super) fn whole(&self) -> Option<Bytes> {
        let whole = lock(&self.state).body.take_whole()?;
        self.budget.give_back(whole.len());
        Some(whole)
    }

    /// Returns the next piece of the body.
    pub(super) fn poll_chunk(&self, cx: &Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        let mut state = lock(&self.state);
        match state.body.take() {
            Some(Taken::Piece(piece)) => {
                state.unread_since = clock::now();
                if state.body.waiting_bytes() == 0 {
                    state.held_up = Duration::ZERO;
                }
                drop(state);
                self.budget.give_back(piece.len());
                Poll::Ready(Some(Ok(piece)))
            }
            Some(Taken::End) => Poll::Ready(None),
            Some(Taken::Broken(cause)) => Poll::Ready(Some(Err(cause))),
            None => state.waiter.wait(cx),
        }
    }

    /// Nobody waits any more: what is here is thrown away, and nothing more is kept.
    pub(super) fn leave(&self) {
        let mut state = lock(&self.state);
        state.is_left = true;
        let waiting = state.body.waiting_bytes();
        while let Some(Taken::Piece(_)) = state.body.take() {}
        drop(state);
        self.budget.give_back(waiting);
    }

    /// Takes the answer, or that there is none.
    pub(super) fn answer(&self, answer: Result<Bytes, Refusal>) {
        let mut state = lock(&self.state);
        if let Head::Awaited = state.head {
            state.head = Head::Here(answer.map_err(|refusal| refused(&refusal)));
        }
        wake(state);
    }

    /// Takes a piece of the body. The error is that of a peer that does not keep to the wire.
    pub(super) fn take(&self, delta: &Delta<'_>) -> Result<Took, FrameError> {
        let mut state = lock(&self.state);
        if state.is_left || state.body.is_over() {
            return Ok(Took::Over);
        }
        if state.is_stalled(clock::now()) {
            return Ok(Took::Stalled);
        }
        if let Err(unfit) = self.piece(&mut state, delta)? {
            if unfit == Unfit::Overflow {
                return Ok(Took::NoRoom);
            }
            let cause = self.unfit(unfit);
            state.body.fail(cause);
        } else if let Some(error) = &delta.error {
            let reason = format!("the answer `http-{}` broke off: {error}", self.stream);
            state.body.fail(HttpError::Lost(reason.into()));
        } else if delta.is_done {
            state.body.end();
        }
        let took = match state.body.is_over() {
            true => Took::Over,
            false => Took::More,
        };
        wake(state);
        Ok(took)
    }

    fn piece(&self, state: &mut State, delta: &Delta<'_>) -> Result<Result<(), Unfit>, FrameError> {
        let body = &mut state.body;
        let (expected, found) = (body.next(), delta.seq);
        if expected != found {
            return Ok(Err(Unfit::Order { expected, found }));
        }
        if delta.is_empty() && (delta.is_done || delta.error.is_some()) {
            // An end takes no place.
            return Ok(Ok(()));
        }
        // Nothing is decoded for which there is no room.
        let bytes = delta.len();
        if !self.budget.take(bytes) {
            return Ok(Err(Unfit::Overflow));
        }
        if body.waiting_bytes() == 0 {
            state.unread_since = clock::now();
        }
        let pushed = delta.decode().map(|piece| body.push(found, piece));
        if !matches!(pushed, Ok(Ok(()))) {
            self.budget.give_back(bytes);
        }
        pushed
    }

    /// Returns how many bytes wait to be read.
    pub(super) fn waiting_bytes(&self) -> usize {
        lock(&self.state).body.waiting_bytes()
    }

    /// Whether its reader seems to have stopped.
    pub(super) fn is_stalled(&self) -> bool {
        lock(&self.state).is_stalled(clock::now())
    }

    /// Returns when it will not have been read for too long.
    pub(super) fn stalls_at(&self) -> Instant {
        lock(&self.state).unread_since + STALL_MAX
    }

    /// Notes that other answers were held up for this one; returns whether that was for too long.
    /// One wait counts no more than the grace, however long the process stood still in it.
    pub(super) fn hold_up(&self, waited: Duration) -> bool {
        let mut state = lock(&self.state);
        state.held_up += waited.min(READ_GRACE);
        state.held_up >= STALL_MAX
    }

    /// Ends it without what waits, because it is not read fast enough.
    pub(super) fn overflow(&self) {
        let mut state = lock(&self.state);
        self.abort(&mut state);
        wake(state);
    }

    fn abort(&self, state: &mut State) {
        let reason = format!(
            "`http-{}` had {} bytes waiting",
            self.stream,
            state.body.waiting_bytes()
        );
        let waiting = state.body.abort(HttpError::Overflow(reason.into()));
        self.budget.give_back(waiting);
    }

    fn unfit(&self, unfit: Unfit) -> HttpError {
        let stream = self.stream;
        let reason = match unfit {
            Unfit::Overflow => format!("the answer `http-{stream}` is larger than may wait"),
            Unfit::Order { expected, found } => {
                format!("the answer `http-{stream}` has piece {found} where {expected} is next")
            }
            Unfit::Late => format!("the answer `http-{stream}` went on behind its end"),
        };
        HttpError::Lost(reason.into())
    }

    /// The connection is lost; what came is read first.
    pub(super) fn cut(&self, ended: &Ended) {
        let reason = match self.stream {
            0 => ended.to_string(),
            stream => format!("{ended} (`http-{stream}`)"),
        };
        let cause = HttpError::Disconnected(reason.into());
        let mut state = lock(&self.state);
        if let Head::Awaited = state.head {
            state.head = Head::Here(Err(cause.clone()));
        }
        state.body.fail(cause);
        wake(state);
    }
}

impl State {
    /// Whether its reader has stopped, and as much waits as may for such a one.
    fn is_stalled(&self, now: Instant) -> bool {
        self.body.waiting_bytes() >= STALLED_BYTES_MAX && now >= self.unread_since + STALL_MAX
    }
}

impl Awaited for State {
    fn waiter(&mut self) -> &mut Waiter {
        &mut self.waiter
    }
}

/// Returns why there is no answer. Only what is typed says whether the request left; the codes of
/// others do not tell a request that was not sent from one that was lost.
fn refused(refusal: &Refusal) -> HttpError {
    if let Some(fault) = &refusal.fault {
        return faults::told(fault);
    }
    match refusal.code {
        code::INVALID_REQUEST | code::METHOD | code::INVALID_PARAMS => {
            HttpError::Elsewhere(Arc::new(Failure {
                class: Class::Unavailable,
                execution: Execution::NotStarted,
                retry: Retry::Never,
                origin: Origin::Executor,
                code: EXECUTOR_REFUSED.into(),
                reason: Arc::clone(&refusal.message),
            }))
        }
        _ => HttpError::Lost(Arc::clone(&refusal.message)),
    }
}
