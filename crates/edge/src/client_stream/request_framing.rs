//! Incremental strict framing of HTTP/1.1 requests, with a few bytes of state.
//!
//! The machine tracks only the end of each message. Methods, targets, field name syntax and head
//! sizes are left to hyper's parser, which rejects a NUL anywhere in a head and thereby every
//! message spoiled here.

#[cfg(test)]
mod tests;

use memchr::{memchr2, memchr3};

/// Largest body or chunk: exact in every parser, including parsers that use doubles.
pub(crate) const BODY_BYTES_MAX: u64 = 1 << 53;
/// Longest chunk size, including leading zeros.
pub(crate) const SIZE_DIGITS_MAX: u16 = 16;
/// Longest extension of a chunk; no receiver reads extensions.
pub(crate) const EXTENSION_BYTES_MAX: u16 = 1024;

/// Reason for rejecting a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FramingError {
    /// A line feed without a preceding carriage return.
    #[error("a line ends in a bare line feed")]
    BareLineFeed,
    /// A carriage return without a following line feed.
    #[error("a carriage return stands without its line feed")]
    BareCarriageReturn,
    /// A line that starts with white space; old parsers join such a line to the previous line.
    #[error("a line starts with white space")]
    FoldedLine,
    /// White space between field name and colon.
    #[error("white space stands before a colon")]
    SpaceBeforeColon,
    /// A second Content-Length or Transfer-Encoding, both fields, or either field among the
    /// trailers.
    #[error("the length of the body is stated twice")]
    DuplicateLength,
    /// A Content-Length other than plain digits up to [`BODY_BYTES_MAX`].
    #[error("the content length is not a plain number")]
    InvalidLength,
    /// A Transfer-Encoding other than `chunked`.
    #[error("the transfer encoding is not `chunked`")]
    UnsupportedCoding,
    /// A malformed or oversized chunk size line, extension or chunk end.
    #[error("a chunk is malformed")]
    MalformedChunk,
}

/// Tracks the requests of a connection and spoils the first rejected message.
#[derive(Debug)]
pub(crate) struct RequestFraming {
    /// Body length while being parsed, then the remaining bytes of the body or chunk.
    bytes_left: u64,
    /// Length of the current token: bytes of a name or value, digits, extension bytes.
    token_length: u16,
    /// Expected next byte.
    step: FramingStep,
    /// Current group of lines.
    section: HeadSection,
    /// Framing field that the current field name may still become.
    field: FramingField,
    /// Framing field already seen in this message.
    body_framing: FramingField,
    /// Reason for the rejection; set once.
    error: Option<FramingError>,
    /// Number of complete heads; wraps around.
    head_count: u32,
}

/// Position of the next byte in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamPosition {
    /// Between two requests.
    Between,
    /// In a request head.
    Head,
    /// In a request body.
    Body,
}

/// Kind of the next byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FramingStep {
    /// First byte of a line.
    Start,
    /// In a field name, or its colon.
    Name,
    /// In the value of a framing field, or preceding white space.
    Value,
    /// After the value of a framing field.
    AfterValue,
    /// In a line without relevance for framing.
    Text,
    /// Line feed of a line.
    LineFeed,
    /// Line feed of an empty line.
    BlankFeed,
    /// In a body or chunk; `bytes_left` is not zero.
    Body,
    /// In a chunk size.
    Size,
    /// In a chunk extension.
    Extension,
    /// Line feed of a size line.
    SizeFeed,
    /// Carriage return after a chunk.
    ChunkEnd,
    /// Line feed after a chunk.
    ChunkFeed,
}

/// Groups of lines in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeadSection {
    /// Empty lines before the request line, and the request line.
    Request,
    /// Header fields.
    Fields,
    /// Trailer fields.
    Trailers,
}

/// A field, by its effect on message length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FramingField {
    Other,
    ContentLength,
    TransferEncoding,
}

impl FramingField {
    const fn name(self) -> &'static [u8] {
        match self {
            Self::Other => b"",
            Self::ContentLength => b"content-length",
            Self::TransferEncoding => b"transfer-encoding",
        }
    }
}

