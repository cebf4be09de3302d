//! The stream of messages unrelated to a request, kept open for the lifetime of the client.

use std::sync::Arc;
use std::time::Duration;

use bowline_link::http::http_client::HttpBody;
use bowline_wire::sse::SseDecoder;
use http::StatusCode;

use super::delivery::is_event_stream;
use super::message::flatten_line;
use super::shim::{ClientLines, EVENT_LIMITS, StdioShim};

/// Initial wait before a reopen.
const REOPEN_WAIT_MIN: Duration = Duration::from_millis(100);
/// Maximum wait before a reopen.
const REOPEN_WAIT_MAX: Duration = Duration::from_secs(5);

/// Runs until dropped, or until the gateway reports no such stream.
pub(super) async fn forward_notifications(shim: Arc<StdioShim>, lines: ClientLines) {
    let mut wait = REOPEN_WAIT_MIN;
    let mut last_event_id: Option<String> = None;
    loop {
        let session = shim.session();
        match shim
            .open_notification_stream(&session, last_event_id.as_deref())
            .await
        {
            Ok(response) if response.status == StatusCode::METHOD_NOT_ALLOWED => return,
            Ok(response) if response.status == StatusCode::NOT_FOUND => {
                last_event_id = None;
                // On failure the next round tries again.
                let _result = shim.renew_session(session.epoch, &lines).await;
            }
            Ok(response) if is_event_stream(&response) => {
                let activity = forward_events(response.body, &lines, &mut last_event_id).await;
                if activity == ShimActivity::Active {
                    wait = REOPEN_WAIT_MIN;
                }
            }
            Ok(_) => {}
            Err(url) => {
                // The gateway is away: the next attempt uses the relocated gateway.
                let _failure = shim.relocate_gateway(&url).await;
            }
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(REOPEN_WAIT_MAX);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShimActivity {
    Idle,
    Active,
}

async fn forward_events(
    mut body: HttpBody,
    lines: &ClientLines,
    last_event_id: &mut Option<String>,
) -> ShimActivity {
    let mut decoder = SseDecoder::new(EVENT_LIMITS);
    let mut activity = ShimActivity::Idle;
    while let Some(Ok(chunk)) = body.next_chunk().await {
        if decoder.push(&chunk).is_err() {
            return activity;
        }
        while let Some(event) = decoder.next() {
            activity = ShimActivity::Active;
            if event.id.is_some() {
                *last_event_id = event.id;
            }
            let line = flatten_line(&event.data);
            if !line.is_empty() && lines.send(line).await.is_err() {
                return activity;
            }
        }
    }
    activity
}
