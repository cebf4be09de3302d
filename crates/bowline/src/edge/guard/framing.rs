//! The strict framing of HTTP/1.1 requests, followed byte by byte in a few bytes of state.
//!
//! The machine knows only what decides where a message ends. Everything else (methods, targets,
//! the shape of names, sizes of heads) is left to the parser behind it, which refuses a NUL
//! wherever a head may hold one and thereby whatever is refused here.

#[cfg(test)]
mod tests;

use memchr::{memchr2, memchr3};

/// The largest body or chunk: every number up to here is exact in any parser, doubles included.
pub const BODY_BYTES_MAX: u64 = 1 << 53;
/// The longest chunk size, leading zeros included.
pub const SIZE_DIGITS_MAX: u16 = 16;
/// The longest chunk extension of one chunk; nobody reads them.
pub const EXTENSION_BYTES_MAX: u16 = 1024;

/// Why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A line feed without a carriage return before it.
    #[error("a line ends in a bare line feed")]
    BareLineFeed,
    /// A carriage return without a line feed behind it.
    #[error("a carriage return stands without its line feed")]
    BareCarriageReturn,
    /// A line that starts with white space, which old parsers join to the line before.
    #[error("a line starts with white space")]
    Fold,
    /// White space between a field's name and its colon.
    #[error("white space stands before a colon")]
    SpaceBeforeColon,
    /// A second Content-Length or Transfer-Encoding, or both, or either among the trailers.
    #[error("the length of the body is stated twice")]
    Twice,
    /// A Content-Length that is not plain digits up to [`BODY_BYTES_MAX`].
    #[error("the content length is not a plain number")]
    Length,
    /// A Transfer-Encoding other than `chunked`.
    #[error("the transfer encoding is not `chunked`")]
    Coding,
    /// A chunk whose size line, extension or end is malformed or over its limit.
    #[error("a chunk is malformed")]
    Chunk,
}

/// Follows the requests of one connection and spoils the first that is refused.
#[derive(Debug)]
pub struct Framing {
    /// The body's length while it is being read, then the bytes left of the body or chunk.
    left: u64,
    /// How far the current token goes: bytes of a name or value, digits, extension bytes.
    run: u16,
    /// What the next byte is.
    step: Step,
    /// Which lines are being read.
    section: Section,
    /// What the name of the current field can still become.
    field: Field,
    /// The framing field that this message has had.
    framed: Field,
    /// Why the connection is done for; set once.
    refusal: Option<Refusal>,
    /// Heads that were whole, counted round and round.
    heads: u32,
}

/// Where the next byte of a stream belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Between two requests.
    Between,
    /// In the head of one.
    Head,
    /// In its body.
    Body,
}

/// What the next byte of the stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The first byte of a line.
    Start,
    /// In a field's name, or its colon.
    Name,
    /// In the value of a framing field, or white space before it.
    Value,
    /// Behind the value of a framing field.
    Behind,
    /// In a line whose content does not matter here.
    Text,
    /// The line feed of a line.
    LineFeed,
    /// The line feed of an empty line.
    BlankFeed,
    /// In the bytes of a body or chunk; `left` is not zero.
    Body,
    /// In the size of a chunk.
    Size,
    /// In the extension of a chunk.
    Extension,
    /// The line feed of a size line.
    SizeFeed,
    /// The carriage return behind a chunk.
    ChunkEnd,
    /// The line feed behind a chunk.
    ChunkFeed,
}

/// The groups of lines in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    /// Empty lines before the request line, and the request line.
    Request,
    /// The header fields.
    Fields,
    /// The trailer fields.
    Trailers,
}

/// A field, as far as it decides where the message ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Other,
    Length,
    Coding,
}

impl Field {
    const fn name(self) -> &'static [u8] {
        match self {
            Self::Other => b"",
            Self::Length => b"content-length",
            Self::Coding => b"transfer-encoding",
        }
    }
}

/// Returns the length of the line that `rest` starts with, if all of it is there and it neither
/// breaks a rule nor can be one of the two fields that decide where a message ends.
fn plain_line(section: Section, rest: &[u8]) -> Option<usize> {
    let first = rest.first()?;
    if matches!(first, b' ' | b'\t' | b'\r' | b'\n') {
        return None;
    }
    let end = memchr2(b'\r', b'\n', rest)?;
    if rest.get(end..end + 2) != Some(b"\r\n") {
        return None;
    }
    if section != Section::Request {
        let name = rest.get(..end)?;
        let length = memchr3(b':', b' ', b'\t', name)?;
        let framing = match first {
            b'c' | b'C' => Field::Length,
            b't' | b'T' => Field::Coding,
            _ => Field::Other,
        };
        let suspect = framing != Field::Other && framing.name().len() == length;
        if suspect || name.get(length) != Some(&b':') {
            return None;
        }
    }
    Some(end + 2)
}

