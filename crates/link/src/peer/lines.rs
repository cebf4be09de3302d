//! Cuts a stream of bytes into lines, in bounded memory.

use bytes::{Buf, Bytes, BytesMut};

use super::overlong::Overlong;

/// What is read from a stream at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// A buffer that had to grow for one long line is given back when it is larger than this.
const KEPT_BYTES_MAX: usize = 4 * CHUNK_BYTES;

/// The bytes read so far that are not yet lines.
#[derive(Debug)]
pub(super) struct Lines {
    buffer: BytesMut,
    /// How much of the buffer is known to hold no line end.
    searched: usize,
    /// What is known of a line that is too long to be kept.
    overlong: Option<Overlong>,
    line_bytes_max: usize,
    discard_bytes_max: usize,
}

/// What a stream holds next.
#[derive(Debug)]
pub(super) enum Line {
    /// A line without its end.
    Whole(Bytes),
    /// A line that was thrown away.
    TooLong(Overlong),
    /// A line so long that the stream is given up.
    Overrun,
}

impl Lines {
    pub(super) fn new(line_bytes_max: usize, discard_bytes_max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            searched: 0,
            overlong: None,
            line_bytes_max,
            discard_bytes_max,
        }
    }

    /// Returns the buffer to read into, with room in it. All lines must have been taken before.
    pub(super) fn room(&mut self) -> &mut BytesMut {
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT_BYTES_MAX {
            self.buffer = BytesMut::new();
        }
        // Reuses the memory of lines that are no longer held.
        self.buffer.reserve(CHUNK_BYTES);
        &mut self.buffer
    }

    /// Takes the next line out of what was read. A line that is longer than usual is kept up to
    /// the length that `large` returns, which is asked for such lines only.
    pub(super) fn next(&mut self, large: impl FnOnce() -> usize) -> Option<Line> {
        if let Some(mut overlong) = self.overlong.take() {
            let end = memchr::memchr(b'\n', &self.buffer);
            let length = end.unwrap_or(self.buffer.len());
            overlong.push(self.buffer.get(..length).unwrap_or_default());
            self.buffer.advance(end.map_or(length, |end| end + 1));
            return self.after(overlong, end.is_some());
        }
        let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
        let end = memchr::memchr(b'\n', unsearched).map(|at| self.searched + at);
        self.searched = 0;
        let length = end.unwrap_or(self.buffer.len());
        if length > self.line_bytes_max && length > large() {
            let mut overlong = Overlong::default();
            overlong.push(self.buffer.get(..length).unwrap_or_default());
            match end {
                Some(end) => self.buffer.advance(end + 1),
                None => self.buffer = BytesMut::new(),
            }
            return self.after(overlong, end.is_some());
        }
        let Some(end) = end else {
            self.searched = length;
            return None;
        };
        let mut line = self.buffer.split_to(end + 1);
        line.truncate(end);
        Some(Line::Whole(line.freeze()))
    }

    /// Takes what stands after the last line end; a line thrown away in part is nothing.
    pub(super) fn rest(&mut self) -> Option<Bytes> {
        let rest = self.buffer.split().freeze();
        (self.overlong.is_none() && !rest.is_empty()).then_some(rest)
    }

    fn after(&mut self, overlong: Overlong, ended: bool) -> Option<Line> {
        if overlong.length() > self.discard_bytes_max {
            return Some(Line::Overrun);
        }
        if ended {
            return Some(Line::TooLong(overlong));
        }
        self.overlong = Some(overlong);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(lines: &mut Lines) -> Vec<String> {
        let mut found = Vec::new();
        while let Some(line) = lines.next(|| 0) {
            found.push(match line {
                Line::Whole(line) => String::from_utf8(line.to_vec()).unwrap(),
                Line::TooLong(line) => format!("<{} {:?}>", line.length(), line.answers()),
                Line::Overrun => return [found, vec!["overrun".into()]].concat(),
            });
        }
        found
    }

    #[test]
    fn lines_are_found_however_the_bytes_are_cut() {
        let text = b"one\n\ntwo three\r\n{\"id\":7,\"result\":\"0123456789\"}\nlast";
        for size in 1..text.len() {
            let mut lines = Lines::new(12, 100);
            let mut found = Vec::new();
            for chunk in text.chunks(size) {
                lines.room().extend_from_slice(chunk);
                found.extend(all(&mut lines));
            }
            let rest = lines.rest().unwrap();
            let want = ["one", "", "two three\r", "<30 Some(7)>"];
            assert_eq!(
                (found, &rest[..]),
                (want.map(String::from).to_vec(), &b"last"[..])
            );
        }
    }

    #[test]
    fn an_endless_line_is_given_up_and_never_kept() {
        let mut lines = Lines::new(100, 1_000_000);
        let mut held = 0;
        for _ in 0..2_000 {
            lines.room().extend_from_slice(&[b'x'; 1_000]);
            if all(&mut lines) == ["overrun"] {
                assert!(held < 2 * CHUNK_BYTES, "{held} bytes were held");
                return;
            }
            held = held.max(lines.buffer.len());
        }
        panic!("it was never given up");
    }

    #[test]
    fn the_memory_of_a_long_line_is_given_back() {
        let mut lines = Lines::new(1_000_000, 2_000_000);
        lines.room().extend_from_slice(&[b'x'; 900_000]);
        lines.room().extend_from_slice(b"\n");
        assert_eq!(all(&mut lines).len(), 1);
        assert!(lines.room().capacity() <= KEPT_BYTES_MAX);
    }
}
