//! What both halves of a connection and its task know.

use std::collections::VecDeque;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use bytes::Bytes;
use tokio::io::AsyncRead;
use tokio::sync::{Notify, Semaphore};

use super::{Ended, SocketLimits};

/// The code of a close that nobody gave a reason for.
const NORMAL: u16 = 1000;

/// Messages for which a quiet connection holds room.
const REST_MESSAGES: usize = 8;

/// Bytes as they come.
pub(super) type Source = Box<dyn AsyncRead + Send + Unpin>;

/// One connection.
pub(super) struct Shared {
    state: Mutex<State>,
    /// Room for messages.
    seats: Semaphore,
    /// Room for bytes.
    bytes: Semaphore,
    seats_max: u32,
    bytes_max: u32,
    /// Bytes of a message that comes in.
    message_bytes_max: AtomicUsize,
    /// Wakes the task.
    wake: Notify,
    /// Wakes who waits for the end.
    over: Notify,
}

#[derive(Default)]
struct State {
    /// What waits to be written.
    queue: VecDeque<Bytes>,
    /// What the last ping said.
    pong: Option<Bytes>,
    /// How to close once the queue is empty.
    closing: Option<(u16, Arc<str>)>,
    /// Why nothing more can be written, where the reader may find a better word for it.
    mute: Option<Ended>,
    /// The code to say at the end, where there is something to say.
    farewell: Option<u16>,
    ended: Option<Ended>,
    writers_gone: bool,
    reader_gone: bool,
    /// The reading half, once nobody reads.
    left: Option<Source>,
}

