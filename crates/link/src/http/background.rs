//! Background tasks of a link: posting messages, draining bodies, ending the session.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bowline_runtime::timer;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::debug;

use super::conversation::{ConversationPhase, HttpConversation};
use super::http_client::HttpBody;
use super::sender::RequestKind;
use crate::link::LinkExit;

/// Interval of the idle check. A drained body lives for 1 to 2 intervals.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(15);

/// Bodies drained at once.
const TRAILING_BODIES_MAX: usize = 64;

/// Bytes drained per body.
const TRAILING_BYTES_MAX: usize = 64 * 1024;

/// Posts messages without a response, in order.
pub(super) async fn run_outbox(
    conversation: Arc<HttpConversation>,
    mut outbox: mpsc::Receiver<Bytes>,
) {
    loop {
        let next = tokio::select! {
            biased;
            _ = conversation.wait_closing() => return,
            next = outbox.recv() => next,
        };
        let Some(body) = next else {
            return;
        };
        let limit = conversation.spec.limits.post_timeout;
        let session = Arc::clone(&conversation.session.borrow());
        let kind = RequestKind::Post(body);
        let sending =
            conversation.send_to_endpoint(&session, None, &kind, timer::deadline_after(limit));
        let outcome = tokio::select! {
            biased;
            _ = conversation.wait_ended() => return,
            sent = sending => sent,
        };
        match outcome {
            Ok(response) if response.status.is_success() => conversation.drain_body(response.body),
            Ok(response) => {
                let status = response.status.as_u16();
                debug!(server = %conversation.spec.server, status, "server refused a message");
            }
            Err(error) => {
                debug!(server = %conversation.spec.server, %error, "message was not delivered")
            }
        }
    }
}

/// Drains bodies after the response, so connections become reusable; delivers due events;
/// closes idle connections.
pub(super) async fn run_background(
    conversation: Arc<HttpConversation>,
    mut rests: mpsc::Receiver<HttpBody>,
) {
    let mut open = TrailingBodies::default();
    let mut tidy = interval(IDLE_CHECK_INTERVAL);
    tidy.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let due = conversation.events.has_due();
        tokio::select! {
            biased;
            _ = conversation.wait_closing() => return,
            _ = tidy.tick() => {
                open.drop_stale();
                conversation.sender.client.close_idle();
            }
            next = rests.recv() => match next {
                Some(body) => open.add(body),
                None => return,
            },
            () = poll_fn(|cx| open.poll(cx)), if !open.is_empty() => {}
            () = conversation.events_due.notified(), if !due => {}
            () = conversation.events.deliver_due(), if due => {}
        }
    }
}

/// Bodies to drain.
#[derive(Debug, Default)]
struct TrailingBodies(Vec<TrailingBody>);

#[derive(Debug)]
struct TrailingBody {
    body: HttpBody,
    bytes: usize,
    /// Whether present at the last idle check.
    is_old: bool,
}

impl TrailingBodies {
    const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, body: HttpBody) {
        if self.0.len() >= TRAILING_BODIES_MAX {
            self.0.remove(0);
        }
        self.0.push(TrailingBody {
            body,
            bytes: 0,
            is_old: false,
        });
    }

    fn drop_stale(&mut self) {
        self.0.retain(|rest| !rest.is_old);
        for rest in &mut self.0 {
            rest.is_old = true;
        }
    }

    /// Ready when all bodies have ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.retain_mut(|rest| {
            loop {
                match rest.body.poll_chunk(cx) {
                    Poll::Ready(Some(Ok(chunk))) => {
                        rest.bytes += chunk.len();
                        if rest.bytes > TRAILING_BYTES_MAX {
                            return false;
                        }
                    }
                    Poll::Ready(Some(Err(_)) | None) => return false,
                    Poll::Pending => return true,
                }
            }
        });
        if self.0.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// Ends the session when the link is closed.
pub(super) async fn end_session_on_stop(conversation: Arc<HttpConversation>) {
    if conversation.wait_closing().await != ConversationPhase::Ending {
        return;
    }
    let session = Arc::clone(&conversation.session.borrow());
    if session.id.is_some() {
        let limit = conversation.spec.limits.stop_timeout;
        let sending = conversation.send_to_endpoint(
            &session,
            None,
            &RequestKind::Delete,
            timer::deadline_after(limit),
        );
        // After a refusal, the server expires the session by itself.
        let _ = timeout(limit, sending).await;
    }
    conversation.finish(LinkExit::Stopping);
}