/// Returns the length of the first line of `rest` if the line is complete, breaks no rule, and
/// cannot be a framing field.
fn plain_line_length(section: HeadSection, rest: &[u8]) -> Option<usize> {
    let first = rest.first()?;
    if matches!(first, b' ' | b'\t' | b'\r' | b'\n') {
        return None;
    }
    let end = memchr2(b'\r', b'\n', rest)?;
    if rest.get(end..end + 2) != Some(b"\r\n") {
        return None;
    }
    if section != HeadSection::Request {
        let name = rest.get(..end)?;
        let length = memchr3(b':', b' ', b'\t', name)?;
        let framing = match first {
            b'c' | b'C' => FramingField::ContentLength,
            b't' | b'T' => FramingField::TransferEncoding,
            _ => FramingField::Other,
        };
        let suspect = framing != FramingField::Other && framing.name().len() == length;
        if suspect || name.get(length) != Some(&b':') {
            return None;
        }
    }
    Some(end + 2)
}

impl Default for RequestFraming {
    fn default() -> Self {
        Self::new()
    }
}

impl RequestFraming {
    /// Creates the state before the first request.
    pub(crate) const fn new() -> Self {
        Self {
            bytes_left: 0,
            token_length: 0,
            step: FramingStep::Start,
            section: HeadSection::Request,
            field: FramingField::Other,
            body_framing: FramingField::Other,
            error: None,
            head_count: 0,
        }
    }

    /// Returns the number of complete heads; wraps around.
    pub(crate) const fn head_count(&self) -> u32 {
        self.head_count
    }

    /// Returns the position of the next byte.
    pub(crate) const fn position(&self) -> StreamPosition {
        match (self.step, self.section) {
            (FramingStep::Start, HeadSection::Request) => StreamPosition::Between,
            (
                FramingStep::Start
                | FramingStep::Name
                | FramingStep::Value
                | FramingStep::AfterValue
                | FramingStep::Text
                | FramingStep::LineFeed
                | FramingStep::BlankFeed,
                HeadSection::Request | HeadSection::Fields,
            ) => StreamPosition::Head,
            _ => StreamPosition::Body,
        }
    }

    /// Resets the state for the next request.
    const fn reset_for_next(&mut self) {
        let heads = self.head_count;
        *self = Self::new();
        self.head_count = heads;
    }

    /// Returns the reason for the rejection, if any.
    pub(crate) const fn error(&self) -> Option<FramingError> {
        self.error
    }

    /// Consumes the next bytes of the stream, split at any boundary, and overwrites the first byte
    /// that breaks a rule. All following bytes pass unchanged.
    pub(crate) fn filter_bytes(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while self.error.is_none()
            && let Some(rest) = bytes.get_mut(at..)
            && let Some(byte) = rest.first_mut()
        {
            match self.step {
                FramingStep::Body => at += self.skip_body(rest.len()),
                FramingStep::Text => at += self.skip_text(rest),
                _ => {
                    at += 1;
                    match self.next_step(*byte) {
                        Ok(step) => self.step = step,
                        Err(refusal) => self.reject(byte, refusal),
                    }
                }
            }
            at += self.skip_plain_lines(bytes.get(at..).unwrap_or_default());
        }
    }

    /// Skips complete lines without effect on framing, and returns the number of bytes skipped.
    ///
    /// Nearly every line of a head qualifies; byte-by-byte parsing would dominate the cost.
    fn skip_plain_lines(&mut self, mut rest: &[u8]) -> usize {
        let total = rest.len();
        while self.step == FramingStep::Start
            && self.error.is_none()
            && let Some(length) = plain_line_length(self.section, rest)
        {
            self.step = self.end_line();
            rest = rest.get(length..).unwrap_or_default();
        }
        total - rest.len()
    }

    /// Every parser rejects a NUL, except in a chunk extension, where a line feed is rejected.
    fn reject(&mut self, byte: &mut u8, refusal: FramingError) {
        *byte = if self.step == FramingStep::Extension {
            b'\n'
        } else {
            0
        };
        self.error = Some(refusal);
    }

