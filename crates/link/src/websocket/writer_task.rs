//! Writer task of a connection: writes queued messages, pings, and closes.

use std::io::{self, IoSlice};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bowline_runtime::timer;
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::frame_codec::FrameEncoder;
use super::socket_state::{WebSocketShared, WriterCommand};
use super::{DisconnectReason, WebSocketLimits};
use crate::http::http_client::error_chain;

/// Small messages are joined up to this size.
const BATCH_BYTES_MAX: usize = 64 * 1024;

/// Larger messages are written without a copy.
const COPY_BYTES_MAX: usize = 16 * 1024;

/// Large messages are joined up to this size.
const BATCH_LARGE_BYTES_MAX: usize = 256 * 1024;

/// Slices per write.
const SLICES_MAX: usize = 2 * (BATCH_LARGE_BYTES_MAX / COPY_BYTES_MAX + 1);

/// Buffer size while idle.
const REST_BYTES: usize = 2 * 1024;

/// Minimum ping interval.
const PING_EVERY_MIN: Duration = Duration::from_millis(1);

/// Wait for the peer to read our close frame, or for the reader to find the cause of a write error.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// Read size while input after the close is discarded.
const DISCARD_BYTES: usize = 2 * 1024;

/// The writer task.
#[derive(Debug)]
pub(super) struct WriterTask<W> {
    pub(super) shared: Arc<WebSocketShared>,
    pub(super) stream: W,
    pub(super) encoder: FrameEncoder,
    pub(super) limits: WebSocketLimits,
}

/// Frames of a write.
#[derive(Debug, Default)]
struct FrameBatch {
    out: Vec<u8>,
    /// Large messages, each with its position in `out`.
    large: Vec<(usize, Bytes)>,
    large_bytes: usize,
    messages: usize,
    weight: usize,
}

/// Next action after a write.
#[derive(Debug)]
enum AfterWrite {
    More,
    Wait,
    Close(u16, Arc<str>),
    End(Option<u16>),
}

/// Ends the connection when the task is dropped, in any case.
impl<W> Drop for WriterTask<W> {
    fn drop(&mut self) {
        self.shared.end(DisconnectReason::Local);
    }
}

impl<W: AsyncWrite + Unpin> WriterTask<W> {
    pub(super) async fn run(mut self) {
        let mut ping = pin!(sleep(self.limits.ping_interval));
        let mut batch = FrameBatch::default();
        loop {
            let now = timer::now();
            if now >= ping.deadline() {
                self.encoder.write_ping(&mut batch.out);
                let every = self.limits.ping_interval.max(PING_EVERY_MIN);
                ping.as_mut().reset(now + every);
            }
            let next = self.gather_batch(&mut batch);
            if !batch.out.is_empty() {
                if let Err(cause) = self.write_batch(&batch).await {
                    return self.end_after_error(cause).await;
                }
                self.shared.release_written(batch.messages, batch.weight);
                batch.reset();
            }
            match next {
                AfterWrite::More => {}
                AfterWrite::Wait => {
                    tokio::select! {
                        () = self.shared.wait_wake() => {}
                        () = ping.as_mut() => {}
                    }
                }
                AfterWrite::Close(code, reason) => {
                    self.send_close(code, &reason).await;
                    self.shared.end(DisconnectReason::Local);
                    return self.drain_source().await;
                }
                AfterWrite::End(None) => return,
                AfterWrite::End(Some(code)) => {
                    self.send_close(code, "").await;
                    return self.drain_source().await;
                }
            }
        }
    }

    /// Gathers commands until the batch is full.
    fn gather_batch(&mut self, batch: &mut FrameBatch) -> AfterWrite {
        loop {
            match self.shared.next_command() {
                WriterCommand::Pong(payload) => self.encoder.write_pong(&payload, &mut batch.out),
                WriterCommand::Write(message) => {
                    batch.messages += 1;
                    batch.weight += self.shared.room_taken(&message);
                    self.encode_message(message, batch);
                    let full = batch.out.len() >= BATCH_BYTES_MAX;
                    if full || batch.large_bytes >= BATCH_LARGE_BYTES_MAX {
                        return AfterWrite::More;
                    }
                }
                WriterCommand::Wait => return AfterWrite::Wait,
                WriterCommand::Close(code, reason) => return AfterWrite::Close(code, reason),
                WriterCommand::End(code) => return AfterWrite::End(code),
            }
        }
    }

