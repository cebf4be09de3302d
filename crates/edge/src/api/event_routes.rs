//! `GET /api/v1/events`: live event stream of server state.

use std::sync::Arc;

use axum::http::StatusCode;
use bowline_api::VERSION;
use bowline_api::events::{HelloEvent, HostEvent, MissedEvents};
use bowline_runtime::Shutdown;
use bowline_wire::sse;
use bytes::Bytes;
use serde::Serialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};
use tokio::time::MissedTickBehavior;

use super::ApiError;
use crate::Edge;
use crate::event_stream::KEEP_ALIVE_INTERVAL;
use crate::response_body::{self, EdgeResponse};
use crate::watcher_body::WatcherBody;

/// Maximum number of concurrent event stream clients.
pub(crate) const WATCHERS_MAX: usize = 64;

/// Events queued per client; a client with a full queue falls behind and skips events.
const QUEUED_EVENTS_MAX: usize = 32;

/// Opens an event stream that starts with a `hello` snapshot of all servers.
pub(super) async fn open_event_stream(edge: &Arc<Edge>) -> EdgeResponse {
    let Ok(permit) = Arc::clone(&edge.watcher_permits).try_acquire_owned() else {
        let message = format!("{WATCHERS_MAX} watch already");
        let busy = StatusCode::TOO_MANY_REQUESTS;
        return ApiError::new(busy, "too_many_watchers", &message).into_edge_response();
    };
    let events = edge.host.events();
    // Subscribe before the snapshot: an event in between is delivered twice rather than lost.
    let (subscription, host_shutdown) = (events.subscribe(), events.shutdown().clone());
    let seq = events.last_seq();
    let servers = edge.host.status_with_memory().await;
    let hello = HelloEvent {
        v: VERSION,
        event: "hello".into(),
        seq,
        servers,
    };
    let (sender, receiver) = mpsc::channel(QUEUED_EVENTS_MAX);
    let pump = EventPump {
        hello: frame_event(Some(seq), "hello", &hello),
        events: subscription,
        host_shutdown,
        sender,
    };
    edge.host.tasks().spawn("watcher", pump.run());
    response_body::watcher_response(WatcherBody::new(receiver, permit))
}

/// Forwards events to one client at the client's pace.
#[derive(Debug)]
struct EventPump {
    hello: Bytes,
    events: broadcast::Receiver<HostEvent>,
    host_shutdown: Shutdown,
    sender: mpsc::Sender<Bytes>,
}

impl EventPump {
    async fn run(mut self) {
        if self.sender.send(self.hello).await.is_err() {
            return;
        }
        let mut alive = tokio::time::interval(KEEP_ALIVE_INTERVAL);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        alive.reset();
        loop {
            let next = tokio::select! {
                biased;
                () = self.sender.closed() => return,
                heard = self.events.recv() => match heard {
                    Ok(event) => frame_event(Some(event.seq), event.kind.as_str(), &event),
                    Err(RecvError::Lagged(missed)) => {
                        let event = "missed".into();
                        frame_event(None, "missed", &MissedEvents { event, missed })
                    }
                    Err(RecvError::Closed) => return,
                },
                () = self.host_shutdown.wait_closing() => return,
                _ = alive.tick() => {
                    let mut comment = Vec::new();
                    sse::encode_comment(&mut comment, "alive");
                    comment.into()
                }
            };
            alive.reset();
            let sent = tokio::select! {
                sent = self.sender.send(next) => sent,
                () = self.host_shutdown.wait_closing() => return,
            };
            if sent.is_err() {
                return;
            }
        }
    }
}

fn frame_event(seq: Option<u64>, name: &str, data: &impl Serialize) -> Bytes {
    let id = seq.map(|seq| seq.to_string());
    let data = serde_json::to_vec(data).unwrap_or_default();
    let mut out = Vec::with_capacity(data.len() + 64);
    let event = sse::SseEvent {
        id: id.as_deref(),
        event: Some(name),
        data: &data,
    };
    // Encoding fails only for line breaks in the id or name, and neither contains any.
    let _ = sse::encode_event(&mut out, &event);
    out.into()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests have no task keeper")]
mod tests {
    use bowline_host::events::{EventBus, EventKind};
    use bowline_runtime::SystemClock;
    use serde_json::json;
    use tokio::task::JoinHandle;

    use super::*;

    fn start_pump() -> (EventBus, mpsc::Receiver<Bytes>) {
        let (events, receiver, _pump) = spawn_pump();
        (events, receiver)
    }

    fn spawn_pump() -> (EventBus, mpsc::Receiver<Bytes>, JoinHandle<()>) {
        let events = EventBus::new(Arc::new(SystemClock::start()));
        let (sender, receiver) = mpsc::channel(QUEUED_EVENTS_MAX);
        let pump = EventPump {
            hello: frame_event(Some(0), "hello", &json!({})),
            events: events.subscribe(),
            host_shutdown: events.shutdown().clone(),
            sender,
        };
        let pump = tokio::spawn(pump.run());
        (events, receiver, pump)
    }

    async fn next_frame(receiver: &mut mpsc::Receiver<Bytes>) -> Option<String> {
        let bytes = receiver.recv().await?;
        Some(String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn slow_watcher_receives_missed_count() {
        let (events, mut receiver) = start_pump();
        let hello = next_frame(&mut receiver).await.unwrap();
        assert_eq!(hello, "id: 0\nevent: hello\ndata: {}\n\n");
        for version in 1..=5_000 {
            events.publish(EventKind::Catalog { version });
        }
        let mut delivered = 0;
        let mut missed = 0;
        while delivered + missed < 5_000 {
            let text = next_frame(&mut receiver).await.unwrap();
            if let Some(data) = text.strip_prefix("event: missed\ndata: ") {
                let data: serde_json::Value = serde_json::from_str(data.trim()).unwrap();
                missed += data["missed"].as_u64().unwrap();
            } else {
                assert!(text.contains("\nevent: catalog\n"), "{text}");
                delivered += 1;
            }
        }
        assert!(missed > 3_000, "{missed}");
        assert_eq!(delivered + missed, 5_000);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_stream_sends_keep_alive_until_end() {
        let (events, mut receiver) = start_pump();
        next_frame(&mut receiver).await.unwrap();
        assert_eq!(next_frame(&mut receiver).await.unwrap(), ": alive\n\n");
        events.close();
        assert_eq!(next_frame(&mut receiver).await, None);
    }

    /// Half a keep-alive interval: a pump that only sees the end at its next frame runs longer.
    #[tokio::test(start_paused = true)]
    async fn pump_stops_when_watcher_leaves() {
        let (events, mut receiver, pump) = spawn_pump();
        next_frame(&mut receiver).await.unwrap();
        assert_eq!(events.subscriber_count(), 1);
        drop(receiver);
        let stopped = tokio::time::timeout(KEEP_ALIVE_INTERVAL / 2, pump).await;
        stopped.expect("the pump outlives its watcher").unwrap();
        assert_eq!(events.subscriber_count(), 0);
    }
}
