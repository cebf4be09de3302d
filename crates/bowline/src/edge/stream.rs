//! Event streams to callers: bounded, kept alive, and resumed by a caller that comes back.

mod line;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bowline_wire::{object, sse};
use bytes::Bytes;
use tokio::time::{Interval, MissedTickBehavior};

use super::large::{self, LARGE_BYTES_MIN, LargeBody, Payer};

pub use line::{EVENTS_MAX, Kept, Line, Next, Reader};

/// How often an idle stream says that it is alive.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How long a caller that lost a stream should wait before it comes back.
pub const RETRY_MS: u64 = 1_000;

/// Where the events of a stream come from.
pub trait Source: std::fmt::Debug + Send + Sync {
    /// Returns the events.
    fn line(&self) -> &Line;

    /// Notes that the connection of this reader is gone.
    fn left(&self, reader: Reader, told: Told);
}

/// Whether a stream has sent anything before it was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Not a byte: its caller knows of no stream.
    Nothing,
    /// Its beginning at least.
    Something,
}

/// Names a stream in the ids of its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(pub u64);

/// A stream as the ids of its events name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamName {
    /// Tells it from every other stream.
    pub label: Label,
    /// Says whose stream it is to a gateway that does not know it, such as one that was restarted.
    pub seal: Option<Arc<str>>,
}

impl StreamName {
    fn id(&self, number: u64) -> String {
        let place = Place {
            label: self.label,
            number,
            seal: self.seal.as_deref(),
        };
        place.write()
    }
}

impl From<Label> for StreamName {
    fn from(label: Label) -> Self {
        Self { label, seal: None }
    }
}

/// Where in which stream a caller was, as the id of an event says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The stream.
    pub label: Label,
    /// The number of the last message seen; 0 before the first.
    pub number: u64,
    /// The seal of its name, where it has one.
    pub seal: Option<&'a str>,
}

impl<'a> Place<'a> {
    /// Reads what [`write`](Self::write) wrote, and nothing else.
    #[must_use]
    pub fn parse(id: &'a str) -> Option<Self> {
        let (place, seal) = match id.split_once('.') {
            Some((place, seal)) => (place, Some(seal)),
            None => (id, None),
        };
        let (label, number) = place.split_once('-')?;
        let place = Self {
            label: Label(u64::from_str_radix(label, 16).ok()?),
            number: number.parse().ok()?,
            seal,
        };
        (place.write() == id).then_some(place)
    }

    /// Writes the id of an event.
    #[must_use]
    pub fn write(self) -> String {
        let (label, number) = (self.label.0, self.number);
        match self.seal {
            Some(seal) => format!("{label:x}-{number}.{seal}"),
            None => format!("{label:x}-{number}"),
        }
    }
}

/// How a stream begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// With its first event.
    Plain,
    /// With a comment, so that the caller sees at once that it is open.
    Comment,
    /// With the id of an event that says nothing: a place to come back to.
    Primed {
        /// The number of the message before those that follow.
        after: u64,
    },
    /// With comments: it is open, and events between were not kept.
    Gap,
    /// With a comment and then such an event.
    Both {
        /// The number of the message before those that follow.
        after: u64,
    },
}

/// The receiving end, as the body of an answer.
#[derive(Debug)]
pub struct EventBody {
    source: Arc<dyn Source>,
    reader: Reader,
    /// Given to the events of a stream to which a caller may come back.
    name: Option<StreamName>,
    alive: Interval,
    /// Sent before everything else.
    opening: Option<Bytes>,
    told: Told,
    /// Whose share large events are a part of.
    payer: Option<Payer>,
    /// What is left of a large event.
    rest: Option<LargeBody>,
    /// Dropped with the stream; whatever must end with it.
    guards: Vec<Box<dyn Guard>>,
}

/// Something that must end when a stream does.
pub trait Guard: std::fmt::Debug + Send {}

