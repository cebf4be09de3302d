//! Owns the stream from the server and brings every message to who waits for it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bowline_core::call::Body;
use bowline_wire::mcp::method;
use bowline_wire::{Fault, Kind, Message, Refusal, Span, jsonrpc, object};
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::mpsc;
use tracing::warn;

use super::lines::{Line, Lines};
use super::{Counts, Peer, Stop, frame};
use crate::link::{Answer, Exit, LinkError, LinkEvent};
use crate::stderr::Stamps;

/// Ids of requests of the server that we repeat in answers.
const PEER_ID_BYTES_MAX: usize = 1024;

/// Notifications that are passed on outside calls.
const EVENT_BYTES_MAX: usize = 64 * 1024;

/// Noise is reported at most this often.
const NOISE_EVERY_MS: u64 = 1_000;

/// Reads until the stream or the link ends.
pub(crate) async fn read_loop<R: AsyncRead + Unpin>(
    peer: Arc<Peer>,
    events: mpsc::Sender<LinkEvent>,
    stamps: Arc<Stamps>,
    mut stream: R,
) {
    let mut lines = Lines::new(peer.limits.line_bytes_max, peer.limits.discard_bytes_max);
    let mut reader = Reader {
        peer: &peer,
        events: Events::new(events),
        stamps: &stamps,
        noise_reported: 0,
        noise_due_ms: 0,
    };
    let mut ended = pin!(peer.ended());
    loop {
        let due = reader.events.is_due();
        let read = tokio::select! {
            biased;
            read = stream.read_buf(lines.room()) => read,
            _ = &mut ended => return,
            // A change that found no room waits for it here.
            () = reader.events.deliver(), if due => continue,
        };
        if !matches!(read, Ok(1..)) {
            break;
        }
        while let Some(line) = lines.next() {
            match line {
                Line::Whole(line) => reader.line(line),
                Line::TooLong(line) => reader.too_long(line.answers()),
                Line::Overrun => {
                    warn!(server = %peer.server, "a line on stdout has no end");
                    peer.end(Exit::Overrun, Stop::AtOnce);
                    peer.fail(Exit::Overrun);
                    return;
                }
            }
        }
    }
    // A server that dies may leave out the last line end, but not the last brace.
    if let Some(rest) = lines.rest() {
        reader.line(rest);
    }
    peer.end(Exit::Closed, Stop::Orderly);
}

/// Returns the number that an id of ours stands for. Some servers give numbers back as strings.
pub(super) fn own_id(raw: &[u8]) -> Option<u64> {
    let digits = match raw {
        [b'"', inner @ .., b'"'] => inner,
        number => number,
    };
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[derive(Debug)]
struct Reader<'a> {
    peer: &'a Peer,
    events: Events,
    stamps: &'a Stamps,
    /// How many lines of noise were reported.
    noise_reported: u64,
    /// When noise may be reported again.
    noise_due_ms: u64,
}

