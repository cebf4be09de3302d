//! Lines of a pipe, none longer than the limit.

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

/// Longest message that a client may send.
pub(super) const LINE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// One line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Without its end.
    Whole(Vec<u8>),
    /// It was skipped.
    TooLong,
}

/// Reads lines; a read that is given up loses nothing.
#[derive(Debug)]
pub(super) struct Lines<R> {
    input: BufReader<R>,
    /// What has come of the current line.
    line: Vec<u8>,
    /// The current line is over the limit and is being skipped.
    skipping: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(input: R) -> Self {
        Self {
            input: BufReader::with_capacity(64 * 1024, input),
            line: Vec::new(),
            skipping: false,
        }
    }

    /// The next line that is not empty; nothing at the end.
    pub(super) async fn next(&mut self) -> std::io::Result<Option<Line>> {
        loop {
            let chunk = self.input.fill_buf().await?;
            let at_end = chunk.is_empty();
            let newline = memchr::memchr(b'\n', chunk);
            let part = newline.and_then(|at| chunk.get(..at)).unwrap_or(chunk);
            if self.skipping || self.line.len() + part.len() > LINE_BYTES_MAX {
                self.skipping = true;
                self.line.clear();
            } else {
                self.line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(newline.is_some());
            self.input.consume(used);
            if newline.is_none() && !at_end {
                continue;
            }
            if std::mem::take(&mut self.skipping) {
                return Ok(Some(Line::TooLong));
            }
            let line = std::mem::take(&mut self.line);
            if !line.trim_ascii().is_empty() {
                return Ok(Some(Line::Whole(line)));
            }
            if at_end {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_end_with_a_newline_or_with_the_input() {
        let mut lines = Lines::new(&b"a\r\n\n  \nb"[..]);
        assert_eq!(
            lines.next().await.unwrap(),
            Some(Line::Whole(b"a\r".to_vec()))
        );
        assert_eq!(
            lines.next().await.unwrap(),
            Some(Line::Whole(b"b".to_vec()))
        );
        assert_eq!(lines.next().await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_line_over_the_limit_is_skipped_and_the_next_one_is_read() {
        let mut text = vec![b'x'; LINE_BYTES_MAX];
        text.extend_from_slice(b"\n");
        text.extend(vec![b'y'; LINE_BYTES_MAX + 1]);
        text.extend_from_slice(b"\nz\n");
        let mut lines = Lines::new(&text[..]);
        let first = lines.next().await.unwrap();
        assert!(matches!(first, Some(Line::Whole(line)) if line.len() == LINE_BYTES_MAX));
        assert_eq!(lines.next().await.unwrap(), Some(Line::TooLong));
        assert_eq!(
            lines.next().await.unwrap(),
            Some(Line::Whole(b"z".to_vec()))
        );
    }
}
