//! State shared by both halves of a connection and its writer task.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_core::sync::lock;
use bowline_runtime::{Lifecycle, Work};
use bytes::Bytes;
use tokio::io::AsyncRead;
use tokio::sync::Semaphore;

use super::close_codes;
use super::{DisconnectReason, WebSocketLimits};

/// Queue capacity of a quiet connection.
const REST_MESSAGES: usize = 8;

/// Raw input stream.
pub(super) type ByteSource = Box<dyn AsyncRead + Send + Unpin>;

/// One connection.
pub(super) struct WebSocketShared {
    /// Worked off by the writer task.
    state: Work<WebSocketState>,
    /// Free message slots of the queue.
    message_permits: Semaphore,
    /// Free bytes of the queue.
    byte_permits: Semaphore,
    messages_max: u32,
    bytes_max: u32,
    /// Largest accepted message.
    message_bytes_max: AtomicUsize,
    /// Closed at the end of the connection.
    lifecycle: Lifecycle,
}

#[derive(Default)]
struct WebSocketState {
    /// Messages to write.
    queue: VecDeque<Bytes>,
    /// Payload of the last ping.
    pong: Option<Bytes>,
    /// Close frame to send after the queue.
    closing: Option<(u16, Arc<str>)>,
    /// Write failure; the reader may find a better cause.
    write_failure: Option<DisconnectReason>,
    /// Close code to send at the end.
    close_code: Option<u16>,
    disconnect_reason: Option<DisconnectReason>,
    senders_dropped: bool,
    receiver_dropped: bool,
    /// Input stream, after the reader is dropped.
    source: Option<ByteSource>,
}

/// Next command of the writer task.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WriterCommand {
    Wait,
    Write(Bytes),
    Pong(Bytes),
    Close(u16, Arc<str>),
    /// The connection has ended; send this close code first.
    End(Option<u16>),
}

impl fmt::Debug for WebSocketShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("WebSocketShared")
            .field("queue", &state.queue.len())
            .field("closing", &state.closing)
            .field("ended", &state.disconnect_reason)
            .finish_non_exhaustive()
    }
}

