//! Events of a stream, read as the bytes come in.
//!
//! The same shape as the decoder of the wire crate, which replaces this file when it is there.

use std::collections::VecDeque;

/// How much is taken before the stream counts as broken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Longest line.
    pub(super) line_bytes_max: usize,
    /// Longest data of one event.
    pub(super) event_bytes_max: usize,
}

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnedEvent {
    /// Where a reader may resume.
    pub(super) id: Option<String>,
    /// What it carries.
    pub(super) data: Vec<u8>,
}

/// A stream that does not keep to the limits.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event is too long")]
pub(super) struct TooLong;

/// Puts chunks together to lines, and lines to events.
#[derive(Debug)]
pub(super) struct Decoder {
    limits: Limits,
    /// The line that is not complete yet.
    line: Vec<u8>,
    /// The last byte was CR, so a LF that follows belongs to it.
    after_cr: bool,
    /// No line was complete yet, so a byte order mark may still stand in front.
    first: bool,
    /// Lines of data of the event that is not complete yet; `None` before the first.
    data: Option<Vec<u8>>,
    /// The id that holds from here on.
    id: Option<String>,
    /// Complete events that nobody took yet.
    ready: VecDeque<OwnedEvent>,
}

impl Decoder {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            line: Vec::new(),
            after_cr: false,
            first: true,
            data: None,
            id: None,
            ready: VecDeque::new(),
        }
    }

    /// Takes the next bytes of the stream.
    pub(super) fn push(&mut self, chunk: &[u8]) -> Result<(), TooLong> {
        let mut rest = chunk;
        if self.after_cr && !rest.is_empty() {
            self.after_cr = false;
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while let Some(at) = memchr::memchr2(b'\r', b'\n', rest) {
            let (part, end) = rest.split_at_checked(at).unwrap_or((rest, &[]));
            self.extend(part)?;
            self.complete()?;
            rest = match end {
                [b'\r'] => {
                    self.after_cr = true;
                    &[]
                }
                [b'\r', b'\n', after @ ..] | [_, after @ ..] => after,
                [] => &[],
            };
        }
        self.extend(rest)
    }

    /// The next complete event.
    pub(super) fn next(&mut self) -> Option<OwnedEvent> {
        self.ready.pop_front()
    }

    fn extend(&mut self, part: &[u8]) -> Result<(), TooLong> {
        if self.line.len() + part.len() > self.limits.line_bytes_max {
            return Err(TooLong);
        }
        self.line.extend_from_slice(part);
        Ok(())
    }

    fn complete(&mut self) -> Result<(), TooLong> {
        let line = std::mem::take(&mut self.line);
        let mut line = line.as_slice();
        if std::mem::take(&mut self.first) {
            line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
        }
        if line.is_empty() {
            if let Some(data) = self.data.take() {
                self.ready.push_back(OwnedEvent {
                    id: self.id.clone(),
                    data,
                });
            }
            return Ok(());
        }
        let (field, value) = match memchr::memchr(b':', line) {
            Some(at) => line.split_at_checked(at).unwrap_or((line, &[])),
            None => (line, &b""[..]),
        };
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => self.add(value),
            b"id" if !value.contains(&0) => {
                self.id = String::from_utf8(value.to_vec())
                    .ok()
                    .filter(|id| !id.is_empty());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn add(&mut self, value: &[u8]) -> Result<(), TooLong> {
        let data = match &mut self.data {
            Some(data) => {
                data.push(b'\n');
                data
            }
            None => self.data.insert(Vec::new()),
        };
        if data.len() + value.len() > self.limits.event_bytes_max {
            return Err(TooLong);
        }
        data.extend_from_slice(value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        line_bytes_max: 64,
        event_bytes_max: 64,
    };

    fn events(chunks: &[&[u8]]) -> Vec<(Option<String>, String)> {
        let mut decoder = Decoder::new(LIMITS);
        let mut found = Vec::new();
        for chunk in chunks {
            decoder.push(chunk).unwrap();
            while let Some(event) = decoder.next() {
                found.push((event.id, String::from_utf8(event.data).unwrap()));
            }
        }
        found
    }

    #[test]
    fn events_are_the_same_however_they_are_cut_and_ended() {
        let text = "\u{feff}: hi\nid: 7\nevent: message\ndata: a\ndata:b\n\ndata\n\nother: x\n\n";
        let expected = vec![
            (Some("7".to_owned()), "a\nb".to_owned()),
            (Some("7".to_owned()), String::new()),
        ];
        for end in ["\n", "\r\n", "\r"] {
            let text = text.replace('\n', end);
            // A lone CR at the very end waits for the byte that may follow it.
            let text = format!("{text}:");
            let bytes = text.as_bytes();
            assert_eq!(events(&[bytes]), expected, "{end:?} whole");
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(events(&single), expected, "{end:?} byte by byte");
        }
    }

    #[test]
    fn long_lines_and_long_events_are_refused() {
        let mut decoder = Decoder::new(LIMITS);
        assert_eq!(decoder.push(&[b'x'; 65]), Err(TooLong));
        let mut decoder = Decoder::new(LIMITS);
        let line = format!("data: {}\n", "y".repeat(40));
        decoder.push(line.as_bytes()).unwrap();
        assert_eq!(decoder.push(line.as_bytes()), Err(TooLong));
    }

    #[test]
    fn an_event_that_is_not_complete_is_not_given_out() {
        assert_eq!(events(&[b"data: a\n"]), []);
    }
}
