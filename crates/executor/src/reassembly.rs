//! Reassembles a stream from numbered chunks, and tracks the end of the stream.
//!
//! The cause of a failure is stored besides the queue, not in the queue: buffered chunks are read
//! first, and a lost connection is reported as such regardless of the next expected number.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Numbering of the chunks of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkNumbering {
    /// Sequence numbers, starting at 1.
    ByChunk,
    /// Byte offsets.
    ByByte,
}

/// Handling of a chunk beyond the chunk limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverflowPolicy {
    /// Fail the stream.
    Fail,
    /// Append to the last buffered chunk.
    Merge,
}

/// Buffer limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReassemblyLimits {
    /// Buffered chunks.
    pub(crate) chunks_max: usize,
    /// Buffered bytes.
    pub(crate) bytes_max: usize,
    /// Handling of excess chunks; excess bytes always fail the stream.
    pub(crate) overflow: OverflowPolicy,
}

/// Why a chunk was refused. The owner must then call [`ReassemblyBuffer::fail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkError {
    /// Not the next chunk.
    OutOfOrder {
        /// The expected number.
        expected: u64,
        /// The received number.
        found: u64,
    },
    /// The buffer limit is exceeded.
    Overflow,
    /// The stream has already ended.
    Late,
}

/// An item returned to the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReassemblyItem<C> {
    /// A chunk.
    Chunk(Bytes),
    /// Clean end of the stream.
    End,
    /// Premature end of the stream.
    Failed(C),
}

/// One stream; `C` is the cause of a failure.
#[derive(Debug)]
pub(crate) struct ReassemblyBuffer<C> {
    numbering: ChunkNumbering,
    limits: ReassemblyLimits,
    next_number: u64,
    queue: VecDeque<Bytes>,
    /// Invariant: the sum of the lengths in `queue`.
    bytes: usize,
    end: Option<ReassemblyEnd<C>>,
}

#[derive(Debug)]
enum ReassemblyEnd<C> {
    Clean,
    Failed(C),
}

impl<C: Clone> ReassemblyBuffer<C> {
    /// Returns an empty stream.
    #[must_use]
    pub(crate) fn new(numbering: ChunkNumbering, limits: ReassemblyLimits) -> Self {
        let next_number = match numbering {
            ChunkNumbering::ByChunk => 1,
            ChunkNumbering::ByByte => 0,
        };
        Self {
            numbering,
            limits,
            next_number,
            queue: VecDeque::new(),
            bytes: 0,
            end: None,
        }
    }

    /// Adds a chunk.
    ///
    /// # Errors
    /// The chunk was refused. A late chunk changes nothing.
    pub(crate) fn push_chunk(&mut self, number: u64, chunk: Bytes) -> Result<(), ChunkError> {
        if self.end.is_some() {
            return Err(ChunkError::Late);
        }
        if number != self.next_number {
            let expected = self.next_number;
            return Err(ChunkError::OutOfOrder {
                expected,
                found: number,
            });
        }
        if self.bytes.saturating_add(chunk.len()) > self.limits.bytes_max {
            return Err(ChunkError::Overflow);
        }
        let is_full = self.queue.len() >= self.limits.chunks_max;
        if is_full && self.limits.overflow == OverflowPolicy::Fail {
            return Err(ChunkError::Overflow);
        }
        self.next_number = self.next_number.saturating_add(match self.numbering {
            ChunkNumbering::ByChunk => 1,
            ChunkNumbering::ByByte => u64::try_from(chunk.len()).unwrap_or(u64::MAX),
        });
        self.bytes = self.bytes.saturating_add(chunk.len());
        if chunk.is_empty() {
            return Ok(());
        }
        if is_full && let Some(last) = self.queue.pop_back() {
            self.queue.push_back(join_chunks(last, &chunk));
        } else {
            self.queue.push_back(chunk);
        }
        Ok(())
    }

    /// Ends the stream cleanly; buffered chunks are read first.
    pub(crate) fn finish(&mut self) {
        self.end.get_or_insert(ReassemblyEnd::Clean);
    }

    /// Fails the stream; buffered chunks are read first, and the first cause counts.
    pub(crate) fn fail(&mut self, cause: C) {
        self.end.get_or_insert(ReassemblyEnd::Failed(cause));
    }

    /// Discards buffered chunks and fails the stream, overriding an earlier end. Returns the number
    /// of discarded bytes.
    pub(crate) fn abort(&mut self, cause: C) -> usize {
        self.queue = VecDeque::new();
        self.end = Some(ReassemblyEnd::Failed(cause));
        std::mem::take(&mut self.bytes)
    }

    /// Returns the next item, if available.
    pub(crate) fn next_item(&mut self) -> Option<ReassemblyItem<C>> {
        if let Some(chunk) = self.queue.pop_front() {
            self.bytes = self.bytes.saturating_sub(chunk.len());
            return Some(ReassemblyItem::Chunk(chunk));
        }
        match &self.end {
            None => None,
            Some(ReassemblyEnd::Clean) => Some(ReassemblyItem::End),
            Some(ReassemblyEnd::Failed(cause)) => Some(ReassemblyItem::Failed(cause.clone())),
        }
    }

