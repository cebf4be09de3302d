//! Change listener against a scripted transport.

use std::sync::Mutex;

use bowline_core::BoxFuture;
use bowline_core::call::ServerResponse;
use bowline_core::era::Era;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::*;
use crate::demux::LinkEventSender;

/// Returns the error code for a filter, or `None` to accept.
type StreamDecider = fn(nth: usize, wish: &str) -> Option<i64>;

struct ScriptedTransport {
    decides: StreamDecider,
    /// Requested filters.
    wishes: Mutex<Vec<String>>,
    /// Ends the open streams.
    ends: watch::Sender<u32>,
    events: LinkEventSender,
}

impl ListenTransport for ScriptedTransport {
    fn start_listen(self: &Arc<Self>, request: LinkRequest) -> ChangeStream {
        let params = String::from_utf8(request.message.params.to_vec()).unwrap();
        let wish = params.split_once(r#""notifications":"#).unwrap().1;
        let wish = wish[..wish.rfind('}').unwrap()].to_owned();
        let mut wishes = self.wishes.lock().unwrap();
        let refused = (self.decides)(wishes.len(), &wish);
        wishes.push(wish.clone());
        let (tell, agreed) = oneshot::channel();
        let mut ends = self.ends.subscribe();
        let over: ChangeStreamFuture = match refused {
            Some(code) => {
                let text = format!(r#"{{"code":{code},"message":"no"}}"#);
                let answer = ServerResponse {
                    body: BodyKind::Error,
                    body_at: 0..text.len(),
                    bytes: text.into(),
                    era: Era::Modern,
                };
                Box::pin(async { Ok(answer) })
            }
            None => {
                tell.send(Bytes::from(wish)).unwrap();
                Box::pin(async move {
                    let _ = ends.changed().await;
                    Err(LinkError::Closed(LinkExit::Gone))
                })
            }
        };
        ChangeStream {
            acknowledged: agreed,
            finished: over,
        }
    }

    fn server_name(&self) -> &'static str {
        "s"
    }

    fn event_sender(&self) -> &LinkEventSender {
        &self.events
    }

    fn wait_link_closed(&self) -> BoxFuture<'_, LinkExit> {
        Box::pin(std::future::pending())
    }
}

struct ListenRig {
    script: Arc<ScriptedTransport>,
    listener: Arc<ChangeListener>,
    heard: mpsc::Receiver<LinkEvent>,
}

impl ListenRig {
    #[expect(clippy::disallowed_methods, reason = "tests have no task keeper")]
    fn new(decides: StreamDecider) -> Self {
        let (events, heard) = mpsc::channel(64);
        let script = Arc::new(ScriptedTransport {
            decides,
            wishes: Mutex::default(),
            ends: watch::Sender::new(0),
            events: LinkEventSender::new(events),
        });
        let listener = Arc::new(ChangeListener::default());
        let client = ClientInfo {
            name: "probe".into(),
            version: "9".into(),
        };
        let declared = ListenFilter {
            tools: true,
            ..ListenFilter::default()
        };
        let listening = run_listener(Arc::clone(&script), Arc::clone(&listener), client, declared);
        tokio::spawn(listening);
        Self {
            script,
            listener,
            heard,
        }
    }

    fn requested_filters(&self) -> Vec<String> {
        self.script.wishes.lock().unwrap().clone()
    }

    async fn set_resources(&self, uris: &[&str]) -> Vec<Arc<str>> {
        let uris = uris.iter().map(|uri| Arc::from(*uri)).collect();
        let deadline = now() + Duration::from_secs(5);
        self.listener.set_resources(uris, deadline).await.unwrap()
    }

    async fn wait_started(&self) {
        self.listener
            .wait_started(now() + Duration::from_secs(5))
            .await;
    }
}

const TOOLS: &str = r#"{"toolsListChanged":true}"#;
const WITH_ONE: &str = r#"{"toolsListChanged":true,"resourceSubscriptions":["u:1"]}"#;
const WITH_BOTH: &str = r#"{"toolsListChanged":true,"resourceSubscriptions":["u:1","bad:2"]}"#;

#[tokio::test(start_paused = true)]
async fn refused_stream_is_retried_until_opened() {
    let mut rig = ListenRig::new(|nth, _| (nth < 3).then_some(-32_603));
    rig.wait_started().await;
    assert_eq!(
        rig.requested_filters(),
        [TOOLS],
        "a start does not wait for more"
    );
    // Changes during the refusal are unknown.
    assert_eq!(rig.heard.recv().await, Some(LinkEvent::ToolsChanged));
    assert_eq!(rig.requested_filters(), [TOOLS; 4]);
}

#[tokio::test(start_paused = true)]
async fn unsupported_listen_is_tried_once() {
    let mut rig = ListenRig::new(|_, _| Some(code::METHOD_NOT_FOUND));
    rig.wait_started().await;
    let day = Duration::from_secs(24 * 3_600);
    assert!(timeout(day, rig.heard.recv()).await.is_err());
    assert_eq!(rig.requested_filters(), [TOOLS]);
}

#[tokio::test(start_paused = true)]
async fn renewed_stream_keeps_acknowledged_resources() {
    let mut rig = ListenRig::new(|_, wish| wish.contains("bad:").then_some(-32_602));
    assert_eq!(rig.set_resources(&["u:1"]).await, [Arc::from("u:1")]);
    assert_eq!(
        rig.set_resources(&["u:1", "bad:2"]).await,
        [Arc::from("u:1")]
    );
    rig.script.ends.send_modify(|ends| *ends += 1);
    assert_eq!(rig.heard.recv().await, Some(LinkEvent::ToolsChanged));
    let Some(LinkEvent::ResourceUpdated { uri, .. }) = rig.heard.recv().await else {
        panic!("its resource may have changed as well");
    };
    assert_eq!(&*uri, "u:1");
    let wishes = rig.requested_filters();
    assert_eq!(wishes[wishes.len() - 2..], [WITH_BOTH, WITH_ONE]);
}

#[tokio::test(start_paused = true)]
async fn lost_resources_are_retried_until_acknowledged() {
    // After the loss, the server refuses resources for a while.
    let rig = ListenRig::new(|nth, wish| {
        let trouble = (2..6).contains(&nth) && wish.contains("u:1");
        trouble.then_some(-32_603)
    });
    rig.wait_started().await;
    assert_eq!(rig.set_resources(&["u:1"]).await, [Arc::from("u:1")]);
    rig.script.ends.send_modify(|ends| *ends += 1);
    let mut agreed = rig.listener.acknowledged.subscribe();
    let lost = agreed.wait_for(|agreed| agreed.uris.is_empty());
    lost.await.unwrap();
    let again = agreed.wait_for(|agreed| !agreed.uris.is_empty());
    again.await.unwrap();
    let wishes = rig.requested_filters();
    assert_eq!(wishes[..4], [TOOLS, WITH_ONE, WITH_ONE, TOOLS]);
    assert_eq!(wishes.last().unwrap(), WITH_ONE);
}
