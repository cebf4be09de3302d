//! Resumable streams: sent bytes are kept until known to be received.
//!
//! The reader's window equals the initial credit and does not grow. So the sender needs no
//! acknowledgements: a reader that grants credit up to an offset has received everything more than
//! one window before the offset.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::reassembly::{
    ChunkError, ChunkNumbering, OverflowPolicy, ReassemblyBuffer, ReassemblyItem, ReassemblyLimits,
};

/// Buffered chunks; further chunks are merged.
const CHUNKS_MAX: usize = 256;

/// Resent bytes travel in chunks of this size, to make progress even over short-lived connections.
pub(crate) const RESEND_BYTES_MAX: usize = 16 * 1024;

/// The reader lacks bytes no longer buffered, or claims bytes never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResumeGap;

/// The sending end of one direction.
#[derive(Debug)]
pub(crate) struct ResumableSender {
    /// The reader's window.
    window: u64,
    /// Offset of the first byte of `unconfirmed`.
    base: u64,
    /// Bytes possibly not received. Invariant: at most one window.
    unconfirmed: VecDeque<u8>,
    /// Offset up to which the reader accepts bytes.
    granted: u64,
}

impl ResumableSender {
    /// Returns an empty stream to a reader with this initial credit.
    #[must_use]
    pub(crate) const fn new(credit: u64) -> Self {
        Self {
            window: credit,
            base: 0,
            unconfirmed: VecDeque::new(),
            granted: credit,
        }
    }

    /// Returns the number of sent bytes.
    #[must_use]
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.base.saturating_add(to_u64(self.unconfirmed.len()))
    }

    /// Returns the remaining credit.
    #[must_use]
    pub(crate) fn credit_left(&self) -> u64 {
        self.granted.saturating_sub(self.sent_bytes())
    }

    /// Buffers bytes being sent; the caller checks the credit. Returns the offset.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) -> u64 {
        debug_assert!(to_u64(bytes.len()) <= self.credit_left());
        let offset = self.sent_bytes();
        self.unconfirmed.extend(bytes);
        offset
    }

    /// Adds credit granted by the reader.
    pub(crate) fn add_credit(&mut self, bytes: u64) {
        self.granted = self.granted.saturating_add(bytes);
        self.drop_confirmed(self.granted.saturating_sub(self.window));
    }

    /// Resumes with a reader at offset `received` with `credit` from there. The missing bytes must
    /// be resent: [`unconfirmed_chunks`](Self::unconfirmed_chunks).
    ///
    /// # Errors
    /// The missing bytes are no longer buffered.
    pub(crate) fn resume(&mut self, received: u64, credit: u64) -> Result<(), ResumeGap> {
        if received < self.base || received > self.sent_bytes() {
            return Err(ResumeGap);
        }
        self.drop_confirmed(received);
        // Credit granted earlier for sent bytes stays valid.
        self.granted = received.saturating_add(credit).max(self.sent_bytes());
        Ok(())
    }

    /// Returns the buffered bytes in chunks of at most `bytes_max`, with their offsets.
    #[must_use]
    pub(crate) fn unconfirmed_chunks(&mut self, bytes_max: usize) -> Vec<(u64, Bytes)> {
        let mut offset = self.base;
        let mut chunks = Vec::new();
        for chunk in self.unconfirmed.make_contiguous().chunks(bytes_max.max(1)) {
            chunks.push((offset, Bytes::copy_from_slice(chunk)));
            offset = offset.saturating_add(to_u64(chunk.len()));
        }
        chunks
    }

    fn drop_confirmed(&mut self, before: u64) {
        let count = before.saturating_sub(self.base);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let count = count.min(self.unconfirmed.len());
        self.unconfirmed.drain(..count);
        self.base = self.base.saturating_add(to_u64(count));
        // Frees the memory of a burst.
        if self.unconfirmed.is_empty() {
            self.unconfirmed = VecDeque::new();
        }
    }
}

