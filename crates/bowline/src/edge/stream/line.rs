//! The events of one stream on their way to its reader, kept a while for a reader that comes back.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bowline_core::sync::lock;
use bytes::Bytes;

/// Events that may wait for one reader; what comes beyond is not taken.
pub const EVENTS_MAX: usize = 256;

/// Bytes that may wait for one reader, the answer not counted.
const WAITING_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Events of one stream that are kept after they were sent.
const KEPT_EVENTS_MAX: usize = 256;

/// Bytes of one stream that are kept after they were sent.
const KEPT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes that all streams together keep after they were sent.
const KEPT_BYTES_TOTAL_MAX: usize = 64 * 1024 * 1024;

/// What all streams together keep for readers that come back.
#[derive(Clone, Debug, Default)]
pub struct Kept(Arc<AtomicUsize>);

impl Kept {
    fn is_full(&self) -> bool {
        self.0.load(Ordering::Relaxed) > KEPT_BYTES_TOTAL_MAX
    }

    /// Returns how many bytes are held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Tells one reader of a stream from those before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader(u64);

/// One stream of messages: written by whoever holds it, read by one reader at a time.
#[derive(Debug, Default)]
pub struct Line(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Messages, the oldest first. Those before `sent` went out and are kept.
    messages: VecDeque<Bytes>,
    /// How many messages were dropped from the front.
    dropped: u64,
    /// How many of `messages` went out to the reader of this moment.
    sent: usize,
    /// Bytes of `messages`.
    bytes: usize,
    /// Counts the readers; the last one is the one that counts.
    readers: u64,
    /// Whether the last reader is still there.
    read: bool,
    /// Whether the last message was written.
    ended: bool,
    /// Set where a reader may come back: what is sent is kept and counted here.
    kept: Option<Kept>,
    waker: Option<Waker>,
}

/// What a reader gets next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// A message and its number in this stream, from 1.
    Message(u64, Bytes),
    /// Nothing more, for this reader at least.
    End,
}

impl Line {
    /// Returns an empty line whose first message has the number after this one.
    #[must_use]
    pub fn after(number: u64) -> Self {
        let line = Self::default();
        line.state().dropped = number;
        line
    }

    /// Takes a message; `false` when too many wait already, or the last one was written.
    pub fn push(&self, message: Bytes) -> bool {
        let waker = {
            let mut state = self.state();
            let waiting = state.messages.len() - state.sent;
            if state.ended
                || waiting >= EVENTS_MAX
                || state.bytes > WAITING_BYTES_MAX
                || state.has_no_room_to_keep()
            {
                return false;
            }
            state.add(message)
        };
        wake(waker);
        true
    }

    /// Takes the last message, which has room unless nobody reads and nothing can be kept.
    pub fn finish(&self, message: Bytes) {
        let waker = {
            let mut state = self.state();
            if state.ended {
                return;
            }
            state.ended = true;
            if state.has_no_room_to_keep() {
                return;
            }
            state.add(message)
        };
        wake(waker);
    }

    /// Keeps what is sent from now on, so that a reader may come back for it.
    pub fn keep(&self, kept: Kept) {
        let mut state = self.state();
        if state.kept.is_none() {
            kept.0.fetch_add(state.bytes, Ordering::Relaxed);
            state.kept = Some(kept);
        }
    }

    /// Begins to read what was not sent yet. A reader before this one reads no more.
    pub fn read(&self) -> Reader {
        let mut state = self.state();
        state.take_over()
    }

    /// Begins to read after the message with this number; `None` when there was no such message.
    /// What is no longer kept is passed over.
    pub fn read_after(&self, number: u64) -> Option<Reader> {
        let mut state = self.state();
        if number > state.dropped + state.messages.len() as u64 {
            return None;
        }
        let passed = number.saturating_sub(state.dropped);
        state.sent = usize::try_from(passed).ok()?;
        Some(state.take_over())
    }

    /// Whether every message after the one with this number is still here.
    #[must_use]
    pub fn has_all_after(&self, number: u64) -> bool {
        let state = self.state();
        let last = state.dropped + state.messages.len() as u64;
        (state.dropped..=last).contains(&number)
    }

    /// Ends the stream of whoever reads now; what is written stays for the next reader.
    pub fn interrupt(&self) {
        let waker = {
            let mut state = self.state();
            state.readers += 1;
            state.read = false;
            state.waker.take()
        };
        wake(waker);
    }

    /// Notes that a reader left; `false` when another has taken its place.
    pub fn leave(&self, reader: Reader) -> bool {
        let mut state = self.state();
        let current = state.readers == reader.0;
        if current {
            state.read = false;
            state.waker = None;
        }
        current
    }

    /// Drops everything that is kept and waits.
    pub fn clear(&self) {
        let mut state = self.state();
        while state.drop_oldest() {}
    }

    /// Returns what this reader gets next.
    pub fn poll_next(&self, reader: Reader, cx: &mut Context<'_>) -> Poll<Next> {
        let mut state = self.state();
        if state.readers != reader.0 {
            return Poll::Ready(Next::End);
        }
        if let Some(message) = state.messages.get(state.sent).cloned() {
            state.sent += 1;
            let number = state.dropped + state.sent as u64;
            state.trim();
            return Poll::Ready(Next::Message(number, message));
        }
        if state.ended {
            return Poll::Ready(Next::End);
        }
        state.wait(cx);
        Poll::Pending
    }

    /// Ready as soon as something waits to be read.
    pub fn poll_waiting(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.messages.len() > state.sent {
            return Poll::Ready(());
        }
        state.wait(cx);
        Poll::Pending
    }

