//! Guard of an exchange over a tunnel, and the response.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bowline_core::sync::lock;
use bowline_link::http::http_client::{
    BodyChunks, HttpBody, HttpError, HttpResponse, ResponseHeaders,
};

use crate::frames::ResponseHead;
use bytes::Bytes;
use http::StatusCode;

use super::TunnelShared;
use super::tunnel_upload::UploadFuture;
use crate::connection::http_exchange::HttpExchange;

/// Longest response headers.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// An exchange with a waiting caller; a drop cancels the request at the executor.
#[derive(Debug)]
pub(super) struct TunnelExchangeGuard {
    pub(super) exchange: Arc<HttpExchange>,
    pub(super) shared: Arc<TunnelShared>,
    /// Whether the executor may have seen the request.
    pub(super) was_sent: bool,
}

/// Response body, and the unfinished upload of the request.
#[derive(Debug)]
struct TunnelBody {
    guard: TunnelExchangeGuard,
    /// Never shared; the mutex only makes the future `Sync`.
    upload: Mutex<Option<UploadFuture<'static>>>,
}

impl Drop for TunnelExchangeGuard {
    fn drop(&mut self) {
        self.exchange.release(&self.shared.writer, self.was_sent);
    }
}

impl TunnelExchangeGuard {
    /// Builds the HTTP response; the body is read from this exchange.
    pub(super) fn into_response(
        self,
        head: &ResponseHead,
        upload: Option<UploadFuture<'static>>,
    ) -> Result<HttpResponse, HttpError> {
        let status = StatusCode::from_u16(head.status);
        let status = status.map_err(|_| HttpError::BadHead("the status is none".into()))?;
        if head.header_lines.len() > HEAD_BYTES_MAX {
            return Err(HttpError::BadHead("the headers are too long".into()));
        }
        if !has_valid_lines(&head.header_lines) {
            return Err(HttpError::BadHead("a header is not valid".into()));
        }
        let headers = ResponseHeaders::from_lines(&head.header_lines);
        let body = match self.exchange.take_whole_body() {
            Some(whole) => HttpBody::from(whole),
            None => HttpBody::from_chunks(Box::new(TunnelBody {
                guard: self,
                upload: Mutex::new(upload),
            })),
        };
        Ok(HttpResponse {
            status,
            headers,
            body,
        })
    }
}

impl BodyChunks for TunnelBody {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        let mut upload = lock(&self.upload);
        if let Some(Poll::Ready(sent)) = upload.as_mut().map(|upload| upload.poll(cx)) {
            *upload = None;
            if let Err(broken) = sent {
                self.guard
                    .exchange
                    .abort_upload(broken, &self.guard.shared.writer);
            }
        }
        drop(upload);
        self.guard
            .exchange
            .poll_chunk(cx, &self.guard.shared.writer)
    }

    fn take_trailers(&mut self) -> Bytes {
        self.guard.exchange.trailers()
    }
}

/// Whether all bytes are complete header lines: a name, a colon, and a value without control
/// characters that could pass for a line end.
fn has_valid_lines(lines: &[u8]) -> bool {
    let mut lines = lines.split_inclusive(|byte| *byte == b'\n');
    lines.all(|line| {
        let Some(line) = line.strip_suffix(b"\r\n") else {
            return false;
        };
        let Some(colon) = memchr::memchr(b':', line) else {
            return false;
        };
        let Some((name, value)) = line.split_at_checked(colon) else {
            return false;
        };
        !name.is_empty()
            && name.iter().all(|byte| byte.is_ascii_graphic())
            && value
                .iter()
                .all(|byte| !byte.is_ascii_control() || *byte == b'\t')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_header_lines_are_rejected() {
        for valid in ["", "a: b\r\n", "a:\r\nb: \tc\r\n", "a: b:c\r\n"] {
            assert!(has_valid_lines(valid.as_bytes()), "{valid:?}");
        }
        assert!(has_valid_lines(b"a: \xff\x80\r\n"));
        for invalid in [
            "a",
            "a: b\n",
            "a: b",
            "a\r\n",
            ": b\r\n",
            "a b: c\r\n",
            "a: \rb\r\n",
        ] {
            assert!(!has_valid_lines(invalid.as_bytes()), "{invalid:?}");
        }
    }
}