    /// Skips bytes of the body or chunk, and returns the number skipped.
    fn skip_body(&mut self, available: usize) -> usize {
        let skip = usize::try_from(self.bytes_left).map_or(available, |left| left.min(available));
        self.bytes_left = self.bytes_left.saturating_sub(skip as u64);
        if self.bytes_left == 0 {
            if self.body_framing == FramingField::TransferEncoding {
                self.step = FramingStep::ChunkEnd;
            } else {
                self.reset_for_next();
            }
        }
        skip
    }

    /// Skips to the end of a line, and returns the number of bytes skipped.
    fn skip_text(&mut self, rest: &mut [u8]) -> usize {
        let Some(end) = memchr2(b'\r', b'\n', rest) else {
            return rest.len();
        };
        if let Some(byte) = rest.get_mut(end) {
            if *byte == b'\r' {
                self.step = FramingStep::LineFeed;
            } else {
                self.reject(byte, FramingError::BareLineFeed);
            }
        }
        end + 1
    }

    fn next_step(&mut self, byte: u8) -> Result<FramingStep, FramingError> {
        match (self.step, byte) {
            (FramingStep::Start, _) => self.line_start(byte),
            (FramingStep::Name, _) => self.name_byte(byte),
            (FramingStep::Value | FramingStep::AfterValue, _) => self.value_byte(byte),
            (FramingStep::Size, _) => self.size_byte(byte),
            (FramingStep::Extension, _) => self.extension_byte(byte),
            (FramingStep::LineFeed, b'\n') => Ok(self.end_line()),
            (FramingStep::BlankFeed, b'\n') => Ok(self.end_blank_line()),
            (FramingStep::SizeFeed, b'\n') => Ok(self.end_size_line()),
            (FramingStep::LineFeed | FramingStep::BlankFeed, _) => {
                Err(FramingError::BareCarriageReturn)
            }
            (FramingStep::ChunkEnd, b'\r') => Ok(FramingStep::ChunkFeed),
            (FramingStep::ChunkFeed, b'\n') => Ok(self.begin_chunk()),
            (FramingStep::SizeFeed | FramingStep::ChunkEnd | FramingStep::ChunkFeed, _) => {
                Err(FramingError::MalformedChunk)
            }
            // `filter_bytes` consumes runs of these bytes.
            (FramingStep::Body | FramingStep::Text, _) => Ok(self.step),
        }
    }

    fn line_start(&mut self, byte: u8) -> Result<FramingStep, FramingError> {
        match byte {
            b'\r' => Ok(FramingStep::BlankFeed),
            b'\n' => Err(FramingError::BareLineFeed),
            b' ' | b'\t' => Err(FramingError::FoldedLine),
            _ if self.section == HeadSection::Request => Ok(FramingStep::Text),
            _ => {
                self.token_length = 0;
                self.field = match byte {
                    b'c' | b'C' => FramingField::ContentLength,
                    b't' | b'T' => FramingField::TransferEncoding,
                    _ => FramingField::Other,
                };
                self.name_byte(byte)
            }
        }
    }

    fn name_byte(&mut self, byte: u8) -> Result<FramingStep, FramingError> {
        match byte {
            b':' => self.name_end(),
            b' ' | b'\t' => Err(FramingError::SpaceBeforeColon),
            b'\r' => Ok(FramingStep::LineFeed),
            b'\n' => Err(FramingError::BareLineFeed),
            _ => {
                let expected = self.field.name().get(usize::from(self.token_length));
                if expected != Some(&byte.to_ascii_lowercase()) {
                    self.field = FramingField::Other;
                }
                self.token_length = self.token_length.saturating_add(1);
                Ok(FramingStep::Name)
            }
        }
    }

    fn name_end(&mut self) -> Result<FramingStep, FramingError> {
        let whole = usize::from(self.token_length) == self.field.name().len();
        if self.field == FramingField::Other || !whole {
            return Ok(FramingStep::Text);
        }
        // Among the trailers `body_framing` still holds the transfer encoding.
        if self.body_framing != FramingField::Other {
            return Err(FramingError::DuplicateLength);
        }
        self.body_framing = self.field;
        self.token_length = 0;
        Ok(FramingStep::Value)
    }

