//! The stream of messages that belong to no request, kept open as long as the client is there.

use std::sync::Arc;
use std::time::Duration;

use bowline_wire::sse::Decoder;
use http::{StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::message::one_line;
use super::shim::{EVENTS, Lines, Shim};

/// First wait before the stream is opened again.
const WAIT_MIN: Duration = Duration::from_millis(100);
/// Longest wait before the stream is opened again.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Runs until it is dropped, or until the gateway says that it has no such stream.
pub(super) async fn listen(shim: Arc<Shim>, lines: Lines) {
    let mut wait = WAIT_MIN;
    let mut seen: Option<String> = None;
    loop {
        let session = shim.session();
        match shim.listen(&session, seen.as_deref()).await {
            Ok(response) if response.status() == StatusCode::METHOD_NOT_ALLOWED => return,
            Ok(response) if response.status() == StatusCode::NOT_FOUND => {
                seen = None;
                // When that fails, the next round tries again.
                let _trouble = shim.renew(session.epoch, &lines).await;
            }
            Ok(response) => {
                let kind = response.headers().get(header::CONTENT_TYPE);
                let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event"));
                if response.status().is_success() && is_stream {
                    let heard = hear(response.into_body(), &lines, &mut seen).await;
                    if heard == Heard::Something {
                        wait = WAIT_MIN;
                    }
                }
            }
            Err(url) => {
                // Not there at all: the next round asks the place that was found.
                let _failure = shim.find_again(&url).await;
            }
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(WAIT_MAX);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Nothing,
    Something,
}

async fn hear(mut body: Incoming, lines: &Lines, seen: &mut Option<String>) -> Heard {
    let mut decoder = Decoder::new(EVENTS);
    let mut heard = Heard::Nothing;
    while let Some(Ok(frame)) = body.frame().await {
        let Some(chunk) = frame.data_ref() else {
            continue;
        };
        if decoder.push(chunk).is_err() {
            return heard;
        }
        while let Some(event) = decoder.next() {
            heard = Heard::Something;
            if event.id.is_some() {
                *seen = event.id;
            }
            let line = one_line(&event.data);
            if !line.is_empty() && lines.send(line).await.is_err() {
                return heard;
            }
        }
    }
    heard
}
