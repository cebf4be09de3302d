//! HTTP body: buffered, or still arriving.

use std::fmt;
use std::future::poll_fn;
use std::mem::take;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use tokio::sync::Semaphore;

use super::HttpError;

/// A readable body.
#[derive(Debug)]
pub struct HttpBody(HttpBodyState);

#[derive(Debug)]
enum HttpBodyState {
    /// The unread rest.
    Buffered(Bytes),
    Streaming(Box<dyn BodyChunks>),
}

/// A body that arrives in chunks.
pub trait BodyChunks: fmt::Debug + Send + Sync {
    /// Polls for the next chunk; `None` at the end.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>>;

    /// Returns the trailer lines with their line ends; usually empty.
    fn take_trailers(&mut self) -> Bytes {
        Bytes::new()
    }

    /// Limits the size of the next chunk, if possible. With 0, only the rest of the request is
    /// sent, and the end of a finished body is reported.
    fn set_read_max(&mut self, _bytes_max: usize) {}
}

impl From<Bytes> for HttpBody {
    fn from(whole: Bytes) -> Self {
        Self(HttpBodyState::Buffered(whole))
    }
}

impl HttpBody {
    /// Returns a streaming body.
    #[must_use]
    pub fn from_chunks(chunks: Box<dyn BodyChunks>) -> Self {
        Self(HttpBodyState::Streaming(chunks))
    }

    /// Whether the body is completely buffered.
    #[must_use]
    pub const fn is_buffered(&self) -> bool {
        matches!(self.0, HttpBodyState::Buffered(_))
    }

    /// Polls for the next chunk; `None` at the end.
    pub fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        match &mut self.0 {
            HttpBodyState::Buffered(bytes) if bytes.is_empty() => Poll::Ready(None),
            HttpBodyState::Buffered(bytes) => Poll::Ready(Some(Ok(take(bytes)))),
            HttpBodyState::Streaming(chunks) => chunks.poll_chunk(cx),
        }
    }

    /// Waits for the next chunk.
    pub async fn next_chunk(&mut self) -> Option<Result<Bytes, HttpError>> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// Returns the trailer lines with their line ends; usually empty.
    pub fn take_trailers(&mut self) -> Bytes {
        match &mut self.0 {
            HttpBodyState::Buffered(_) => Bytes::new(),
            HttpBodyState::Streaming(chunks) => chunks.take_trailers(),
        }
    }

    /// Limits the size of the next chunk, if possible. With 0, only the rest of the request is
    /// sent, and the end of a finished body is reported.
    pub fn set_read_max(&mut self, bytes_max: usize) {
        if let HttpBodyState::Streaming(chunks) = &mut self.0 {
            chunks.set_read_max(bytes_max);
        }
    }

    /// Reads the whole body. A body of a chunk is not copied.
    ///
    /// # Errors
    /// `TooLong` as soon as the limit is exceeded, or the cause of a broken body.
    pub async fn read_whole(&mut self, bytes_max: usize) -> Result<Bytes, HttpError> {
        self.read_whole_gated(bytes_max, bytes_max, None).await
    }

    /// Reads the whole body, and acquires a permit of `gate` before it buffers more than
    /// `usual_bytes`; the permit is released at the end.
    ///
    /// # Errors
    /// `TooLong` as soon as the limit is exceeded, or the cause of a broken body.
    pub async fn read_whole_gated(
        &mut self,
        usual_bytes: usize,
        bytes_max: usize,
        gate: Option<&Semaphore>,
    ) -> Result<Bytes, HttpError> {
        if let HttpBodyState::Buffered(bytes) = &mut self.0 {
            return match take(bytes) {
                bytes if bytes.len() > bytes_max => Err(HttpError::TooLong { bytes_max }),
                bytes => Ok(bytes),
            };
        }
        let mut first = Bytes::new();
        while first.is_empty() {
            match self.next_chunk().await {
                Some(chunk) => first = chunk?,
                None => return Ok(first),
            }
        }
        if first.len() > bytes_max {
            return Err(HttpError::TooLong { bytes_max });
        }
        let mut all = match self.next_chunk().await {
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
                // Rare, so boxed. The semaphore is never closed.
                permit = Box::pin(gate.acquire()).await.ok();
            }
            match self.next_chunk().await {
                Some(chunk) => all.extend_from_slice(&chunk?),
                None => return Ok(all.freeze()),
            }
        }
        Err(HttpError::TooLong { bytes_max })
    }

    /// Reads the first bytes of a body, for a preview; an error ends the preview.
    pub async fn read_prefix(&mut self, bytes_max: usize) -> Bytes {
        let mut all = BytesMut::new();
        while all.len() < bytes_max
            && let Some(Ok(chunk)) = self.next_chunk().await
        {
            all.extend_from_slice(&chunk);
        }
        all.truncate(bytes_max);
        all.freeze()
    }
}
