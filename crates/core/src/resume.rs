//! A stream that goes on where it was cut: what was sent is kept until it surely came.
//!
//! The window of the reader is its first credit and does not grow. The sender can tell from that
//! how much surely came, and needs no word for it: a reader that allows bytes up to some place has
//! all that lies more than its window before it.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::ordered::{Crowded, Numbered, Ordered, Room, Taken, Unfit};

/// Pieces that wait to be read; more are joined.
const PIECES_MAX: usize = 256;

/// What is said again travels in pieces of this size, so that it comes nearer to its end also over
/// connections that are cut soon.
pub const AGAIN_BYTES_MAX: usize = 16 * 1024;

/// The reader lacks what the sender keeps no more, or has what it was never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn;

/// The sending end of one direction.
#[derive(Debug)]
pub struct Sending {
    /// What the reader lets wait and be on its way.
    window: u64,
    /// Where `kept` begins.
    base: u64,
    /// What may not have come. Invariant: never more than the window.
    kept: VecDeque<u8>,
    /// Up to where the reader takes bytes.
    granted: u64,
}

impl Sending {
    /// Returns a stream of which nothing was sent, to a reader with this first credit.
    #[must_use]
    pub const fn new(credit: u64) -> Self {
        Self {
            window: credit,
            base: 0,
            kept: VecDeque::new(),
            granted: credit,
        }
    }

    /// Returns how many bytes were sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.base.saturating_add(wide(self.kept.len()))
    }

    /// Returns how many more may be sent.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.granted.saturating_sub(self.sent())
    }

    /// Keeps what is sent now; there must be room for it. Returns its place.
    pub fn push(&mut self, bytes: &[u8]) -> u64 {
        debug_assert!(wide(bytes.len()) <= self.room());
        let place = self.sent();
        self.kept.extend(bytes);
        place
    }

    /// Notes that the reader takes so many more.
    pub fn credited(&mut self, bytes: u64) {
        self.granted = self.granted.saturating_add(bytes);
        self.forget(self.granted.saturating_sub(self.window));
    }

    /// Goes on with a reader that has so many bytes, and takes so many from there. What it does
    /// not have is to be sent again: [`pieces`](Self::pieces).
    ///
    /// # Errors
    /// It lacks some that are not kept.
    pub fn resume(&mut self, received: u64, credit: u64) -> Result<(), Torn> {
        if received < self.base || received > self.sent() {
            return Err(Torn);
        }
        self.forget(received);
        // Credit that it gave for what was sent already stands.
        self.granted = received.saturating_add(credit).max(self.sent());
        Ok(())
    }

    /// Returns what is kept, in pieces of at most so many bytes, each with its place.
    #[must_use]
    pub fn pieces(&mut self, bytes_max: usize) -> Vec<(u64, Bytes)> {
        let mut place = self.base;
        let mut pieces = Vec::new();
        for chunk in self.kept.make_contiguous().chunks(bytes_max.max(1)) {
            pieces.push((place, Bytes::copy_from_slice(chunk)));
            place = place.saturating_add(wide(chunk.len()));
        }
        pieces
    }

    fn forget(&mut self, before: u64) {
        let count = before.saturating_sub(self.base);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let count = count.min(self.kept.len());
        self.kept.drain(..count);
        self.base = self.base.saturating_add(wide(count));
        // A burst leaves nothing behind.
        if self.kept.is_empty() {
            self.kept = VecDeque::new();
        }
    }
}

/// The reading end of one direction; `C` is why it broke.
#[derive(Debug)]
pub struct Receiving<C> {
    window: u64,
    queue: Ordered<C>,
    /// How many bytes were read.
    read: u64,
    /// Up to where the sender was told that bytes are taken.
    granted: u64,
    /// Up to where the last mark says so.
    marked: u64,
}

impl<C: Clone> Receiving<C> {
    /// Returns a stream of which nothing came; the window is its first credit.
    #[must_use]
    pub fn new(window: u64) -> Self {
        let room = Room {
            pieces_max: PIECES_MAX,
            bytes_max: usize::try_from(window).unwrap_or(usize::MAX),
            crowded: Crowded::Joins,
        };
        Self {
            window,
            queue: Ordered::new(Numbered::ByByte, room),
            read: 0,
            granted: window,
            marked: window,
        }
    }

    /// Takes a piece.
    ///
    /// # Errors
    /// It cannot be taken: the stream is broken, and its owner says so to [`fail`](Self::fail).
    pub fn push(&mut self, place: u64, piece: Bytes) -> Result<(), Unfit> {
        if place.saturating_add(wide(piece.len())) > self.granted {
            return Err(Unfit::Overflow);
        }
        self.queue.push(place, piece)
    }

    /// Says that nothing more comes after so many bytes; what waits is read first.
    ///
    /// # Errors
    /// Some of them did not come.
    pub fn end(&mut self, place: u64) -> Result<(), Unfit> {
        let expected = self.queue.next();
        if place != expected && !self.queue.is_over() {
            let found = place;
            return Err(Unfit::Order { expected, found });
        }
        self.queue.end();
        Ok(())
    }

    /// Says why nothing more comes; what waits is read first.
    pub fn fail(&mut self, cause: C) {
        self.queue.fail(cause);
    }

    /// Returns what is next, if it is here, and how many bytes more the sender is to be told of.
    pub fn take(&mut self) -> Option<(Taken<C>, Option<u64>)> {
        let taken = self.queue.take()?;
        let Taken::Piece(piece) = &taken else {
            return Some((taken, None));
        };
        self.read = self.read.saturating_add(wide(piece.len()));
        let free = self.read + self.window - self.granted;
        // Not for every byte: a credit costs a frame.
        let more = (free >= self.window.div_ceil(2)).then_some(free);
        self.granted += more.unwrap_or_default();
        Some((taken, more))
    }