/// What the task is to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Work {
    Wait,
    Write(Bytes),
    Pong(Bytes),
    Close(u16, Arc<str>),
    /// It ended; the code is still to be said.
    End(Option<u16>),
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("Shared")
            .field("queue", &state.queue.len())
            .field("closing", &state.closing)
            .field("ended", &state.ended)
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(limits: &SocketLimits) -> Self {
        let bytes_max = limits.queue_bytes_max.clamp(1, Semaphore::MAX_PERMITS);
        let bytes_max = u32::try_from(bytes_max).unwrap_or(u32::MAX);
        let seats = limits.queue_max.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            state: Mutex::default(),
            seats: Semaphore::new(seats),
            bytes: Semaphore::new(usize::try_from(bytes_max).unwrap_or(usize::MAX)),
            seats_max: u32::try_from(seats).unwrap_or(u32::MAX),
            bytes_max,
            message_bytes_max: AtomicUsize::new(limits.message_bytes_max),
            wake: Notify::new(),
            over: Notify::new(),
        }
    }

    pub(super) fn message_bytes_max(&self) -> usize {
        self.message_bytes_max.load(Ordering::Relaxed)
    }

    pub(super) fn allow_message_bytes(&self, max: usize) {
        self.message_bytes_max.store(max, Ordering::Relaxed);
    }

    /// Returns how much room a message takes; one that is larger than all room takes all of it.
    fn weight(&self, message: &Bytes) -> u32 {
        let bytes = u32::try_from(message.len()).unwrap_or(u32::MAX);
        bytes.min(self.bytes_max)
    }

    /// Queues a message once there is room.
    pub(super) async fn push(&self, message: Bytes) -> Result<(), Ended> {
        let weight = self.weight(&message);
        let (Ok(seat), Ok(bytes)) = (
            self.seats.acquire().await,
            self.bytes.acquire_many(weight).await,
        ) else {
            return Err(self.why_not());
        };
        if !self.enqueue([message]) {
            return Err(self.why_not());
        }
        seat.forget();
        bytes.forget();
        Ok(())
    }

    /// Queues messages once there is room for all of them; more than fit at once go one by one.
    pub(super) async fn push_all(&self, messages: Vec<Bytes>) -> Result<(), Ended> {
        let count = u32::try_from(messages.len()).unwrap_or(u32::MAX);
        let weights = messages.iter().map(|message| self.weight(message));
        let weight = weights.fold(0, u32::saturating_add);
        if count > self.seats_max || weight > self.bytes_max {
            for message in messages {
                self.push(message).await?;
            }
            return Ok(());
        }
        let (Ok(seats), Ok(bytes)) = (
            self.seats.acquire_many(count).await,
            self.bytes.acquire_many(weight).await,
        ) else {
            return Err(self.why_not());
        };
        if !self.enqueue(messages) {
            return Err(self.why_not());
        }
        seats.forget();
        bytes.forget();
        Ok(())
    }

    /// Queues a message if there is room now.
    pub(super) fn try_push(&self, message: Bytes) -> Result<(), Bytes> {
        let weight = self.weight(&message);
        let (Ok(seat), Ok(bytes)) = (
            self.seats.try_acquire(),
            self.bytes.try_acquire_many(weight),
        ) else {
            return Err(message);
        };
        if !self.enqueue([message.clone()]) {
            return Err(message);
        }
        seat.forget();
        bytes.forget();
        Ok(())
    }

    fn enqueue(&self, messages: impl IntoIterator<Item = Bytes>) -> bool {
        let mut state = lock(&self.state);
        if state.closing.is_some() || state.mute.is_some() || state.ended.is_some() {
            return false;
        }
        state.queue.extend(messages);
        drop(state);
        self.wake.notify_one();
        true
    }

    /// Gives the room of messages back that were written.
    pub(super) fn written(&self, messages: usize, weight: usize) {
        self.seats.add_permits(messages);
        self.bytes.add_permits(weight);
    }

    /// Returns how much room a message took.
    pub(super) fn room(&self, message: &Bytes) -> usize {
        usize::try_from(self.weight(message)).unwrap_or(usize::MAX)
    }

    pub(super) fn pong(&self, said: Bytes) {
        lock(&self.state).pong = Some(said);
        self.wake.notify_one();
    }

    pub(super) fn close(&self, code: u16, reason: &str) {
        let mut state = lock(&self.state);
        if state.closing.is_none() {
            state.closing = Some((code, reason.into()));
        }
        drop(state);
        self.shut();
    }

    /// Nothing more can be written; the reader may still find out why.
    pub(super) fn mute(&self, cause: Ended) {
        lock(&self.state).mute.get_or_insert(cause);
        self.shut();
    }

    /// Says how it ended, unless that is known.
    pub(super) fn end(&self, cause: Ended) {
        self.end_saying(cause, None);
    }

    /// Says how it ended, and what the other side is to hear of it, unless that is known.
    pub(super) fn end_saying(&self, cause: Ended, farewell: Option<u16>) {
        let mut state = lock(&self.state);
        if state.ended.is_none() {
            state.ended = Some(cause);
            state.farewell = farewell;
        }
        state.queue = VecDeque::new();
        drop(state);
        self.shut();
        self.over.notify_waiters();
    }

    /// Lets nobody wait for room any more.
    fn shut(&self) {
        self.seats.close();
        self.bytes.close();
        self.wake.notify_one();
    }

    pub(super) fn writers_left(&self) {
        let mut state = lock(&self.state);
        state.writers_gone = true;
        self.last(state);
    }

    pub(super) fn reader_left(&self, source: Option<Source>) {
        let mut state = lock(&self.state);
        state.reader_gone = true;
        state.left = source;
        self.last(state);
    }

    /// Closes it when nobody can use it any more.
    fn last(&self, mut state: std::sync::MutexGuard<'_, State>) {
        let alone = state.writers_gone && state.reader_gone;
        if alone && state.closing.is_none() {
            state.closing = Some((NORMAL, "".into()));
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Returns the reading half once nobody else has it.
    pub(super) async fn left(&self) -> Option<Source> {
        loop {
            {
                let mut state = lock(&self.state);
                if state.reader_gone {
                    return state.left.take();
                }
            }
            self.wake.notified().await;
        }
    }

    /// Takes what is to be done next.
    pub(super) fn work(&self) -> Work {
        let mut state = lock(&self.state);
        if state.ended.is_some() {
            return Work::End(state.farewell);
        }
        if let Some(said) = state.pong.take() {
            return Work::Pong(said);
        }
        if let Some(message) = state.queue.pop_front() {
            return Work::Write(message);
        }
        // A burst leaves nothing behind.
        state.queue.shrink_to(REST_MESSAGES);
        match &state.closing {
            Some((code, reason)) => Work::Close(*code, Arc::clone(reason)),
            None => Work::Wait,
        }
    }

    /// Waits for something to be done.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    pub(super) fn ended(&self) -> Option<Ended> {
        lock(&self.state).ended.clone()
    }

    /// Returns why nothing can be sent.
    fn why_not(&self) -> Ended {
        let state = lock(&self.state);
        let cause = state.ended.clone().or_else(|| state.mute.clone());
        cause.unwrap_or(Ended::Local)
    }

    pub(super) async fn over(&self) -> Ended {
        loop {
            let mut over = pin!(self.over.notified());
            over.as_mut().enable();
            if let Some(ended) = self.ended() {
                return ended;
            }
            over.await;
        }
    }
}
