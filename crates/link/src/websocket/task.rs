//! The task of a connection: it writes what is queued, pings, and closes.

use std::io;
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

/// A message of this size is written from where it is.
const COPY_BYTES_MAX: usize = 16 * 1024;

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
    /// Follows `out`.
    large: Option<Bytes>,
    messages: usize,
    weight: usize,
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
                Work::Write(_) | Work::Pong(_) => {}
                Work::Wait => {
                    tokio::select! {
                        () = self.shared.woken() => {}
                        () = ping.as_mut() => {}
                    }
                }
                Work::Close(code, reason) => {
                    self.farewell(code, &reason).await;
                    self.shared.end(Ended::Local);
                    return self.linger().await;
                }
                Work::End(None) => return,
                Work::End(Some(code)) => {
                    self.farewell(code, "").await;
                    return self.linger().await;
                }
            }
        }
    }

    /// Takes what is to be written, as long as it is small.
    fn gather(&mut self, batch: &mut Batch) -> Work {
        loop {
            match self.shared.work() {
                Work::Pong(said) => self.encoder.pong(&said, &mut batch.out),
                Work::Write(message) => {
                    batch.messages += 1;
                    batch.weight += self.shared.room(&message);
                    if message.len() > COPY_BYTES_MAX && self.encoder.is_plain() {
                        self.encoder.head(message.len(), &mut batch.out);
                        batch.large = Some(message.clone());
                        return Work::Write(message);
                    }
                    self.encoder.text(&message, &mut batch.out);
                    if batch.out.len() >= BATCH_BYTES_MAX {
                        return Work::Write(message);
                    }
                }
                other => return other,
            }
        }
    }

    async fn write(&mut self, batch: &Batch) -> Result<(), Ended> {
        self.put(&batch.out).await?;
        if let Some(large) = &batch.large {
            self.put(large).await?;
        }
        let limit = self.limits.write_timeout;
        done(timeout(limit, self.stream.flush()).await, limit)
    }

    /// Writes bytes. Time is counted anew with each piece that leaves.
    async fn put(&mut self, mut bytes: &[u8]) -> Result<(), Ended> {
        let limit = self.limits.write_timeout;
        while !bytes.is_empty() {
            let count = match timeout(limit, self.stream.write(bytes)).await {
                Ok(Ok(0)) => return Err(broken(&io::ErrorKind::WriteZero.into())),
                Ok(Ok(count)) => count,
                Ok(Err(error)) => return Err(broken(&error)),
                Err(_) => return Err(Ended::Stuck(limit)),
            };
            bytes = bytes.get(count..).unwrap_or_default();
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
    /// Forgets what was written, and the memory that a burst took.
    fn rest(&mut self) {
        self.out.clear();
        self.large = None;
        self.messages = 0;
        self.weight = 0;
        if self.out.capacity() > REST_BYTES {
            self.out = Vec::new();
        }
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
