//! Writing half of a connection with an executor, with and without waiting for room.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_core::sync::lock;
use bowline_link::websocket::{DisconnectReason, WebSocketSender, close_codes};
use bowline_runtime::{TaskSpawner, Work};

use crate::frames::{self, ExecutorFrame};
use bytes::Bytes;

/// Small frames allowed to wait for room: two credits and a cancel for each stream of a connection,
/// doubled.
const OVERFLOW_MAX: usize = 8_192;

/// Writes frames to an executor. Cheap to clone.
#[derive(Clone, Debug)]
pub struct FrameWriter {
    sender: WebSocketSender,
    overflow: Arc<OverflowQueue>,
}

#[derive(Debug, Default)]
struct OverflowQueue {
    queue: Work<VecDeque<Bytes>>,
    /// Queued body bytes.
    sent_bytes: AtomicU64,
}

impl FrameWriter {
    /// Takes the writing half. A task sends frames after a full socket queue.
    #[must_use]
    pub fn new(sender: WebSocketSender, spawner: &dyn TaskSpawner) -> Self {
        let overflow = Arc::<OverflowQueue>::default();
        let task = drain_overflow(sender.clone(), Arc::clone(&overflow));
        spawner.spawn("executor late frames", Box::pin(task));
        Self { sender, overflow }
    }

    /// Sends a frame, once room is free. Dropping the future before completion sends nothing.
    ///
    /// # Errors
    /// The connection has ended; the frame was not sent.
    pub async fn send(&self, frame: &ExecutorFrame) -> Result<(), DisconnectReason> {
        self.sender.send(frame.to_bytes()).await
    }

    /// Sends a body chunk, once room is free.
    ///
    /// # Errors
    /// The connection has ended; the chunk was not sent.
    pub async fn send_data(
        &self,
        stream: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), DisconnectReason> {
        self.sender
            .send(frames::data_frame(stream, offset, bytes))
            .await?;
        let count = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.overflow.sent_bytes.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }

    /// Sends several small messages in a single write, once room is free.
    ///
    /// # Errors
    /// The connection has ended; no message was sent.
    pub async fn send_all(&self, messages: Vec<Bytes>) -> Result<(), DisconnectReason> {
        self.sender.send_all(messages).await
    }

    /// Sends a small frame without waiting: a credit, a cancel, a stop.
    pub fn push_frame(&self, frame: &ExecutorFrame) {
        self.push_message(frame.to_bytes());
    }

    /// Sends a message without waiting; large messages only within the credit.
    pub fn push_message(&self, message: Bytes) {
        let mut queue = lock(&self.overflow.queue);
        // Queued frames go first.
        let message = match queue.is_empty() {
            true => match self.sender.try_send(message) {
                Ok(()) => return,
                Err(message) => message,
            },
            false => message,
        };
        if self.sender.disconnect_reason().is_some() {
            return;
        }
        if queue.len() >= OVERFLOW_MAX {
            drop(queue);
            return self.close(close_codes::TRY_AGAIN_LATER, "nothing is read");
        }
        queue.push_back(message);
        drop(queue);
        self.overflow.queue.wake();
    }

    /// Sends an optional message if room is free now; returns the message otherwise.
    ///
    /// # Errors
    /// No room is free, or the connection has ended.
    pub fn try_send(&self, message: Bytes) -> Result<(), Bytes> {
        match lock(&self.overflow.queue).is_empty() {
            true => self.sender.try_send(message),
            false => Err(message),
        }
    }

    /// Returns the number of body bytes sent.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.overflow.sent_bytes.load(Ordering::Relaxed)
    }

    /// Closes the connection after the queued frames are written.
    pub fn close(&self, code: u16, reason: &str) {
        self.sender.close(code, reason);
    }

    /// Returns the cause of the disconnect, or `None` while connected.
    #[must_use]
    pub fn disconnect_reason(&self) -> Option<DisconnectReason> {
        self.sender.disconnect_reason()
    }

    /// Waits for the end of the connection.
    pub async fn wait_closed(&self) -> DisconnectReason {
        self.sender.wait_closed().await
    }
}

/// Sends overflow frames until the connection ends.
async fn drain_overflow(outgoing: WebSocketSender, late: Arc<OverflowQueue>) {
    loop {
        let next = lock(&late.queue).front().cloned();
        let Some(message) = next else {
            tokio::select! {
                biased;
                _ = outgoing.wait_closed() => return,
                () = late.queue.wait() => continue,
            }
        };
        if outgoing.send(message).await.is_err() {
            return lock(&late.queue).clear();
        }
        lock(&late.queue).pop_front();
    }
}
