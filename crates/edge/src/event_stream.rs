//! SSE streams to clients: bounded, kept alive, and resumable.

mod event_buffer;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bowline_wire::{object, sse};
use bytes::Bytes;
use tokio::time::{Interval, MissedTickBehavior};

use super::response_body::{self, LARGE_BYTES_MIN, LargeBody, ResponseAccount};

#[cfg(test)]
pub(crate) use event_buffer::WAITING_EVENTS_MAX;
pub(crate) use event_buffer::{BufferEvent, EventBuffer, ReaderId, ReplayBudget};

/// Interval of keep-alive comments on an idle stream.
pub(crate) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Reconnect delay sent to clients.
pub(crate) const RETRY_MS: u64 = 1_000;

/// Source of a stream's events.
pub trait EventSource: std::fmt::Debug + Send + Sync {
    /// Returns the event buffer.
    fn buffer(&self) -> &EventBuffer;

    /// Called when the reader's connection is gone.
    fn reader_left(&self, reader: ReaderId, delivery: StreamDelivery);
}

/// Whether a stream sent anything before its connection closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamDelivery {
    /// Nothing: the client knows of no stream.
    Nothing,
    /// At least the opening.
    Started,
}

/// Label of a stream in event ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLabel(pub u64);

/// Name of a stream in event ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamName {
    /// Unique per stream.
    pub label: StreamLabel,
    /// Identifies the stream to a gateway without record of it, for example after a restart.
    pub seal: Option<Arc<str>>,
}

impl StreamName {
    fn event_id(&self, number: u64) -> String {
        let id = EventId {
            label: self.label,
            number,
            seal: self.seal.as_deref(),
        };
        id.encode()
    }
}

impl From<StreamLabel> for StreamName {
    fn from(label: StreamLabel) -> Self {
        Self { label, seal: None }
    }
}

/// Event id: a position in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventId<'a> {
    /// The stream.
    pub label: StreamLabel,
    /// Number of the last message seen; 0 before the first.
    pub number: u64,
    /// Seal of the stream name, if any.
    pub seal: Option<&'a str>,
}

impl<'a> EventId<'a> {
    /// Parses exactly the output of [`encode`](Self::encode).
    #[must_use]
    pub fn parse(id: &'a str) -> Option<Self> {
        let (position, seal) = match id.split_once('.') {
            Some((position, seal)) => (position, Some(seal)),
            None => (id, None),
        };
        let (label, number) = position.split_once('-')?;
        let position = Self {
            label: StreamLabel(u64::from_str_radix(label, 16).ok()?),
            number: number.parse().ok()?,
            seal,
        };
        (position.encode() == id).then_some(position)
    }

    /// Encodes the event id.
    #[must_use]
    pub fn encode(self) -> String {
        let (label, number) = (self.label.0, self.number);
        match self.seal {
            Some(seal) => format!("{label:x}-{number}.{seal}"),
            None => format!("{label:x}-{number}"),
        }
    }
}

/// First bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamOpening {
    /// The first event.
    Plain,
    /// A comment, so that the client sees the open stream at once.
    Comment,
    /// An empty event with an id, for resumption.
    Primed {
        /// Number of the preceding message.
        after: u64,
    },
    /// Comments: the stream is open, and some events were not kept.
    Gap,
    /// A comment, then an empty event with an id.
    CommentAndPrimed {
        /// Number of the preceding message.
        after: u64,
    },
}

/// Response body of an SSE stream.
#[derive(Debug)]
pub struct EventBody {
    source: Arc<dyn EventSource>,
    reader: ReaderId,
    /// Name used in event ids of a resumable stream.
    name: Option<StreamName>,
    keep_alive: Interval,
    /// Sent first.
    opening: Option<Bytes>,
    delivery: StreamDelivery,
    /// Account charged for large events.
    account: Option<ResponseAccount>,
    /// Unsent rest of a large event.
    rest: Option<LargeBody>,
    /// Dropped with the stream.
    guards: Vec<Box<dyn StreamGuard>>,
}

/// A resource released with a stream.
pub trait StreamGuard: std::fmt::Debug + Send {}