/// The receiving end of one direction; `C` is the cause of a failure.
#[derive(Debug)]
pub(crate) struct ResumableReceiver<C> {
    window: u64,
    queue: ReassemblyBuffer<C>,
    /// Bytes read so far.
    read: u64,
    /// Offset up to which credit was granted.
    granted: u64,
    /// Offset up to which the last resume point granted credit.
    marked: u64,
}

impl<C: Clone> ResumableReceiver<C> {
    /// Returns an empty stream; the window is the initial credit.
    #[must_use]
    pub(crate) fn new(window: u64) -> Self {
        let room = ReassemblyLimits {
            chunks_max: CHUNKS_MAX,
            bytes_max: usize::try_from(window).unwrap_or(usize::MAX),
            overflow: OverflowPolicy::Merge,
        };
        Self {
            window,
            queue: ReassemblyBuffer::new(ChunkNumbering::ByByte, room),
            read: 0,
            granted: window,
            marked: window,
        }
    }

    /// Adds a chunk.
    ///
    /// # Errors
    /// The chunk was refused; the owner must call [`fail`](Self::fail).
    pub(crate) fn push_chunk(&mut self, offset: u64, chunk: Bytes) -> Result<(), ChunkError> {
        if offset.saturating_add(to_u64(chunk.len())) > self.granted {
            return Err(ChunkError::Overflow);
        }
        self.queue.push_chunk(offset, chunk)
    }

    /// Ends the stream at `offset`; buffered chunks are read first.
    ///
    /// # Errors
    /// Bytes before the end are missing.
    pub(crate) fn finish(&mut self, offset: u64) -> Result<(), ChunkError> {
        let expected = self.queue.next_number();
        if offset != expected && !self.queue.is_finished() {
            let found = offset;
            return Err(ChunkError::OutOfOrder { expected, found });
        }
        self.queue.finish();
        Ok(())
    }

    /// Fails the stream; buffered chunks are read first.
    pub(crate) fn fail(&mut self, cause: C) {
        self.queue.fail(cause);
    }

    /// Returns the next item, if available, and the credit to grant to the sender.
    pub(crate) fn next_item(&mut self) -> Option<(ReassemblyItem<C>, Option<u64>)> {
        let item = self.queue.next_item()?;
        let ReassemblyItem::Chunk(piece) = &item else {
            return Some((item, None));
        };
        self.read = self.read.saturating_add(to_u64(piece.len()));
        let free = self.read + self.window - self.granted;
        // Grants are batched: each costs a frame.
        let more = (free >= self.window.div_ceil(2)).then_some(free);
        self.granted += more.unwrap_or_default();
        Some((item, more))
    }

    /// Returns the received bytes and the credit from there, for a resuming sender; replaces all
    /// earlier grants.
    pub(crate) fn resume_point(&mut self) -> (u64, u64) {
        self.granted = self.read.saturating_add(self.window);
        self.marked = self.granted;
        let received = self.queue.next_number();
        (received, self.granted.saturating_sub(received))
    }

    /// Returns the credit granted since the last resume point, for a sender that resumed from the
    /// point.
    pub(crate) fn credit_since_mark(&mut self) -> Option<u64> {
        let more = self.granted.saturating_sub(self.marked);
        self.marked = self.granted;
        (more > 0).then_some(more)
    }
}

