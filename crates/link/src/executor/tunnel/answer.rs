//! An answer that comes over a connection with an executor.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bowline_core::sync::lock;
use bowline_wire::executor::Answered;
use bytes::Bytes;
use http::StatusCode;

use super::Shared;
use super::upload::Uploading;
use crate::executor::exchange::Exchange;
use crate::http::client::{Body, Chunks, Headers, HttpError, Response};

/// Bytes of the headers of an answer.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// An exchange that somebody waits for; dropped, it is taken off the wire over there.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) exchange: Arc<Exchange>,
    pub(super) shared: Arc<Shared>,
    /// Whether the executor may know of it.
    pub(super) was_sent: bool,
}

/// The body of an answer, and what is left to be sent of its request.
#[derive(Debug)]
struct Coming {
    held: Held,
    /// Never shared; the lock makes it fit to be.
    upload: Mutex<Option<Uploading<'static>>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.exchange.leave(&self.shared.voice, self.was_sent);
    }
}

impl Held {
    /// Returns the answer, whose body comes over this exchange.
    pub(super) fn response(
        self,
        answered: &Answered,
        upload: Option<Uploading<'static>>,
    ) -> Result<Response, HttpError> {
        let status = StatusCode::from_u16(answered.status);
        let status = status.map_err(|_| HttpError::Head("the status is none".into()))?;
        if answered.lines.len() > HEAD_BYTES_MAX {
            return Err(HttpError::Head("the headers are too long".into()));
        }
        if !is_valid(&answered.lines) {
            return Err(HttpError::Head("a header is not valid".into()));
        }
        let headers = Headers::from_lines(&answered.lines);
        let body = match self.exchange.whole() {
            Some(whole) => Body::from(whole),
            None => Body::open(Box::new(Coming {
                held: self,
                upload: Mutex::new(upload),
            })),
        };
        Ok(Response {
            status,
            headers,
            body,
        })
    }
}

impl Chunks for Coming {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        let mut upload = lock(&self.upload);
        if let Some(Poll::Ready(sent)) = upload.as_mut().map(|upload| upload.poll(cx)) {
            *upload = None;
            if let Err(broken) = sent {
                self.held.exchange.abort(broken, &self.held.shared.voice);
            }
        }
        drop(upload);
        self.held.exchange.poll_chunk(cx, &self.held.shared.voice)
    }

    fn trailers(&mut self) -> Bytes {
        self.held.exchange.trailers()
    }
}

/// Whether all are whole lines of a name, a colon and a value without anything that could pass for
/// the end of a line.
fn is_valid(lines: &[u8]) -> bool {
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
    fn lines_that_could_be_read_in_two_ways_are_no_headers() {
        for valid in ["", "a: b\r\n", "a:\r\nb: \tc\r\n", "a: b:c\r\n"] {
            assert!(is_valid(valid.as_bytes()), "{valid:?}");
        }
        assert!(is_valid(b"a: \xff\x80\r\n"));
        for invalid in [
            "a",
            "a: b\n",
            "a: b",
            "a\r\n",
            ": b\r\n",
            "a b: c\r\n",
            "a: \rb\r\n",
        ] {
            assert!(!is_valid(invalid.as_bytes()), "{invalid:?}");
        }
    }
}
