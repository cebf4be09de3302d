//! One exchange over HTTP that an executor performs: what came of its answer, and what may be sent
//! of its request.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bowline_core::flow::{Credit, Window};
use bowline_core::ordered::{Crowded, Numbered, Ordered, Room, Taken, Unfit};
use bowline_core::sync::lock;
use bowline_wire::executor::{Answered, Frame, Mark};
use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use super::faults;
use super::session::{Cut, Session, Stream, Took};
use super::voice::Voice;
use super::waiter::{Awaited, Waiter, wake};
use crate::http::client::HttpError;
use crate::websocket::Ended;

/// Pieces of an answer that wait to be read; more are joined.
const PIECES_MAX: usize = 256;

/// One exchange, from the side of whoever waits for it.
#[derive(Debug)]
pub(super) struct Exchange {
    number: u64,
    session: Arc<Session>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    head: Head,
    body: Ordered<HttpError>,
    trailers: Bytes,
    /// What waits or may come; given back once.
    window: Option<Window>,
    /// What may be sent of the request.
    credit: Credit,
    /// Why it is over before its end; also where the body had come and the head had not.
    cause: Option<HttpError>,
    /// Why what came of it counts for nothing.
    aborted: Option<HttpError>,
    /// Its place among the streams that the executor takes, as long as frames may come.
    place: Option<OwnedSemaphorePermit>,
    /// Who waits: for the head, to send more, or for the next piece. It is one at a time.
    waiter: Waiter,
}

#[derive(Debug)]
enum Head {
    Awaited,
    Here(Answered),
    Taken,
}

impl Exchange {
    /// Returns an exchange of which nothing was sent; `credit` is what the executor takes at once.
    pub(super) fn new(
        number: u64,
        session: Arc<Session>,
        window: Window,
        credit: u64,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let room = Room {
            pieces_max: PIECES_MAX,
            bytes_max: usize::try_from(session.limits().stream_bytes_max).unwrap_or(usize::MAX),
            crowded: Crowded::Joins,
        };
        let state = State {
            head: Head::Awaited,
            body: Ordered::new(Numbered::ByByte, room),
            trailers: Bytes::new(),
            window: Some(window),
            credit: Credit::new(credit),
            cause: None,
            aborted: None,
            place: Some(place),
            waiter: Waiter::default(),
        };
        Self {
            number,
            session,
            state: Mutex::new(state),
        }
    }

    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// Returns the head of the answer.
    pub(super) fn poll_head(&self, cx: &mut Context<'_>) -> Poll<Result<Answered, HttpError>> {
        let mut state = lock(&self.state);
        match std::mem::replace(&mut state.head, Head::Taken) {
            Head::Here(answered) => return Poll::Ready(Ok(answered)),
            Head::Awaited => state.head = Head::Awaited,
            Head::Taken => {}
        }
        if let Some(cause) = &state.cause {
            return Poll::Ready(Err(cause.clone()));
        }
        state.waiter.wait(cx)
    }

    /// Waits until something of the request may be sent; returns how much, at most `wanted`.
    pub(super) async fn allowed(&self, wanted: u64) -> u64 {
        poll_fn(|cx| {
            let mut state = lock(&self.state);
            match state.credit.take(wanted) {
                0 => state.waiter.wait(cx),
                bytes => Poll::Ready(bytes),
            }
        })
        .await
    }

    /// Returns the body where all of it is here in one piece, and nothing follows it.
    pub(super) fn whole(&self) -> Option<Bytes> {
        let mut state = lock(&self.state);
        if !state.trailers.is_empty() {
            return None;
        }
        let whole = state.body.take_whole()?;
        self.session.read(length(&whole));
        self.give_back(&mut state);
        Some(whole)
    }

    /// Returns the next piece of the body.
    pub(super) fn poll_chunk(
        &self,
        cx: &mut Context<'_>,
        voice: &Voice,
    ) -> Poll<Option<Result<Bytes, HttpError>>> {
        let mut state = lock(&self.state);
        if let Some(cause) = &state.aborted {
            return Poll::Ready(Some(Err(cause.clone())));
        }
        match state.body.take() {
            Some(Taken::Piece(piece)) => {
                let bytes = length(&piece);
                self.session.read(bytes);
                let window = state.window.as_mut();
                let more = window.and_then(|window| self.session.budget().read(window, bytes));
                let is_open = state.place.is_some();
                drop(state);
                if let Some(bytes) = more.filter(|_| is_open) {
                    let stream = self.number;
                    voice.say(&Frame::Credit { stream, bytes });
                }
                Poll::Ready(Some(Ok(piece)))
            }
            Some(Taken::End) => {
                self.give_back(&mut state);
                Poll::Ready(None)
            }
            Some(Taken::Broken(cause)) => {
                self.give_back(&mut state);
                Poll::Ready(Some(Err(cause)))
            }
            None => state.waiter.wait(cx),
        }
    }