impl EventBody {
    /// Returns the stream of one reader.
    #[must_use]
    pub fn new(
        source: Arc<dyn Source>,
        reader: Reader,
        name: Option<StreamName>,
        opening: Opening,
    ) -> Self {
        let mut alive = tokio::time::interval(KEEP_ALIVE);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        alive.reset();
        Self {
            source,
            reader,
            opening: opened(name.as_ref(), opening),
            name,
            alive,
            told: Told::Nothing,
            payer: None,
            rest: None,
            guards: Vec::new(),
        }
    }

    /// Sends `bytes` before everything else.
    pub fn begin_with(&mut self, bytes: Bytes) {
        self.opening = Some(bytes);
    }

    /// Counts large events in this share until they are handed out.
    pub fn paid_by(&mut self, payer: Payer) {
        self.payer = Some(payer);
    }

    /// Frames a message. A large one is handed out in pieces; where its reader leaves too much
    /// unread, it is told so in the place of a response, and misses a notification.
    fn framed(&mut self, number: u64, message: &Bytes) -> Option<Bytes> {
        let id = self.name.as_ref().map(|name| name.id(number));
        let whole = frame(id.as_deref(), message);
        let Some(payer) = self
            .payer
            .as_ref()
            .filter(|_| whole.len() > LARGE_BYTES_MIN)
        else {
            return Some(whole);
        };
        match payer.pay(whole) {
            Ok(large) => self.rest.insert(large).next_piece(),
            Err(cause) => {
                object::field(message, "id")?;
                Some(frame(id.as_deref(), &large::undelivered(message, cause)))
            }
        }
    }

    /// Keeps one more thing that ends with the stream.
    pub fn keep(&mut self, guard: Box<dyn Guard>) {
        self.guards.push(guard);
    }

    /// Returns the next bytes to send, `None` at the end.
    pub fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(opening) = self.opening.take() {
            self.told = Told::Something;
            return Poll::Ready(Some(opening));
        }
        if let Some(piece) = self.rest.as_mut().and_then(LargeBody::next_piece) {
            return Poll::Ready(Some(piece));
        }
        self.rest = None;
        loop {
            match self.source.line().poll_next(self.reader, cx) {
                Poll::Ready(Next::Message(number, message)) => {
                    self.alive.reset();
                    self.told = Told::Something;
                    if let Some(bytes) = self.framed(number, &message) {
                        return Poll::Ready(Some(bytes));
                    }
                }
                Poll::Ready(Next::End) => return Poll::Ready(None),
                Poll::Pending => break,
            }
        }
        if Pin::new(&mut self.alive).poll_tick(cx).is_ready() {
            let mut comment = Vec::new();
            sse::comment(&mut comment, "alive");
            return Poll::Ready(Some(comment.into()));
        }
        Poll::Pending
    }
}

impl Drop for EventBody {
    fn drop(&mut self) {
        self.source.left(self.reader, self.told);
    }
}

fn opened(name: Option<&StreamName>, opening: Opening) -> Option<Bytes> {
    let mut out = Vec::new();
    match (opening, name) {
        (Opening::Plain, _) => return None,
        (Opening::Primed { after }, Some(name)) => prime(&mut out, name, after),
        (Opening::Both { after }, Some(name)) => {
            sse::comment(&mut out, "bowline");
            prime(&mut out, name, after);
        }
        (Opening::Gap, _) => {
            sse::comment(&mut out, "bowline");
            sse::comment(&mut out, "events before this one were not kept");
        }
        (Opening::Comment, _) | (Opening::Primed { .. } | Opening::Both { .. }, None) => {
            sse::comment(&mut out, "bowline");
        }
    }
    Some(out.into())
}

fn prime(out: &mut Vec<u8>, name: &StreamName, number: u64) {
    sse::retry(out, RETRY_MS);
    encode(out, Some(&name.id(number)), None, b"");
}

