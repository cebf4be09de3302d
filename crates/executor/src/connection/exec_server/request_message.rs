//! Builds the request message for an exec-server.

use std::borrow::Cow;

use bowline_core::time::to_millis;
use bowline_link::http::http_client::{HttpBody, HttpError, HttpRequest, RequestBody};
use bowline_runtime::timer;

use crate::execserver::{BODY_BYTES_MAX, ExecHeaderRef, ExecHttpRequestRef, RedirectPolicy};
use crate::frames::SecretHeader;
use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

/// Prefix of a stream id; a number follows.
const STREAM_ID_PREFIX: &str = "http-";

const TOO_LONG: HttpError = HttpError::Invalid("its body is longer than an exec-server takes");

/// Takes the body out of a request; the protocol carries a body unchunked.
pub(super) async fn take_body(
    request: HttpRequest<'_>,
) -> Result<(Option<Cow<'_, [u8]>>, HttpRequest<'_>), HttpError> {
    let HttpRequest {
        method,
        endpoint: to,
        shared_headers: lines,
        headers,
        body,
    } = request;
    let whole: Cow<'_, [u8]> = match body {
        RequestBody::Whole(whole) => whole.into(),
        RequestBody::Streaming { chunks, .. } => {
            let whole = HttpBody::from_chunks(chunks)
                .read_whole(BODY_BYTES_MAX)
                .await;
            let whole: Bytes = whole.map_err(|error| match error {
                HttpError::TooLong { .. } => TOO_LONG,
                other => other,
            })?;
            whole.to_vec().into()
        }
    };
    if whole.len() > BODY_BYTES_MAX {
        return Err(TOO_LONG);
    }
    let rest = HttpRequest {
        method,
        endpoint: to,
        shared_headers: lines,
        headers,
        body: RequestBody::default(),
    };
    Ok(((!whole.is_empty()).then_some(whole), rest))
}

/// Returns the message for a request.
pub(super) fn request_message(
    request: &HttpRequest<'_>,
    body: Option<&[u8]>,
    fills: &[SecretHeader],
    call: i64,
    stream: u64,
    until: Option<Instant>,
) -> Result<Bytes, HttpError> {
    let mut headers = Vec::with_capacity(request.headers.len() + fills.len() + 4);
    let lines = request
        .shared_headers
        .as_bytes()
        .split_inclusive(|byte| *byte == b'\n');
    for line in lines {
        headers.push(parse_header_line(line)?);
    }
    for (name, value) in &request.headers {
        headers.push(ExecHeaderRef {
            name: name.as_str(),
            value: header_text(value.as_bytes())?,
            secret_name: None,
        });
    }
    for fill in fills {
        if !fill.after.is_empty() {
            let reason = "an exec-server puts secrets at the end of a header only";
            return Err(HttpError::Invalid(reason));
        }
        headers.push(ExecHeaderRef {
            name: &fill.header,
            value: &fill.before,
            secret_name: Some(&fill.secret),
        });
    }
    let left = |until: Instant| to_millis(until.saturating_duration_since(timer::now()));
    let is_streamed = stream > 0;
    // A whole response is matched by the request number; this id is ignored.
    let request_id = match is_streamed {
        true => format!("{STREAM_ID_PREFIX}{stream}"),
        false => format!("whole-{call}"),
    };
    let exec_request = ExecHttpRequestRef {
        method: request.method.as_str(),
        url: &request.endpoint.uri().to_string(),
        headers: &headers,
        body,
        timeout_ms: until.map(left),
        // The gateway checks redirects itself, hop by hop.
        redirects: RedirectPolicy::Stop,
        request_id: &request_id,
        is_streamed,
    };
    Ok(exec_request.to_bytes(call))
}

/// Parses a header line of our own.
fn parse_header_line(line: &[u8]) -> Result<ExecHeaderRef<'_>, HttpError> {
    let (name, value) = header_text(line)?.split_once(':').unwrap_or_default();
    Ok(ExecHeaderRef {
        name,
        value: value.trim_ascii(),
        secret_name: None,
    })
}

fn header_text(bytes: &[u8]) -> Result<&str, HttpError> {
    let reason = "an exec-server takes headers that are text only";
    std::str::from_utf8(bytes).map_err(|_| HttpError::Invalid(reason))
}

/// Parses the number of a stream id of this connection.
pub(super) fn parse_stream_id(request_id: &str) -> Option<u64> {
    let digits = request_id.strip_prefix(STREAM_ID_PREFIX)?;
    digits
        .starts_with(|first: char| ('1'..='9').contains(&first))
        .then_some(())?;
    digits.parse().ok()
}

/// Awaits a future until the optional deadline.
pub(super) async fn with_deadline<T>(
    until: Option<Instant>,
    future: impl Future<Output = T>,
) -> Option<T> {
    match until {
        None => Some(future.await),
        Some(until) => timeout_at(until, future).await.ok(),
    }
}
