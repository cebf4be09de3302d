//! Reads bounded lines from a pipe.

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

/// Maximum length of a message.
pub(super) const LINE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// One line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PipeLine {
    /// A line without its line end.
    Complete(Vec<u8>),
    /// A skipped line over the limit.
    TooLong,
}

/// Reads lines; cancellation-safe.
#[derive(Debug)]
pub(super) struct PipeLineReader<R> {
    input: BufReader<R>,
    /// The bytes of the current line so far.
    line: Vec<u8>,
    /// Set while a line over the limit is skipped.
    is_skipping: bool,
}

impl<R: AsyncRead + Unpin> PipeLineReader<R> {
    pub(super) fn new(input: R) -> Self {
        Self {
            input: BufReader::with_capacity(64 * 1024, input),
            line: Vec::new(),
            is_skipping: false,
        }
    }

    /// Returns the next nonempty line; `None` at the end of the input.
    pub(super) async fn next_line(&mut self) -> std::io::Result<Option<PipeLine>> {
        loop {
            let chunk = self.input.fill_buf().await?;
            let at_end = chunk.is_empty();
            let newline = memchr::memchr(b'\n', chunk);
            let part = newline.and_then(|at| chunk.get(..at)).unwrap_or(chunk);
            if self.is_skipping || self.line.len() + part.len() > LINE_BYTES_MAX {
                self.is_skipping = true;
                self.line.clear();
            } else {
                self.line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(newline.is_some());
            self.input.consume(used);
            if newline.is_none() && !at_end {
                continue;
            }
            if std::mem::take(&mut self.is_skipping) {
                return Ok(Some(PipeLine::TooLong));
            }
            let line = std::mem::take(&mut self.line);
            if !line.trim_ascii().is_empty() {
                return Ok(Some(PipeLine::Complete(line)));
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
    async fn lines_end_with_newline_or_input() {
        let mut lines = PipeLineReader::new(&b"a\r\n\n  \nb"[..]);
        assert_eq!(
            lines.next_line().await.unwrap(),
            Some(PipeLine::Complete(b"a\r".to_vec()))
        );
        assert_eq!(
            lines.next_line().await.unwrap(),
            Some(PipeLine::Complete(b"b".to_vec()))
        );
        assert_eq!(lines.next_line().await.unwrap(), None);
    }

    #[tokio::test]
    async fn oversized_line_is_skipped() {
        let mut text = vec![b'x'; LINE_BYTES_MAX];
        text.extend_from_slice(b"\n");
        text.extend(vec![b'y'; LINE_BYTES_MAX + 1]);
        text.extend_from_slice(b"\nz\n");
        let mut lines = PipeLineReader::new(&text[..]);
        let first = lines.next_line().await.unwrap();
        assert!(matches!(first, Some(PipeLine::Complete(line)) if line.len() == LINE_BYTES_MAX));
        assert_eq!(lines.next_line().await.unwrap(), Some(PipeLine::TooLong));
        assert_eq!(
            lines.next_line().await.unwrap(),
            Some(PipeLine::Complete(b"z".to_vec()))
        );
    }
}
