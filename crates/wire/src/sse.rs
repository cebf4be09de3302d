//! Server-sent events: the text form of a stream of events, both ways.

mod decode;
pub use decode::{Decoder, EVENTS_MAX, Limits, OwnedEvent};

/// An event to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// Where a reader may resume.
    pub id: Option<&'a str>,
    /// The name of the event; a reader takes none for `message`.
    pub event: Option<&'a str>,
    /// What it carries. A line break of any kind arrives as LF.
    pub data: &'a [u8],
}

/// Why an event is not written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseFault {
    /// An id or a name holds CR, LF or NUL, and would become something else on the way.
    #[error("the {field} of an event holds a line break or NUL")]
    Field {
        /// `id` or `event`.
        field: &'static str,
    },
    /// A line is longer than the limit.
    #[error("a line of the event stream is longer than {line_bytes_max} bytes")]
    Line {
        /// The limit.
        line_bytes_max: usize,
    },
    /// An event is longer than the limit.
    #[error("an event is longer than {event_bytes_max} bytes")]
    Event {
        /// The limit.
        event_bytes_max: usize,
    },
    /// Nobody takes the events that were read.
    #[error("more than {EVENTS_MAX} events wait to be taken")]
    Backlog,
}

/// Appends an event.
///
/// # Errors
/// The id or the name cannot be written; then nothing is appended.
pub fn encode(out: &mut Vec<u8>, event: &Event<'_>) -> Result<(), SseFault> {
    check("id", event.id)?;
    check("event", event.event)?;
    if let Some(id) = event.id {
        line(out, b"id: ", id.as_bytes());
    }
    if let Some(name) = event.event {
        line(out, b"event: ", name.as_bytes());
    }
    lines(out, b"data: ", event.data);
    out.push(b'\n');
    Ok(())
}

/// Appends a comment, which readers ignore: it keeps a silent stream alive.
pub fn comment(out: &mut Vec<u8>, text: &str) {
    lines(out, b": ", text.as_bytes());
    out.push(b'\n');
}

/// Appends how long a reader that lost the stream should wait before it comes back. It takes
/// effect with the next event.
pub fn retry(out: &mut Vec<u8>, wait_ms: u64) {
    line(
        out,
        b"retry: ",
        itoa::Buffer::new().format(wait_ms).as_bytes(),
    );
}

fn check(field: &'static str, value: Option<&str>) -> Result<(), SseFault> {
    match value {
        Some(value) if memchr::memchr3(b'\r', b'\n', 0, value.as_bytes()).is_some() => {
            Err(SseFault::Field { field })
        }
        _ => Ok(()),
    }
}

/// Appends one line for each line of `text`, which may end them with CR, LF or both.
fn lines(out: &mut Vec<u8>, prefix: &[u8], text: &[u8]) {
    let mut rest = text;
    while let Some((content, end, tail)) = split_line(rest) {
        line(out, prefix, content);
        rest = match tail {
            [b'\n', after @ ..] if end == b'\r' => after,
            tail => tail,
        };
    }
    line(out, prefix, rest);
}

/// The first line, the byte that ends it, and what follows; nothing when no line ends.
fn split_line(text: &[u8]) -> Option<(&[u8], u8, &[u8])> {
    let at = memchr::memchr2(b'\r', b'\n', text)?;
    let (content, rest) = text.split_at_checked(at)?;
    let (&end, tail) = rest.split_first()?;
    Some((content, end, tail))
}

fn line(out: &mut Vec<u8>, prefix: &[u8], content: &[u8]) {
    out.extend_from_slice(prefix);
    out.extend_from_slice(content);
    out.push(b'\n');
}

#[cfg(test)]
mod tests;