fn to_u64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 64;

    /// Both ends of a stream and the bytes in between.
    struct LossyStream {
        sending: ResumableSender,
        receiving: ResumableReceiver<()>,
        /// Chunks in transit.
        there: VecDeque<(u64, Bytes)>,
        /// Credits in transit.
        back: VecDeque<u64>,
        written: Vec<u8>,
        read: Vec<u8>,
    }

    impl LossyStream {
        fn new() -> Self {
            Self {
                sending: ResumableSender::new(WINDOW),
                receiving: ResumableReceiver::new(WINDOW),
                there: VecDeque::new(),
                back: VecDeque::new(),
                written: Vec::new(),
                read: Vec::new(),
            }
        }

        fn write(&mut self, count: usize) {
            let count = count.min(usize::try_from(self.sending.credit_left()).unwrap());
            let first = self.written.len();
            let bytes: Vec<u8> = (first..first + count).map(|at| (at % 251) as u8).collect();
            let place = self.sending.push_bytes(&bytes);
            self.written.extend_from_slice(&bytes);
            self.there.push_back((place, bytes.into()));
            assert!(to_u64(self.sending.unconfirmed.len()) <= WINDOW);
        }

        fn arrive(&mut self) {
            if let Some((place, piece)) = self.there.pop_front() {
                self.receiving.push_chunk(place, piece).unwrap();
            }
        }

        fn read(&mut self) {
            if let Some((ReassemblyItem::Chunk(piece), more)) = self.receiving.next_item() {
                self.read.extend_from_slice(&piece);
                self.back.extend(more);
            }
        }

        fn credit(&mut self) {
            if let Some(bytes) = self.back.pop_front() {
                self.sending.add_credit(bytes);
            }
        }

        /// Cuts and resumes. Between the resume point and its use, both ends continue.
        fn cut_and_resume(&mut self) {
            self.there.clear();
            self.back.clear();
            let (received, credit) = self.receiving.resume_point();
            self.write(9);
            for _ in 0..3 {
                self.read();
            }
            self.there.clear();
            self.back.clear();
            self.sending.resume(received, credit).unwrap();
            self.there.extend(self.sending.unconfirmed_chunks(7));
            self.back.extend(self.receiving.credit_since_mark());
        }
    }

    #[test]
    fn cut_stream_loses_and_duplicates_nothing() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut road = LossyStream::new();
            for _ in 0..2_000 {
                match random.u8(..20) {
                    0 => road.cut_and_resume(),
                    1..=6 => road.write(random.usize(..40)),
                    7..=11 => road.arrive(),
                    12..=16 => road.read(),
                    _ => road.credit(),
                }
            }
            road.cut_and_resume();
            // No credit has leaked.
            while road.read.len() < road.written.len() {
                road.arrive();
                road.read();
                road.credit();
            }
            road.credit();
            assert_eq!(
                road.sending.credit_left(),
                road.receiving.granted - road.sending.sent_bytes()
            );
            while road.read.len() < road.written.len() {
                road.arrive();
                road.read();
            }
            assert!(road.written.len() > 1_000, "seed {seed}");
            assert_eq!(road.read, road.written, "seed {seed}");
        }
    }

    #[test]
    fn idle_stream_buffers_nothing() {
        let mut road = LossyStream::new();
        for _ in 0..10 {
            road.write(40);
            road.arrive();
            road.read();
            road.credit();
        }
        assert!(to_u64(road.sending.unconfirmed.len()) <= WINDOW);
        let (received, credit) = road.receiving.resume_point();
        road.sending.resume(received, credit).unwrap();
        assert!(road.sending.unconfirmed.is_empty());
    }

    #[test]
    fn resume_outside_buffer_fails() {
        let mut sending = ResumableSender::new(4);
        assert_eq!(sending.push_bytes(b"abcd"), 0);
        sending.add_credit(4);
        assert_eq!(sending.resume(3, 4), Err(ResumeGap));
        assert_eq!(sending.resume(5, 4), Err(ResumeGap));
        assert_eq!(sending.resume(4, 2), Ok(()));
        assert_eq!(sending.credit_left(), 2);
    }

    #[test]
    fn early_end_is_refused() {
        let mut receiving: ResumableReceiver<()> = ResumableReceiver::new(WINDOW);
        receiving
            .push_chunk(0, Bytes::from_static(b"half a line"))
            .unwrap();
        assert!(receiving.finish(12).is_err());
        receiving.finish(11).unwrap();
        assert!(matches!(
            receiving.next_item(),
            Some((ReassemblyItem::Chunk(_), None))
        ));
        assert_eq!(receiving.next_item(), Some((ReassemblyItem::End, None)));
    }

    #[test]
    fn bytes_beyond_credit_are_refused() {
        let mut receiving: ResumableReceiver<()> = ResumableReceiver::new(8);
        receiving
            .push_chunk(0, Bytes::from_static(b"12345678"))
            .unwrap();
        let next = receiving.push_chunk(8, Bytes::from_static(b"9"));
        assert_eq!(next, Err(ChunkError::Overflow));
    }
}
