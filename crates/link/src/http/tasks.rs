//! What goes on beside the requests of a link: posting, reading on, ending.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::debug;

use super::client::Body;
use super::clock;
use super::road::Verb;
use super::talk::{Phase, Talk};
use crate::link::Exit;

/// How often unused connections are looked for. What is read on has one to two of these.
const TIDY_EVERY: Duration = Duration::from_secs(15);

/// Streams that are read on at once.
const RESTS_MAX: usize = 64;

/// Of each of them, so much is read.
const REST_BYTES_MAX: usize = 64 * 1024;

/// Posts what wants no answer, in order.
pub(super) async fn post(talk: Arc<Talk>, mut outbox: mpsc::Receiver<Bytes>) {
    loop {
        let next = tokio::select! {
            biased;
            _ = talk.over() => return,
            next = outbox.recv() => next,
        };
        let Some(body) = next else {
            return;
        };
        let limit = talk.spec.limits.post;
        let held = Arc::clone(&talk.session.borrow());
        let verb = Verb::Post(body);
        let sending = talk.send(&held, None, &verb, clock::after(limit));
        let sent = tokio::select! {
            biased;
            _ = talk.ended() => return,
            sent = sending => sent,
        };
        match sent {
            Ok(response) if response.status.is_success() => talk.read_on(response.body),
            Ok(response) => {
                let status = response.status.as_u16();
                debug!(server = %talk.spec.server, status, "a message was refused");
            }
            Err(error) => debug!(server = %talk.spec.server, %error, "a message was lost"),
        }
    }
}

/// Reads streams on after their answer, so that their connections can be used again; delivers
/// changes that found no room; lets go of connections that nobody uses.
pub(super) async fn rest(talk: Arc<Talk>, mut rests: mpsc::Receiver<Body>) {
    let mut open = Rests::default();
    let mut tidy = interval(TIDY_EVERY);
    tidy.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let due = talk.events.is_due();
        tokio::select! {
            biased;
            _ = talk.over() => return,
            _ = tidy.tick() => {
                open.age();
                talk.road.client.tidy();
            }
            next = rests.recv() => match next {
                Some(body) => open.add(body),
                None => return,
            },
            () = poll_fn(|cx| open.poll(cx)), if !open.is_empty() => {}
            () = talk.due.notified(), if !due => {}
            () = talk.events.deliver(), if due => {}
        }
    }
}

/// Streams that are read on.
#[derive(Debug, Default)]
struct Rests(Vec<Rest>);

#[derive(Debug)]
struct Rest {
    body: Body,
    bytes: usize,
    /// Whether it was there at the last look at the clock.
    is_old: bool,
}

impl Rests {
    const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, body: Body) {
        if self.0.len() >= RESTS_MAX {
            self.0.remove(0);
        }
        self.0.push(Rest {
            body,
            bytes: 0,
            is_old: false,
        });
    }

    fn age(&mut self) {
        self.0.retain(|rest| !rest.is_old);
        for rest in &mut self.0 {
            rest.is_old = true;
        }
    }

    /// Ready when all have ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.retain_mut(|rest| {
            loop {
                match rest.body.poll_chunk(cx) {
                    Poll::Ready(Some(Ok(chunk))) => {
                        rest.bytes += chunk.len();
                        if rest.bytes > REST_BYTES_MAX {
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

/// Ends the session when the link is stopped.
pub(super) async fn keep(talk: Arc<Talk>) {
    if talk.over().await != Phase::Ending {
        return;
    }
    let held = Arc::clone(&talk.session.borrow());
    if held.id.is_some() {
        let limit = talk.spec.limits.stop;
        let sending = talk.send(&held, None, &Verb::Delete, clock::after(limit));
        // A server may refuse it; then it forgets the session by itself.
        let _ = timeout(limit, sending).await;
    }
    talk.finish(Exit::Stopping);
}