impl EventBody {
    /// Creates the body for a reader.
    #[must_use]
    pub fn new(
        source: Arc<dyn EventSource>,
        reader: ReaderId,
        name: Option<StreamName>,
        opening: StreamOpening,
    ) -> Self {
        let mut keep_alive = tokio::time::interval(KEEP_ALIVE_INTERVAL);
        keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        keep_alive.reset();
        Self {
            source,
            reader,
            opening: opening_bytes(name.as_ref(), opening),
            name,
            keep_alive,
            delivery: StreamDelivery::Nothing,
            account: None,
            rest: None,
            guards: Vec::new(),
        }
    }

    /// Sets the bytes sent first.
    pub fn set_opening(&mut self, bytes: Bytes) {
        self.opening = Some(bytes);
    }

    /// Charges large events to this account until sent.
    pub fn charge_to(&mut self, payer: ResponseAccount) {
        self.account = Some(payer);
    }

    /// Frames a message. A large message is sent in pieces; above the reader's limit of unread
    /// bytes, a response is replaced by an error and a notification is dropped.
    fn frame_message(&mut self, number: u64, message: &Bytes) -> Option<Bytes> {
        let id = self.name.as_ref().map(|name| name.event_id(number));
        let whole = frame_event(id.as_deref(), message);
        let Some(payer) = self
            .account
            .as_ref()
            .filter(|_| whole.len() > LARGE_BYTES_MIN)
        else {
            return Some(whole);
        };
        match payer.charge_bytes(whole) {
            Ok(large) => self.rest.insert(large).next_piece(),
            Err(cause) => {
                object::field(message, "id")?;
                Some(frame_event(
                    id.as_deref(),
                    &response_body::undelivered_error(message, cause),
                ))
            }
        }
    }

    /// Attaches a guard dropped with the stream.
    pub fn attach_guard(&mut self, guard: Box<dyn StreamGuard>) {
        self.guards.push(guard);
    }

    /// Returns the next bytes to send; `None` at the end.
    pub fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(opening) = self.opening.take() {
            self.delivery = StreamDelivery::Started;
            return Poll::Ready(Some(opening));
        }
        if let Some(piece) = self.rest.as_mut().and_then(LargeBody::next_piece) {
            return Poll::Ready(Some(piece));
        }
        self.rest = None;
        loop {
            match self.source.buffer().poll_next(self.reader, cx) {
                Poll::Ready(BufferEvent::Message(number, message)) => {
                    self.keep_alive.reset();
                    self.delivery = StreamDelivery::Started;
                    if let Some(bytes) = self.frame_message(number, &message) {
                        return Poll::Ready(Some(bytes));
                    }
                }
                Poll::Ready(BufferEvent::End) => return Poll::Ready(None),
                Poll::Pending => break,
            }
        }
        if Pin::new(&mut self.keep_alive).poll_tick(cx).is_ready() {
            let mut comment = Vec::new();
            sse::encode_comment(&mut comment, "alive");
            return Poll::Ready(Some(comment.into()));
        }
        Poll::Pending
    }
}

impl Drop for EventBody {
    fn drop(&mut self) {
        self.source.reader_left(self.reader, self.delivery);
    }
}

fn opening_bytes(name: Option<&StreamName>, opening: StreamOpening) -> Option<Bytes> {
    let mut out = Vec::new();
    match (opening, name) {
        (StreamOpening::Plain, _) => return None,
        (StreamOpening::Primed { after }, Some(name)) => write_primer(&mut out, name, after),
        (StreamOpening::CommentAndPrimed { after }, Some(name)) => {
            sse::encode_comment(&mut out, "bowline");
            write_primer(&mut out, name, after);
        }
        (StreamOpening::Gap, _) => {
            sse::encode_comment(&mut out, "bowline");
            sse::encode_comment(&mut out, "events before this one were not kept");
        }
        (StreamOpening::Comment, _)
        | (StreamOpening::Primed { .. } | StreamOpening::CommentAndPrimed { .. }, None) => {
            sse::encode_comment(&mut out, "bowline");
        }
    }
    Some(out.into())
}

fn write_primer(out: &mut Vec<u8>, name: &StreamName, number: u64) {
    sse::encode_retry(out, RETRY_MS);
    encode_event(out, Some(&name.event_id(number)), None, b"");
}

/// Frames a JSON-RPC message as an event.
#[must_use]
pub(crate) fn frame_event(id: Option<&str>, message: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(message.len() + 64);
    encode_event(&mut out, id, Some("message"), message);
    out.into()
}

