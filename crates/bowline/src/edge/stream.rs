//! Event streams to callers: bounded, kept alive, ended by whoever falls behind.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bowline_core::call::EventSink;
use bowline_wire::sse;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior};

/// How often an idle stream says that it is alive.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Events that may wait for one caller; one that lets more pile up is cut off.
pub const EVENTS_MAX: usize = 256;

/// The sending end of a stream.
#[derive(Clone, Debug)]
pub struct EventSender {
    events: mpsc::Sender<Bytes>,
}

impl EventSender {
    /// Sends one JSON-RPC message; `false` when the stream is gone or too far behind.
    #[must_use]
    pub fn send(&self, message: &[u8]) -> bool {
        self.events.try_send(frame(message)).is_ok()
    }

    /// Passes on an event that is framed already; dropped when the caller is too far behind.
    pub fn push_frame(&self, event: Bytes) {
        let _ = self.events.try_send(event);
    }

    /// Sends the last message, waiting for room: an answer is never dropped.
    pub async fn finish(&self, message: &[u8]) {
        // Fails only when the caller is gone.
        let _ = self.events.send(frame(message)).await;
    }
}

impl EventSink for EventSender {
    fn push(&self, notification: Bytes) {
        // A caller that does not read its progress loses progress, never its answer.
        let _ = self.events.try_send(frame(&notification));
    }
}

/// The receiving end, as the body of an answer.
#[derive(Debug)]
pub struct EventBody {
    events: mpsc::Receiver<Bytes>,
    alive: Interval,
    /// Sent before everything else.
    opening: Option<Bytes>,
    /// Dropped with the stream; whatever must end with it.
    _guard: Option<Box<dyn Guard>>,
}

/// Something that must end when a stream does.
pub trait Guard: std::fmt::Debug + Send {}

impl EventBody {
    /// Returns a stream that opens with a comment, and its sender.
    #[must_use]
    pub fn open() -> (EventSender, Self) {
        let (sender, receiver) = channel();
        let mut opening = Vec::new();
        sse::comment(&mut opening, "bowline");
        (sender, Self::new(receiver, Some(opening.into()), None))
    }

    /// Returns the stream of a channel, which opens with `first` and keeps `guard`.
    #[must_use]
    pub fn of_call(
        events: mpsc::Receiver<Bytes>,
        first: Option<Bytes>,
        guard: Box<dyn Guard>,
    ) -> Self {
        Self::new(events, first, Some(guard))
    }

    fn new(
        events: mpsc::Receiver<Bytes>,
        opening: Option<Bytes>,
        guard: Option<Box<dyn Guard>>,
    ) -> Self {
        let mut alive = tokio::time::interval(KEEP_ALIVE);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        alive.reset();
        Self {
            events,
            alive,
            opening,
            _guard: guard,
        }
    }

    /// Returns the next bytes to send, `None` at the end.
    pub fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(opening) = self.opening.take() {
            return Poll::Ready(Some(opening));
        }
        if let Poll::Ready(event) = self.events.poll_recv(cx) {
            self.alive.reset();
            return Poll::Ready(event);
        }
        if Pin::new(&mut self.alive).poll_tick(cx).is_ready() {
            let mut comment = Vec::new();
            sse::comment(&mut comment, "alive");
            return Poll::Ready(Some(comment.into()));
        }
        Poll::Pending
    }
}

/// Returns a bounded channel of events.
#[must_use]
pub fn channel() -> (EventSender, mpsc::Receiver<Bytes>) {
    let (events, receiver) = mpsc::channel(EVENTS_MAX);
    (EventSender { events }, receiver)
}

/// Returns a sink for the events of one call, and where they arrive.
#[must_use]
pub fn sink() -> (Arc<dyn EventSink>, mpsc::Receiver<Bytes>) {
    let (sender, receiver) = channel();
    (Arc::new(sender), receiver)
}

/// Frames one JSON-RPC message as an event.
#[must_use]
pub fn frame(message: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(message.len() + 32);
    let event = sse::Event {
        id: None,
        event: Some("message"),
        data: message,
    };
    // Only an id or a name can be refused, and ours is a constant.
    let _ = sse::encode(&mut out, &event);
    out.into()
}
