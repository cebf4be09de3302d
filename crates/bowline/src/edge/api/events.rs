//! `GET /api/v1/events`: what happens to servers, as it happens.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use bowline_host::events::Event;
use bowline_wire::sse;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use serde::Serialize;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::MissedTickBehavior;

use super::Failure;
use crate::edge::Edge;
use crate::edge::body::{self, Answer, EdgeBody};
use crate::edge::stream::KEEP_ALIVE;
use crate::edge::watcher::Watcher;

/// Who may watch at the same time.
pub(in crate::edge) const WATCHERS_MAX: usize = 64;

/// Events that wait for one watcher's connection; behind them, the watcher falls behind.
const WAITING_MAX: usize = 32;

/// Begins to tell one watcher what happens, after how everything stands.
pub(super) async fn watch(edge: &Arc<Edge>) -> Answer {
    let Ok(place) = Arc::clone(&edge.watchers).try_acquire_owned() else {
        let message = format!("{WATCHERS_MAX} watch already");
        let busy = StatusCode::TOO_MANY_REQUESTS;
        let refused = Failure::plain(busy, "too_many_watchers", &message).into_response();
        return refused.map(|body| EdgeBody::Api(Box::new(body.boxed_unsync())));
    };
    let events = edge.host.events();
    // Before we look: what happens in between is told twice rather than never.
    let (heard, ended) = (events.watch(), events.ended());
    let seq = events.newest();
    let servers = edge.host.measured().await;
    let hello = json!({"v": 1, "event": "hello", "seq": seq, "servers": servers});
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    let pump = Pump {
        hello: frame(Some(seq), "hello", &hello),
        heard,
        ended,
        sender,
    };
    edge.host.tasks().spawn("watcher", pump.run());
    body::watcher(Watcher::new(receiver, place))
}

/// Brings events to one watcher, at the watcher's pace.
#[derive(Debug)]
struct Pump {
    hello: Bytes,
    heard: broadcast::Receiver<Event>,
    ended: watch::Receiver<bool>,
    sender: mpsc::Sender<Bytes>,
}

impl Pump {
    async fn run(mut self) {
        if self.sender.send(self.hello).await.is_err() {
            return;
        }
        let mut alive = tokio::time::interval(KEEP_ALIVE);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        alive.reset();
        loop {
            let next = tokio::select! {
                biased;
                () = self.sender.closed() => return,
                heard = self.heard.recv() => match heard {
                    Ok(event) => frame(Some(event.seq), event.what.as_str(), &event),
                    Err(RecvError::Lagged(missed)) => {
                        frame(None, "missed", &json!({"event": "missed", "missed": missed}))
                    }
                    Err(RecvError::Closed) => return,
                },
                // Whoever could say so being gone means the same.
                _ = self.ended.wait_for(|ended| *ended) => return,
                _ = alive.tick() => {
                    let mut comment = Vec::new();
                    sse::comment(&mut comment, "alive");
                    comment.into()
                }
            };
            alive.reset();
            let sent = tokio::select! {
                sent = self.sender.send(next) => sent,
                _ = self.ended.wait_for(|ended| *ended) => return,
            };
            if sent.is_err() {
                return;
            }
        }
    }
}

fn frame(seq: Option<u64>, name: &str, data: &impl Serialize) -> Bytes {
    let id = seq.map(|seq| seq.to_string());
    let data = serde_json::to_vec(data).unwrap_or_default();
    let mut out = Vec::with_capacity(data.len() + 64);
    let event = sse::Event {
        id: id.as_deref(),
        event: Some(name),
        data: &data,
    };
    // Only an id or a name can be refused, and ours hold no line breaks.
    let _ = sse::encode(&mut out, &event);
    out.into()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests have no task keeper")]
mod tests {
    use bowline_host::events::{Events, What};
    use bowline_host::ports::SystemClock;

    use super::*;

    fn stage() -> (Events, mpsc::Receiver<Bytes>) {
        let events = Events::new(Arc::new(SystemClock::start()));
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let pump = Pump {
            hello: frame(Some(0), "hello", &json!({})),
            heard: events.watch(),
            ended: events.ended(),
            sender,
        };
        tokio::spawn(pump.run());
        (events, receiver)
    }

    async fn next(receiver: &mut mpsc::Receiver<Bytes>) -> Option<String> {
        let bytes = receiver.recv().await?;
        Some(String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_watcher_that_falls_behind_is_told_how_much_it_missed() {
        let (events, mut receiver) = stage();
        let hello = next(&mut receiver).await.unwrap();
        assert_eq!(hello, "id: 0\nevent: hello\ndata: {}\n\n");
        for version in 1..=5_000 {
            events.tell(What::Catalog { version });
        }
        let mut told = 0;
        let mut missed = 0;
        while told + missed < 5_000 {
            let text = next(&mut receiver).await.unwrap();
            if let Some(data) = text.strip_prefix("event: missed\ndata: ") {
                let data: serde_json::Value = serde_json::from_str(data.trim()).unwrap();
                missed += data["missed"].as_u64().unwrap();
            } else {
                assert!(text.contains("\nevent: catalog\n"), "{text}");
                told += 1;
            }
        }
        assert!(missed > 3_000, "{missed}");
        assert_eq!(told + missed, 5_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_stream_says_that_it_is_alive_and_ends_at_the_end() {
        let (events, mut receiver) = stage();
        next(&mut receiver).await.unwrap();
        assert_eq!(next(&mut receiver).await.unwrap(), ": alive\n\n");
        events.end();
        assert_eq!(next(&mut receiver).await, None);
    }

    #[tokio::test]
    async fn nobody_works_for_a_watcher_that_left() {
        let (events, receiver) = stage();
        drop(receiver);
        // The last sender of the pump is gone when its receiver of events is.
        while events.watchers() > 0 {
            tokio::task::yield_now().await;
        }
    }
}
