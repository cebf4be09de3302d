//! What a status in place of a message means.

use std::sync::Arc;
use std::time::Duration;

use bowline_wire::object;
use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use tokio::time::timeout;

use super::client::{Body, Headers, Response};
use crate::link::LinkError;

/// How much of something that is no message is kept to be shown.
const PREVIEW_BYTES_MAX: usize = 8 * 1024;

/// How long it may take to come.
const PREVIEW_WAIT: Duration = Duration::from_secs(2);

/// How much of a challenge is kept.
const CHALLENGE_BYTES_MAX: usize = 8 * 1024;

/// What a body says that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Json,
    Events,
    Other,
}

/// Returns what the body says that it is.
pub(super) fn content(headers: &Headers) -> Content {
    let named = headers.get(&CONTENT_TYPE).unwrap_or_default();
    let end = named.iter().position(|byte| *byte == b';');
    let kind = named.get(..end.unwrap_or(named.len()));
    let kind = kind.unwrap_or_default().trim_ascii();
    if kind.eq_ignore_ascii_case(b"application/json") {
        Content::Json
    } else if kind.eq_ignore_ascii_case(b"text/event-stream") {
        Content::Events
    } else {
        Content::Other
    }
}

/// Returns why a status is no answer.
pub(super) async fn refusal(response: Response) -> LinkError {
    match plain(response.status, &response.headers) {
        Some(error) => error,
        None => {
            let Response {
                status, mut body, ..
            } = response;
            let preview = preview(&mut body).await;
            of_status(status, &preview)
        }
    }
}

/// Returns why a status whose body is known is no answer.
pub(super) fn refusal_of(status: StatusCode, headers: &Headers, body: &Bytes) -> LinkError {
    plain(status, headers).unwrap_or_else(|| of_status(status, body))
}

/// Returns why something that is no message is no answer.
pub(super) async fn foreign(mut response: Response) -> LinkError {
    let content_type = text(response.headers.get(&CONTENT_TYPE).unwrap_or_default());
    let preview = preview(&mut response.body).await;
    LinkError::ContentType {
        content_type,
        preview: text(&preview),
    }
}

/// What is only to be shown is not waited for.
async fn preview(body: &mut Body) -> Bytes {
    let start = timeout(PREVIEW_WAIT, body.start(PREVIEW_BYTES_MAX));
    start.await.unwrap_or_default()
}

/// Whether a status says what became of a request, also where the body is a JSON-RPC error.
pub(super) const fn is_decisive(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403 | 408 | 429 | 500..=599)
}

/// Whether what failed may go well a moment later.
pub(super) const fn is_transient(error: &LinkError) -> bool {
    match error {
        LinkError::Unreachable(_)
        | LinkError::Lost(_)
        | LinkError::Cut(_)
        | LinkError::Timeout { .. } => true,
        LinkError::Http { status, .. } | LinkError::Throttled { status, .. } => {
            matches!(*status, 408 | 429 | 500 | 502 | 503 | 504)
        }
        _ => false,
    }
}

/// What needs no look at the body.
fn plain(status: StatusCode, headers: &Headers) -> Option<LinkError> {
    let code = status.as_u16();
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Some(LinkError::Unauthorized {
            status: code,
            challenge: challenge(headers),
        }),
        StatusCode::TOO_MANY_REQUESTS => Some(LinkError::Throttled {
            status: code,
            after: after(headers),
        }),
        StatusCode::SERVICE_UNAVAILABLE if headers.get(&RETRY_AFTER).is_some() => {
            Some(LinkError::Throttled {
                status: code,
                after: after(headers),
            })
        }
        _ => None,
    }
}

fn of_status(status: StatusCode, body: &[u8]) -> LinkError {
    let error = object::field(body, "error").map_or(&b""[..], |at| at.of(body));
    let message = object::text(error, "message");
    let said = message.as_ref().map_or(body, |message| message.as_bytes());
    let preview = said.get(..PREVIEW_BYTES_MAX).unwrap_or(said);
    LinkError::Http {
        status: status.as_u16(),
        preview: text(preview),
    }
}

fn challenge(headers: &Headers) -> Option<Arc<str>> {
    let said = headers.get(&WWW_AUTHENTICATE)?;
    Some(text(said.get(..CHALLENGE_BYTES_MAX).unwrap_or(said)))
}

/// Dates are not read: a clock that differs would make nonsense of them.
fn after(headers: &Headers) -> Option<Duration> {
    let seconds = std::str::from_utf8(headers.get(&RETRY_AFTER)?).ok()?;
    seconds.parse().ok().map(Duration::from_secs)
}

fn text(bytes: &[u8]) -> Arc<str> {
    String::from_utf8_lossy(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_type_is_read_without_its_parameters_and_in_any_case() {
        for (name, want) in [
            ("application/json", Content::Json),
            ("Application/JSON ; charset=utf-8", Content::Json),
            ("text/event-stream", Content::Events),
            ("text/event-stream;charset=utf-8", Content::Events),
            ("application/json-seq", Content::Other),
            ("text/html", Content::Other),
            ("", Content::Other),
        ] {
            let headers = Headers::from_lines(format!("content-type: {name}\r\n").as_bytes());
            assert_eq!(content(&headers), want, "{name:?}");
        }
        assert_eq!(content(&Headers::default()), Content::Other);
    }
}
