//! Converts terminal output to plain lines of text.

/// Splits bytes into lines without escape sequences and control characters, in bounded memory.
#[derive(Debug)]
pub(super) struct LineSanitizer {
    line: Vec<u8>,
    line_bytes_max: usize,
    escape: EscapeState,
    /// Whether the line was cut.
    is_cut: bool,
}

/// Position in an escape sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EscapeState {
    Outside,
    /// After ESC.
    AfterEsc,
    /// In `ESC [ ... letter`.
    Control,
    /// In `ESC ] ... BEL`, `ESC ] ... ESC \` or similar.
    String,
    /// After an ESC in such a string.
    StringEnd,
}

const ESC: u8 = 0x1b;
const BEL: u8 = 0x07;

impl LineSanitizer {
    pub(super) const fn new(line_bytes_max: usize) -> Self {
        Self {
            line: Vec::new(),
            line_bytes_max,
            escape: EscapeState::Outside,
            is_cut: false,
        }
    }

    /// Adds bytes and emits every complete line.
    pub(super) fn push(&mut self, bytes: &[u8], mut give: impl FnMut(&str)) {
        for &byte in bytes {
            if byte == b'\n' {
                self.finish_line(&mut give);
            } else if self.escape == EscapeState::Outside && (byte >= b' ' || byte == b'\t') {
                self.keep_byte(byte);
            } else {
                self.escape = self.escape.next_state(byte);
            }
        }
    }

    /// Emits the text after the last line end.
    pub(super) fn finish_line(&mut self, mut give: impl FnMut(&str)) {
        if !self.line.is_empty() {
            let mut text = String::from_utf8_lossy(&self.line);
            if self.is_cut {
                text.to_mut().push('…');
            }
            give(&text);
        }
        self.line.clear();
        self.is_cut = false;
        // An unfinished sequence must not swallow later lines.
        self.escape = EscapeState::Outside;
    }

    fn keep_byte(&mut self, byte: u8) {
        if self.line.len() < self.line_bytes_max {
            self.line.push(byte);
        } else {
            self.is_cut = true;
        }
    }
}

impl EscapeState {
    const fn next_state(self, byte: u8) -> Self {
        match (self, byte) {
            (Self::Outside, ESC) => Self::AfterEsc,
            (Self::AfterEsc, b'[') => Self::Control,
            (Self::AfterEsc, b']' | b'P' | b'_' | b'^' | b'X') => Self::String,
            // `ESC ( B` and similar sequences have intermediate bytes.
            (Self::AfterEsc, b' '..=b'/') => Self::AfterEsc,
            (Self::Control, 0x40..=0x7e) | (Self::String, BEL) => Self::Outside,
            (Self::String, ESC) => Self::StringEnd,
            (Self::StringEnd, b'\\') | (Self::AfterEsc | Self::Outside, _) => Self::Outside,
            (Self::Control, _) => Self::Control,
            (Self::String | Self::StringEnd, _) => Self::String,
        }
    }
}
