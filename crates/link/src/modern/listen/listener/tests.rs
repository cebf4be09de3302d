//! A server that agrees to streams or not as the test says.

use std::sync::Mutex;

use bowline_core::era::Era;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::*;
use crate::desk::Events;
use crate::link::{Answer, BoxFuture};

/// Refuses a wish with this code, or agrees to it.
type Decides = fn(nth: usize, wish: &str) -> Option<i64>;

struct Script {
    decides: Decides,
    /// What was asked for.
    wishes: Mutex<Vec<String>>,
    /// Ends the streams that are open.
    ends: watch::Sender<u32>,
    events: Events,
}

impl Ear for Script {
    fn open(self: &Arc<Self>, request: Request) -> Opened {
        let params = String::from_utf8(request.params.unwrap().to_vec()).unwrap();
        let wish = params.split_once(r#""notifications":"#).unwrap().1;
        let wish = wish[..wish.rfind('}').unwrap()].to_owned();
        let mut wishes = self.wishes.lock().unwrap();
        let refused = (self.decides)(wishes.len(), &wish);
        wishes.push(wish.clone());
        let (tell, agreed) = oneshot::channel();
        let mut ends = self.ends.subscribe();
        let over: Streaming = match refused {
            Some(code) => {
                let text = format!(r#"{{"code":{code},"message":"no"}}"#);
                let answer = Answer {
                    body: Body::Error,
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
                    Err(LinkError::Closed(Exit::Gone))
                })
            }
        };
        Opened { agreed, over }
    }

    fn server(&self) -> &'static str {
        "s"
    }

    fn events(&self) -> &Events {
        &self.events
    }

    fn gone(&self) -> BoxFuture<'_, Exit> {
        Box::pin(std::future::pending())
    }
}

struct Rig {
    script: Arc<Script>,
    listener: Arc<Listener>,
    heard: mpsc::Receiver<LinkEvent>,
}

impl Rig {
    #[expect(clippy::disallowed_methods, reason = "tests have no task keeper")]
    fn new(decides: Decides) -> Self {
        let (events, heard) = mpsc::channel(64);
        let script = Arc::new(Script {
            decides,
            wishes: Mutex::default(),
            ends: watch::Sender::new(0),
            events: Events::new(events),
        });
        let listener = Arc::new(Listener::default());
        let client = ClientInfo {
            name: "probe".into(),
            version: "9".into(),
        };
        let declared = Filter {
            tools: true,
            ..Filter::default()
        };
        let listening = listen(Arc::clone(&script), Arc::clone(&listener), client, declared);
        tokio::spawn(listening);
        Self {
            script,
            listener,
            heard,
        }
    }

    fn wishes(&self) -> Vec<String> {
        self.script.wishes.lock().unwrap().clone()
    }

    async fn listen_to(&self, uris: &[&str]) -> Vec<Arc<str>> {
        let uris = uris.iter().map(|uri| Arc::from(*uri)).collect();
        let deadline = now() + Duration::from_secs(5);
        self.listener.listen_to(uris, deadline).await.unwrap()
    }

    async fn begun(&self) {
        self.listener.begun(now() + Duration::from_secs(5)).await;
    }
}

const TOOLS: &str = r#"{"toolsListChanged":true}"#;
const WITH_ONE: &str = r#"{"toolsListChanged":true,"resourceSubscriptions":["u:1"]}"#;
const WITH_BOTH: &str = r#"{"toolsListChanged":true,"resourceSubscriptions":["u:1","bad:2"]}"#;

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_for_now_is_asked_again_until_it_agrees() {
    let mut rig = Rig::new(|nth, _| (nth < 3).then_some(-32_603));
    rig.begun().await;
    assert_eq!(rig.wishes(), [TOOLS], "a start does not wait for more");
    // What changed meanwhile is not known.
    assert_eq!(rig.heard.recv().await, Some(LinkEvent::ToolsChanged));
    assert_eq!(rig.wishes(), [TOOLS; 4]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_knows_of_no_streams_is_asked_once() {
    let mut rig = Rig::new(|_, _| Some(code::METHOD_NOT_FOUND));
    rig.begun().await;
    let day = Duration::from_secs(24 * 3_600);
    assert!(timeout(day, rig.heard.recv()).await.is_err());
    assert_eq!(rig.wishes(), [TOOLS]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_made_anew_has_what_was_agreed_to_whatever_else_is_refused() {
    let mut rig = Rig::new(|_, wish| wish.contains("bad:").then_some(-32_602));
    assert_eq!(rig.listen_to(&["u:1"]).await, [Arc::from("u:1")]);
    assert_eq!(rig.listen_to(&["u:1", "bad:2"]).await, [Arc::from("u:1")]);
    rig.script.ends.send_modify(|ends| *ends += 1);
    assert_eq!(rig.heard.recv().await, Some(LinkEvent::ToolsChanged));
    let Some(LinkEvent::ResourceUpdated { uri, .. }) = rig.heard.recv().await else {
        panic!("its resource may have changed as well");
    };
    assert_eq!(&*uri, "u:1");
    let wishes = rig.wishes();
    assert_eq!(wishes[wishes.len() - 2..], [WITH_BOTH, WITH_ONE]);
}

#[tokio::test(start_paused = true)]
async fn resources_that_were_agreed_to_are_asked_for_until_they_are_again() {
    // After the stream was lost, it has trouble with resources for a while.
    let rig = Rig::new(|nth, wish| {
        let trouble = (2..6).contains(&nth) && wish.contains("u:1");
        trouble.then_some(-32_603)
    });
    rig.begun().await;
    assert_eq!(rig.listen_to(&["u:1"]).await, [Arc::from("u:1")]);
    rig.script.ends.send_modify(|ends| *ends += 1);
    let mut agreed = rig.listener.agreed.subscribe();
    let lost = agreed.wait_for(|agreed| agreed.uris.is_empty());
    lost.await.unwrap();
    let again = agreed.wait_for(|agreed| !agreed.uris.is_empty());
    again.await.unwrap();
    let wishes = rig.wishes();
    assert_eq!(wishes[..4], [TOOLS, WITH_ONE, WITH_ONE, TOOLS]);
    assert_eq!(wishes.last().unwrap(), WITH_ONE);
}
