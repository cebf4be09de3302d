//! A stream of events on its way in, and where a broken one goes on.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bowline_wire::sse::{Decoder, Limits, OwnedEvent, SseFault};
use http::HeaderValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::client::{Body, HttpError};

/// How long to wait before a stream is opened again, when the server does not say.
const RETRY: Duration = Duration::from_secs(1);

/// The longest wait that a server can ask for.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The shortest wait after a stream that brought nothing, whatever the server asks for.
const RETRY_IDLE_MIN: Duration = Duration::from_millis(100);

/// How often in a row a stream may bring nothing before waits stop growing.
const DOUBLINGS_MAX: u32 = 8;

/// A stream that is being read.
#[derive(Debug)]
pub(super) struct Stream {
    body: Body,
    decoder: Decoder,
    gate: Option<Gate>,
}

/// What an event has to pass that is longer than usual.
#[derive(Debug)]
struct Gate {
    usual_bytes: usize,
    reads: Arc<Semaphore>,
    /// Held while such an event arrives.
    permit: Option<OwnedSemaphorePermit>,
}

impl Gate {
    /// Waits for the permit before more than usual is held, and gives it back after.
    async fn pass(&mut self, bytes: usize) {
        if bytes <= self.usual_bytes {
            self.permit = None;
        } else if self.permit.is_none() {
            // The semaphore is never closed.
            self.permit = Arc::clone(&self.reads).acquire_owned().await.ok();
        }
    }
}

/// Why there are no more events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The server ended it.
    Over,
    /// The connection broke.
    Broken(HttpError),
    /// A limit was broken.
    Fault(SseFault),
}

/// Where a stream goes on after its end.
#[derive(Debug, Default)]
pub(super) struct Resume {
    /// The last event that was read, where the server gave it an id.
    pub(super) last: Option<HeaderValue>,
    retry: Option<Duration>,
    /// How many streams in a row brought nothing.
    idle: u32,
}

impl Stream {
    pub(super) const fn new(body: Body, bytes_max: usize) -> Self {
        let limits = Limits {
            line_bytes_max: bytes_max,
            event_bytes_max: bytes_max,
        };
        Self {
            body,
            decoder: Decoder::new(limits),
            gate: None,
        }
    }

    /// Has events that are longer than usual wait for a permit of `reads`.
    pub(super) fn gated(self, usual_bytes: usize, reads: &Arc<Semaphore>) -> Self {
        Self {
            gate: Some(Gate {
                usual_bytes,
                reads: Arc::clone(reads),
                permit: None,
            }),
            ..self
        }
    }

    /// Waits for the next event and notes where it stands.
    pub(super) async fn next(&mut self, resume: &mut Resume) -> Result<OwnedEvent, Ended> {
        loop {
            if let Some(event) = self.decoder.next() {
                resume.note(&event);
                return Ok(event);
            }
            match self.body.chunk().await {
                // Events before the fault are still taken; it is told again after them.
                Some(Ok(chunk)) => {
                    if let Some(gate) = &mut self.gate {
                        gate.pass(self.decoder.held_bytes() + chunk.len()).await;
                    }
                    if let Err(fault) = self.decoder.push(&chunk) {
                        let event = self.decoder.next().ok_or(Ended::Fault(fault))?;
                        resume.note(&event);
                        return Ok(event);
                    }
                }
                Some(Err(error)) => return Err(Ended::Broken(error)),
                None => return Err(Ended::Over),
            }
        }
    }

    /// Returns what is left of the body, unless its end is here already.
    pub(super) async fn into_rest(self) -> Option<Body> {
        let mut body = self.body;
        let next = poll_fn(|cx| Poll::Ready(body.poll_chunk(cx))).await;
        match next {
            Poll::Ready(None | Some(Err(_))) => None,
            Poll::Ready(Some(Ok(_))) | Poll::Pending => Some(body),
        }
    }
}

impl Resume {
    fn note(&mut self, event: &OwnedEvent) {
        self.idle = 0;
        if let Some(id) = &event.id {
            // An empty id means that there is nothing to go on from.
            self.last = HeaderValue::from_bytes(id.as_bytes())
                .ok()
                .filter(|id| !id.is_empty());
        }
        if let Some(ms) = event.retry_ms {
            self.retry = Some(Duration::from_millis(ms).min(RETRY_MAX));
        }
    }

    /// Returns how long to wait before the stream is opened again.
    pub(super) fn pause(&mut self) -> Duration {
        let retry = self.retry.unwrap_or(RETRY);
        let idle = self.idle;
        self.idle = (idle + 1).min(DOUBLINGS_MAX);
        match idle {
            0 => retry,
            idle => (retry.max(RETRY_IDLE_MIN) * 2_u32.pow(idle - 1)).min(RETRY_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(retry_ms: u64) -> OwnedEvent {
        OwnedEvent {
            retry_ms: Some(retry_ms),
            ..OwnedEvent::default()
        }
    }

    #[test]
    fn a_server_chooses_the_wait_within_bounds_and_silence_makes_it_longer() {
        let ms = Duration::from_millis;
        let mut resume = Resume::default();
        assert_eq!(resume.pause(), RETRY);
        resume.note(&said(10));
        assert_eq!(resume.pause(), ms(10));
        assert_eq!([resume.pause(), resume.pause()], [ms(100), ms(200)]);
        resume.note(&said(0));
        assert_eq!([resume.pause(), resume.pause()], [ms(0), ms(100)]);
        resume.note(&said(u64::MAX));
        assert_eq!(resume.pause(), RETRY_MAX);
        for _ in 0..100 {
            assert_eq!(resume.pause(), RETRY_MAX);
        }
    }

    #[test]
    fn the_last_id_is_where_a_stream_goes_on_and_an_empty_one_takes_it_back() {
        let event = |id: Option<&str>| OwnedEvent {
            id: id.map(str::to_owned),
            ..OwnedEvent::default()
        };
        let mut resume = Resume::default();
        resume.note(&event(Some("7/ü")));
        resume.note(&event(None));
        let last = resume.last.clone().unwrap();
        assert_eq!(last.as_bytes(), "7/ü".as_bytes());
        resume.note(&event(Some("")));
        assert_eq!(resume.last, None);
    }
}
