//! A stream that arrives in numbered pieces: what waits to be read, and how it ends.
//!
//! The cause of an end stands beside the queue and not in it: what came before is read first, and
//! a lost connection is told as one whatever number was expected next.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// How the pieces of a stream are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbered {
    /// The first is 1, the next 2.
    ByPiece,
    /// By the bytes that came before.
    ByByte,
}

/// What becomes of a piece for which no place is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crowded {
    /// The stream ends with it.
    Ends,
    /// It is put behind the last one, into one piece.
    Joins,
}

/// What may wait.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Pieces that may wait.
    pub pieces_max: usize,
    /// Bytes that may wait.
    pub bytes_max: usize,
    /// What becomes of more pieces; more bytes always end the stream.
    pub crowded: Crowded,
}

/// What is wrong with a piece. The stream takes no more; its owner says so to [`Ordered::fail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It is not the next one.
    Order {
        /// The number that the next one has.
        expected: u64,
        /// The number that it has.
        found: u64,
    },
    /// More came than may wait.
    Overflow,
    /// The stream had ended.
    Late,
}

/// What a reader gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken<C> {
    /// A piece.
    Piece(Bytes),
    /// The end, as it should be.
    End,
    /// The end, before it should be.
    Broken(C),
}

/// One stream; `C` is why it broke.
#[derive(Debug)]
pub struct Ordered<C> {
    numbered: Numbered,
    room: Room,
    next: u64,
    queue: VecDeque<Bytes>,
    /// Invariant: the sum of the lengths in `queue`.
    bytes: usize,
    end: Option<End<C>>,
}

#[derive(Debug)]
enum End<C> {
    Clean,
    Broken(C),
}

impl<C: Clone> Ordered<C> {
    /// Returns a stream of which nothing has come.
    #[must_use]
    pub fn new(numbered: Numbered, room: Room) -> Self {
        let next = match numbered {
            Numbered::ByPiece => 1,
            Numbered::ByByte => 0,
        };
        Self {
            numbered,
            room,
            next,
            queue: VecDeque::new(),
            bytes: 0,
            end: None,
        }
    }

    /// Takes a piece.
    ///
    /// # Errors
    /// It cannot be taken. Where it came too late, nothing changes.
    pub fn push(&mut self, number: u64, piece: Bytes) -> Result<(), Unfit> {
        if self.end.is_some() {
            return Err(Unfit::Late);
        }
        if number != self.next {
            let expected = self.next;
            return Err(Unfit::Order {
                expected,
                found: number,
            });
        }
        if self.bytes.saturating_add(piece.len()) > self.room.bytes_max {
            return Err(Unfit::Overflow);
        }
        let is_full = self.queue.len() >= self.room.pieces_max;
        if is_full && self.room.crowded == Crowded::Ends {
            return Err(Unfit::Overflow);
        }
        self.next = self.next.saturating_add(match self.numbered {
            Numbered::ByPiece => 1,
            Numbered::ByByte => u64::try_from(piece.len()).unwrap_or(u64::MAX),
        });
        self.bytes = self.bytes.saturating_add(piece.len());
        if piece.is_empty() {
            return Ok(());
        }
        if is_full && let Some(last) = self.queue.pop_back() {
            self.queue.push_back(joined(last, &piece));
        } else {
            self.queue.push_back(piece);
        }
        Ok(())
    }

    /// Says that nothing more comes; what waits is read first.
    pub fn end(&mut self) {
        self.end.get_or_insert(End::Clean);
    }

    /// Says why nothing more comes; what waits is read first, and the first cause counts.
    pub fn fail(&mut self, cause: C) {
        self.end.get_or_insert(End::Broken(cause));
    }

    /// Throws away what waits and says why nothing more comes, whatever was said before. Returns
    /// how many bytes waited.
    pub fn abort(&mut self, cause: C) -> usize {
        self.queue = VecDeque::new();
        self.end = Some(End::Broken(cause));
        std::mem::take(&mut self.bytes)
    }

    /// Returns what is next, if it is here.
    pub fn take(&mut self) -> Option<Taken<C>> {
        if let Some(piece) = self.queue.pop_front() {
            self.bytes = self.bytes.saturating_sub(piece.len());
            return Some(Taken::Piece(piece));
        }
        match &self.end {
            None => None,
            Some(End::Clean) => Some(Taken::End),
            Some(End::Broken(cause)) => Some(Taken::Broken(cause.clone())),
        }
    }