impl WebSocketShared {
    pub(super) fn new(limits: &WebSocketLimits) -> Self {
        let bytes_max = limits.queue_bytes_max.clamp(1, Semaphore::MAX_PERMITS);
        let bytes_max = u32::try_from(bytes_max).unwrap_or(u32::MAX);
        let queue_max = limits.queue_max.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            state: Work::default(),
            message_permits: Semaphore::new(queue_max),
            byte_permits: Semaphore::new(usize::try_from(bytes_max).unwrap_or(usize::MAX)),
            messages_max: u32::try_from(queue_max).unwrap_or(u32::MAX),
            bytes_max,
            message_bytes_max: AtomicUsize::new(limits.message_bytes_max),
            lifecycle: Lifecycle::default(),
        }
    }

    pub(super) fn message_bytes_max(&self) -> usize {
        self.message_bytes_max.load(Ordering::Relaxed)
    }

    pub(super) fn set_message_bytes_max(&self, max: usize) {
        self.message_bytes_max.store(max, Ordering::Relaxed);
    }

    /// Returns the queue bytes of a message; an oversized message takes the whole queue.
    fn message_weight(&self, message: &Bytes) -> u32 {
        let bytes = u32::try_from(message.len()).unwrap_or(u32::MAX);
        bytes.min(self.bytes_max)
    }

    /// Queues a message, once it fits.
    pub(super) async fn push(&self, message: Bytes) -> Result<(), DisconnectReason> {
        let weight = self.message_weight(&message);
        let (Ok(message_permit), Ok(byte_permit)) = (
            self.message_permits.acquire().await,
            self.byte_permits.acquire_many(weight).await,
        ) else {
            return Err(self.send_failure());
        };
        if !self.enqueue([message]) {
            return Err(self.send_failure());
        }
        message_permit.forget();
        byte_permit.forget();
        Ok(())
    }

    /// Queues messages, once all of them fit; an oversized set is queued one by one.
    pub(super) async fn push_all(&self, messages: Vec<Bytes>) -> Result<(), DisconnectReason> {
        let count = u32::try_from(messages.len()).unwrap_or(u32::MAX);
        let weights = messages.iter().map(|message| self.message_weight(message));
        let weight = weights.fold(0, u32::saturating_add);
        if count > self.messages_max || weight > self.bytes_max {
            for message in messages {
                self.push(message).await?;
            }
            return Ok(());
        }
        let (Ok(message_permit), Ok(byte_permit)) = (
            self.message_permits.acquire_many(count).await,
            self.byte_permits.acquire_many(weight).await,
        ) else {
            return Err(self.send_failure());
        };
        if !self.enqueue(messages) {
            return Err(self.send_failure());
        }
        message_permit.forget();
        byte_permit.forget();
        Ok(())
    }

    /// Queues a message if it fits now.
    pub(super) fn try_push(&self, message: Bytes) -> Result<(), Bytes> {
        let weight = self.message_weight(&message);
        let (Ok(message_permit), Ok(byte_permit)) = (
            self.message_permits.try_acquire(),
            self.byte_permits.try_acquire_many(weight),
        ) else {
            return Err(message);
        };
        if !self.enqueue([message.clone()]) {
            return Err(message);
        }
        message_permit.forget();
        byte_permit.forget();
        Ok(())
    }

    fn enqueue(&self, messages: impl IntoIterator<Item = Bytes>) -> bool {
        let mut state = lock(&self.state);
        if state.closing.is_some()
            || state.write_failure.is_some()
            || state.disconnect_reason.is_some()
        {
            return false;
        }
        state.queue.extend(messages);
        drop(state);
        self.state.wake();
        true
    }

    /// Releases the queue room of written messages.
    pub(super) fn release_written(&self, messages: usize, weight: usize) {
        self.message_permits.add_permits(messages);
        self.byte_permits.add_permits(weight);
    }

    /// Returns the queue bytes of a message as `usize`.
    pub(super) fn room_taken(&self, message: &Bytes) -> usize {
        usize::try_from(self.message_weight(message)).unwrap_or(usize::MAX)
    }

    pub(super) fn queue_pong(&self, payload: Bytes) {
        lock(&self.state).pong = Some(payload);
        self.state.wake();
    }

    pub(super) fn close(&self, code: u16, reason: &str) {
        let mut state = lock(&self.state);
        if state.closing.is_none() {
            state.closing = Some((code, reason.into()));
        }
        drop(state);
        self.close_queue();
    }

    /// Stops writing; the reader may still find the cause.
    pub(super) fn stop_writes(&self, cause: DisconnectReason) {
        lock(&self.state).write_failure.get_or_insert(cause);
        self.close_queue();
    }

    /// Ends the connection; the first cause wins.
    pub(super) fn end(&self, cause: DisconnectReason) {
        self.end_with_code(cause, None);
    }

    /// Ends the connection with a close code for the peer; the first cause wins.
    pub(super) fn end_with_code(&self, cause: DisconnectReason, farewell: Option<u16>) {
        let mut state = lock(&self.state);
        if state.disconnect_reason.is_none() {
            state.disconnect_reason = Some(cause);
            state.close_code = farewell;
        }
        state.queue = VecDeque::new();
        drop(state);
        self.close_queue();
        self.lifecycle.close();
    }

    /// Wakes all tasks that wait for queue room.
    fn close_queue(&self) {
        self.message_permits.close();
        self.byte_permits.close();
        self.state.wake();
    }

    pub(super) fn on_senders_dropped(&self) {
        let mut state = lock(&self.state);
        state.senders_dropped = true;
        self.close_if_unused(state);
    }

    pub(super) fn on_receiver_dropped(&self, source: Option<ByteSource>) {
        let mut state = lock(&self.state);
        state.receiver_dropped = true;
        state.source = source;
        self.close_if_unused(state);
    }

    /// Closes the connection when both halves are dropped.
    fn close_if_unused(&self, mut state: std::sync::MutexGuard<'_, WebSocketState>) {
        let alone = state.senders_dropped && state.receiver_dropped;
        if alone && state.closing.is_none() {
            state.closing = Some((close_codes::NORMAL, "".into()));
        }
        drop(state);
        self.state.wake();
    }

    /// Waits until the reader is dropped, and takes its input stream.
    pub(super) async fn take_source(&self) -> Option<ByteSource> {
        loop {
            {
                let mut state = lock(&self.state);
                if state.receiver_dropped {
                    return state.source.take();
                }
            }
            self.state.wait().await;
        }
    }

    /// Takes the next command.
    pub(super) fn next_command(&self) -> WriterCommand {
        let mut state = lock(&self.state);
        if state.disconnect_reason.is_some() {
            return WriterCommand::End(state.close_code);
        }
        if let Some(payload) = state.pong.take() {
            return WriterCommand::Pong(payload);
        }
        if let Some(message) = state.queue.pop_front() {
            return WriterCommand::Write(message);
        }
        // Release the memory of a burst.
        state.queue.shrink_to(REST_MESSAGES);
        match &state.closing {
            Some((code, reason)) => WriterCommand::Close(*code, Arc::clone(reason)),
            None => WriterCommand::Wait,
        }
    }

    /// Waits for the next wake-up.
    pub(super) async fn wait_wake(&self) {
        self.state.wait().await;
    }

    pub(super) fn disconnect_reason(&self) -> Option<DisconnectReason> {
        lock(&self.state).disconnect_reason.clone()
    }

    /// Returns why a send failed.
    fn send_failure(&self) -> DisconnectReason {
        let state = lock(&self.state);
        let cause = state
            .disconnect_reason
            .clone()
            .or_else(|| state.write_failure.clone());
        cause.unwrap_or(DisconnectReason::Local)
    }

    pub(super) async fn wait_closed(&self) -> DisconnectReason {
        self.lifecycle.shutdown().wait_closing().await;
        self.disconnect_reason().unwrap_or(DisconnectReason::Local)
    }
}
