//! Reads a stream of events from chunks that end anywhere.

use std::collections::VecDeque;

use super::{SseFault, split_line};

/// How many events may wait to be taken. One chunk can hold many: take them after each push.
pub const EVENTS_MAX: usize = 16_384;

/// What a stream may make us keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest line, without its end.
    pub line_bytes_max: usize,
    /// The longest event: its data, id and name together.
    pub event_bytes_max: usize,
}

/// An event that was read. One without data tells only where to resume (`id`) or how long to
/// wait before that (`retry_ms`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedEvent {
    /// Where to resume, when this event says so.
    pub id: Option<String>,
    /// Its name, when it has one.
    pub event: Option<String>,
    /// What it carries, its lines joined by LF.
    pub data: Vec<u8>,
    /// How long to wait before connecting again, when this event says so.
    pub retry_ms: Option<u64>,
}

/// Reads events from chunks.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    /// The line of which only the start has come.
    line: Vec<u8>,
    /// The event of which only the start has come.
    event: OwnedEvent,
    /// Whether the event has a line of data, which may be empty.
    has_data: bool,
    /// Whether the last byte was a CR, so that an LF now ends no other line.
    after_cr: bool,
    /// Whether the first line, which may begin with a byte order mark, is over.
    begun: bool,
    ready: VecDeque<OwnedEvent>,
    /// A stream that broke a limit stays broken: its next bytes would be misread.
    fault: Option<SseFault>,
}

impl Decoder {
    /// A decoder at the start of a stream.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            line: Vec::new(),
            event: OwnedEvent {
                id: None,
                event: None,
                data: Vec::new(),
                retry_ms: None,
            },
            has_data: false,
            after_cr: false,
            begun: false,
            ready: VecDeque::new(),
            fault: None,
        }
    }

    /// Reads the next chunk of the stream.
    ///
    /// # Errors
    /// The stream broke a limit. Events before that can still be taken; every later push
    /// answers the same fault.
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), SseFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        self.read(chunk).inspect_err(|&fault| {
            self.fault = Some(fault);
            self.line = Vec::new();
            self.event = OwnedEvent::default();
        })
    }

    /// Takes the next complete event.
    #[expect(
        clippy::should_implement_trait,
        reason = "more may come after none: this is no iterator"
    )]
    pub fn next(&mut self) -> Option<OwnedEvent> {
        self.ready.pop_front()
    }

    /// Returns how many bytes are held of an event that is not complete.
    #[must_use]
    pub const fn held_bytes(&self) -> usize {
        self.line.len() + self.event.data.len()
    }

    fn read(&mut self, chunk: &[u8]) -> Result<(), SseFault> {
        let mut rest = chunk;
        while !rest.is_empty() {
            if std::mem::take(&mut self.after_cr)
                && let [b'\n', tail @ ..] = rest
            {
                rest = tail;
                continue;
            }
            let Some((content, end, tail)) = split_line(rest) else {
                self.bound(rest)?;
                self.line.extend_from_slice(rest);
                return Ok(());
            };
            self.bound(content)?;
            if self.line.is_empty() {
                self.take_line(content)?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(content);
                self.take_line(&line)?;
                line.clear();
                self.line = line;
            }
            self.after_cr = end == b'\r';
            rest = tail;
        }
        Ok(())
    }

    /// Refuses a line that `more` makes too long.
    fn bound(&self, more: &[u8]) -> Result<(), SseFault> {
        let line_bytes_max = self.limits.line_bytes_max;
        if self.line.len() + more.len() > line_bytes_max {
            return Err(SseFault::Line { line_bytes_max });
        }
        Ok(())
    }

    fn take_line(&mut self, line: &[u8]) -> Result<(), SseFault> {
        let line = match line {
            [0xef, 0xbb, 0xbf, rest @ ..] if !self.begun => rest,
            line => line,
        };
        self.begun = true;
        if line.is_empty() {
            return self.finish();
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
            b"event" => self.event.event = Some(text(value)),
            b"id" if !value.contains(&0) => self.event.id = Some(text(value)),
            b"retry" => {
                if let Some(retry_ms) = number(value) {
                    self.event.retry_ms = Some(retry_ms);
                }
            }
            // Comments, which have an empty name, and what we do not know.
            _ => {}
        }
        self.bound_event()
    }

    fn bound_event(&self) -> Result<(), SseFault> {
        let OwnedEvent {
            id, event, data, ..
        } = &self.event;
        let texts = [id, event].into_iter().flatten().map(String::len);
        let event_bytes_max = self.limits.event_bytes_max;
        if texts.sum::<usize>() + data.len() > event_bytes_max {
            return Err(SseFault::Event { event_bytes_max });
        }
        Ok(())
    }

    /// An empty line ends the event.
    fn finish(&mut self) -> Result<(), SseFault> {
        let has_data = std::mem::take(&mut self.has_data);
        let mut event = std::mem::take(&mut self.event);
        if !has_data && event.id.is_none() && event.retry_ms.is_none() {
            return Ok(());
        }
        event.event = event.event.filter(|name| !name.is_empty());
        if self.ready.len() == EVENTS_MAX {
            return Err(SseFault::Backlog);
        }
        self.ready.push_back(event);
        Ok(())
    }
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// A number of digits only, as the format wants it.
fn number(value: &[u8]) -> Option<u64> {
    let digits = value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value)
        .ok()
        .filter(|_| digits)?
        .parse()
        .ok()
}
