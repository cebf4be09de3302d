//! The body of an answer: here already, or still arriving.

use std::fmt;
use std::future::poll_fn;
use std::mem::take;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use tokio::sync::Semaphore;

use super::HttpError;

/// A body to be read.
#[derive(Debug)]
pub struct Body(State);

#[derive(Debug)]
enum State {
    /// All of it that was not read yet.
    Here(Bytes),
    Open(Box<dyn Chunks>),
}

/// A body that arrives piece by piece.
pub trait Chunks: fmt::Debug + Send + Sync {
    /// Returns the next piece; nothing after the last one.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>>;

    /// Returns the lines of headers that followed the last piece, each with its end; mostly none.
    fn trailers(&mut self) -> Bytes {
        Bytes::new()
    }

    /// Says how much the reader takes of the next piece: no more is fetched for it, where that
    /// can be helped. Where it takes nothing, only the rest of the request goes on, and the end of
    /// a body that is over is told.
    fn want(&mut self, _bytes_max: usize) {}
}

impl From<Bytes> for Body {
    fn from(whole: Bytes) -> Self {
        Self(State::Here(whole))
    }
}

impl Body {
    /// Returns a body of which more may come.
    #[must_use]
    pub fn open(chunks: Box<dyn Chunks>) -> Self {
        Self(State::Open(chunks))
    }

    /// Whether nothing is left to be waited for.
    #[must_use]
    pub const fn is_here(&self) -> bool {
        matches!(self.0, State::Here(_))
    }

    /// Returns the next piece; nothing after the last one.
    pub fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        match &mut self.0 {
            State::Here(bytes) if bytes.is_empty() => Poll::Ready(None),
            State::Here(bytes) => Poll::Ready(Some(Ok(take(bytes)))),
            State::Open(chunks) => chunks.poll_chunk(cx),
        }
    }

    /// Waits for the next piece.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, HttpError>> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// Returns the lines of headers that followed the last piece, each with its end; mostly none.
    pub fn trailers(&mut self) -> Bytes {
        match &mut self.0 {
            State::Here(_) => Bytes::new(),
            State::Open(chunks) => chunks.trailers(),
        }
    }

    /// Says how much the reader takes of the next piece: no more is fetched for it, where that
    /// can be helped. Where it takes nothing, only the rest of the request goes on, and the end of
    /// a body that is over is told.
    pub fn want(&mut self, bytes_max: usize) {
        if let State::Open(chunks) = &mut self.0 {
            chunks.want(bytes_max);
        }
    }

    /// Reads to the end. A body that comes in one piece is not copied.
    ///
    /// # Errors
    /// `TooLong` as soon as the limit is passed, or what broke the body.
    pub async fn whole(&mut self, bytes_max: usize) -> Result<Bytes, HttpError> {
        self.whole_gated(bytes_max, bytes_max, None).await
    }

    /// Reads to the end, and waits for a permit of `gate` before more than `usual_bytes` are held;
    /// the permit is given back at the end.
    ///
    /// # Errors
    /// `TooLong` as soon as the limit is passed, or what broke the body.
    pub async fn whole_gated(
        &mut self,
        usual_bytes: usize,
        bytes_max: usize,
        gate: Option<&Semaphore>,
    ) -> Result<Bytes, HttpError> {
        if let State::Here(bytes) = &mut self.0 {
            return match take(bytes) {
                bytes if bytes.len() > bytes_max => Err(HttpError::TooLong { bytes_max }),
                bytes => Ok(bytes),
            };
        }
        let mut first = Bytes::new();
        while first.is_empty() {
            match self.chunk().await {
                Some(chunk) => first = chunk?,
                None => return Ok(first),
            }
        }
        if first.len() > bytes_max {
            return Err(HttpError::TooLong { bytes_max });
        }
        let mut all = match self.chunk().await {
            None => return Ok(first),
            Some(chunk) => {
                let chunk = chunk?;
                let mut all = BytesMut::with_capacity((first.len() + chunk.len()) * 2);
                all.extend_from_slice(&first);
                all.extend_from_slice(&chunk);
                all
            }
        };
        let mut permit = None;
        while all.len() <= bytes_max {
            if let Some(gate) = gate.filter(|_| all.len() > usual_bytes && permit.is_none()) {
                // What is rare is boxed. The gate is never closed.
                permit = Box::pin(gate.acquire()).await.ok();
            }
            match self.chunk().await {
                Some(chunk) => all.extend_from_slice(&chunk?),
                None => return Ok(all.freeze()),
            }
        }
        Err(HttpError::TooLong { bytes_max })
    }

    /// Reads the first bytes of a body that nobody wants whole; what breaks it ends it.
    pub async fn start(&mut self, bytes_max: usize) -> Bytes {
        let mut all = BytesMut::new();
        while all.len() < bytes_max
            && let Some(Ok(chunk)) = self.chunk().await
        {
            all.extend_from_slice(&chunk);
        }
        all.truncate(bytes_max);
        all.freeze()
    }
}
