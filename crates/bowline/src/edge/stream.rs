//! Event streams to callers: bounded, kept alive, ended by whoever falls behind.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bowline_core::caller::{Abilities, CallerEnd, Question, QuestionId, SessionKey};
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

    /// Whether the caller is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.events.is_closed()
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

/// The caller's end of one call, as the sending end of its stream.
#[derive(Debug)]
struct Sink {
    session: SessionKey,
    sender: EventSender,
}

impl CallerEnd for Sink {
    fn session(&self) -> SessionKey {
        self.session
    }

    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    fn push(&self, notification: Bytes) {
        // A caller that does not read its progress loses progress, never its answer.
        self.sender.push_frame(frame(&notification));
    }

    fn ask(&self, _: Question) -> Option<QuestionId> {
        None
    }

    fn withdraw(&self, _: QuestionId) {}

    fn home(&self) -> Arc<dyn CallerEnd> {
        Arc::new(Self {
            session: self.session,
            sender: self.sender.clone(),
        })
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
    guards: Vec<Box<dyn Guard>>,
}

/// Something that must end when a stream does.
pub trait Guard: std::fmt::Debug + Send {}

impl EventBody {
    /// Returns a stream that opens with a comment and keeps `guard`, and its sender.
    #[must_use]
    pub fn open(guard: Box<dyn Guard>) -> (EventSender, Self) {
        let (sender, receiver) = channel();
        let mut opening = Vec::new();
        sse::comment(&mut opening, "bowline");
        (sender, Self::new(receiver, Some(opening.into()), guard))
    }

    /// Returns the stream of a channel, which opens with `first` and keeps `guard`.
    #[must_use]
    pub fn of_call(
        events: mpsc::Receiver<Bytes>,
        first: Option<Bytes>,
        guard: Box<dyn Guard>,
    ) -> Self {
        Self::new(events, first, guard)
    }

    /// Keeps one more thing that ends with the stream.
    pub fn keep(&mut self, guard: Box<dyn Guard>) {
        self.guards.push(guard);
    }

    fn new(events: mpsc::Receiver<Bytes>, opening: Option<Bytes>, guard: Box<dyn Guard>) -> Self {
        let mut alive = tokio::time::interval(KEEP_ALIVE);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        alive.reset();
        Self {
            events,
            alive,
            opening,
            guards: vec![guard],
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
pub fn sink(session: SessionKey) -> (Arc<dyn CallerEnd>, mpsc::Receiver<Bytes>) {
    let (sender, receiver) = channel();
    (Arc::new(Sink { session, sender }), receiver)
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

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests turn this clock")]
mod tests {
    use std::future::poll_fn;

    use tokio::time::Instant;

    use super::*;

    #[derive(Debug)]
    struct Nothing;

    impl Guard for Nothing {}

    async fn next(body: &mut EventBody) -> Option<String> {
        let bytes = poll_fn(|cx| body.poll_bytes(cx)).await?;
        Some(String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_get_stream_opens_with_a_comment_and_keeps_alive() {
        let started = Instant::now();
        let (sender, mut body) = EventBody::open(Box::new(Nothing));
        assert_eq!(next(&mut body).await.unwrap(), ": bowline\n\n");
        assert_eq!(started.elapsed(), Duration::ZERO);
        for beats in 1..4 {
            assert_eq!(next(&mut body).await.unwrap(), ": alive\n\n");
            assert_eq!(started.elapsed(), KEEP_ALIVE * beats);
        }
        // An event is a sign of life as well.
        tokio::time::sleep(KEEP_ALIVE / 2).await;
        assert!(sender.send(b"{}"));
        let event = next(&mut body).await.unwrap();
        assert_eq!(event, "event: message\ndata: {}\n\n");
        let told = Instant::now();
        assert_eq!(next(&mut body).await.unwrap(), ": alive\n\n");
        assert_eq!(told.elapsed(), KEEP_ALIVE);
        drop(sender);
        assert_eq!(next(&mut body).await, None);
    }

    #[tokio::test]
    async fn a_caller_that_lags_loses_progress_but_not_its_answer() {
        let (sender, mut events) = channel();
        for _ in 0..=EVENTS_MAX {
            sender.push_frame(Bytes::from_static(b"progress"));
        }
        let last = tokio::join!(sender.finish(b"answer"), async {
            let mut last = None;
            for _ in 0..=EVENTS_MAX {
                last = events.recv().await;
            }
            last
        });
        assert_eq!(last.1.unwrap(), frame(b"answer"));
    }
}
