//! Splits a byte stream into lines, in bounded memory.

use bytes::{Buf, Bytes, BytesMut};

use super::overlong_line::OverlongLine;

/// Bytes per read.
const CHUNK_BYTES: usize = 64 * 1024;

/// A larger empty buffer is released.
const KEPT_BYTES_MAX: usize = 4 * CHUNK_BYTES;

/// Buffered input without complete lines.
#[derive(Debug)]
pub(super) struct LineBuffer {
    buffer: BytesMut,
    /// Buffered bytes known to hold no line end.
    searched: usize,
    /// State of a line that is being discarded.
    overlong: Option<OverlongLine>,
    line_bytes_max: usize,
    discard_bytes_max: usize,
}

/// Next line of a stream.
#[derive(Debug)]
pub(super) enum BufferedLine {
    /// A line without its end.
    Whole(Bytes),
    /// A discarded line.
    TooLong(OverlongLine),
    /// A line beyond the discard limit.
    Overrun,
}

impl LineBuffer {
    pub(super) fn new(line_bytes_max: usize, discard_bytes_max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            searched: 0,
            overlong: None,
            line_bytes_max,
            discard_bytes_max,
        }
    }

    /// Returns the read buffer with room in it. All lines must have been taken before.
    pub(super) fn read_buffer(&mut self) -> &mut BytesMut {
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT_BYTES_MAX {
            self.buffer = BytesMut::new();
        }
        // Reuses the memory of released lines.
        self.buffer.reserve(CHUNK_BYTES);
        &mut self.buffer
    }

    /// Takes the next line. `large` returns the limit for an overlong line, and is called for such
    /// lines only.
    pub(super) fn next(&mut self, large: impl FnOnce() -> usize) -> Option<BufferedLine> {
        if let Some(mut overlong) = self.overlong.take() {
            let end = memchr::memchr(b'\n', &self.buffer);
            let length = end.unwrap_or(self.buffer.len());
            overlong.push(self.buffer.get(..length).unwrap_or_default());
            self.buffer.advance(end.map_or(length, |end| end + 1));
            return self.finish_overlong(overlong, end.is_some());
        }
        let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
        let end = memchr::memchr(b'\n', unsearched).map(|at| self.searched + at);
        self.searched = 0;
        let length = end.unwrap_or(self.buffer.len());
        if length > self.line_bytes_max && length > large() {
            let mut overlong = OverlongLine::default();
            overlong.push(self.buffer.get(..length).unwrap_or_default());
            match end {
                Some(end) => self.buffer.advance(end + 1),
                None => self.buffer = BytesMut::new(),
            }
            return self.finish_overlong(overlong, end.is_some());
        }
        let Some(end) = end else {
            self.searched = length;
            return None;
        };
        let mut line = self.buffer.split_to(end + 1);
        line.truncate(end);
        Some(BufferedLine::Whole(line.freeze()))
    }

    /// Takes the bytes after the last line end; `None` for a partly discarded line.
    pub(super) fn take_rest(&mut self) -> Option<Bytes> {
        let rest = self.buffer.split().freeze();
        (self.overlong.is_none() && !rest.is_empty()).then_some(rest)
    }

    fn finish_overlong(
        &mut self,
        overlong: OverlongLine,
        is_complete: bool,
    ) -> Option<BufferedLine> {
        if overlong.length() > self.discard_bytes_max {
            return Some(BufferedLine::Overrun);
        }
        if is_complete {
            return Some(BufferedLine::TooLong(overlong));
        }
        self.overlong = Some(overlong);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all_lines(lines: &mut LineBuffer) -> Vec<String> {
        let mut found = Vec::new();
        while let Some(line) = lines.next(|| 0) {
            found.push(match line {
                BufferedLine::Whole(line) => String::from_utf8(line.to_vec()).unwrap(),
                BufferedLine::TooLong(line) => {
                    format!("<{} {:?}>", line.length(), line.response_id())
                }
                BufferedLine::Overrun => return [found, vec!["overrun".into()]].concat(),
            });
        }
        found
    }

    #[test]
    fn lines_are_found_at_any_chunk_size() {
        let text = b"one\n\ntwo three\r\n{\"id\":7,\"result\":\"0123456789\"}\nlast";
        for size in 1..text.len() {
            let mut lines = LineBuffer::new(12, 100);
            let mut found = Vec::new();
            for chunk in text.chunks(size) {
                lines.read_buffer().extend_from_slice(chunk);
                found.extend(take_all_lines(&mut lines));
            }
            let rest = lines.take_rest().unwrap();
            let want = ["one", "", "two three\r", "<30 Some(7)>"];
            assert_eq!(
                (found, &rest[..]),
                (want.map(String::from).to_vec(), &b"last"[..])
            );
        }
    }

    #[test]
    fn endless_line_overruns_in_bounded_memory() {
        let mut lines = LineBuffer::new(100, 1_000_000);
        let mut held = 0;
        for _ in 0..2_000 {
            lines.read_buffer().extend_from_slice(&[b'x'; 1_000]);
            if take_all_lines(&mut lines) == ["overrun"] {
                assert!(held < 2 * CHUNK_BYTES, "{held} bytes were held");
                return;
            }
            held = held.max(lines.buffer.len());
        }
        panic!("it was never given up");
    }

    #[test]
    fn long_line_memory_is_released() {
        let mut lines = LineBuffer::new(1_000_000, 2_000_000);
        lines.read_buffer().extend_from_slice(&[b'x'; 900_000]);
        lines.read_buffer().extend_from_slice(b"\n");
        assert_eq!(take_all_lines(&mut lines).len(), 1);
        assert!(lines.read_buffer().capacity() <= KEPT_BYTES_MAX);
    }
}