    fn encode_message(&mut self, message: Bytes, batch: &mut FrameBatch) {
        let form = self.limits.format;
        if message.len() <= COPY_BYTES_MAX {
            return self.encoder.write_message(form, &message, &mut batch.out);
        }
        let message = self.encoder.write_header_for(form, message, &mut batch.out);
        batch.large_bytes += message.len();
        batch.large.push((batch.out.len(), message));
    }

    async fn write_batch(&mut self, batch: &FrameBatch) -> Result<(), DisconnectReason> {
        let mut slices = batch.slices();
        self.write_slices(&mut slices).await?;
        let limit = self.limits.write_timeout;
        check_write(timeout(limit, self.stream.flush()).await, limit)
    }

    /// Writes all slices. The timeout restarts with each partial write.
    async fn write_slices(
        &mut self,
        mut slices: &mut [IoSlice<'_>],
    ) -> Result<(), DisconnectReason> {
        let limit = self.limits.write_timeout;
        while !slices.is_empty() {
            let count = match timeout(limit, self.stream.write_vectored(slices)).await {
                Ok(Ok(0)) => return Err(to_broken(&io::ErrorKind::WriteZero.into())),
                Ok(Ok(count)) => count,
                Ok(Err(error)) => return Err(to_broken(&error)),
                Err(_) => return Err(DisconnectReason::Stuck(limit)),
            };
            IoSlice::advance_slices(&mut slices, count);
        }
        Ok(())
    }

    /// Ends after a write error. A close frame of the peer may still arrive with the actual cause.
    async fn end_after_error(&mut self, cause: DisconnectReason) {
        if let DisconnectReason::Broken(_) = cause {
            self.shared.stop_writes(cause.clone());
            let _ = timeout(CLOSE_WAIT, self.shared.wait_closed()).await;
        }
        self.shared.end(cause);
    }

    async fn send_close(&mut self, code: u16, reason: &str) {
        let mut out = Vec::new();
        self.encoder.write_close(code, reason, &mut out);
        let _ = timeout(CLOSE_WAIT, async {
            self.stream.write_all(&out).await?;
            self.stream.shutdown().await
        })
        .await;
    }

    /// Reads until the peer has closed: unread input at close would discard the last write.
    async fn drain_source(&mut self) {
        let _ = timeout(CLOSE_WAIT, async {
            let Some(mut source) = self.shared.take_source().await else {
                return;
            };
            let mut nothing = vec![0; DISCARD_BYTES];
            while let Ok(1..) = source.read(&mut nothing).await {}
        })
        .await;
    }
}

impl FrameBatch {
    /// Returns all non-empty slices in order.
    fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::with_capacity(2 * self.large.len() + 1);
        let mut from = 0;
        for (at, large) in &self.large {
            let small = self.out.get(from..*at).unwrap_or_default();
            slices.push(IoSlice::new(small));
            slices.push(IoSlice::new(large));
            from = *at;
        }
        match self.out.get(from..) {
            None | Some([]) => {}
            Some(rest) => slices.push(IoSlice::new(rest)),
        }
        debug_assert!(slices.len() <= SLICES_MAX, "the batch is bounded");
        slices
    }

    /// Clears the batch, and releases the memory of a burst.
    fn reset(&mut self) {
        self.out.clear();
        self.large.clear();
        self.large_bytes = 0;
        self.messages = 0;
        self.weight = 0;
        if self.out.capacity() > REST_BYTES {
            self.out = Vec::new();
        }
        self.large.shrink_to(0);
    }
}

fn to_broken(error: &io::Error) -> DisconnectReason {
    DisconnectReason::Broken(error_chain(error))
}

fn check_write<E>(
    written: Result<io::Result<()>, E>,
    limit: Duration,
) -> Result<(), DisconnectReason> {
    match written {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(to_broken(&error)),
        Err(_) => Err(DisconnectReason::Stuck(limit)),
    }
}
