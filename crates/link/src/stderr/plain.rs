//! Bytes meant for a terminal as plain lines of text.

/// Cuts bytes into lines, without escape sequences and control characters, in bounded memory.
#[derive(Debug)]
pub(super) struct Plain {
    line: Vec<u8>,
    line_bytes_max: usize,
    escape: Escape,
    /// Whether the line has been cut off.
    cut: bool,
}

/// Where in an escape sequence we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    Outside,
    /// After ESC.
    Begun,
    /// In `ESC [ ... letter`.
    Control,
    /// In `ESC ] ... BEL` or `ESC ] ... ESC \`, and the like.
    String,
    /// After an ESC in one of those.
    StringEnd,
}

const ESC: u8 = 0x1b;
const BEL: u8 = 0x07;

impl Plain {
    pub(super) const fn new(line_bytes_max: usize) -> Self {
        Self {
            line: Vec::new(),
            line_bytes_max,
            escape: Escape::Outside,
            cut: false,
        }
    }

    /// Takes the next bytes and hands over every line that is complete.
    pub(super) fn push(&mut self, bytes: &[u8], mut give: impl FnMut(&str)) {
        for &byte in bytes {
            if byte == b'\n' {
                self.end(&mut give);
            } else if self.escape == Escape::Outside && (byte >= b' ' || byte == b'\t') {
                self.keep(byte);
            } else {
                self.escape = self.escape.after(byte);
            }
        }
    }

    /// Hands over what stands after the last line end.
    pub(super) fn end(&mut self, mut give: impl FnMut(&str)) {
        if !self.line.is_empty() {
            let mut text = String::from_utf8_lossy(&self.line);
            if self.cut {
                text.to_mut().push('…');
            }
            give(&text);
        }
        self.line.clear();
        self.cut = false;
        // An unfinished sequence must not swallow the lines that follow.
        self.escape = Escape::Outside;
    }

    fn keep(&mut self, byte: u8) {
        if self.line.len() < self.line_bytes_max {
            self.line.push(byte);
        } else {
            self.cut = true;
        }
    }
}

impl Escape {
    const fn after(self, byte: u8) -> Self {
        match (self, byte) {
            (Self::Outside, ESC) => Self::Begun,
            (Self::Begun, b'[') => Self::Control,
            (Self::Begun, b']' | b'P' | b'_' | b'^' | b'X') => Self::String,
            // `ESC ( B` and the like have more in the middle.
            (Self::Begun, b' '..=b'/') => Self::Begun,
            (Self::Control, 0x40..=0x7e) | (Self::String, BEL) => Self::Outside,
            (Self::String, ESC) => Self::StringEnd,
            (Self::StringEnd, b'\\') | (Self::Begun | Self::Outside, _) => Self::Outside,
            (Self::Control, _) => Self::Control,
            (Self::String | Self::StringEnd, _) => Self::String,
        }
    }
}
