//! Server-sent events: encoding and decoding.

mod sse_decoder;
pub use sse_decoder::{EVENTS_MAX, OwnedSseEvent, SseDecoder, SseLimits};

/// An event to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SseEvent<'a> {
    /// The event id, for resumption.
    pub id: Option<&'a str>,
    /// The event name; `message` by default.
    pub event: Option<&'a str>,
    /// The payload. Line breaks of any kind arrive as LF.
    pub data: &'a [u8],
}

/// Encoding or decoding error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// An id or name contains CR, LF or NUL, which the format cannot represent.
    #[error("the {field} of an event holds a line break or NUL")]
    Field {
        /// `id` or `event`.
        field: &'static str,
    },
    /// A line exceeds the limit.
    #[error("a line of the event stream is longer than {line_bytes_max} bytes")]
    Line {
        /// The limit.
        line_bytes_max: usize,
    },
    /// An event exceeds the limit.
    #[error("an event is longer than {event_bytes_max} bytes")]
    Event {
        /// The limit.
        event_bytes_max: usize,
    },
    /// Too many decoded events not taken.
    #[error("more than {EVENTS_MAX} events wait to be taken")]
    Backlog,
}

/// Appends an event.
///
/// # Errors
/// The id or name is invalid; nothing is appended.
pub fn encode_event(out: &mut Vec<u8>, event: &SseEvent<'_>) -> Result<(), SseError> {
    check_field("id", event.id)?;
    check_field("event", event.event)?;
    if let Some(id) = event.id {
        write_line(out, b"id: ", id.as_bytes());
    }
    if let Some(name) = event.event {
        write_line(out, b"event: ", name.as_bytes());
    }
    write_lines(out, b"data: ", event.data);
    out.push(b'\n');
    Ok(())
}

/// Appends a comment as a keep-alive; readers ignore comments.
pub fn encode_comment(out: &mut Vec<u8>, text: &str) {
    write_lines(out, b": ", text.as_bytes());
    out.push(b'\n');
}

/// Appends the reconnection time; effective with the next event.
pub fn encode_retry(out: &mut Vec<u8>, wait_ms: u64) {
    write_line(
        out,
        b"retry: ",
        itoa::Buffer::new().format(wait_ms).as_bytes(),
    );
}

fn check_field(field: &'static str, value: Option<&str>) -> Result<(), SseError> {
    match value {
        Some(value) if memchr::memchr3(b'\r', b'\n', 0, value.as_bytes()).is_some() => {
            Err(SseError::Field { field })
        }
        _ => Ok(()),
    }
}

/// Appends one line per line of `text`, ended by CR, LF or both.
fn write_lines(out: &mut Vec<u8>, prefix: &[u8], text: &[u8]) {
    let mut rest = text;
    while let Some((content, end, tail)) = split_line(rest) {
        write_line(out, prefix, content);
        rest = match tail {
            [b'\n', after @ ..] if end == b'\r' => after,
            tail => tail,
        };
    }
    write_line(out, prefix, rest);
}

/// Returns the first line, the line-end byte and the rest; `None` without a line end.
fn split_line(text: &[u8]) -> Option<(&[u8], u8, &[u8])> {
    let at = memchr::memchr2(b'\r', b'\n', text)?;
    let (content, rest) = text.split_at_checked(at)?;
    let (&end, tail) = rest.split_first()?;
    Some((content, end, tail))
}

fn write_line(out: &mut Vec<u8>, prefix: &[u8], content: &[u8]) {
    out.extend_from_slice(prefix);
    out.extend_from_slice(content);
    out.push(b'\n');
}

#[cfg(test)]
mod tests;
