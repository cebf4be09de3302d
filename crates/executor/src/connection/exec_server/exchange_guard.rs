//! Guard of an exchange at an exec-server, and its response.

use std::sync::Arc;
use std::task::{Context, Poll};

use bowline_link::http::http_client::{
    BodyChunks, HttpBody, HttpError, HttpResponse, ResponseHeaders, write_header_line,
};

use crate::execserver::{ExecHeader, ExecHttpResponse};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};

use super::ExecServerShared;
use super::exec_exchange::{ExecExchange, ResponseMode};

/// Longest response headers.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// An exchange with a waiting caller; dropping it discards later data.
#[derive(Debug)]
pub(super) struct ExecExchangeGuard {
    shared: Arc<ExecServerShared>,
    call: i64,
    pub(super) exchange: Arc<ExecExchange>,
}

impl Drop for ExecExchangeGuard {
    fn drop(&mut self) {
        let stream = self.exchange.stream_id();
        self.shared.exchanges.remove_exchange(self.call, stream);
        self.exchange.release();
    }
}

impl ExecExchangeGuard {
    pub(super) const fn new(
        shared: Arc<ExecServerShared>,
        call: i64,
        exchange: Arc<ExecExchange>,
    ) -> Self {
        Self {
            shared,
            call,
            exchange,
        }
    }

    /// Builds the HTTP response.
    pub(super) fn into_response(
        self,
        response: ExecHttpResponse,
        kind: ResponseMode,
    ) -> Result<HttpResponse, HttpError> {
        let status = StatusCode::from_u16(response.status);
        let status = status.map_err(|_| HttpError::BadHead("the status is none".into()))?;
        let headers = parse_headers(&response.headers)?;
        let body = match kind {
            ResponseMode::Whole => HttpBody::from(response.body),
            ResponseMode::Streamed => match self.exchange.take_whole_body() {
                Some(whole) => HttpBody::from(whole),
                None => HttpBody::from_chunks(Box::new(self)),
            },
        };
        Ok(HttpResponse {
            status,
            headers,
            body,
        })
    }
}

impl BodyChunks for ExecExchangeGuard {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        self.exchange.poll_chunk(cx)
    }
}

fn parse_headers(headers: &[ExecHeader]) -> Result<ResponseHeaders, HttpError> {
    let invalid = || HttpError::BadHead("a header is not valid".into());
    let mut lines = Vec::with_capacity(256);
    for header in headers {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|_| invalid())?;
        let value = HeaderValue::from_bytes(header.value.as_bytes()).map_err(|_| invalid())?;
        write_header_line(&mut lines, &name, &value);
        if lines.len() > HEAD_BYTES_MAX {
            return Err(HttpError::BadHead("the headers are too long".into()));
        }
    }
    Ok(ResponseHeaders::from_lines(&lines))
}
