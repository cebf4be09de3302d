//! Event buffer of a stream: waiting events, and sent events kept for resumption.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bowline_core::sync::lock;
use bytes::Bytes;

/// Maximum number of waiting events; further events are refused.
pub(crate) const WAITING_EVENTS_MAX: usize = 256;

/// Maximum number of waiting bytes, excluding the response.
const WAITING_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Maximum number of sent events kept per stream.
const REPLAY_EVENTS_MAX: usize = 256;

/// Maximum number of sent bytes kept per stream.
const REPLAY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Maximum number of sent bytes kept by all streams.
const REPLAY_BYTES_TOTAL_MAX: usize = 64 * 1024 * 1024;

/// Bytes kept by all streams for resumption.
#[derive(Clone, Debug, Default)]
pub struct ReplayBudget(Arc<AtomicUsize>);

impl ReplayBudget {
    fn is_full(&self) -> bool {
        self.0.load(Ordering::Relaxed) > REPLAY_BYTES_TOTAL_MAX
    }

    /// Returns the number of bytes kept.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Identifies a reader among successive readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderId(u64);

/// Messages of a stream: any number of writers, one reader at a time.
#[derive(Debug, Default)]
pub struct EventBuffer(Mutex<BufferState>);

#[derive(Debug, Default)]
struct BufferState {
    /// Messages, oldest first. The first `sent` messages were sent and are kept.
    messages: VecDeque<Bytes>,
    /// Number of messages dropped from the front.
    dropped: u64,
    /// Number of `messages` sent to the current reader.
    sent: usize,
    /// Total bytes of `messages`.
    bytes: usize,
    /// Number of readers so far; only the latest is valid.
    reader_count: u64,
    /// Whether the latest reader is attached.
    has_reader: bool,
    /// Whether the last message was written.
    ended: bool,
    /// Set for resumable streams: sent messages are kept and counted here.
    budget: Option<ReplayBudget>,
    waker: Option<Waker>,
}

/// Next item for a reader.
#[derive(Debug, PartialEq, Eq)]
pub enum BufferEvent {
    /// A message and its number in the stream, from 1.
    Message(u64, Bytes),
    /// End of the stream, at least for this reader.
    End,
}

impl EventBuffer {
    /// Creates an empty buffer; the first message gets the number after `number`.
    #[must_use]
    pub fn starting_after(number: u64) -> Self {
        let line = Self::default();
        line.lock_state().dropped = number;
        line
    }

    /// Appends a message; `false` if too many messages wait, or the stream has ended.
    pub fn push(&self, message: Bytes) -> bool {
        let waker = {
            let mut state = self.lock_state();
            let waiting = state.messages.len() - state.sent;
            if state.ended
                || waiting >= WAITING_EVENTS_MAX
                || state.bytes > WAITING_BYTES_MAX
                || state.is_replay_full()
            {
                return false;
            }
            state.append(message)
        };
        wake_reader(waker);
        true
    }

    /// Appends the last message; dropped only without a reader and without replay room.
    pub fn finish(&self, message: Bytes) {
        let waker = {
            let mut state = self.lock_state();
            if state.ended {
                return;
            }
            state.ended = true;
            if state.is_replay_full() {
                return;
            }
            state.append(message)
        };
        wake_reader(waker);
    }

    /// Keeps sent messages from now on, for resumption.
    pub fn enable_replay(&self, budget: ReplayBudget) {
        let mut state = self.lock_state();
        if state.budget.is_none() {
            budget.0.fetch_add(state.bytes, Ordering::Relaxed);
            state.budget = Some(budget);
        }
    }

    /// Attaches a reader for unsent messages; an earlier reader ends.
    pub fn attach_reader(&self) -> ReaderId {
        let mut state = self.lock_state();
        state.replace_reader()
    }

    /// Attaches a reader after this message number; `None` for an unknown number. Messages no
    /// longer kept are skipped.
    pub fn attach_after(&self, number: u64) -> Option<ReaderId> {
        let mut state = self.lock_state();
        if number > state.dropped + state.messages.len() as u64 {
            return None;
        }
        let passed = number.saturating_sub(state.dropped);
        state.sent = usize::try_from(passed).ok()?;
        Some(state.replace_reader())
    }

