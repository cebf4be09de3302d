//! Maps HTTP statuses and content types without a message to link errors.

use std::sync::Arc;
use std::time::Duration;

use bowline_wire::object;
use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use tokio::time::timeout;

use super::http_client::{HttpBody, HttpResponse, ResponseHeaders};
use crate::link::LinkError;

/// Longest preview of a body that is not a message.
const PREVIEW_BYTES_MAX: usize = 8 * 1024;

/// Timeout of the preview.
const PREVIEW_WAIT: Duration = Duration::from_secs(2);

/// Longest `WWW-Authenticate` challenge.
const CHALLENGE_BYTES_MAX: usize = 8 * 1024;

/// Content type of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentKind {
    Json,
    Events,
    Other,
}

/// Returns the content type.
pub(super) fn content_kind(headers: &ResponseHeaders) -> ContentKind {
    let named = headers.get(&CONTENT_TYPE).unwrap_or_default();
    let end = named.iter().position(|byte| *byte == b';');
    let kind = named.get(..end.unwrap_or(named.len()));
    let kind = kind.unwrap_or_default().trim_ascii();
    if kind.eq_ignore_ascii_case(b"application/json") {
        ContentKind::Json
    } else if kind.eq_ignore_ascii_case(b"text/event-stream") {
        ContentKind::Events
    } else {
        ContentKind::Other
    }
}

/// Reads a preview and returns the error of a status.
pub(super) async fn read_status_error(response: HttpResponse) -> LinkError {
    match header_only_error(response.status, &response.headers) {
        Some(error) => error,
        None => {
            let HttpResponse {
                status, mut body, ..
            } = response;
            let preview = read_preview(&mut body).await;
            http_error(status, &preview)
        }
    }
}

/// Returns the error of a status with a known body.
pub(super) fn status_error(
    status: StatusCode,
    headers: &ResponseHeaders,
    body: &Bytes,
) -> LinkError {
    header_only_error(status, headers).unwrap_or_else(|| http_error(status, body))
}

/// Returns the error of an unexpected content type.
pub(super) async fn content_type_error(mut response: HttpResponse) -> LinkError {
    let content_type = lossy_text(response.headers.get(&CONTENT_TYPE).unwrap_or_default());
    let preview = read_preview(&mut response.body).await;
    LinkError::ContentType {
        content_type,
        preview: lossy_text(&preview),
    }
}

/// Reads the start of a body, without waiting long.
async fn read_preview(body: &mut HttpBody) -> Bytes {
    let start = timeout(PREVIEW_WAIT, body.read_prefix(PREVIEW_BYTES_MAX));
    start.await.unwrap_or_default()
}

/// Whether a status decides the outcome even with a JSON-RPC error body.
pub(super) const fn is_decisive(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403 | 408 | 429 | 500..=599)
}

/// Whether a retry may succeed.
pub(super) const fn is_transient(error: &LinkError) -> bool {
    match error {
        LinkError::Unreachable(_)
        | LinkError::Lost(_)
        | LinkError::ConnectionLost(_)
        | LinkError::Timeout { .. } => true,
        LinkError::Http { status, .. } | LinkError::Throttled { status, .. } => {
            matches!(*status, 408 | 429 | 500 | 502 | 503 | 504)
        }
        _ => false,
    }
}

/// Returns the error of a status whose body does not matter.
fn header_only_error(status: StatusCode, headers: &ResponseHeaders) -> Option<LinkError> {
    let code = status.as_u16();
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Some(LinkError::Unauthorized {
            status: code,
            challenge: auth_challenge(headers),
        }),
        StatusCode::TOO_MANY_REQUESTS => Some(LinkError::Throttled {
            status: code,
            after: retry_after(headers),
        }),
        StatusCode::SERVICE_UNAVAILABLE if headers.get(&RETRY_AFTER).is_some() => {
            Some(LinkError::Throttled {
                status: code,
                after: retry_after(headers),
            })
        }
        _ => None,
    }
}

fn http_error(status: StatusCode, body: &[u8]) -> LinkError {
    let error = object::field(body, "error").map_or(&b""[..], |at| at.slice(body));
    let message = object::text_field(error, "message");
    let text = message.as_ref().map_or(body, |message| message.as_bytes());
    let preview = text.get(..PREVIEW_BYTES_MAX).unwrap_or(text);
    LinkError::Http {
        status: status.as_u16(),
        preview: lossy_text(preview),
    }
}

fn auth_challenge(headers: &ResponseHeaders) -> Option<Arc<str>> {
    let challenge = headers.get(&WWW_AUTHENTICATE)?;
    Some(lossy_text(
        challenge.get(..CHALLENGE_BYTES_MAX).unwrap_or(challenge),
    ))
}

/// Parses `Retry-After` seconds. Dates are ignored, as clocks may differ.
fn retry_after(headers: &ResponseHeaders) -> Option<Duration> {
    let seconds = std::str::from_utf8(headers.get(&RETRY_AFTER)?).ok()?;
    seconds.parse().ok().map(Duration::from_secs)
}

fn lossy_text(bytes: &[u8]) -> Arc<str> {
    String::from_utf8_lossy(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_type_ignores_parameters_and_case() {
        for (name, want) in [
            ("application/json", ContentKind::Json),
            ("Application/JSON ; charset=utf-8", ContentKind::Json),
            ("text/event-stream", ContentKind::Events),
            ("text/event-stream;charset=utf-8", ContentKind::Events),
            ("application/json-seq", ContentKind::Other),
            ("text/html", ContentKind::Other),
            ("", ContentKind::Other),
        ] {
            let headers =
                ResponseHeaders::from_lines(format!("content-type: {name}\r\n").as_bytes());
            assert_eq!(content_kind(&headers), want, "{name:?}");
        }
        assert_eq!(
            content_kind(&ResponseHeaders::default()),
            ContentKind::Other
        );
    }
}