    fn value_byte(&mut self, byte: u8) -> Result<FramingStep, FramingError> {
        const CHUNKED: &[u8] = b"chunked";
        let run = usize::from(self.token_length);
        let malformed = match self.field {
            FramingField::TransferEncoding => FramingError::UnsupportedCoding,
            FramingField::ContentLength | FramingField::Other => FramingError::InvalidLength,
        };
        match byte {
            b'\n' => return Err(FramingError::BareLineFeed),
            b'\r' if self.field == FramingField::TransferEncoding && run == CHUNKED.len() => {
                return Ok(FramingStep::LineFeed);
            }
            b'\r' if self.field == FramingField::ContentLength && run > 0 => {
                return Ok(FramingStep::LineFeed);
            }
            b' ' | b'\t' if run == 0 => return Ok(FramingStep::Value),
            b' ' | b'\t' => return Ok(FramingStep::AfterValue),
            _ if self.step == FramingStep::AfterValue => return Err(malformed),
            _ if self.field == FramingField::TransferEncoding => {
                if CHUNKED.get(run) != Some(&byte.to_ascii_lowercase()) {
                    return Err(malformed);
                }
            }
            b'0'..=b'9' => self.push_digit(10, u64::from(byte - b'0'), malformed)?,
            _ => return Err(malformed),
        }
        self.token_length = self.token_length.saturating_add(1);
        Ok(FramingStep::Value)
    }

    fn end_line(&mut self) -> FramingStep {
        if self.section == HeadSection::Request {
            self.section = HeadSection::Fields;
        }
        FramingStep::Start
    }

    fn end_blank_line(&mut self) -> FramingStep {
        if self.section == HeadSection::Fields {
            self.head_count = self.head_count.wrapping_add(1);
        }
        match (self.section, self.body_framing) {
            // Empty lines before a request line are allowed.
            (HeadSection::Request, _) => FramingStep::Start,
            (HeadSection::Fields, FramingField::TransferEncoding) => self.begin_chunk(),
            (HeadSection::Fields, FramingField::ContentLength) if self.bytes_left > 0 => {
                FramingStep::Body
            }
            (HeadSection::Fields | HeadSection::Trailers, _) => {
                self.reset_for_next();
                FramingStep::Start
            }
        }
    }

    fn begin_chunk(&mut self) -> FramingStep {
        self.bytes_left = 0;
        self.token_length = 0;
        FramingStep::Size
    }

    fn size_byte(&mut self, byte: u8) -> Result<FramingStep, FramingError> {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            b'\r' if self.token_length > 0 => return Ok(FramingStep::SizeFeed),
            b';' if self.token_length > 0 => {
                self.token_length = 0;
                return Ok(FramingStep::Extension);
            }
            _ => return Err(FramingError::MalformedChunk),
        };
        self.count_byte(SIZE_DIGITS_MAX)?;
        self.push_digit(16, u64::from(digit), FramingError::MalformedChunk)?;
        Ok(FramingStep::Size)
    }

    fn extension_byte(&mut self, byte: u8) -> Result<FramingStep, FramingError> {
        match byte {
            b'\r' => Ok(FramingStep::SizeFeed),
            b'\n' => Err(FramingError::MalformedChunk),
            _ => self
                .count_byte(EXTENSION_BYTES_MAX)
                .map(|()| FramingStep::Extension),
        }
    }

    fn end_size_line(&mut self) -> FramingStep {
        if self.bytes_left > 0 {
            return FramingStep::Body;
        }
        self.section = HeadSection::Trailers;
        FramingStep::Start
    }

    fn count_byte(&mut self, max: u16) -> Result<(), FramingError> {
        if self.token_length >= max {
            return Err(FramingError::MalformedChunk);
        }
        self.token_length += 1;
        Ok(())
    }

    /// Appends a digit to the length. No overflow: `bytes_left` is at most [`BODY_BYTES_MAX`].
    fn push_digit(
        &mut self,
        radix: u64,
        digit: u64,
        too_large: FramingError,
    ) -> Result<(), FramingError> {
        let length = self.bytes_left * radix + digit;
        if length > BODY_BYTES_MAX {
            return Err(too_large);
        }
        self.bytes_left = length;
        Ok(())
    }
}
