//! One request, from what a gateway asks to the end of the answer.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bowline_core::error::Execution;
use bowline_link::executor::Voice;
use bowline_link::http::client::{Body, Lines, Upload};
use bowline_link::http::endpoint::Endpoint;
use bowline_wire::executor::{Answered, Asked, DATA_BYTES_MAX, Fault, FaultCode, Frame, data};
use bytes::Bytes;

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

/// What was made of an answer and is not handed to the socket yet.
#[derive(Debug, Default)]
struct Unsent {
    messages: Vec<Bytes>,
    bytes: usize,
}

impl Exchange {
    /// Performs it, until it is over or stopped.
    pub(super) async fn run(self, asked: Asked) {
        let mut unsent = Unsent::default();
        let done = tokio::select! {
            biased;
            why = self.stream.stopped() => Err(why),
            done = self.perform(&asked, &mut unsent) => done.map_err(Stopped::Fault),
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
        unsent.push(end.to_bytes());
        // Where the connection is over, so is the stream.
        let _ = self.voice.send_all(unsent.messages).await;
    }

    /// Returns how long the answer was, and what followed it.
    async fn perform(&self, asked: &Asked, unsent: &mut Unsent) -> Result<(u64, Bytes), Fault> {
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
        unsent.push(answer.to_bytes());
        self.answer(response.body, unsent).await
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

    /// Sends the body of the answer, as the gateway takes it. What is here already goes out
    /// together, with the head of the answer and with its end.
    async fn answer(&self, mut body: Body, unsent: &mut Unsent) -> Result<(u64, Bytes), Fault> {
        let mut offset = 0;
        // What was read and may not be sent yet.
        let mut piece = Bytes::new();
        loop {
            let part = {
                let mut next = pin!(self.next(&mut body, &mut piece));
                match poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx))).await {
                    Poll::Ready(part) => part?,
                    Poll::Pending => {
                        self.flush(unsent).await?;
                        next.await?
                    }
                }
            };
            let Some(part) = part else {
                return Ok((offset, body.trailers()));
            };
            unsent.push(data(self.stream.number, offset, &part));
            offset += u64::try_from(part.len()).unwrap_or(0);
            if unsent.bytes >= DATA_BYTES_MAX {
                self.flush(unsent).await?;
            }
        }
    }

    /// Returns what is to be sent next, once it may be; nothing after the end.
    async fn next(&self, body: &mut Body, piece: &mut Bytes) -> Result<Option<Bytes>, Fault> {
        let Some(allowed) = self.allowed(body, piece).await? else {
            return Ok(None);
        };
        if piece.is_empty() {
            body.want(allowed.min(DATA_BYTES_MAX));
            *piece = match body.chunk().await {
                Some(chunk) => chunk.map_err(|error| fault(&error))?,
                None => return Ok(None),
            };
        }
        let count = self.stream.take_credit(piece.len().min(DATA_BYTES_MAX));
        Ok(Some(piece.split_to(count)))
    }

    async fn flush(&self, unsent: &mut Unsent) -> Result<(), Fault> {
        let Unsent { messages, .. } = std::mem::take(unsent);
        match messages.is_empty() {
            true => Ok(()),
            false => self.voice.send_all(messages).await.map_err(|_ended| gone()),
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
}

impl Unsent {
    fn push(&mut self, message: Bytes) {
        self.bytes += message.len();
        self.messages.push(message);
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