/// Frames one JSON-RPC message as an event.
#[must_use]
pub fn frame(id: Option<&str>, message: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(message.len() + 64);
    encode(&mut out, id, Some("message"), message);
    out.into()
}

/// Frames the event that tells an old client where to post.
#[must_use]
pub fn endpoint(path: &str) -> Bytes {
    let mut out = Vec::new();
    encode(&mut out, None, Some("endpoint"), path.as_bytes());
    out.into()
}

fn encode(out: &mut Vec<u8>, id: Option<&str>, event: Option<&str>, data: &[u8]) {
    // Only an id or a name can be refused, and ours hold no line breaks.
    let _ = sse::encode(out, &sse::Event { id, event, data });
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
    struct Words {
        line: Line,
        left: Mutex<Vec<Told>>,
    }

    impl Source for Words {
        fn line(&self) -> &Line {
            &self.line
        }

        fn left(&self, reader: Reader, told: Told) {
            self.line.leave(reader);
            lock(&self.left).push(told);
        }
    }

    async fn next(body: &mut EventBody) -> Option<String> {
        let bytes = poll_fn(|cx| body.poll_bytes(cx)).await?;
        Some(String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_get_stream_opens_with_a_comment_and_keeps_alive() {
        let started = Instant::now();
        let words = Arc::new(Words::default());
        let reader = words.line.read();
        let source = Arc::clone(&words) as Arc<dyn Source>;
        let mut body = EventBody::new(source, reader, None, Opening::Comment);
        assert_eq!(next(&mut body).await.unwrap(), ": bowline\n\n");
        assert_eq!(started.elapsed(), Duration::ZERO);
        for beats in 1..4 {
            assert_eq!(next(&mut body).await.unwrap(), ": alive\n\n");
            assert_eq!(started.elapsed(), KEEP_ALIVE * beats);
        }
        // An event is a sign of life as well.
        tokio::time::sleep(KEEP_ALIVE / 2).await;
        assert!(words.line.push("{}".into()));
        let event = next(&mut body).await.unwrap();
        assert_eq!(event, "event: message\ndata: {}\n\n");
        let told = Instant::now();
        assert_eq!(next(&mut body).await.unwrap(), ": alive\n\n");
        assert_eq!(told.elapsed(), KEEP_ALIVE);
        words.line.interrupt();
        assert_eq!(next(&mut body).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_primed_stream_begins_with_a_place_to_come_back_to() {
        let words = Arc::new(Words::default());
        let label = || Some(Label(0xab).into());
        let source = || Arc::clone(&words) as Arc<dyn Source>;
        let unread = EventBody::new(source(), words.line.read(), label(), Opening::Plain);
        drop(unread);
        let opening = Opening::Primed { after: 0 };
        let mut body = EventBody::new(source(), words.line.read(), label(), opening);
        let first = next(&mut body).await.unwrap();
        assert_eq!(first, "retry: 1000\nid: ab-0\ndata: \n\n");
        assert!(words.line.push("{}".into()));
        let event = next(&mut body).await.unwrap();
        assert_eq!(event, "id: ab-1\nevent: message\ndata: {}\n\n");
        drop(body);
        let left = lock(&words.left).clone();
        assert_eq!(left, [Told::Nothing, Told::Something]);
    }

    #[test]
    fn an_event_id_reads_back_and_nothing_else_does() {
        let place = Place {
            label: Label(u64::MAX),
            number: 7,
            seal: None,
        };
        assert_eq!(Place::parse(&place.write()), Some(place));
        let sealed = Place {
            seal: Some("a-_b"),
            ..place
        };
        assert_eq!(Place::parse(&sealed.write()), Some(sealed));
        for id in [
            "", "-", "1", "-1", "0-", "g-1", "A-1", "00-1", "1-01", "1-+1", " 1-1", "1-1 ", "1-1-1",
        ] {
            assert_eq!(Place::parse(id), None, "{id:?}");
        }
    }
}
