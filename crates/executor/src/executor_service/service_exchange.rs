//! One HTTP request of a gateway, up to the end of the response.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bowline_core::error::ExecutionStatus;
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::http_client::{HeaderLines, HttpBody, RequestBody};

use crate::connection::FrameWriter;
use crate::frames::{
    DATA_BYTES_MAX, ExecutorFrame, RequestHead, ResponseHead, StreamFault, StreamFaultCode,
    data_frame,
};
use bytes::Bytes;

use super::request_streams::{RequestStream, RequestStreams, StopReason, UploadBody};
use crate::http_egress::{self, EgressRequest, HttpEgress, invalid_request, to_fault};

/// Performs one request.
#[derive(Debug)]
pub(super) struct ServiceExchange {
    pub(super) streams: Arc<RequestStreams>,
    pub(super) stream: Arc<RequestStream>,
    pub(super) writer: FrameWriter,
    pub(super) egress: Arc<HttpEgress>,
}

/// Response frames not yet handed to the socket.
#[derive(Debug, Default)]
struct ResponseBatch {
    messages: Vec<Bytes>,
    bytes: usize,
}

impl ServiceExchange {
    /// Performs the request, until finished or stopped.
    pub(super) async fn run(self, request_head: RequestHead) {
        let mut batch = ResponseBatch::default();
        let done = tokio::select! {
            biased;
            why = self.stream.wait_stopped() => Err(why),
            done = self.send_request(&request_head, &mut batch) => done.map_err(StopReason::Fault),
        };
        // The gateway may reuse the stream right after the last frame.
        self.streams.release_stream(&self.stream);
        let stream = self.stream.number;
        let end = match done {
            Ok((offset, trailers)) => ExecutorFrame::End {
                stream,
                offset,
                trailers,
            },
            Err(StopReason::Fault(fault)) => ExecutorFrame::Fault { stream, fault },
            Err(StopReason::Cancelled) => return,
        };
        batch.push(end.to_bytes());
        // After a disconnect the stream is gone too.
        let _ = self.writer.send_all(batch.messages).await;
    }

    /// Sends the response; returns the body length and the trailers.
    async fn send_request(
        &self,
        request_head: &RequestHead,
        batch: &mut ResponseBatch,
    ) -> Result<(u64, Bytes), StreamFault> {
        let to = HttpEndpoint::parse(&request_head.url)
            .map_err(|error| invalid_request(&error.to_string()))?;
        let egress_request = EgressRequest {
            server: &request_head.server,
            method: &request_head.method,
            to: &to,
            headers: parse_headers(&request_head.header_lines)?,
            fills: &request_head.secret_headers,
            body: self.upload_body(request_head.body_len),
            connect_ms: request_head.connect_ms,
            first_byte_ms: request_head.first_byte_ms,
        };
        let response = self.egress.send_request(egress_request).await?;
        let frame = ExecutorFrame::Response {
            stream: self.stream.number,
            head: ResponseHead {
                status: response.status.as_u16(),
                header_lines: Bytes::copy_from_slice(response.headers.lines()),
            },
        };
        batch.push(frame.to_bytes());
        self.send_body(response.body, batch).await
    }

    /// Returns the request body, as a stream from the gateway.
    fn upload_body(&self, length: Option<u64>) -> RequestBody<'static> {
        if length == Some(0) {
            return RequestBody::default();
        }
        let arriving = UploadBody {
            streams: Arc::clone(&self.streams),
            stream: Arc::clone(&self.stream),
        };
        RequestBody::Streaming {
            chunks: Box::new(arriving),
            length,
        }
    }

    /// Sends the response body within the gateway's credit. Available parts are batched with the
    /// head and with the end.
    async fn send_body(
        &self,
        mut body: HttpBody,
        batch: &mut ResponseBatch,
    ) -> Result<(u64, Bytes), StreamFault> {
        let mut offset = 0;
        // Body bytes that were read but lack credit.
        let mut piece = Bytes::new();
        loop {
            let part = {
                let mut next = pin!(self.next_part(&mut body, &mut piece));
                match poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx))).await {
                    Poll::Ready(part) => part?,
                    Poll::Pending => {
                        self.flush(batch).await?;
                        next.await?
                    }
                }
            };
            let Some(part) = part else {
                return Ok((offset, body.take_trailers()));
            };
            batch.push(data_frame(self.stream.number, offset, &part));
            offset += u64::try_from(part.len()).unwrap_or(0);
            if batch.bytes >= DATA_BYTES_MAX {
                self.flush(batch).await?;
            }
        }
    }

    /// Returns the next part to send, within the credit; `None` at the end.
    async fn next_part(
        &self,
        body: &mut HttpBody,
        piece: &mut Bytes,
    ) -> Result<Option<Bytes>, StreamFault> {
        let Some(allowed) = self.wait_credit(body, piece).await? else {
            return Ok(None);
        };
        if piece.is_empty() {
            body.set_read_max(allowed.min(DATA_BYTES_MAX));
            *piece = match body.next_chunk().await {
                Some(chunk) => chunk.map_err(|error| to_fault(&error))?,
                None => return Ok(None),
            };
        }
        let count = self.stream.take_credit(piece.len().min(DATA_BYTES_MAX));
        Ok(Some(piece.split_to(count)))
    }

    async fn flush(&self, batch: &mut ResponseBatch) -> Result<(), StreamFault> {
        let ResponseBatch { messages, .. } = std::mem::take(batch);
        match messages.is_empty() {
            true => Ok(()),
            false => self
                .writer
                .send_all(messages)
                .await
                .map_err(|_ended| gateway_gone()),
        }
    }

    /// Waits for credit; `None` at the end of the body. The request upload proceeds meanwhile.
    async fn wait_credit(
        &self,
        body: &mut HttpBody,
        piece: &mut Bytes,
    ) -> Result<Option<usize>, StreamFault> {
        poll_fn(|cx| {
            if let Poll::Ready(left) = self.stream.poll_credit(cx) {
                let left = usize::try_from(left).unwrap_or(usize::MAX);
                return Poll::Ready(Ok(Some(left)));
            }
            if !piece.is_empty() {
                return Poll::Pending;
            }
            body.set_read_max(0);
            match body.poll_chunk(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(None) => Poll::Ready(Ok(None)),
                Poll::Ready(Some(Err(error))) => Poll::Ready(Err(to_fault(&error))),
                // Already buffered, so keep the chunk until credit arrives.
                Poll::Ready(Some(Ok(chunk))) => {
                    *piece = chunk;
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl ResponseBatch {
    fn push(&mut self, message: Bytes) {
        self.bytes += message.len();
        self.messages.push(message);
    }
}

/// Parses and validates headers: an invalid header could smuggle a second request.
fn parse_headers(text: &[u8]) -> Result<HeaderLines, StreamFault> {
    let mut lines = HeaderLines::default();
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r\n");
        let line = line.ok_or_else(|| invalid_request("a header does not end"))?;
        let colon = memchr::memchr(b':', line);
        let colon = colon.ok_or_else(|| invalid_request("a header has no name"))?;
        let (name, value) = line.split_at_checked(colon).unwrap_or_default();
        let value = value.strip_prefix(b":").unwrap_or(value).trim_ascii();
        http_egress::push_header(&mut lines, name, value)?;
    }
    Ok(lines)
}

/// Fault for a lost gateway connection; never delivered.
fn gateway_gone() -> StreamFault {
    StreamFault {
        code: StreamFaultCode::Closing,
        execution: ExecutionStatus::Unknown,
        reason: "the gateway is gone".into(),
    }
}