    /// Whether nothing waits to be read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let state = self.state();
        state.messages.len() == state.sent
    }

    /// Whether somebody reads.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.state().read
    }

    /// Whether the last message was written.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.state().ended
    }

    /// Whether somebody reads, or has read and may come back.
    #[must_use]
    pub fn was_read(&self) -> bool {
        self.state().readers > 0
    }

    /// Returns the number of the last message that went out.
    #[must_use]
    pub fn last_sent(&self) -> u64 {
        let state = self.state();
        state.dropped + state.sent as u64
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl State {
    fn add(&mut self, message: Bytes) -> Option<Waker> {
        self.count(message.len());
        self.messages.push_back(message);
        self.waker.take()
    }

    /// Whether nobody reads, and all streams together keep as much as they may.
    fn has_no_room_to_keep(&self) -> bool {
        !self.read && self.kept.as_ref().is_some_and(Kept::is_full)
    }

    fn count(&mut self, bytes: usize) {
        self.bytes += bytes;
        if let Some(kept) = &self.kept {
            kept.0.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn drop_oldest(&mut self) -> bool {
        let Some(message) = self.messages.pop_front() else {
            return false;
        };
        self.bytes -= message.len();
        self.dropped += 1;
        self.sent = self.sent.saturating_sub(1);
        if let Some(kept) = &self.kept {
            kept.0.fetch_sub(message.len(), Ordering::Relaxed);
        }
        true
    }

    /// Lets go of what was sent and need not, or cannot, be kept.
    fn trim(&mut self) {
        while self.sent > 0 {
            let keep = self.kept.as_ref().is_some_and(|kept| !kept.is_full())
                && self.sent <= KEPT_EVENTS_MAX
                && self.bytes <= KEPT_BYTES_MAX;
            if keep || !self.drop_oldest() {
                return;
            }
        }
    }

    fn take_over(&mut self) -> Reader {
        self.readers += 1;
        self.read = true;
        if let Some(waker) = self.waker.take() {
            // The reader before this one sees that it is no longer the one.
            waker.wake();
        }
        Reader(self.readers)
    }

    fn wait(&mut self, cx: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => self.waker = Some(cx.waker().clone()),
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if let Some(kept) = &self.kept {
            kept.0.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(line: &Line, reader: Reader) -> Option<(u64, String)> {
        let mut cx = Context::from_waker(Waker::noop());
        match line.poll_next(reader, &mut cx) {
            Poll::Ready(Next::Message(number, bytes)) => {
                Some((number, String::from_utf8(bytes.to_vec()).unwrap()))
            }
            Poll::Ready(Next::End) => Some((0, "end".to_owned())),
            Poll::Pending => None,
        }
    }

    fn event(number: u64, text: &str) -> Option<(u64, String)> {
        Some((number, text.to_owned()))
    }

    #[test]
    fn a_reader_that_comes_back_goes_on_where_it_was() {
        let kept = Kept::default();
        let line = Line::default();
        assert!(line.push("a".into()));
        line.keep(kept.clone());
        let first = line.read();
        assert_eq!(next(&line, first), event(1, "a"));
        assert!(line.push("b".into()));
        assert_eq!(next(&line, first), event(2, "b"));
        assert!(line.leave(first));
        assert!(line.push("c".into()));
        assert_eq!(kept.bytes(), 3);
        // It says it has seen the first one only: the second is told again.
        let second = line.read_after(1).unwrap();
        assert_eq!(next(&line, second), event(2, "b"));
        assert_eq!(next(&line, second), event(3, "c"));
        assert_eq!(next(&line, second), None);
        line.finish("z".into());
        let third = line.read_after(3).unwrap();
        assert_eq!(next(&line, second), event(0, "end"), "another reads now");
        assert!(!line.leave(second));
        assert_eq!(next(&line, third), event(4, "z"));
        assert_eq!(next(&line, third), event(0, "end"));
        assert!(line.read_after(4).is_some());
        assert!(line.read_after(5).is_none(), "never given out");
        assert!(!line.push("late".into()));
        drop(line);
        assert_eq!(kept.bytes(), 0);
    }

    #[test]
    fn what_waits_and_what_is_kept_has_bounds() {
        let line = Line::default();
        line.keep(Kept::default());
        for _ in 0..EVENTS_MAX {
            assert!(line.push("x".into()));
        }
        assert!(!line.push("x".into()));
        line.finish("answer".into());
        let reader = line.read();
        for number in 1..=EVENTS_MAX as u64 {
            assert_eq!(next(&line, reader), event(number, "x"));
        }
        let last = EVENTS_MAX as u64 + 1;
        assert_eq!(next(&line, reader), event(last, "answer"));
        // The oldest had to go; what is left of the stream is told in order.
        let again = line.read_after(0).unwrap();
        assert_eq!(next(&line, again), event(2, "x"));
        let line = Line::default();
        let kept = Kept::default();
        line.keep(kept.clone());
        let reader = line.read();
        for _ in 0..3 {
            assert!(line.push(vec![b' '; KEPT_BYTES_MAX / 2].into()));
            assert!(next(&line, reader).is_some());
        }
        assert!(kept.bytes() <= KEPT_BYTES_MAX);
        line.clear();
        assert_eq!(kept.bytes(), 0);
    }

    #[test]
    fn nothing_is_kept_where_nobody_can_come_back() {
        let line = Line::default();
        let reader = line.read();
        assert!(line.push("a".into()));
        assert_eq!(next(&line, reader), event(1, "a"));
        let again = line.read_after(0).unwrap();
        assert_eq!(next(&line, again), None);
        assert!(line.push("b".into()));
        assert_eq!(next(&line, again), event(2, "b"));
    }
}
