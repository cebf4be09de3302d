//! Sends the body of a request, as the executor takes it.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bowline_wire::executor::{DATA_BYTES_MAX, Frame};
use bytes::Bytes;

use crate::executor::exchange::Exchange;
use crate::executor::voice::Voice;
use crate::http::client::{Chunks, HttpError, Upload};

/// A body on its way. One that still arrives goes on while the answer is read.
pub(super) struct Uploading<'a>(Pin<Box<dyn Future<Output = Result<(), HttpError>> + Send + 'a>>);

impl fmt::Debug for Uploading<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Uploading")
    }
}

impl<'a> Uploading<'a> {
    pub(super) fn whole(exchange: &Arc<Exchange>, voice: &Voice, body: &'a [u8]) -> Self {
        let mut sender = Sender::new(exchange, voice);
        Self(Box::pin(async move {
            if sender.send(body).await {
                sender.end(Bytes::new()).await;
            }
            Ok(())
        }))
    }

    /// Where the connection is over, the exchange is as well, and tells why.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HttpError>> {
        self.0.as_mut().poll(cx)
    }
}

impl Uploading<'static> {
    pub(super) fn open(
        exchange: &Arc<Exchange>,
        voice: &Voice,
        mut chunks: Box<dyn Chunks>,
    ) -> Self {
        let mut sender = Sender::new(exchange, voice);
        Self(Box::pin(async move {
            while let Some(piece) = poll_fn(|cx| chunks.poll_chunk(cx)).await {
                if !sender.send(&piece?).await {
                    return Ok(());
                }
            }
            let trailers = chunks.trailers();
            sender.end(trailers).await;
            Ok(())
        }))
    }
}

#[derive(Debug)]
struct Sender {
    exchange: Arc<Exchange>,
    voice: Voice,
    offset: u64,
}

impl Sender {
    fn new(exchange: &Arc<Exchange>, voice: &Voice) -> Self {
        Self {
            exchange: Arc::clone(exchange),
            voice: voice.clone(),
            offset: 0,
        }
    }

    /// Sends bytes within the credit; `false` where the connection is over.
    async fn send(&mut self, mut rest: &[u8]) -> bool {
        while !rest.is_empty() {
            let wanted = rest.len().min(DATA_BYTES_MAX);
            let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
            let allowed = self.exchange.allowed(wanted).await;
            let count = usize::try_from(allowed).unwrap_or(usize::MAX);
            let Some((piece, after)) = rest.split_at_checked(count) else {
                return false;
            };
            let stream = self.exchange.number();
            if self.voice.data(stream, self.offset, piece).await.is_err() {
                return false;
            }
            self.offset += allowed;
            rest = after;
        }
        true
    }

    async fn end(&self, trailers: Bytes) {
        let end = Frame::End {
            stream: self.exchange.number(),
            offset: self.offset,
            trailers,
        };
        let _ = self.voice.send(&end).await;
    }
}

/// Returns what sends a body, and whether it can outlive the request.
pub(super) enum Started<'a> {
    /// It is here, and ends with the wait for the head.
    Whole(Uploading<'a>),
    /// It arrives.
    Open(Uploading<'static>),
}

impl<'a> Started<'a> {
    pub(super) fn new(exchange: &Arc<Exchange>, voice: &Voice, body: Upload<'a>) -> Self {
        match body {
            Upload::Whole(body) => Self::Whole(Uploading::whole(exchange, voice, body)),
            Upload::Open { chunks, .. } => Self::Open(Uploading::open(exchange, voice, chunks)),
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HttpError>> {
        match self {
            Self::Whole(uploading) => uploading.poll(cx),
            Self::Open(uploading) => uploading.poll(cx),
        }
    }

    /// Returns what goes on beside the answer.
    pub(super) fn rest(self) -> Option<Uploading<'static>> {
        match self {
            Self::Whole(_) => None,
            Self::Open(uploading) => Some(uploading),
        }
    }
}
