//! Redacts secrets in JSON text that arrives in chunks.

use super::{ESCAPE_BYTES_MAX, SecretFilter, has_odd_backslashes};

/// Redaction of a chunked text. Buffers a possible start of a secret, at most the longest form, so
/// the whole text need not be in memory.
#[derive(Debug)]
pub struct SecretStream<'a> {
    pub(super) filter: &'a SecretFilter,
    pub(super) buffer: Vec<u8>,
    /// Flushed bytes at the front of `buffer`, kept to detect escapes across chunks.
    pub(super) flushed: usize,
    /// Whether an odd number of backslashes precedes `buffer`.
    pub(super) odd_backslashes: bool,
}

impl SecretStream<'_> {
    /// Adds a chunk and flushes the bytes that cannot start a secret.
    pub fn push_chunk(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        self.buffer.extend_from_slice(piece);
        // A secret starting before this offset is complete.
        let sure = self
            .buffer
            .len()
            .saturating_sub(self.filter.longest_form - 1);
        self.flush_until(sure, out);
    }

    /// Flushes the rest.
    pub fn finish(mut self, out: &mut Vec<u8>) {
        self.flush_until(self.buffer.len(), out);
    }

    fn flush_until(&mut self, sure: usize, out: &mut Vec<u8>) {
        let mut at = self.flushed;
        while let Some(found) = self
            .filter
            .find_secret(&self.buffer, at, self.odd_backslashes)
            && found.start < sure
        {
            out.extend_from_slice(self.buffer.get(at..found.start).unwrap_or_default());
            self.filter.write_replacement(found, &self.buffer, out);
            at = found.end;
        }
        let end = sure.max(at);
        out.extend_from_slice(self.buffer.get(at..end).unwrap_or_default());
        let drained = end.saturating_sub(ESCAPE_BYTES_MAX);
        self.odd_backslashes = has_odd_backslashes(&self.buffer, drained, self.odd_backslashes);
        self.buffer.drain(..drained);
        self.flushed = end - drained;
    }
}
