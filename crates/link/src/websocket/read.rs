//! The reading half: bytes become messages while somebody asks for them.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, Sleep, sleep_until};

use super::frame::{Came, Decoder};
use super::shared::{Shared, Source};
use super::{Ended, Side, SocketLimits};
use crate::http::client::causes;
use crate::http::clock;

/// What is read at once while little is said, in bytes; a quiet connection holds this much.
const READ_BYTES: usize = 2 * 1024;

/// What is read at once while much is said, in bytes.
const READ_BYTES_MAX: usize = 64 * 1024;

/// Reads messages. All state is here, so that a call may be dropped at any point.
pub(super) struct Reader {
    shared: Arc<Shared>,
    /// Absent once it was left behind.
    source: Option<Source>,
    /// What was read and is not used yet.
    read: BytesMut,
    /// How much is read at once.
    room: usize,
    decoder: Decoder,
    silence_max: Duration,
    heard: Instant,
    /// Rings when it may have been silent for too long; made when first waited for.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("shared", &self.shared)
            .field("read", &self.read.len())
            .finish_non_exhaustive()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.reader_left(self.source.take());
    }
}

impl Reader {
    pub(super) fn new(
        shared: Arc<Shared>,
        source: Source,
        read: Bytes,
        side: Side,
        limits: &SocketLimits,
    ) -> Self {
        Self {
            shared,
            source: Some(source),
            read: BytesMut::from(read),
            room: READ_BYTES,
            decoder: Decoder::new(side, limits.form, limits.message_bytes_max),
            silence_max: limits.silence_max,
            heard: clock::now(),
            alarm: None,
        }
    }

    pub(super) async fn next(&mut self) -> Result<Bytes, Ended> {
        loop {
            if let Some(ended) = self.shared.ended() {
                return Err(ended);
            }
            self.decoder.allow(self.shared.message_bytes_max());
            match self.decoder.step(&mut self.read) {
                Ok(Some(Came::Message(message))) => return Ok(message),
                Ok(Some(Came::Ping(said))) => self.shared.pong(said),
                Ok(Some(Came::Nothing)) => {}
                Ok(Some(Came::Close { code, reason })) => {
                    let closed = Ended::Closed { code, reason };
                    self.shared.end_saying(closed, Some(code));
                }
                Ok(None) => self.fill().await?,
                Err(fault) => {
                    let invalid = Ended::Invalid(causes(&fault));
                    self.shared.end_saying(invalid, Some(fault.code()));
                }
            }
        }
    }

    /// Reads more, or finds out why there is no more.
    async fn fill(&mut self) -> Result<(), Ended> {
        self.make_room();
        let Some(source) = &mut self.source else {
            return Err(Ended::Local);
        };
        let silence_max = self.silence_max;
        let due = self.heard + silence_max;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(due)));
        let before = self.read.capacity() - self.read.len();
        tokio::select! {
            biased;
            ended = self.shared.over() => Err(ended),
            read = source.read_buf(&mut self.read) => {
                let broken = |reason| self.shared.end(Ended::Broken(reason));
                match read {
                    Ok(0) => broken(causes(&io::Error::from(io::ErrorKind::UnexpectedEof))),
                    Ok(count) => {
                        self.heard = clock::now();
                        self.room = match count >= before {
                            true => (self.room * 2).min(READ_BYTES_MAX),
                            false => READ_BYTES,
                        };
                    }
                    Err(error) => broken(causes(&error)),
                }
                Ok(())
            }
            // It is set once and again only when it rings, not with each byte that comes.
            () = alarm.as_mut() => {
                if clock::now() >= due {
                    self.shared.end(Ended::Silent(silence_max));
                }
                alarm.as_mut().reset(due);
                Ok(())
            }
        }
    }

    /// Makes room for what is missing, but never at once for all that a peer says will come.
    fn make_room(&mut self) {
        let missing = self.decoder.missing(&self.read);
        let grown = self.read.len().max(READ_BYTES_MAX);
        let room = missing.min(grown).max(self.room);
        // What was large is not kept for what is small.
        if self.read.is_empty() && room <= READ_BYTES && self.read.capacity() > 2 * READ_BYTES {
            self.read = BytesMut::new();
        }
        if self.read.capacity() - self.read.len() < room.min(READ_BYTES / 2).max(missing.min(grown))
        {
            self.read.reserve(room);
        }
    }
}
