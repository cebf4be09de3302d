//! What is asked of an exec-server: a request as it says one.

use std::borrow::Cow;

use bowline_core::time::millis;
use bowline_wire::execserver::{AskedRef, BODY_BYTES_MAX, HeaderRef, Redirects};
use bowline_wire::executor::Fill;
use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use crate::http::client::{Body, HttpError, Outgoing, Upload};
use crate::http::clock;

/// Answers in pieces are called this and a number.
const STREAM: &str = "http-";

const TOO_LONG: HttpError = HttpError::Invalid("its body is longer than an exec-server takes");

/// Returns the body of a request, which this wire carries in one piece, and the rest of it.
pub(super) async fn body(
    request: Outgoing<'_>,
) -> Result<(Option<Cow<'_, [u8]>>, Outgoing<'_>), HttpError> {
    let Outgoing {
        method,
        to,
        lines,
        headers,
        body,
    } = request;
    let whole: Cow<'_, [u8]> = match body {
        Upload::Whole(whole) => whole.into(),
        Upload::Open { chunks, .. } => {
            let whole = Body::open(chunks).whole(BODY_BYTES_MAX).await;
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
    let rest = Outgoing {
        method,
        to,
        lines,
        headers,
        body: Upload::default(),
    };
    Ok(((!whole.is_empty()).then_some(whole), rest))
}

/// Returns the message that asks for a request.
pub(super) fn message(
    request: &Outgoing<'_>,
    body: Option<&[u8]>,
    fills: &[Fill],
    call: i64,
    stream: u64,
    until: Option<Instant>,
) -> Result<Bytes, HttpError> {
    let mut headers = Vec::with_capacity(request.headers.len() + fills.len() + 4);
    let lines = request
        .lines
        .as_bytes()
        .split_inclusive(|byte| *byte == b'\n');
    for line in lines {
        headers.push(line_of(line)?);
    }
    for (name, value) in &request.headers {
        headers.push(HeaderRef {
            name: name.as_str(),
            value: text(value.as_bytes())?,
            secret: None,
        });
    }
    for fill in fills {
        if !fill.after.is_empty() {
            let reason = "an exec-server puts secrets at the end of a header only";
            return Err(HttpError::Invalid(reason));
        }
        headers.push(HeaderRef {
            name: &fill.header,
            value: &fill.before,
            secret: Some(&fill.secret),
        });
    }
    let left = |until: Instant| millis(until.saturating_duration_since(clock::now()));
    let is_streamed = stream > 0;
    // A whole answer is told by the number of its request, and this is not looked at.
    let request_id = match is_streamed {
        true => format!("{STREAM}{stream}"),
        false => format!("whole-{call}"),
    };
    let asked = AskedRef {
        method: request.method.as_str(),
        url: &request.to.uri().to_string(),
        headers: &headers,
        body,
        timeout_ms: until.map(left),
        // Hops are checked here, one by one.
        redirects: Redirects::Stop,
        request_id: &request_id,
        is_streamed,
    };
    Ok(asked.to_bytes(call))
}

/// Reads one of our own lines.
fn line_of(line: &[u8]) -> Result<HeaderRef<'_>, HttpError> {
    let (name, value) = text(line)?.split_once(':').unwrap_or_default();
    Ok(HeaderRef {
        name,
        value: value.trim_ascii(),
        secret: None,
    })
}

fn text(bytes: &[u8]) -> Result<&str, HttpError> {
    let reason = "an exec-server takes headers that are text only";
    std::str::from_utf8(bytes).map_err(|_| HttpError::Invalid(reason))
}

/// Returns the number of a stream that has a name of ours.
pub(super) fn stream_of(request_id: &str) -> Option<u64> {
    let digits = request_id.strip_prefix(STREAM)?;
    digits
        .starts_with(|first: char| ('1'..='9').contains(&first))
        .then_some(())?;
    digits.parse().ok()
}

/// Waits for something until then, or for as long as it takes.
pub(super) async fn within<T>(until: Option<Instant>, what: impl Future<Output = T>) -> Option<T> {
    match until {
        None => Some(what.await),
        Some(until) => timeout_at(until, what).await.ok(),
    }
}