    /// Returns whether every message after this number is still present.
    #[must_use]
    pub fn has_all_after(&self, number: u64) -> bool {
        let state = self.lock_state();
        let last = state.dropped + state.messages.len() as u64;
        (state.dropped..=last).contains(&number)
    }

    /// Ends the current reader; messages stay for the next reader.
    pub fn detach_reader(&self) {
        let waker = {
            let mut state = self.lock_state();
            state.reader_count += 1;
            state.has_reader = false;
            state.waker.take()
        };
        wake_reader(waker);
    }

    /// Detaches a reader; `false` if a newer reader took over.
    pub fn release_reader(&self, reader: ReaderId) -> bool {
        let mut state = self.lock_state();
        let current = state.reader_count == reader.0;
        if current {
            state.has_reader = false;
            state.waker = None;
        }
        current
    }

    /// Drops all messages.
    pub fn clear(&self) {
        let mut state = self.lock_state();
        while state.drop_oldest() {}
    }

    /// Returns the next item for this reader.
    pub fn poll_next(&self, reader: ReaderId, cx: &mut Context<'_>) -> Poll<BufferEvent> {
        let mut state = self.lock_state();
        if state.reader_count != reader.0 {
            return Poll::Ready(BufferEvent::End);
        }
        if let Some(message) = state.messages.get(state.sent).cloned() {
            state.sent += 1;
            let number = state.dropped + state.sent as u64;
            state.trim_sent();
            return Poll::Ready(BufferEvent::Message(number, message));
        }
        if state.ended {
            return Poll::Ready(BufferEvent::End);
        }
        state.store_waker(cx);
        Poll::Pending
    }

    /// Ready when a message is waiting.
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock_state();
        if state.messages.len() > state.sent {
            return Poll::Ready(());
        }
        state.store_waker(cx);
        Poll::Pending
    }

    /// Returns whether no message is waiting.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let state = self.lock_state();
        state.messages.len() == state.sent
    }

    /// Returns whether a reader is attached.
    #[must_use]
    pub fn has_reader(&self) -> bool {
        self.lock_state().has_reader
    }

    /// Returns whether the last message was written.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.lock_state().ended
    }

    /// Returns whether a reader is or was attached.
    #[must_use]
    pub fn had_reader(&self) -> bool {
        self.lock_state().reader_count > 0
    }

    /// Returns the number of the last message sent.
    #[must_use]
    pub fn last_sent(&self) -> u64 {
        let state = self.lock_state();
        state.dropped + state.sent as u64
    }

    fn lock_state(&self) -> MutexGuard<'_, BufferState> {
        lock(&self.0)
    }
}

impl BufferState {
    fn append(&mut self, message: Bytes) -> Option<Waker> {
        self.count_bytes(message.len());
        self.messages.push_back(message);
        self.waker.take()
    }

    /// Returns whether no reader is attached and the replay budget is used up.
    fn is_replay_full(&self) -> bool {
        !self.has_reader && self.budget.as_ref().is_some_and(ReplayBudget::is_full)
    }

