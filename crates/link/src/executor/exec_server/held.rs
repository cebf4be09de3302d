//! An exchange that somebody waits for, and the answer that comes over it.

use std::sync::Arc;
use std::task::{Context, Poll};

use bowline_wire::execserver::{Answered, Header};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};

use super::Shared;
use super::exchange::{Exchange, Kind};
use crate::http::client::{Body, Chunks, Headers, HttpError, Response, write_line};

/// Bytes of the headers of an answer.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// An exchange that somebody waits for; dropped, what still comes for it is nobody's.
#[derive(Debug)]
pub(super) struct Held {
    shared: Arc<Shared>,
    call: i64,
    pub(super) exchange: Arc<Exchange>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let stream = self.exchange.stream();
        self.shared.lines.forget(self.call, stream);
        self.exchange.leave();
    }
}

impl Held {
    pub(super) const fn new(shared: Arc<Shared>, call: i64, exchange: Arc<Exchange>) -> Self {
        Self {
            shared,
            call,
            exchange,
        }
    }

    /// Returns the answer.
    pub(super) fn response(self, answered: Answered, kind: Kind) -> Result<Response, HttpError> {
        let status = StatusCode::from_u16(answered.status);
        let status = status.map_err(|_| HttpError::Head("the status is none".into()))?;
        let headers = headers(&answered.headers)?;
        let body = match kind {
            Kind::Whole => Body::from(answered.body),
            Kind::Streamed => match self.exchange.whole() {
                Some(whole) => Body::from(whole),
                None => Body::open(Box::new(self)),
            },
        };
        Ok(Response {
            status,
            headers,
            body,
        })
    }
}

impl Chunks for Held {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        self.exchange.poll_chunk(cx)
    }
}

fn headers(told: &[Header]) -> Result<Headers, HttpError> {
    let invalid = || HttpError::Head("a header is not valid".into());
    let mut lines = Vec::with_capacity(256);
    for header in told {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|_| invalid())?;
        let value = HeaderValue::from_bytes(header.value.as_bytes()).map_err(|_| invalid())?;
        write_line(&mut lines, &name, &value);
        if lines.len() > HEAD_BYTES_MAX {
            return Err(HttpError::Head("the headers are too long".into()));
        }
    }
    Ok(Headers::from_lines(&lines))
}