    /// Returns how many bytes came and how many are taken from there, for a sender that is to go
    /// on: this stands for all that it was told before.
    pub fn mark(&mut self) -> (u64, u64) {
        self.granted = self.read.saturating_add(self.window);
        self.marked = self.granted;
        let received = self.queue.next();
        (received, self.granted.saturating_sub(received))
    }

    /// Returns what is to be told to a sender that goes on with the last mark: how many bytes more
    /// were read since.
    pub fn resumed(&mut self) -> Option<u64> {
        let more = self.granted.saturating_sub(self.marked);
        self.marked = self.granted;
        (more > 0).then_some(more)
    }

    /// Returns whether no more is taken.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.queue.is_over()
    }
}

fn wide(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 64;

    /// Both ends of a direction, and what is between them.
    struct Road {
        sending: Sending,
        receiving: Receiving<()>,
        /// Pieces on their way.
        there: VecDeque<(u64, Bytes)>,
        /// Credits on their way back.
        back: VecDeque<u64>,
        written: Vec<u8>,
        read: Vec<u8>,
    }

    impl Road {
        fn new() -> Self {
            Self {
                sending: Sending::new(WINDOW),
                receiving: Receiving::new(WINDOW),
                there: VecDeque::new(),
                back: VecDeque::new(),
                written: Vec::new(),
                read: Vec::new(),
            }
        }

        fn write(&mut self, count: usize) {
            let count = count.min(usize::try_from(self.sending.room()).unwrap());
            let first = self.written.len();
            let bytes: Vec<u8> = (first..first + count).map(|at| (at % 251) as u8).collect();
            let place = self.sending.push(&bytes);
            self.written.extend_from_slice(&bytes);
            self.there.push_back((place, bytes.into()));
            assert!(wide(self.sending.kept.len()) <= WINDOW);
        }

        fn arrive(&mut self) {
            if let Some((place, piece)) = self.there.pop_front() {
                self.receiving.push(place, piece).unwrap();
            }
        }

        fn read(&mut self) {
            if let Some((Taken::Piece(piece), more)) = self.receiving.take() {
                self.read.extend_from_slice(&piece);
                self.back.extend(more);
            }
        }

        fn credit(&mut self) {
            if let Some(bytes) = self.back.pop_front() {
                self.sending.credited(bytes);
            }
        }

        /// Both go on. Between a mark and its use, the reader reads and the writer writes.
        fn cut(&mut self) {
            self.there.clear();
            self.back.clear();
            let (received, credit) = self.receiving.mark();
            self.write(9);
            for _ in 0..3 {
                self.read();
            }
            self.there.clear();
            self.back.clear();
            self.sending.resume(received, credit).unwrap();
            self.there.extend(self.sending.pieces(7));
            self.back.extend(self.receiving.resumed());
        }
    }

    #[test]
    fn whatever_is_cut_nothing_is_lost_or_doubled_and_no_more_is_kept_than_the_window() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut road = Road::new();
            for _ in 0..2_000 {
                match random.u8(..20) {
                    0 => road.cut(),
                    1..=6 => road.write(random.usize(..40)),
                    7..=11 => road.arrive(),
                    12..=16 => road.read(),
                    _ => road.credit(),
                }
            }
            road.cut();
            // No credit has leaked away.
            while road.read.len() < road.written.len() {
                road.arrive();
                road.read();
                road.credit();
            }
            road.credit();
            assert_eq!(
                road.sending.room(),
                road.receiving.granted - road.sending.sent()
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
    fn an_idle_stream_keeps_nothing_once_all_came() {
        let mut road = Road::new();
        for _ in 0..10 {
            road.write(40);
            road.arrive();
            road.read();
            road.credit();
        }
        assert!(wide(road.sending.kept.len()) <= WINDOW);
        let (received, credit) = road.receiving.mark();
        road.sending.resume(received, credit).unwrap();
        assert!(road.sending.kept.is_empty());
    }

    #[test]
    fn a_reader_that_lacks_what_is_not_kept_or_has_what_was_not_sent_cannot_go_on() {
        let mut sending = Sending::new(4);
        assert_eq!(sending.push(b"abcd"), 0);
        sending.credited(4);
        assert_eq!(sending.resume(3, 4), Err(Torn));
        assert_eq!(sending.resume(5, 4), Err(Torn));
        assert_eq!(sending.resume(4, 2), Ok(()));
        assert_eq!(sending.room(), 2);
    }

    #[test]
    fn an_end_that_comes_before_its_bytes_is_none() {
        let mut receiving: Receiving<()> = Receiving::new(WINDOW);
        receiving
            .push(0, Bytes::from_static(b"half a line"))
            .unwrap();
        assert!(receiving.end(12).is_err());
        receiving.end(11).unwrap();
        assert!(matches!(receiving.take(), Some((Taken::Piece(_), None))));
        assert_eq!(receiving.take(), Some((Taken::End, None)));
    }

    #[test]
    fn more_than_was_allowed_is_refused_though_there_is_room() {
        let mut receiving: Receiving<()> = Receiving::new(8);
        receiving.push(0, Bytes::from_static(b"12345678")).unwrap();
        let next = receiving.push(8, Bytes::from_static(b"9"));
        assert_eq!(next, Err(Unfit::Overflow));
    }
}