impl Default for Framing {
    fn default() -> Self {
        Self::new()
    }
}

impl Framing {
    /// Stands before the first request of a connection.
    pub const fn new() -> Self {
        Self {
            left: 0,
            run: 0,
            step: Step::Start,
            section: Section::Request,
            field: Field::Other,
            framed: Field::Other,
            refusal: None,
            heads: 0,
        }
    }

    /// How many heads were whole so far, counted round and round.
    pub const fn heads(&self) -> u32 {
        self.heads
    }

    /// Where the next byte belongs.
    pub const fn position(&self) -> Position {
        match (self.step, self.section) {
            (Step::Start, Section::Request) => Position::Between,
            (
                Step::Start
                | Step::Name
                | Step::Value
                | Step::Behind
                | Step::Text
                | Step::LineFeed
                | Step::BlankFeed,
                Section::Request | Section::Fields,
            ) => Position::Head,
            _ => Position::Body,
        }
    }

    /// Stands before the next request.
    const fn next_request(&mut self) {
        let heads = self.heads;
        *self = Self::new();
        self.heads = heads;
    }

    /// Why the connection was refused, once it was.
    pub const fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    /// Follows the next bytes of the stream, however it was cut, and overwrites the one byte at
    /// which a message breaks the rules. All bytes behind that one pass unchanged.
    pub fn filter(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while self.refusal.is_none()
            && let Some(rest) = bytes.get_mut(at..)
            && let Some(byte) = rest.first_mut()
        {
            match self.step {
                Step::Body => at += self.body(rest.len()),
                Step::Text => at += self.text(rest),
                _ => {
                    at += 1;
                    match self.next(*byte) {
                        Ok(step) => self.step = step,
                        Err(refusal) => self.refuse(byte, refusal),
                    }
                }
            }
            at += self.plain_lines(bytes.get(at..).unwrap_or_default());
        }
    }

    /// Skips whole lines that break no rule and decide nothing, and says how much that was.
    ///
    /// Nearly every line of a head is one; going through them byte by byte would be most of the
    /// cost of this machine.
    fn plain_lines(&mut self, mut rest: &[u8]) -> usize {
        let there = rest.len();
        while self.step == Step::Start
            && self.refusal.is_none()
            && let Some(length) = plain_line(self.section, rest)
        {
            self.step = self.line_done();
            rest = rest.get(length..).unwrap_or_default();
        }
        there - rest.len()
    }

    /// Every parser refuses a NUL, save in a chunk extension, where it refuses a line feed.
    fn refuse(&mut self, byte: &mut u8, refusal: Refusal) {
        *byte = if self.step == Step::Extension {
            b'\n'
        } else {
            0
        };
        self.refusal = Some(refusal);
    }

    /// Skips what is there of the body or chunk and says how much that was.
    fn body(&mut self, there: usize) -> usize {
        let skip = usize::try_from(self.left).map_or(there, |left| left.min(there));
        self.left = self.left.saturating_sub(skip as u64);
        if self.left == 0 {
            if self.framed == Field::Coding {
                self.step = Step::ChunkEnd;
            } else {
                self.next_request();
            }
        }
        skip
    }

    /// Skips to the end of a line and says how much that was.
    fn text(&mut self, rest: &mut [u8]) -> usize {
        let Some(end) = memchr2(b'\r', b'\n', rest) else {
            return rest.len();
        };
        if let Some(byte) = rest.get_mut(end) {
            if *byte == b'\r' {
                self.step = Step::LineFeed;
            } else {
                self.refuse(byte, Refusal::BareLineFeed);
            }
        }
        end + 1
    }

    fn next(&mut self, byte: u8) -> Result<Step, Refusal> {
        match (self.step, byte) {
            (Step::Start, _) => self.start(byte),
            (Step::Name, _) => self.name(byte),
            (Step::Value | Step::Behind, _) => self.value(byte),
            (Step::Size, _) => self.size(byte),
            (Step::Extension, _) => self.extension(byte),
            (Step::LineFeed, b'\n') => Ok(self.line_done()),
            (Step::BlankFeed, b'\n') => Ok(self.blank_done()),
            (Step::SizeFeed, b'\n') => Ok(self.size_done()),
            (Step::LineFeed | Step::BlankFeed, _) => Err(Refusal::BareCarriageReturn),
            (Step::ChunkEnd, b'\r') => Ok(Step::ChunkFeed),
            (Step::ChunkFeed, b'\n') => Ok(self.chunk()),
            (Step::SizeFeed | Step::ChunkEnd | Step::ChunkFeed, _) => Err(Refusal::Chunk),
            // `filter` takes these in whole runs.
            (Step::Body | Step::Text, _) => Ok(self.step),
        }
    }