    /// Takes all of it, where it ended as it should and waits in one piece.
    pub fn take_whole(&mut self) -> Option<Bytes> {
        if !matches!(self.end, Some(End::Clean)) || self.queue.len() > 1 {
            return None;
        }
        self.bytes = 0;
        Some(self.queue.pop_front().unwrap_or_default())
    }

    /// Returns the number that the next piece has.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// Returns how many bytes wait.
    #[must_use]
    pub const fn waiting_bytes(&self) -> usize {
        self.bytes
    }

    /// Whether no more is taken.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.end.is_some()
    }
}

/// Puts two pieces into one. The first is copied only where others hold it too, or it has no room.
fn joined(first: Bytes, second: &[u8]) -> Bytes {
    let mut both = BytesMut::from(first);
    both.extend_from_slice(second);
    both.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room {
        pieces_max: 3,
        bytes_max: 100,
        crowded: Crowded::Ends,
    };

    fn piece(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn a_lost_connection_is_told_as_one_after_what_had_come() {
        for count in 0..3 {
            let mut stream = Ordered::new(Numbered::ByPiece, ROOM);
            for number in 1..=count {
                stream.push(number, piece("x")).unwrap();
            }
            stream.fail("disconnected");
            stream.fail("something later");
            stream.end();
            for _ in 0..count {
                assert_eq!(stream.take(), Some(Taken::Piece(piece("x"))));
            }
            assert_eq!(stream.take(), Some(Taken::Broken("disconnected")));
            assert_eq!(stream.take(), Some(Taken::Broken("disconnected")));
        }
    }

    #[test]
    fn a_piece_that_is_missing_doubled_or_late_is_not_taken() {
        let mut stream: Ordered<()> = Ordered::new(Numbered::ByPiece, ROOM);
        stream.push(1, piece("a")).unwrap();
        let order = |found| Err(Unfit::Order { expected: 2, found });
        assert_eq!(stream.push(1, piece("a")), order(1));
        assert_eq!(stream.push(3, piece("c")), order(3));
        stream.push(2, piece("b")).unwrap();
        stream.end();
        assert_eq!(stream.push(3, piece("c")), Err(Unfit::Late));
        assert_eq!(stream.waiting_bytes(), 2);
        let mut stream: Ordered<()> = Ordered::new(Numbered::ByByte, ROOM);
        stream.push(0, piece("ab")).unwrap();
        assert!(stream.push(1, piece("b")).is_err());
        stream.push(2, piece("c")).unwrap();
    }

    #[test]
    fn a_full_queue_is_told_and_what_waits_is_still_read() {
        let mut stream: Ordered<&str> = Ordered::new(Numbered::ByPiece, ROOM);
        for number in 1..=3 {
            stream.push(number, piece("x")).unwrap();
        }
        assert_eq!(stream.push(4, piece("x")), Err(Unfit::Overflow));
        stream.fail("overflow");
        let mut taken = Vec::new();
        while let Some(Taken::Piece(piece)) = stream.take() {
            taken.extend_from_slice(&piece);
        }
        assert_eq!(taken, b"xxx");
        assert_eq!(stream.take(), Some(Taken::Broken("overflow")));
    }

    #[test]
    fn aborted_stream_holds_nothing_and_keeps_cause() {
        let mut stream = Ordered::new(Numbered::ByPiece, ROOM);
        stream.push(1, piece("xyz")).unwrap();
        stream.end();
        assert_eq!(stream.abort("overflow"), 3);
        assert_eq!(stream.waiting_bytes(), 0);
        assert_eq!(stream.take(), Some(Taken::Broken("overflow")));
        assert_eq!(stream.push(2, piece("x")), Err(Unfit::Late));
    }

    #[test]
    fn many_small_pieces_take_no_more_room_than_their_bytes() {
        let room = Room {
            crowded: Crowded::Joins,
            ..ROOM
        };
        let mut stream: Ordered<()> = Ordered::new(Numbered::ByByte, room);
        for offset in 0..100 {
            stream.push(offset, piece("x")).unwrap();
        }
        assert_eq!(stream.push(100, piece("x")), Err(Unfit::Overflow));
        assert!(stream.queue.len() <= 3);
        let mut taken = 0;
        while let Some(Taken::Piece(piece)) = stream.take() {
            taken += piece.len();
        }
        assert_eq!(taken, 100);
    }
}
