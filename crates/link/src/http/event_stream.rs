//! Incoming SSE stream, and its resume position.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bowline_wire::sse::{OwnedSseEvent, SseDecoder, SseError, SseLimits};
use http::HeaderValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::http_client::{HttpBody, HttpError};

/// Default delay before a stream is reopened.
const RETRY_DEFAULT: Duration = Duration::from_secs(1);

/// Longest delay that a server can request.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Shortest delay after a stream without events.
const RETRY_IDLE_MIN: Duration = Duration::from_millis(100);

/// Doublings of the delay after streams without events.
const DOUBLINGS_MAX: u32 = 8;

/// An event stream.
#[derive(Debug)]
pub(super) struct EventStream {
    body: HttpBody,
    decoder: SseDecoder,
    gate: Option<LargeEventGate>,
}

/// Limits concurrent reads of large events.
#[derive(Debug)]
struct LargeEventGate {
    usual_bytes: usize,
    reads: Arc<Semaphore>,
    /// Held while a large event arrives.
    permit: Option<OwnedSemaphorePermit>,
}

impl LargeEventGate {
    /// Acquires the permit for a large event, or releases it afterwards.
    async fn acquire_for(&mut self, bytes: usize) {
        if bytes <= self.usual_bytes {
            self.permit = None;
        } else if self.permit.is_none() {
            // The semaphore is never closed.
            self.permit = Arc::clone(&self.reads).acquire_owned().await.ok();
        }
    }
}

/// Why a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EventStreamEnd {
    /// The server ended it.
    Finished,
    /// The connection broke.
    Broken(HttpError),
    /// A limit was exceeded.
    Fault(SseError),
}

/// Resume position and reconnect delay.
#[derive(Debug, Default)]
pub(super) struct StreamResume {
    /// Id of the last event.
    pub(super) last_event_id: Option<HeaderValue>,
    server_retry: Option<Duration>,
    /// Consecutive streams without events.
    idle_streams: u32,
}

impl EventStream {
    pub(super) const fn new(body: HttpBody, bytes_max: usize) -> Self {
        let limits = SseLimits {
            line_bytes_max: bytes_max,
            event_bytes_max: bytes_max,
        };
        Self {
            body,
            decoder: SseDecoder::new(limits),
            gate: None,
        }
    }

    /// Requires a permit of `reads` for events beyond `usual_bytes`.
    pub(super) fn with_gate(self, usual_bytes: usize, reads: &Arc<Semaphore>) -> Self {
        Self {
            gate: Some(LargeEventGate {
                usual_bytes,
                reads: Arc::clone(reads),
                permit: None,
            }),
            ..self
        }
    }

    /// Waits for the next event and records its position.
    pub(super) async fn next_event(
        &mut self,
        resume: &mut StreamResume,
    ) -> Result<OwnedSseEvent, EventStreamEnd> {
        loop {
            if let Some(event) = self.decoder.next() {
                resume.record_event(&event);
                return Ok(event);
            }
            match self.body.next_chunk().await {
                // Events before the fault are returned first; the fault repeats.
                Some(Ok(chunk)) => {
                    if let Some(gate) = &mut self.gate {
                        gate.acquire_for(self.decoder.buffered_bytes() + chunk.len())
                            .await;
                    }
                    if let Err(fault) = self.decoder.push(&chunk) {
                        let event = self.decoder.next().ok_or(EventStreamEnd::Fault(fault))?;
                        resume.record_event(&event);
                        return Ok(event);
                    }
                }
                Some(Err(error)) => return Err(EventStreamEnd::Broken(error)),
                None => return Err(EventStreamEnd::Finished),
            }
        }
    }

    /// Returns the unread body, unless it has ended.
    pub(super) async fn into_body(self) -> Option<HttpBody> {
        let mut body = self.body;
        let next = poll_fn(|cx| Poll::Ready(body.poll_chunk(cx))).await;
        match next {
            Poll::Ready(None | Some(Err(_))) => None,
            Poll::Ready(Some(Ok(_))) | Poll::Pending => Some(body),
        }
    }
}

impl StreamResume {
    fn record_event(&mut self, event: &OwnedSseEvent) {
        self.idle_streams = 0;
        if let Some(id) = &event.id {
            // An empty id clears the resume position.
            self.last_event_id = HeaderValue::from_bytes(id.as_bytes())
                .ok()
                .filter(|id| !id.is_empty());
        }
        if let Some(ms) = event.retry_ms {
            self.server_retry = Some(Duration::from_millis(ms).min(RETRY_MAX));
        }
    }

    /// Returns the delay before the stream is reopened.
    pub(super) fn next_delay(&mut self) -> Duration {
        let retry = self.server_retry.unwrap_or(RETRY_DEFAULT);
        let idle = self.idle_streams;
        self.idle_streams = (idle + 1).min(DOUBLINGS_MAX);
        match idle {
            0 => retry,
            idle => (retry.max(RETRY_IDLE_MIN) * 2_u32.pow(idle - 1)).min(RETRY_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry_event(retry_ms: u64) -> OwnedSseEvent {
        OwnedSseEvent {
            retry_ms: Some(retry_ms),
            ..OwnedSseEvent::default()
        }
    }

    #[test]
    fn resume_delay_is_bounded_and_grows() {
        let ms = Duration::from_millis;
        let mut resume = StreamResume::default();
        assert_eq!(resume.next_delay(), RETRY_DEFAULT);
        resume.record_event(&retry_event(10));
        assert_eq!(resume.next_delay(), ms(10));
        assert_eq!(
            [resume.next_delay(), resume.next_delay()],
            [ms(100), ms(200)]
        );
        resume.record_event(&retry_event(0));
        assert_eq!([resume.next_delay(), resume.next_delay()], [ms(0), ms(100)]);
        resume.record_event(&retry_event(u64::MAX));
        assert_eq!(resume.next_delay(), RETRY_MAX);
        for _ in 0..100 {
            assert_eq!(resume.next_delay(), RETRY_MAX);
        }
    }

    #[test]
    fn empty_event_id_clears_resume_point() {
        let event = |id: Option<&str>| OwnedSseEvent {
            id: id.map(str::to_owned),
            ..OwnedSseEvent::default()
        };
        let mut resume = StreamResume::default();
        resume.record_event(&event(Some("7/ü")));
        resume.record_event(&event(None));
        let last = resume.last_event_id.clone().unwrap();
        assert_eq!(last.as_bytes(), "7/ü".as_bytes());
        resume.record_event(&event(Some("")));
        assert_eq!(resume.last_event_id, None);
    }
}