    fn start(&mut self, byte: u8) -> Result<Step, Refusal> {
        match byte {
            b'\r' => Ok(Step::BlankFeed),
            b'\n' => Err(Refusal::BareLineFeed),
            b' ' | b'\t' => Err(Refusal::Fold),
            _ if self.section == Section::Request => Ok(Step::Text),
            _ => {
                self.run = 0;
                self.field = match byte {
                    b'c' | b'C' => Field::Length,
                    b't' | b'T' => Field::Coding,
                    _ => Field::Other,
                };
                self.name(byte)
            }
        }
    }

    fn name(&mut self, byte: u8) -> Result<Step, Refusal> {
        match byte {
            b':' => self.colon(),
            b' ' | b'\t' => Err(Refusal::SpaceBeforeColon),
            b'\r' => Ok(Step::LineFeed),
            b'\n' => Err(Refusal::BareLineFeed),
            _ => {
                let expected = self.field.name().get(usize::from(self.run));
                if expected != Some(&byte.to_ascii_lowercase()) {
                    self.field = Field::Other;
                }
                self.run = self.run.saturating_add(1);
                Ok(Step::Name)
            }
        }
    }

    fn colon(&mut self) -> Result<Step, Refusal> {
        let whole = usize::from(self.run) == self.field.name().len();
        if self.field == Field::Other || !whole {
            return Ok(Step::Text);
        }
        // Among the trailers `framed` is still the coding that led there.
        if self.framed != Field::Other {
            return Err(Refusal::Twice);
        }
        self.framed = self.field;
        self.run = 0;
        Ok(Step::Value)
    }

    fn value(&mut self, byte: u8) -> Result<Step, Refusal> {
        const CHUNKED: &[u8] = b"chunked";
        let run = usize::from(self.run);
        let malformed = match self.field {
            Field::Coding => Refusal::Coding,
            Field::Length | Field::Other => Refusal::Length,
        };
        match byte {
            b'\n' => return Err(Refusal::BareLineFeed),
            b'\r' if self.field == Field::Coding && run == CHUNKED.len() => {
                return Ok(Step::LineFeed);
            }
            b'\r' if self.field == Field::Length && run > 0 => return Ok(Step::LineFeed),
            b' ' | b'\t' if run == 0 => return Ok(Step::Value),
            b' ' | b'\t' => return Ok(Step::Behind),
            _ if self.step == Step::Behind => return Err(malformed),
            _ if self.field == Field::Coding => {
                if CHUNKED.get(run) != Some(&byte.to_ascii_lowercase()) {
                    return Err(malformed);
                }
            }
            b'0'..=b'9' => self.shift(10, u64::from(byte - b'0'), malformed)?,
            _ => return Err(malformed),
        }
        self.run = self.run.saturating_add(1);
        Ok(Step::Value)
    }

    fn line_done(&mut self) -> Step {
        if self.section == Section::Request {
            self.section = Section::Fields;
        }
        Step::Start
    }

    fn blank_done(&mut self) -> Step {
        if self.section == Section::Fields {
            self.heads = self.heads.wrapping_add(1);
        }
        match (self.section, self.framed) {
            // Empty lines before a request line are allowed.
            (Section::Request, _) => Step::Start,
            (Section::Fields, Field::Coding) => self.chunk(),
            (Section::Fields, Field::Length) if self.left > 0 => Step::Body,
            (Section::Fields | Section::Trailers, _) => {
                self.next_request();
                Step::Start
            }
        }
    }

    fn chunk(&mut self) -> Step {
        self.left = 0;
        self.run = 0;
        Step::Size
    }

    fn size(&mut self, byte: u8) -> Result<Step, Refusal> {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            b'\r' if self.run > 0 => return Ok(Step::SizeFeed),
            b';' if self.run > 0 => {
                self.run = 0;
                return Ok(Step::Extension);
            }
            _ => return Err(Refusal::Chunk),
        };
        self.count(SIZE_DIGITS_MAX)?;
        self.shift(16, u64::from(digit), Refusal::Chunk)?;
        Ok(Step::Size)
    }

    fn extension(&mut self, byte: u8) -> Result<Step, Refusal> {
        match byte {
            b'\r' => Ok(Step::SizeFeed),
            b'\n' => Err(Refusal::Chunk),
            _ => self.count(EXTENSION_BYTES_MAX).map(|()| Step::Extension),
        }
    }

    fn size_done(&mut self) -> Step {
        if self.left > 0 {
            return Step::Body;
        }
        self.section = Section::Trailers;
        Step::Start
    }

    fn count(&mut self, max: u16) -> Result<(), Refusal> {
        if self.run >= max {
            return Err(Refusal::Chunk);
        }
        self.run += 1;
        Ok(())
    }

    /// Appends a digit to the length. It cannot overflow: `left` is at most [`BODY_BYTES_MAX`].
    fn shift(&mut self, radix: u64, digit: u64, over: Refusal) -> Result<(), Refusal> {
        let length = self.left * radix + digit;
        if length > BODY_BYTES_MAX {
            return Err(over);
        }
        self.left = length;
        Ok(())
    }
}