    fn count_bytes(&mut self, bytes: usize) {
        self.bytes += bytes;
        if let Some(budget) = &self.budget {
            budget.0.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn drop_oldest(&mut self) -> bool {
        let Some(message) = self.messages.pop_front() else {
            return false;
        };
        self.bytes -= message.len();
        self.dropped += 1;
        self.sent = self.sent.saturating_sub(1);
        if let Some(budget) = &self.budget {
            budget.0.fetch_sub(message.len(), Ordering::Relaxed);
        }
        true
    }

    /// Drops sent messages beyond the replay limits.
    fn trim_sent(&mut self) {
        while self.sent > 0 {
            let keep = self.budget.as_ref().is_some_and(|budget| !budget.is_full())
                && self.sent <= REPLAY_EVENTS_MAX
                && self.bytes <= REPLAY_BYTES_MAX;
            if keep || !self.drop_oldest() {
                return;
            }
        }
    }

    fn replace_reader(&mut self) -> ReaderId {
        self.reader_count += 1;
        self.has_reader = true;
        if let Some(waker) = self.waker.take() {
            // Wakes the previous reader, which then ends.
            waker.wake();
        }
        ReaderId(self.reader_count)
    }

    fn store_waker(&mut self, cx: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => self.waker = Some(cx.waker().clone()),
        }
    }
}

impl Drop for BufferState {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.0.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

fn wake_reader(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next_event(buffer: &EventBuffer, reader: ReaderId) -> Option<(u64, String)> {
        let mut cx = Context::from_waker(Waker::noop());
        match buffer.poll_next(reader, &mut cx) {
            Poll::Ready(BufferEvent::Message(number, bytes)) => {
                Some((number, String::from_utf8(bytes.to_vec()).unwrap()))
            }
            Poll::Ready(BufferEvent::End) => Some((0, "end".to_owned())),
            Poll::Pending => None,
        }
    }

    fn expected_event(number: u64, text: &str) -> Option<(u64, String)> {
        Some((number, text.to_owned()))
    }

    #[test]
    fn returning_reader_continues_after_its_id() {
        let kept = ReplayBudget::default();
        let line = EventBuffer::default();
        assert!(line.push("a".into()));
        line.enable_replay(kept.clone());
        let first = line.attach_reader();
        assert_eq!(next_event(&line, first), expected_event(1, "a"));
        assert!(line.push("b".into()));
        assert_eq!(next_event(&line, first), expected_event(2, "b"));
        assert!(line.release_reader(first));
        assert!(line.push("c".into()));
        assert_eq!(kept.bytes(), 3);
        // The reader resumes after the first message, so the second is sent again.
        let second = line.attach_after(1).unwrap();
        assert_eq!(next_event(&line, second), expected_event(2, "b"));
        assert_eq!(next_event(&line, second), expected_event(3, "c"));
        assert_eq!(next_event(&line, second), None);
        line.finish("z".into());
        let third = line.attach_after(3).unwrap();
        assert_eq!(
            next_event(&line, second),
            expected_event(0, "end"),
            "another reads now"
        );
        assert!(!line.release_reader(second));
        assert_eq!(next_event(&line, third), expected_event(4, "z"));
        assert_eq!(next_event(&line, third), expected_event(0, "end"));
        assert!(line.attach_after(4).is_some());
        assert!(line.attach_after(5).is_none(), "never given out");
        assert!(!line.push("late".into()));
        drop(line);
        assert_eq!(kept.bytes(), 0);
    }

    #[test]
    fn waiting_and_replay_are_bounded() {
        let line = EventBuffer::default();
        line.enable_replay(ReplayBudget::default());
        for _ in 0..WAITING_EVENTS_MAX {
            assert!(line.push("x".into()));
        }
        assert!(!line.push("x".into()));
        line.finish("answer".into());
        let reader = line.attach_reader();
        for number in 1..=WAITING_EVENTS_MAX as u64 {
            assert_eq!(next_event(&line, reader), expected_event(number, "x"));
        }
        let last = WAITING_EVENTS_MAX as u64 + 1;
        assert_eq!(next_event(&line, reader), expected_event(last, "answer"));
        // The oldest message was dropped; the rest arrives in order.
        let again = line.attach_after(0).unwrap();
        assert_eq!(next_event(&line, again), expected_event(2, "x"));
        let line = EventBuffer::default();
        let kept = ReplayBudget::default();
        line.enable_replay(kept.clone());
        let reader = line.attach_reader();
        for _ in 0..3 {
            assert!(line.push(vec![b' '; REPLAY_BYTES_MAX / 2].into()));
            assert!(next_event(&line, reader).is_some());
        }
        assert!(kept.bytes() <= REPLAY_BYTES_MAX);
        line.clear();
        assert_eq!(kept.bytes(), 0);
    }

    #[test]
    fn nothing_is_kept_without_replay() {
        let line = EventBuffer::default();
        let reader = line.attach_reader();
        assert!(line.push("a".into()));
        assert_eq!(next_event(&line, reader), expected_event(1, "a"));
        let again = line.attach_after(0).unwrap();
        assert_eq!(next_event(&line, again), None);
        assert!(line.push("b".into()));
        assert_eq!(next_event(&line, again), expected_event(2, "b"));
    }
}
