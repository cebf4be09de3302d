//! The task of a connection: it writes what is queued, pings, and closes.

use std::io::{self, IoSlice};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::frame::Encoder;
use super::shared::{Shared, Work};
use super::{Ended, SocketLimits};
use crate::http::client::causes;
use crate::http::clock;

/// Small messages are written together up to this many bytes.
const BATCH_BYTES_MAX: usize = 64 * 1024;

/// A message that is larger is written from where it is.
const COPY_BYTES_MAX: usize = 16 * 1024;

/// Large messages are written together up to this many bytes.
const BATCH_LARGE_BYTES_MAX: usize = 256 * 1024;

/// Pieces that one write takes.
const SLICES_MAX: usize = 2 * (BATCH_LARGE_BYTES_MAX / COPY_BYTES_MAX + 1);

/// What the writing half holds while nothing is said, in bytes.
const REST_BYTES: usize = 2 * 1024;

/// Pings are never closer together than this.
const PING_EVERY_MIN: Duration = Duration::from_millis(1);

/// How long the other side may take to say that it read our farewell, or the reader to find out
/// why nothing can be written.
const FAREWELL: Duration = Duration::from_secs(1);

/// What is thrown away at once of what comes after the farewell, in bytes.
const DISCARD_BYTES: usize = 2 * 1024;

/// The task.
#[derive(Debug)]
pub(super) struct Task<W> {
    pub(super) shared: Arc<Shared>,
    pub(super) stream: W,
    pub(super) encoder: Encoder,
    pub(super) limits: SocketLimits,
}

/// Frames that go out together.
#[derive(Debug, Default)]
struct Batch {
    out: Vec<u8>,
    /// Large messages, each with where in `out` it stands.
    large: Vec<(usize, Bytes)>,
    large_bytes: usize,
    messages: usize,
    weight: usize,
}

/// What comes after a write.
#[derive(Debug)]
enum Next {
    More,
    Wait,
    Close(u16, Arc<str>),
    End(Option<u16>),
}

/// It is over when the task goes away, however it does.
impl<W> Drop for Task<W> {
    fn drop(&mut self) {
        self.shared.end(Ended::Local);
    }
}

impl<W: AsyncWrite + Unpin> Task<W> {
    pub(super) async fn run(mut self) {
        let mut ping = pin!(sleep(self.limits.ping_every));
        let mut batch = Batch::default();
        loop {
            let now = clock::now();
            if now >= ping.deadline() {
                self.encoder.ping(&mut batch.out);
                let every = self.limits.ping_every.max(PING_EVERY_MIN);
                ping.as_mut().reset(now + every);
            }
            let next = self.gather(&mut batch);
            if !batch.out.is_empty() {
                if let Err(cause) = self.write(&batch).await {
                    return self.give_up(cause).await;
                }
                self.shared.written(batch.messages, batch.weight);
                batch.rest();
            }
            match next {
                Next::More => {}
                Next::Wait => {
                    tokio::select! {
                        () = self.shared.woken() => {}
                        () = ping.as_mut() => {}
                    }
                }
                Next::Close(code, reason) => {
                    self.farewell(code, &reason).await;
                    self.shared.end(Ended::Local);
                    return self.linger().await;
                }
                Next::End(None) => return,
                Next::End(Some(code)) => {
                    self.farewell(code, "").await;
                    return self.linger().await;
                }
            }
        }
    }

    /// Takes what is to be written, as long as it is not too much for one write.
    fn gather(&mut self, batch: &mut Batch) -> Next {
        loop {
            match self.shared.work() {
                Work::Pong(said) => self.encoder.pong(&said, &mut batch.out),
                Work::Write(message) => {
                    batch.messages += 1;
                    batch.weight += self.shared.room(&message);
                    self.encode(message, batch);
                    let full = batch.out.len() >= BATCH_BYTES_MAX;
                    if full || batch.large_bytes >= BATCH_LARGE_BYTES_MAX {
                        return Next::More;
                    }
                }
                Work::Wait => return Next::Wait,
                Work::Close(code, reason) => return Next::Close(code, reason),
                Work::End(code) => return Next::End(code),
            }
        }
    }

    fn encode(&mut self, message: Bytes, batch: &mut Batch) {
        let form = self.limits.form;
        if message.len() <= COPY_BYTES_MAX {
            return self.encoder.message(form, &message, &mut batch.out);
        }
        let message = self.encoder.apart(form, message, &mut batch.out);
        batch.large_bytes += message.len();
        batch.large.push((batch.out.len(), message));
    }

    async fn write(&mut self, batch: &Batch) -> Result<(), Ended> {
        let mut slices = batch.slices();
        self.put(&mut slices).await?;
        let limit = self.limits.write_timeout;
        done(timeout(limit, self.stream.flush()).await, limit)
    }

    /// Writes bytes. Time is counted anew with each piece that leaves.
    async fn put(&mut self, mut slices: &mut [IoSlice<'_>]) -> Result<(), Ended> {
        let limit = self.limits.write_timeout;
        while !slices.is_empty() {
            let count = match timeout(limit, self.stream.write_vectored(slices)).await {
                Ok(Ok(0)) => return Err(broken(&io::ErrorKind::WriteZero.into())),
                Ok(Ok(count)) => count,
                Ok(Err(error)) => return Err(broken(&error)),
                Err(_) => return Err(Ended::Stuck(limit)),
            };
            IoSlice::advance_slices(&mut slices, count);
        }
        Ok(())
    }

    /// What was said last may still be on its way in, and then it is why.
    async fn give_up(&mut self, cause: Ended) {
        if let Ended::Broken(_) = cause {
            self.shared.mute(cause.clone());
            let _ = timeout(FAREWELL, self.shared.over()).await;
        }
        self.shared.end(cause);
    }

    async fn farewell(&mut self, code: u16, reason: &str) {
        let mut out = Vec::new();
        self.encoder.close(code, reason, &mut out);
        let _ = timeout(FAREWELL, async {
            self.stream.write_all(&out).await?;
            self.stream.shutdown().await
        })
        .await;
    }

    /// Reads on until the other side has closed: what is not read when a socket goes away takes
    /// what was written last along.
    async fn linger(&mut self) {
        let _ = timeout(FAREWELL, async {
            let Some(mut source) = self.shared.left().await else {
                return;
            };
            let mut nothing = vec![0; DISCARD_BYTES];
            while let Ok(1..) = source.read(&mut nothing).await {}
        })
        .await;
    }
}

impl Batch {
    /// Returns all pieces in their order; none of them is empty.
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

    /// Forgets what was written, and the memory that a burst took.
    fn rest(&mut self) {
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

fn broken(error: &io::Error) -> Ended {
    Ended::Broken(causes(error))
}

fn done<E>(written: Result<io::Result<()>, E>, limit: Duration) -> Result<(), Ended> {
    match written {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(broken(&error)),
        Err(_) => Err(Ended::Stuck(limit)),
    }
}
