//! One request, from what a gateway asks to the end of the answer.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bowline_core::error::Execution;
use bowline_link::executor::{EGRESS_DENIED, Voice};
use bowline_link::http::client::{Body, HttpClient, HttpError, Lines, Outgoing, Upload, Wait};
use bowline_link::http::endpoint::Endpoint;
use bowline_wire::executor::{Answered, Asked, DATA_BYTES_MAX, Fault, FaultCode, Fill, Frame};
use bytes::{Buf as _, Bytes};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderName, HeaderValue, Method};

use super::streams::{Arriving, Stopped, Stream, Streams};
use crate::executor::offer::Secrets;
use crate::ports::Clock;

/// Headers that are the carrier's own: with them, one request could be read as two, or go
/// elsewhere than where it was allowed to go.
const OURS: [HeaderName; 7] = [
    HOST,
    CONTENT_LENGTH,
    TRANSFER_ENCODING,
    CONNECTION,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// What performs one request.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) streams: Arc<Streams>,
    pub(super) stream: Arc<Stream>,
    pub(super) voice: Voice,
    pub(super) client: Arc<dyn HttpClient>,
    pub(super) secrets: Arc<dyn Secrets>,
    pub(super) clock: Arc<dyn Clock>,
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
        let now = self.clock.now();
        let at = |ms: u64| self.clock.instant(now.plus(Duration::from_millis(ms)));
        let to = Endpoint::parse(&asked.url).map_err(|error| invalid(&error.to_string()))?;
        let method = Method::from_bytes(asked.method.as_bytes());
        let method = method.map_err(|_error| invalid("the method is not valid"))?;
        let mut lines = lines(&asked.lines)?;
        for fill in &asked.fills {
            self.fill(fill, &to, &mut lines)?;
        }
        let mut request = Outgoing::new(method, &to);
        request.lines = std::borrow::Cow::Owned(lines);
        if asked.length != Some(0) {
            let arriving = Arriving {
                streams: Arc::clone(&self.streams),
                stream: Arc::clone(&self.stream),
            };
            request.body = Upload::Open {
                chunks: Box::new(arriving),
                length: asked.length,
            };
        }
        let wait = Wait {
            connect: asked.connect_ms.map(at),
            first_byte: asked.first_byte_ms.map(at),
            leaving: &|| {},
        };
        let sent = self.client.send(request, wait).await;
        let response = sent.map_err(|error| fault(&error))?;
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

    /// Sends the body of the answer, as the gateway takes it.
    async fn answer(&self, mut body: Body) -> Result<(u64, Bytes), Fault> {
        let mut offset = 0;
        // What was read and may not be sent yet.
        let mut piece = Bytes::new();
        loop {
            let allowed = match self.allowed(&mut body, &mut piece).await? {
                Some(allowed) => allowed,
                None => return Ok((offset, body.trailers())),
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

    /// Adds a header of which the gateway knows only what the secret in it is called.
    fn fill(&self, fill: &Fill, to: &Endpoint, lines: &mut Lines) -> Result<(), Fault> {
        let secret = self.secrets.read(&fill.secret, to).map_err(|error| {
            tracing::warn!(
                secret = &*fill.secret,
                error = &error as &dyn std::error::Error,
                "a secret cannot be filled in"
            );
            let reason = format!("the executor has no secret `{}` for this", fill.secret);
            not_started(FaultCode::UnknownSecret, &reason)
        })?;
        let name = HeaderName::from_bytes(fill.header.as_bytes());
        let name = name.map_err(|_error| invalid("the name of a header is not valid"))?;
        if OURS.contains(&name) {
            return Err(invalid("a header is not the gateway's to say"));
        }
        let value = format!("{}{secret}{}", fill.before, fill.after);
        // What is wrong with it is not told: it is about the secret.
        let mut value = HeaderValue::from_str(&value)
            .map_err(|_error| not_started(FaultCode::UnknownSecret, "the secret fits no header"))?;
        value.set_sensitive(true);
        lines.push(&name, &value);
        Ok(())
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
        let name = HeaderName::from_bytes(name);
        let name = name.map_err(|_error| invalid("the name of a header is not valid"))?;
        if OURS.contains(&name) {
            return Err(invalid("a header is not the gateway's to say"));
        }
        let value = HeaderValue::from_bytes(value);
        let value = value.map_err(|_error| invalid("the value of a header is not valid"))?;
        lines.push(&name, &value);
    }
    Ok(lines)
}

fn invalid(reason: &str) -> Fault {
    not_started(FaultCode::Invalid, reason)
}

fn not_started(code: FaultCode, reason: &str) -> Fault {
    Fault {
        code,
        execution: Execution::NotStarted,
        reason: reason.into(),
    }
}

/// The connection with the gateway is over: nobody hears this.
fn gone() -> Fault {
    Fault {
        code: FaultCode::Closing,
        execution: Execution::Unknown,
        reason: "the gateway is gone".into(),
    }
}

/// Returns what a gateway is told of an error.
fn fault(error: &HttpError) -> Fault {
    let code = match error {
        HttpError::Unreachable(_) => FaultCode::Unreachable,
        HttpError::ConnectTimeout => FaultCode::ConnectTimeout,
        HttpError::Invalid(_) => FaultCode::Invalid,
        HttpError::FirstByteTimeout => FaultCode::FirstByteTimeout,
        HttpError::Head(_) => FaultCode::Head,
        HttpError::Elsewhere(failure) if &*failure.code == EGRESS_DENIED => FaultCode::Denied,
        HttpError::Lost(_) | HttpError::Elsewhere(_) | HttpError::TooLong { .. } => FaultCode::Lost,
    };
    let reason = match error {
        HttpError::Unreachable(reason) | HttpError::Head(reason) | HttpError::Lost(reason) => {
            Arc::clone(reason)
        }
        HttpError::Invalid(reason) => (*reason).into(),
        HttpError::Elsewhere(failure) => failure.reason.as_ref().into(),
        HttpError::ConnectTimeout | HttpError::FirstByteTimeout | HttpError::TooLong { .. } => {
            error.to_string().into()
        }
    };
    Fault {
        code,
        execution: error.execution(),
        reason,
    }
}