impl Reader<'_> {
    fn line(&mut self, line: Bytes) {
        let text = line.trim_ascii();
        let line = match text.first() {
            None => return,
            Some(b'{' | b'[') if text.len() == line.len() => line,
            Some(b'{' | b'[') => line.slice_ref(text),
            Some(_) => return self.noise(),
        };
        match Message::parse_peer(line.clone()) {
            Ok(message) => self.message(&message),
            Err(Refusal::Json(Fault::Utf8 { .. })) => {
                // Converted, it is valid text, so this happens once.
                let text = String::from_utf8_lossy(&line).into_owned();
                self.line(Bytes::from(text));
            }
            Err(Refusal::Batch) => {
                // A batch in a batch is none.
                for item in object::items(&line) {
                    match Message::parse_peer(line.slice(item.start..item.end)) {
                        Ok(message) => self.message(&message),
                        Err(_) => self.noise(),
                    }
                }
            }
            Err(refusal) => self.refused(&line, refusal),
        }
    }

    fn message(&mut self, message: &Message) {
        match message.kind() {
            Kind::Answer => self.answer(message),
            Kind::Notification => self.notification(message),
            Kind::Request => self.request(message),
        }
    }

    fn answer(&self, message: &Message) {
        let (body, body_at) = match (message.result_span(), message.error_span()) {
            (Some(at), _) => (Body::Result, at),
            (None, Some(at)) => (Body::Error, at),
            (None, None) => return,
        };
        let id = message.id().and_then(own_id);
        let (Some(id), Some(id_at)) = (id, message.id_span()) else {
            return Counts::add(&self.peer.counts.late);
        };
        let Some((waiter, _)) = self.peer.lock().pending.take(id) else {
            return Counts::add(&self.peer.counts.late);
        };
        let bytes = splice(message.bytes(), id_at, &waiter.reply_id);
        let shift = |at: usize| {
            if at < id_at.end {
                at
            } else {
                at - id_at.len() + waiter.reply_id.len()
            }
        };
        let body_at = shift(body_at.start)..shift(body_at.end);
        // Nobody there any more is the same as a late answer.
        let _ = waiter.answer.send(Ok(Answer {
            bytes,
            body,
            body_at,
        }));
    }

    fn notification(&mut self, message: &Message) {
        match message.method().unwrap_or_default() {
            method::PROGRESS => self.progress(message),
            method::TOOLS_LIST_CHANGED => self.events.changed(Change::Tools),
            method::PROMPTS_LIST_CHANGED => self.events.changed(Change::Prompts),
            method::RESOURCES_LIST_CHANGED => self.events.changed(Change::Resources),
            // Our answers to requests of the server are given at once; none can be taken back.
            method::CANCELLED => {}
            other => {
                let is_log = other == method::MESSAGE;
                let bytes = message.bytes();
                // Copied, so that the event does not hold the whole read buffer.
                let passed = bytes.len() <= EVENT_BYTES_MAX
                    && self.events.pass(|| {
                        let bytes = Bytes::copy_from_slice(bytes);
                        if is_log {
                            LinkEvent::Log(bytes)
                        } else {
                            LinkEvent::Other(bytes)
                        }
                    });
                if !passed {
                    Counts::add(&self.peer.counts.dropped);
                }
            }
        }
    }

    fn progress(&self, message: &Message) {
        let token = message.params_span().and_then(|params| {
            let token = object::field(params.of(message.bytes()), "progressToken")?;
            Some(token.shift(params.start))
        });
        let progress = token.and_then(|token| {
            let id = own_id(token.of(message.bytes()))?;
            let state = self.peer.lock();
            Some((token, state.pending.get(id)?.progress.clone()?))
        });
        match progress {
            Some((token, progress)) => {
                let notification = splice(message.bytes(), token, &progress.token);
                progress.sink.push(notification);
            }
            None => Counts::add(&self.peer.counts.late),
        }
    }

    fn request(&self, message: &Message) {
        let Some(id) = message.id().filter(|id| id.len() <= PEER_ID_BYTES_MAX) else {
            return Counts::add(&self.peer.counts.dropped);
        };
        let asked = message.method().unwrap_or_default();
        self.peer.reply(frame::reply(id, asked));
    }

    /// Ends the wait of the one whose answer was thrown away.
    fn too_long(&mut self, answers: Option<u64>) {
        let bytes_max = self.peer.limits.line_bytes_max;
        match answers {
            Some(id) => self.give(id, LinkError::TooLong { bytes_max }),
            None => self.noise(),
        }
    }

    /// A line that is no message. One that says it is an answer, and to what, ends that wait;
    /// anything else that looks alike may be a log line of the server.
    fn refused(&mut self, line: &[u8], refusal: Refusal) {
        let says = |key| object::field(line, key).is_some();
        let id = if says("jsonrpc") && !says("method") {
            jsonrpc::refused_id(line).and_then(own_id)
        } else {
            None
        };
        match id {
            Some(id) => {
                let reason = match refusal {
                    Refusal::Json(fault) => fault.to_string(),
                    other => other.to_string(),
                };
                self.give(id, LinkError::BadAnswer(reason.into()));
            }
            None => self.noise(),
        }
    }

    fn give(&self, id: u64, error: LinkError) {
        match self.peer.lock().pending.take(id) {
            Some((waiter, _)) => {
                let _ = waiter.answer.send(Err(error));
            }
            None => Counts::add(&self.peer.counts.late),
        }
    }

    fn noise(&mut self) {
        let seen = self.peer.counts.noise.fetch_add(1, Ordering::Relaxed) + 1;
        let now_ms = self.stamps.now_ms();
        if now_ms >= self.noise_due_ms {
            let lines = seen - self.noise_reported;
            warn!(server = %self.peer.server, lines, "stdout holds lines that are no messages");
            self.noise_reported = seen;
            self.noise_due_ms = now_ms + NOISE_EVERY_MS;
        }
    }
}

/// Returns a text with one range replaced.
fn splice(source: &[u8], at: Span, with: &[u8]) -> Bytes {
    let before = source.get(..at.start).unwrap_or_default();
    let after = source.get(at.end..).unwrap_or_default();
    let mut out = Vec::with_capacity(before.len() + with.len() + after.len());
    out.extend_from_slice(before);
    out.extend_from_slice(with);
    out.extend_from_slice(after);
    Bytes::from(out)
}

/// A list that changed.
#[derive(Clone, Copy, Debug)]
enum Change {
    Tools,
    Prompts,
    Resources,
}

/// The way to who listens outside calls.
#[derive(Debug)]
struct Events {
    channel: mpsc::Sender<LinkEvent>,
    /// Changes that found no room yet: at most one of each kind, so none is lost.
    due: Vec<LinkEvent>,
}

impl Events {
    const fn new(channel: mpsc::Sender<LinkEvent>) -> Self {
        Self {
            channel,
            due: Vec::new(),
        }
    }

    const fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    fn changed(&mut self, change: Change) {
        let event = match change {
            Change::Tools => LinkEvent::ToolsChanged,
            Change::Prompts => LinkEvent::PromptsChanged,
            Change::Resources => LinkEvent::ResourcesChanged,
        };
        if self.due.contains(&event) {
            return;
        }
        if let Err(mpsc::error::TrySendError::Full(event)) = self.channel.try_send(event) {
            self.due.push(event);
        }
    }

    /// Hands over what may be lost; `false` when it is.
    fn pass(&self, event: impl FnOnce() -> LinkEvent) -> bool {
        match self.channel.try_reserve() {
            Ok(permit) => {
                permit.send(event());
                true
            }
            Err(_) => false,
        }
    }

    /// Waits for room for one change that is due.
    async fn deliver(&mut self) {
        match self.channel.reserve().await {
            Ok(permit) => {
                if let Some(event) = self.due.pop() {
                    permit.send(event);
                }
            }
            // Nobody listens.
            Err(_) => self.due.clear(),
        }
    }
}