    /// Takes the whole stream, if cleanly ended and buffered as at most one chunk.
    pub(crate) fn take_complete(&mut self) -> Option<Bytes> {
        if !matches!(self.end, Some(ReassemblyEnd::Clean)) || self.queue.len() > 1 {
            return None;
        }
        self.bytes = 0;
        Some(self.queue.pop_front().unwrap_or_default())
    }

    /// Returns the number of the next chunk.
    #[must_use]
    pub(crate) const fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Returns the number of buffered bytes.
    #[must_use]
    pub(crate) const fn buffered_bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the stream takes no more chunks.
    #[must_use]
    pub(crate) const fn is_finished(&self) -> bool {
        self.end.is_some()
    }
}

/// Joins two chunks. The first is copied only if shared or without spare capacity.
fn join_chunks(first: Bytes, second: &[u8]) -> Bytes {
    let mut both = BytesMut::from(first);
    both.extend_from_slice(second);
    both.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: ReassemblyLimits = ReassemblyLimits {
        chunks_max: 3,
        bytes_max: 100,
        overflow: OverflowPolicy::Fail,
    };

    fn chunk(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn failure_is_reported_after_buffered_chunks() {
        for count in 0..3 {
            let mut stream = ReassemblyBuffer::new(ChunkNumbering::ByChunk, ROOM);
            for number in 1..=count {
                stream.push_chunk(number, chunk("x")).unwrap();
            }
            stream.fail("disconnected");
            stream.fail("something later");
            stream.finish();
            for _ in 0..count {
                assert_eq!(stream.next_item(), Some(ReassemblyItem::Chunk(chunk("x"))));
            }
            assert_eq!(
                stream.next_item(),
                Some(ReassemblyItem::Failed("disconnected"))
            );
            assert_eq!(
                stream.next_item(),
                Some(ReassemblyItem::Failed("disconnected"))
            );
        }
    }

    #[test]
    fn out_of_order_or_late_chunk_is_refused() {
        let mut stream: ReassemblyBuffer<()> = ReassemblyBuffer::new(ChunkNumbering::ByChunk, ROOM);
        stream.push_chunk(1, chunk("a")).unwrap();
        let order = |found| Err(ChunkError::OutOfOrder { expected: 2, found });
        assert_eq!(stream.push_chunk(1, chunk("a")), order(1));
        assert_eq!(stream.push_chunk(3, chunk("c")), order(3));
        stream.push_chunk(2, chunk("b")).unwrap();
        stream.finish();
        assert_eq!(stream.push_chunk(3, chunk("c")), Err(ChunkError::Late));
        assert_eq!(stream.buffered_bytes(), 2);
        let mut stream: ReassemblyBuffer<()> = ReassemblyBuffer::new(ChunkNumbering::ByByte, ROOM);
        stream.push_chunk(0, chunk("ab")).unwrap();
        assert!(stream.push_chunk(1, chunk("b")).is_err());
        stream.push_chunk(2, chunk("c")).unwrap();
    }

    #[test]
    fn full_buffer_fails_but_stays_readable() {
        let mut stream: ReassemblyBuffer<&str> =
            ReassemblyBuffer::new(ChunkNumbering::ByChunk, ROOM);
        for number in 1..=3 {
            stream.push_chunk(number, chunk("x")).unwrap();
        }
        assert_eq!(stream.push_chunk(4, chunk("x")), Err(ChunkError::Overflow));
        stream.fail("overflow");
        let mut taken = Vec::new();
        while let Some(ReassemblyItem::Chunk(piece)) = stream.next_item() {
            taken.extend_from_slice(&piece);
        }
        assert_eq!(taken, b"xxx");
        assert_eq!(stream.next_item(), Some(ReassemblyItem::Failed("overflow")));
    }

    #[test]
    fn aborted_stream_holds_nothing_and_keeps_cause() {
        let mut stream = ReassemblyBuffer::new(ChunkNumbering::ByChunk, ROOM);
        stream.push_chunk(1, chunk("xyz")).unwrap();
        stream.finish();
        assert_eq!(stream.abort("overflow"), 3);
        assert_eq!(stream.buffered_bytes(), 0);
        assert_eq!(stream.next_item(), Some(ReassemblyItem::Failed("overflow")));
        assert_eq!(stream.push_chunk(2, chunk("x")), Err(ChunkError::Late));
    }

    #[test]
    fn small_chunks_merge_within_byte_limit() {
        let room = ReassemblyLimits {
            overflow: OverflowPolicy::Merge,
            ..ROOM
        };
        let mut stream: ReassemblyBuffer<()> = ReassemblyBuffer::new(ChunkNumbering::ByByte, room);
        for offset in 0..100 {
            stream.push_chunk(offset, chunk("x")).unwrap();
        }
        assert_eq!(
            stream.push_chunk(100, chunk("x")),
            Err(ChunkError::Overflow)
        );
        assert!(stream.queue.len() <= 3);
        let mut taken = 0;
        while let Some(ReassemblyItem::Chunk(piece)) = stream.next_item() {
            taken += piece.len();
        }
        assert_eq!(taken, 100);
    }
}
