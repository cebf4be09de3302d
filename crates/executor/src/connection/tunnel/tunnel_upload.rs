//! Sends a request body to an executor within the credit.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bowline_link::http::http_client::{BodyChunks, HttpError, RequestBody};

use crate::frames::{DATA_BYTES_MAX, ExecutorFrame};
use bytes::Bytes;

use crate::connection::frame_writer::FrameWriter;
use crate::connection::http_exchange::HttpExchange;

/// Upload of a body. A streaming body continues while the response is read.
pub(super) struct UploadFuture<'a>(
    Pin<Box<dyn Future<Output = Result<(), HttpError>> + Send + 'a>>,
);

impl fmt::Debug for UploadFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UploadFuture")
    }
}

impl<'a> UploadFuture<'a> {
    pub(super) fn from_bytes(
        exchange: &Arc<HttpExchange>,
        writer: &FrameWriter,
        body: &'a [u8],
    ) -> Self {
        let mut sender = UploadSender::new(exchange, writer);
        Self(Box::pin(async move {
            if sender.send(body).await {
                sender.send_end(Bytes::new()).await;
            }
            Ok(())
        }))
    }

    /// Polls the upload. After a disconnect the exchange reports the error, not the upload.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HttpError>> {
        self.0.as_mut().poll(cx)
    }
}

impl UploadFuture<'static> {
    pub(super) fn from_chunks(
        exchange: &Arc<HttpExchange>,
        writer: &FrameWriter,
        mut chunks: Box<dyn BodyChunks>,
    ) -> Self {
        let mut sender = UploadSender::new(exchange, writer);
        Self(Box::pin(async move {
            while let Some(piece) = poll_fn(|cx| chunks.poll_chunk(cx)).await {
                if !sender.send(&piece?).await {
                    return Ok(());
                }
            }
            let trailers = chunks.take_trailers();
            sender.send_end(trailers).await;
            Ok(())
        }))
    }
}

#[derive(Debug)]
struct UploadSender {
    exchange: Arc<HttpExchange>,
    writer: FrameWriter,
    offset: u64,
}

impl UploadSender {
    fn new(exchange: &Arc<HttpExchange>, writer: &FrameWriter) -> Self {
        Self {
            exchange: Arc::clone(exchange),
            writer: writer.clone(),
            offset: 0,
        }
    }

    /// Sends bytes within the credit; `false` after a disconnect.
    async fn send(&mut self, mut rest: &[u8]) -> bool {
        while !rest.is_empty() {
            let wanted = rest.len().min(DATA_BYTES_MAX);
            let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
            let allowed = self.exchange.take_credit(wanted).await;
            let count = usize::try_from(allowed).unwrap_or(usize::MAX);
            let Some((piece, after)) = rest.split_at_checked(count) else {
                return false;
            };
            let stream = self.exchange.stream_id();
            if self
                .writer
                .send_data(stream, self.offset, piece)
                .await
                .is_err()
            {
                return false;
            }
            self.offset += allowed;
            rest = after;
        }
        true
    }

    async fn send_end(&self, trailers: Bytes) {
        let end = ExecutorFrame::End {
            stream: self.exchange.stream_id(),
            offset: self.offset,
            trailers,
        };
        let _ = self.writer.send(&end).await;
    }
}

/// Upload of a request body, by the ability to outlive the request.
pub(super) enum RequestUpload<'a> {
    /// A buffered body; the upload ends with the wait for the head.
    Whole(UploadFuture<'a>),
    /// A streaming body.
    Streaming(UploadFuture<'static>),
}

impl<'a> RequestUpload<'a> {
    pub(super) fn new(
        exchange: &Arc<HttpExchange>,
        writer: &FrameWriter,
        body: RequestBody<'a>,
    ) -> Self {
        match body {
            RequestBody::Whole(body) => {
                Self::Whole(UploadFuture::from_bytes(exchange, writer, body))
            }
            RequestBody::Streaming { chunks, .. } => {
                Self::Streaming(UploadFuture::from_chunks(exchange, writer, chunks))
            }
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HttpError>> {
        match self {
            Self::Whole(uploading) => uploading.poll(cx),
            Self::Streaming(uploading) => uploading.poll(cx),
        }
    }

    /// Returns the rest of the upload beside the response.
    pub(super) fn into_streaming(self) -> Option<UploadFuture<'static>> {
        match self {
            Self::Whole(_) => None,
            Self::Streaming(uploading) => Some(uploading),
        }
    }
}