/// Frames the event with the POST endpoint for the HTTP+SSE transport.
#[must_use]
pub(crate) fn endpoint_event(path: &str) -> Bytes {
    let mut out = Vec::new();
    encode_event(&mut out, None, Some("endpoint"), path.as_bytes());
    out.into()
}

fn encode_event(out: &mut Vec<u8>, id: Option<&str>, event: Option<&str>, data: &[u8]) {
    // Encoding fails only for line breaks in the id or name, and neither contains any.
    let _ = sse::encode_event(out, &sse::SseEvent { id, event, data });
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests turn this clock")]
mod tests {
    use std::future::poll_fn;
    use std::sync::Mutex;

    use bowline_core::sync::lock;
    use tokio::time::Instant;

    use super::*;

    #[derive(Debug, Default)]
    struct TestSource {
        buffer: EventBuffer,
        deliveries: Mutex<Vec<StreamDelivery>>,
    }

    impl EventSource for TestSource {
        fn buffer(&self) -> &EventBuffer {
            &self.buffer
        }

        fn reader_left(&self, reader: ReaderId, delivery: StreamDelivery) {
            self.buffer.release_reader(reader);
            lock(&self.deliveries).push(delivery);
        }
    }

    async fn next_chunk(body: &mut EventBody) -> Option<String> {
        let bytes = poll_fn(|cx| body.poll_bytes(cx)).await?;
        Some(String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn listen_stream_opens_and_keeps_alive() {
        let started = Instant::now();
        let words = Arc::new(TestSource::default());
        let reader = words.buffer.attach_reader();
        let source = Arc::clone(&words) as Arc<dyn EventSource>;
        let mut body = EventBody::new(source, reader, None, StreamOpening::Comment);
        assert_eq!(next_chunk(&mut body).await.unwrap(), ": bowline\n\n");
        assert_eq!(started.elapsed(), Duration::ZERO);
        for beats in 1..4 {
            assert_eq!(next_chunk(&mut body).await.unwrap(), ": alive\n\n");
            assert_eq!(started.elapsed(), KEEP_ALIVE_INTERVAL * beats);
        }
        // An event resets the keep-alive timer.
        tokio::time::sleep(KEEP_ALIVE_INTERVAL / 2).await;
        assert!(words.buffer.push("{}".into()));
        let event = next_chunk(&mut body).await.unwrap();
        assert_eq!(event, "event: message\ndata: {}\n\n");
        let sent_at = Instant::now();
        assert_eq!(next_chunk(&mut body).await.unwrap(), ": alive\n\n");
        assert_eq!(sent_at.elapsed(), KEEP_ALIVE_INTERVAL);
        words.buffer.detach_reader();
        assert_eq!(next_chunk(&mut body).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn primed_stream_starts_with_event_id() {
        let words = Arc::new(TestSource::default());
        let label = || Some(StreamLabel(0xab).into());
        let source = || Arc::clone(&words) as Arc<dyn EventSource>;
        let unread = EventBody::new(
            source(),
            words.buffer.attach_reader(),
            label(),
            StreamOpening::Plain,
        );
        drop(unread);
        let opening = StreamOpening::Primed { after: 0 };
        let mut body = EventBody::new(source(), words.buffer.attach_reader(), label(), opening);
        let first = next_chunk(&mut body).await.unwrap();
        assert_eq!(first, "retry: 1000\nid: ab-0\ndata: \n\n");
        assert!(words.buffer.push("{}".into()));
        let event = next_chunk(&mut body).await.unwrap();
        assert_eq!(event, "id: ab-1\nevent: message\ndata: {}\n\n");
        drop(body);
        let left = lock(&words.deliveries).clone();
        assert_eq!(left, [StreamDelivery::Nothing, StreamDelivery::Started]);
    }

    #[test]
    fn event_id_round_trips_exactly() {
        let unsealed = EventId {
            label: StreamLabel(u64::MAX),
            number: 7,
            seal: None,
        };
        assert_eq!(EventId::parse(&unsealed.encode()), Some(unsealed));
        let sealed = EventId {
            seal: Some("a-_b"),
            ..unsealed
        };
        assert_eq!(EventId::parse(&sealed.encode()), Some(sealed));
        for id in [
            "", "-", "1", "-1", "0-", "g-1", "A-1", "00-1", "1-01", "1-+1", " 1-1", "1-1 ", "1-1-1",
        ] {
            assert_eq!(EventId::parse(id), None, "{id:?}");
        }
    }
}
