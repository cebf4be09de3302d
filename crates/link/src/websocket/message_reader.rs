//! Reading half of a WebSocket: decodes messages on demand.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bowline_runtime::timer;
use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, Sleep, sleep_until};

use super::frame_codec::{FrameDecoder, ReceivedFrame};
use super::socket_state::{ByteSource, WebSocketShared};
use super::{DisconnectReason, WebSocketLimits, WebSocketRole};
use crate::http::http_client::error_chain;

/// Read size of a quiet connection, in bytes, and its buffer size.
const READ_BYTES: usize = 2 * 1024;

/// Read size of a busy connection, in bytes.
const READ_BYTES_MAX: usize = 64 * 1024;

/// Reads messages. Holds all state, so `next` is cancel-safe.
pub(super) struct MessageReader {
    shared: Arc<WebSocketShared>,
    /// Absent after it was handed to the task.
    source: Option<ByteSource>,
    /// Unprocessed input.
    buffer: BytesMut,
    /// Current read size.
    read_size: usize,
    decoder: FrameDecoder,
    silence_max: Duration,
    last_heard: Instant,
    /// Fires when the peer may have been silent for too long; created on first use.
    silence_timer: Option<Pin<Box<Sleep>>>,
}

impl fmt::Debug for MessageReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageReader")
            .field("shared", &self.shared)
            .field("read", &self.buffer.len())
            .finish_non_exhaustive()
    }
}

impl Drop for MessageReader {
    fn drop(&mut self) {
        self.shared.on_receiver_dropped(self.source.take());
    }
}

impl MessageReader {
    pub(super) fn new(
        shared: Arc<WebSocketShared>,
        source: ByteSource,
        read: Bytes,
        side: WebSocketRole,
        limits: &WebSocketLimits,
    ) -> Self {
        Self {
            shared,
            source: Some(source),
            buffer: BytesMut::from(read),
            read_size: READ_BYTES,
            decoder: FrameDecoder::new(side, limits.format, limits.message_bytes_max),
            silence_max: limits.silence_max,
            last_heard: timer::now(),
            silence_timer: None,
        }
    }

    pub(super) async fn next(&mut self) -> Result<Bytes, DisconnectReason> {
        loop {
            if let Some(cause) = self.shared.disconnect_reason() {
                return Err(cause);
            }
            self.decoder
                .set_message_bytes_max(self.shared.message_bytes_max());
            match self.decoder.next_frame(&mut self.buffer) {
                Ok(Some(ReceivedFrame::Message(message))) => return Ok(message),
                Ok(Some(ReceivedFrame::Ping(payload))) => self.shared.queue_pong(payload),
                Ok(Some(ReceivedFrame::Nothing)) => {}
                Ok(Some(ReceivedFrame::Close { code, reason })) => {
                    let closed = DisconnectReason::Closed { code, reason };
                    self.shared.end_with_code(closed, Some(code));
                }
                Ok(None) => self.fill_buffer().await?,
                Err(fault) => {
                    let invalid = DisconnectReason::Invalid(error_chain(&fault));
                    self.shared.end_with_code(invalid, Some(fault.close_code()));
                }
            }
        }
    }

    /// Reads more input, or records the end.
    async fn fill_buffer(&mut self) -> Result<(), DisconnectReason> {
        self.reserve_room();
        let Some(source) = &mut self.source else {
            return Err(DisconnectReason::Local);
        };
        let silence_max = self.silence_max;
        let due = self.last_heard + silence_max;
        let alarm = self
            .silence_timer
            .get_or_insert_with(|| Box::pin(sleep_until(due)));
        let before = self.buffer.capacity() - self.buffer.len();
        tokio::select! {
            biased;
            ended = self.shared.wait_closed() => Err(ended),
            read = source.read_buf(&mut self.buffer) => {
                let broken = |reason| self.shared.end(DisconnectReason::Broken(reason));
                match read {
                    Ok(0) => broken(error_chain(&io::Error::from(io::ErrorKind::UnexpectedEof))),
                    Ok(count) => {
                        self.last_heard = timer::now();
                        self.read_size = match count >= before {
                            true => (self.read_size * 2).min(READ_BYTES_MAX),
                            false => READ_BYTES,
                        };
                    }
                    Err(error) => broken(error_chain(&error)),
                }
                Ok(())
            }
            // Reset only when it fires, not with each read.
            () = alarm.as_mut() => {
                if timer::now() >= due {
                    self.shared.end(DisconnectReason::Silent(silence_max));
                }
                alarm.as_mut().reset(due);
                Ok(())
            }
        }
    }

    /// Reserves room for the missing bytes, but never at once for all that the peer announces.
    fn reserve_room(&mut self) {
        let missing = self.decoder.missing_bytes(&self.buffer);
        let grown = self.buffer.len().max(READ_BYTES_MAX);
        let room = missing.min(grown).max(self.read_size);
        // Release a large buffer before small reads.
        if self.buffer.is_empty() && room <= READ_BYTES && self.buffer.capacity() > 2 * READ_BYTES {
            self.buffer = BytesMut::new();
        }
        if self.buffer.capacity() - self.buffer.len()
            < room.min(READ_BYTES / 2).max(missing.min(grown))
        {
            self.buffer.reserve(room);
        }
    }
}
