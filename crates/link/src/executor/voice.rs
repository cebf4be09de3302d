//! What is said on one connection with an executor: with and without waiting for room.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use bowline_wire::executor::{self, Frame};
use bytes::Bytes;
use tokio::sync::Notify;

use crate::link::Spawner;
use crate::websocket::{Ended, Outgoing};

/// Small frames that may wait for room: two credits and a cancel for each of a connection's
/// streams, and as much again.
const LATE_MAX: usize = 8_192;

/// The close code of a connection that takes nothing.
const STUCK: u16 = 1013;

/// The writing half of a connection with an executor. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Voice {
    outgoing: Outgoing,
    late: Arc<Late>,
}

#[derive(Debug, Default)]
struct Late {
    queue: Mutex<VecDeque<Bytes>>,
    wake: Notify,
    /// Bytes of bodies that were handed over.
    sent_bytes: AtomicU64,
}

impl Voice {
    /// Takes over the writing half. What must not wait is sent by a task where there is no room.
    #[must_use]
    pub fn new(outgoing: Outgoing, spawner: &dyn Spawner) -> Self {
        let late = Arc::<Late>::default();
        let task = follow(outgoing.clone(), Arc::clone(&late));
        spawner.spawn("executor late frames", Box::pin(task));
        Self { outgoing, late }
    }

    /// Says something, once there is room. Where this is dropped before it returns, nothing was
    /// said.
    ///
    /// # Errors
    /// The connection is over, and it was not said.
    pub async fn send(&self, frame: &Frame) -> Result<(), Ended> {
        self.outgoing.send(frame.to_bytes()).await
    }

    /// Sends a piece of a body, once there is room.
    ///
    /// # Errors
    /// The connection is over, and it was not sent.
    pub async fn data(&self, stream: u64, offset: u64, bytes: &[u8]) -> Result<(), Ended> {
        self.outgoing
            .send(executor::data(stream, offset, bytes))
            .await?;
        let count = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.late.sent_bytes.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }

    /// Sends messages that are small together, once there is room: they are written at once.
    ///
    /// # Errors
    /// The connection is over, and they were not sent.
    pub async fn send_all(&self, messages: Vec<Bytes>) -> Result<(), Ended> {
        self.outgoing.send_all(messages).await
    }

    /// Says something small, without waiting: a credit, a cancel, a stop.
    pub fn say(&self, frame: &Frame) {
        self.put(frame.to_bytes());
    }

    /// Sends a message without waiting: of what is not small, no more than there is credit for.
    pub fn put(&self, message: Bytes) {
        let mut queue = lock(&self.late.queue);
        // What waits goes first.
        let message = match queue.is_empty() {
            true => match self.outgoing.try_send(message) {
                Ok(()) => return,
                Err(message) => message,
            },
            false => message,
        };
        if self.outgoing.ended().is_some() {
            return;
        }
        if queue.len() >= LATE_MAX {
            drop(queue);
            return self.close(STUCK, "nothing is read");
        }
        queue.push_back(message);
        drop(queue);
        self.late.wake.notify_one();
    }

    /// Sends what may be missing, if there is room now; gives it back where there is none.
    ///
    /// # Errors
    /// There is no room, or the connection is over.
    pub fn offer(&self, message: Bytes) -> Result<(), Bytes> {
        match lock(&self.late.queue).is_empty() {
            true => self.outgoing.try_send(message),
            false => Err(message),
        }
    }

    /// Returns how many bytes of bodies were sent.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.late.sent_bytes.load(Ordering::Relaxed)
    }

    /// Closes the connection, once what was said is written.
    pub fn close(&self, code: u16, reason: &str) {
        self.outgoing.close(code, reason);
    }

    /// Returns how the connection ended, once it has.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        self.outgoing.ended()
    }

    /// Waits for the end of the connection.
    pub async fn over(&self) -> Ended {
        self.outgoing.over().await
    }
}

/// Sends what found no room, until the connection ends.
async fn follow(outgoing: Outgoing, late: Arc<Late>) {
    loop {
        let next = lock(&late.queue).front().cloned();
        let Some(message) = next else {
            tokio::select! {
                biased;
                _ = outgoing.over() => return,
                () = late.wake.notified() => continue,
            }
        };
        if outgoing.send(message).await.is_err() {
            return lock(&late.queue).clear();
        }
        lock(&late.queue).pop_front();
    }
}
