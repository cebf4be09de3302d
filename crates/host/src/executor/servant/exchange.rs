//! One request, from what a gateway asks to the end of the answer.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use bowline_core::error::Execution;
use bowline_link::executor::Voice;
use bowline_link::http::client::{Body, Lines, Upload};
use bowline_link::http::endpoint::Endpoint;
use bowline_wire::executor::{Answered, Asked, DATA_BYTES_MAX, Fault, FaultCode, Frame};
use bytes::{Buf as _, Bytes};

use super::streams::{Arriving, Stopped, Stream, Streams};
use crate::executor::engine::{self, Engine, Order, fault, invalid};

/// What performs one request.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) streams: Arc<Streams>,
    pub(super) stream: Arc<Stream>,
    pub(super) voice: Voice,
    pub(super) engine: Arc<Engine>,
}

impl Exchange {
    /// Performs it, until it is over or stopped.
    pub(super) async fn run(self, asked: Asked) {
        let done = tokio::select! {
            biased;
            why = self.stream.stopped() => Err(why),
            done = self.perform(&asked) => done.map_err(Stopped::Fault),
        };
        // Whoever is told of the end may ask for the next one at once.
        self.streams.close(&self.stream);
        let stream = self.stream.number;
        let end = match done {
            Ok((offset, trailers)) => Frame::End {
                stream,
                offset,
                trailers,
            },
            Err(Stopped::Fault(fault)) => Frame::Failed { stream, fault },
            Err(Stopped::Cancelled) => return,
        };
        // Where the connection is over, so is the stream.
        let _ = self.voice.send(&end).await;
    }

    /// Returns how long the answer was, and what followed it.
    async fn perform(&self, asked: &Asked) -> Result<(u64, Bytes), Fault> {
        let to = Endpoint::parse(&asked.url).map_err(|error| invalid(&error.to_string()))?;
        let order = Order {
            server: &asked.server,
            method: &asked.method,
            to: &to,
            lines: lines(&asked.lines)?,
            fills: &asked.fills,
            body: self.upload(asked.length),
            connect_ms: asked.connect_ms,
            first_byte_ms: asked.first_byte_ms,
        };
        let response = self.engine.perform(order).await?;
        let answer = Frame::Answer {
            stream: self.stream.number,
            answered: Answered {
                status: response.status.as_u16(),
                lines: Bytes::copy_from_slice(response.headers.lines()),
            },
        };
        self.say(&answer).await?;
        self.answer(response.body).await
    }

    /// Returns the body of the request, as it comes from the gateway.
    fn upload(&self, length: Option<u64>) -> Upload<'static> {
        if length == Some(0) {
            return Upload::default();
        }
        let arriving = Arriving {
            streams: Arc::clone(&self.streams),
            stream: Arc::clone(&self.stream),
        };
        Upload::Open {
            chunks: Box::new(arriving),
            length,
        }
    }

    /// Sends the body of the answer, as the gateway takes it.
    async fn answer(&self, mut body: Body) -> Result<(u64, Bytes), Fault> {
        let mut offset = 0;
        // What was read and may not be sent yet.
        let mut piece = Bytes::new();
        loop {
            let Some(allowed) = self.allowed(&mut body, &mut piece).await? else {
                return Ok((offset, body.trailers()));
            };
            if piece.is_empty() {
                body.want(allowed.min(DATA_BYTES_MAX));
                piece = match body.chunk().await {
                    Some(chunk) => chunk.map_err(|error| fault(&error))?,
                    None => return Ok((offset, body.trailers())),
                };
            }
            let wanted = piece.len().min(DATA_BYTES_MAX);
            let count = self.stream.take_credit(wanted);
            let part = piece.get(..count).unwrap_or_default();
            let sent = self.voice.data(self.stream.number, offset, part).await;
            sent.map_err(|_ended| gone())?;
            offset += u64::try_from(count).unwrap_or(0);
            piece.advance(count);
        }
    }

    /// Waits until something may be sent; nothing, where nothing is left to be sent. The rest of
    /// the request goes out meanwhile.
    async fn allowed(&self, body: &mut Body, piece: &mut Bytes) -> Result<Option<usize>, Fault> {
        poll_fn(|cx| {
            if let Poll::Ready(left) = self.stream.poll_credit(cx) {
                let left = usize::try_from(left).unwrap_or(usize::MAX);
                return Poll::Ready(Ok(Some(left)));
            }
            if !piece.is_empty() {
                return Poll::Pending;
            }
            body.want(0);
            match body.poll_chunk(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(None) => Poll::Ready(Ok(None)),
                Poll::Ready(Some(Err(error))) => Poll::Ready(Err(fault(&error))),
                // It was here already.
                Poll::Ready(Some(Ok(here))) => {
                    *piece = here;
                    Poll::Pending
                }
            }
        })
        .await
    }

    async fn say(&self, frame: &Frame) -> Result<(), Fault> {
        self.voice.send(frame).await.map_err(|_ended| gone())
    }
}

/// Reads headers. Each is checked: what is no header could be another request.
fn lines(text: &[u8]) -> Result<Lines, Fault> {
    let mut lines = Lines::default();
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r\n");
        let line = line.ok_or_else(|| invalid("a header does not end"))?;
        let colon = memchr::memchr(b':', line);
        let colon = colon.ok_or_else(|| invalid("a header has no name"))?;
        let (name, value) = line.split_at_checked(colon).unwrap_or_default();
        let value = value.strip_prefix(b":").unwrap_or(value).trim_ascii();
        engine::header(&mut lines, name, value)?;
    }
    Ok(lines)
}

/// The connection with the gateway is over: nobody hears this.
fn gone() -> Fault {
    Fault {
        code: FaultCode::Closing,
        execution: Execution::Unknown,
        reason: "the gateway is gone".into(),
    }
}