    /// Returns the lines that came behind the body.
    pub(super) fn trailers(&self) -> Bytes {
        lock(&self.state).trailers.clone()
    }

    /// Its request cannot be sent to its end, so that its answer counts for nothing.
    pub(super) fn abort(&self, cause: HttpError, voice: &Voice) {
        lock(&self.state).aborted = Some(cause);
        self.leave(voice, true);
    }

    /// Nobody waits any more. `was_sent` tells whether the executor knows of it.
    pub(super) fn leave(&self, voice: &Voice, was_sent: bool) {
        let is_open = {
            let mut state = lock(&self.state);
            self.give_back(&mut state);
            state.place.take().is_some()
        };
        if is_open {
            self.session.remove(self.number);
            if was_sent {
                let stream = self.number;
                voice.say(&Frame::Cancel { stream });
            }
        }
    }

    fn give_back(&self, state: &mut State) {
        if let Some(window) = state.window.take() {
            let left = u64::try_from(state.body.waiting_bytes()).unwrap_or(u64::MAX);
            self.session.read(left);
            self.session.budget().close(&window);
        }
    }

    /// Ends it with an error behind what was queued, and tells the executor.
    fn spoil(&self, state: &mut State, voice: &Voice, reason: &str) {
        state.over(HttpError::Lost(reason.into()));
        let stream = self.number;
        voice.say(&Frame::Cancel { stream });
    }
}

fn length(bytes: &Bytes) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

impl Awaited for State {
    fn waiter(&mut self) -> &mut Waiter {
        &mut self.waiter
    }
}

impl State {
    fn over(&mut self, cause: HttpError) {
        self.place = None;
        self.body.fail(self.cause.get_or_insert(cause).clone());
    }

    /// Takes a piece; returns how long it is.
    fn data(&mut self, offset: u64, bytes: Bytes) -> Result<u64, Unfit> {
        let count = length(&bytes);
        if let Some(window) = &mut self.window {
            window.arrived(count).map_err(|_over| Unfit::Overflow)?;
        }
        self.body.push(offset, bytes)?;
        Ok(count)
    }
}

impl Stream for Exchange {
    fn take(&self, frame: Frame, voice: &Voice) -> Took {
        let mut state = lock(&self.state);
        if state.place.is_none() {
            return Took::Over;
        }
        match frame {
            Frame::Answer { answered, .. } if matches!(state.head, Head::Awaited) => {
                state.head = Head::Here(answered);
                // The end may have come before.
                if state.body.is_over() {
                    state.place = None;
                }
            }
            Frame::Data { offset, bytes, .. } => match state.data(offset, bytes) {
                Ok(count) => self.session.queued(count),
                Err(Unfit::Overflow) => {
                    self.spoil(&mut state, voice, "the executor sent more than it may");
                }
                Err(Unfit::Order { .. } | Unfit::Late) => {
                    self.spoil(&mut state, voice, "a piece of the answer is out of place");
                }
            },
            Frame::End {
                offset, trailers, ..
            } => match offset == state.body.next() && !state.body.is_over() {
                true => {
                    state.body.end();
                    state.trailers = trailers;
                    // A head may come behind its body.
                    if !matches!(state.head, Head::Awaited) {
                        state.place = None;
                    }
                }
                false => self.spoil(&mut state, voice, "the end of the answer is out of place"),
            },
            Frame::Credit { bytes, .. } => state.credit.add(bytes),
            Frame::Failed { fault, .. } => state.over(faults::told(&fault)),
            _ => self.spoil(
                &mut state,
                voice,
                "the executor sent what does not belong here",
            ),
        }
        let took = match state.place {
            Some(_) => Took::More,
            None => Took::Over,
        };
        wake(state);
        took
    }

    fn cut(&self, ended: &Ended) -> Cut {
        let mut state = lock(&self.state);
        state.over(HttpError::Disconnected(ended.to_string().into()));
        wake(state);
        Cut::Over
    }

    fn mark(&self) -> Option<Mark> {
        None
    }

    fn resume(&self, _mark: &Mark, _voice: &Voice) {}

    fn gone(&self, reason: &str) {
        let mut state = lock(&self.state);
        state.over(HttpError::Disconnected(reason.into()));
        wake(state);
    }
}
