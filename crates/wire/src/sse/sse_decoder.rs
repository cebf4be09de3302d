//! Decodes an event stream from chunks of any size.

use std::collections::VecDeque;

use super::{SseError, split_line};

/// Decoded events not taken. One chunk can hold many events: take them after each push.
pub const EVENTS_MAX: usize = 16_384;

/// Buffer limits of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SseLimits {
    /// Longest line, without the line end.
    pub line_bytes_max: usize,
    /// Longest event: data, id and name together.
    pub event_bytes_max: usize,
}

/// A decoded event. Without data, the event only sets the resume position (`id`) or the
/// reconnection time (`retry_ms`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedSseEvent {
    /// The resume position, if set.
    pub id: Option<String>,
    /// The event name, if set.
    pub event: Option<String>,
    /// The payload, lines joined by LF.
    pub data: Vec<u8>,
    /// The reconnection time, if set.
    pub retry_ms: Option<u64>,
}

/// Decodes events from chunks.
#[derive(Debug)]
pub struct SseDecoder {
    limits: SseLimits,
    /// The incomplete line.
    line: Vec<u8>,
    /// The incomplete event.
    event: OwnedSseEvent,
    /// Whether the event has a data line, possibly empty.
    has_data: bool,
    /// Whether the last byte was CR, so that a following LF ends no further line.
    after_cr: bool,
    /// Whether the first line, possibly with a byte order mark, has ended.
    is_past_first_line: bool,
    ready: VecDeque<OwnedSseEvent>,
    /// An error is permanent, because the following bytes would be misread.
    error: Option<SseError>,
}

impl SseDecoder {
    /// Returns a decoder at the start of a stream.
    #[must_use]
    pub const fn new(limits: SseLimits) -> Self {
        Self {
            limits,
            line: Vec::new(),
            event: OwnedSseEvent {
                id: None,
                event: None,
                data: Vec::new(),
                retry_ms: None,
            },
            has_data: false,
            after_cr: false,
            is_past_first_line: false,
            ready: VecDeque::new(),
            error: None,
        }
    }

    /// Decodes the next chunk.
    ///
    /// # Errors
    /// A limit was exceeded. Earlier events can still be taken; every later push returns the same
    /// error.
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), SseError> {
        if let Some(fault) = self.error {
            return Err(fault);
        }
        self.read_chunk(chunk).inspect_err(|&fault| {
            self.error = Some(fault);
            self.line = Vec::new();
            self.event = OwnedSseEvent::default();
        })
    }

    /// Takes the next complete event.
    #[expect(
        clippy::should_implement_trait,
        reason = "more may come after none: this is no iterator"
    )]
    pub fn next(&mut self) -> Option<OwnedSseEvent> {
        self.ready.pop_front()
    }

    /// Returns the buffered bytes of the incomplete event.
    #[must_use]
    pub const fn buffered_bytes(&self) -> usize {
        self.line.len() + self.event.data.len()
    }

    fn read_chunk(&mut self, chunk: &[u8]) -> Result<(), SseError> {
        let mut rest = chunk;
        while !rest.is_empty() {
            if std::mem::take(&mut self.after_cr)
                && let [b'\n', tail @ ..] = rest
            {
                rest = tail;
                continue;
            }
            let Some((content, end, tail)) = split_line(rest) else {
                self.check_line_len(rest)?;
                self.line.extend_from_slice(rest);
                return Ok(());
            };
            self.check_line_len(content)?;
            if self.line.is_empty() {
                self.process_line(content)?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(content);
                self.process_line(&line)?;
                line.clear();
                self.line = line;
            }
            self.after_cr = end == b'\r';
            rest = tail;
        }
        Ok(())
    }

    /// Checks the line length with `more` appended.
    fn check_line_len(&self, more: &[u8]) -> Result<(), SseError> {
        let line_bytes_max = self.limits.line_bytes_max;
        if self.line.len() + more.len() > line_bytes_max {
            return Err(SseError::Line { line_bytes_max });
        }
        Ok(())
    }

    fn process_line(&mut self, line: &[u8]) -> Result<(), SseError> {
        let line = match line {
            [0xef, 0xbb, 0xbf, rest @ ..] if !self.is_past_first_line => rest,
            line => line,
        };
        self.is_past_first_line = true;
        if line.is_empty() {
            return self.finish_event();
        }
        let (name, value) = match memchr::memchr(b':', line).map(|at| line.split_at(at)) {
            Some((name, [b':', b' ', value @ ..] | [b':', value @ ..])) => (name, value),
            _ => (line, &[][..]),
        };
        match name {
            b"data" => {
                if self.has_data {
                    self.event.data.push(b'\n');
                }
                self.has_data = true;
                self.event.data.extend_from_slice(value);
            }
            b"event" => self.event.event = Some(lossy_text(value)),
            b"id" if !value.contains(&0) => self.event.id = Some(lossy_text(value)),
            b"retry" => {
                if let Some(retry_ms) = parse_digits(value) {
                    self.event.retry_ms = Some(retry_ms);
                }
            }
            // Comments (with an empty field name) and unknown fields.
            _ => {}
        }
        self.check_event_len()
    }

    fn check_event_len(&self) -> Result<(), SseError> {
        let OwnedSseEvent {
            id, event, data, ..
        } = &self.event;
        let texts = [id, event].into_iter().flatten().map(String::len);
        let event_bytes_max = self.limits.event_bytes_max;
        if texts.sum::<usize>() + data.len() > event_bytes_max {
            return Err(SseError::Event { event_bytes_max });
        }
        Ok(())
    }

    /// Ends the event at an empty line.
    fn finish_event(&mut self) -> Result<(), SseError> {
        let has_data = std::mem::take(&mut self.has_data);
        let mut event = std::mem::take(&mut self.event);
        if !has_data && event.id.is_none() && event.retry_ms.is_none() {
            return Ok(());
        }
        event.event = event.event.filter(|name| !name.is_empty());
        if self.ready.len() == EVENTS_MAX {
            return Err(SseError::Backlog);
        }
        self.ready.push_back(event);
        Ok(())
    }
}

fn lossy_text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// Parses digits only, as the format requires.
fn parse_digits(value: &[u8]) -> Option<u64> {
    let digits = value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value)
        .ok()
        .filter(|_| digits)?
        .parse()
        .ok()
}
