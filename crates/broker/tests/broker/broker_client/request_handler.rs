//! Requests of the hub to a client, and the client's offer.

use std::sync::{Arc, Mutex};

use bowline_broker::frames::{
    BrokerFrame, BrokerRefusal, LiveRequest, MailboxMessage, MessageBody, MessageDraft, REPLY_KIND,
    REQUEST_KIND,
};
use bowline_broker::{
    BrokerClient, CredentialSource, DeliverError, HubRequestHandler, HubSender, RemotePeer as _,
};
use bowline_testkit::scripted_broker::{ScriptedBroker, ScriptedBrokerPeer, client, quick_options};
use bowline_testkit::wait_bounded;
use bytes::Bytes;
use tokio::sync::mpsc;

use super::until;

/// Records handled frames and the sender of each.
#[derive(Debug)]
struct RecordingHandler {
    taken: mpsc::Sender<(String, HubSender)>,
    refused: Mutex<Vec<BrokerRefusal>>,
}

impl RecordingHandler {
    fn record_call(&self, what: String, line: &HubSender) {
        self.taken.try_send((what, line.clone())).unwrap();
    }
}

impl HubRequestHandler for RecordingHandler {
    fn on_message(&self, letter: MailboxMessage, line: &HubSender) {
        self.record_call(format!("message {} {}", letter.kind, letter.id), line);
    }

    fn on_request(&self, request: LiveRequest, line: &HubSender) {
        self.record_call(format!("request {}", request.id), line);
    }

    fn on_cancel(&self, _of: Option<&Arc<str>>, correlation_id: &Arc<str>, line: &HubSender) {
        self.record_call(format!("cancel {correlation_id}"), line);
    }

    fn on_refused(&self, refusal: &BrokerRefusal) {
        self.refused.lock().unwrap().push(refusal.clone());
    }

    fn on_disconnected(&self, line: &HubSender) {
        self.record_call("ended".to_owned(), line);
    }
}

fn mailbox_message(id: &str, kind: &str) -> MailboxMessage {
    MailboxMessage::new(&MessageDraft {
        id,
        kind,
        body: MessageBody::Json(b"{}"),
        correlation_id: None,
        ttl_ms: None,
        created_at_ms: 0,
    })
}

type HandledFrames = mpsc::Receiver<(String, HubSender)>;

/// Connects a serving client.
async fn serving_client(
    broker: &ScriptedBroker,
) -> (
    BrokerClient,
    Arc<RecordingHandler>,
    HandledFrames,
    ScriptedBrokerPeer,
) {
    let (taken, seen) = mpsc::channel(16);
    let desk = Arc::new(RecordingHandler {
        taken,
        refused: Mutex::default(),
    });
    let mut options = quick_options();
    options.wants_manifest = false;
    let served = Some(Arc::clone(&desk) as Arc<dyn HubRequestHandler>);
    let client = BrokerClient::start(
        &broker.url(),
        CredentialSource::from_token("s"),
        options,
        served,
    )
    .unwrap();
    let mut peer = broker.peer().await;
    peer.handshake().await;
    (client, desk, seen, peer)
}

async fn next_handled(seen: &mut HandledFrames) -> (String, HubSender) {
    wait_bounded(seen.recv()).await.unwrap()
}

fn refusal(id: Option<Arc<str>>) -> BrokerRefusal {
    BrokerRefusal {
        reason: "`x` is taken".into(),
        id,
        code: Some("not_allowed".into()),
    }
}

#[tokio::test]
async fn hub_requests_reach_handler_without_ack() {
    let broker = ScriptedBroker::start().await;
    let (client, desk, mut seen, mut peer) = serving_client(&broker).await;
    peer.message("m1", REQUEST_KIND).await;
    peer.message("m2", "note").await;
    peer.send_frame(&BrokerFrame::Request(LiveRequest {
        id: "q".into(),
        body: Bytes::from_static(b"{}"),
        ..LiveRequest::default()
    }))
    .await;
    peer.send_frame(&BrokerFrame::Error(refusal(None))).await;
    peer.send_frame(&BrokerFrame::Cancel {
        to: None,
        correlation_id: "m1".into(),
    })
    .await;
    for want in [
        "message mcp_request m1",
        "message note m2",
        "request q",
        "cancel m1",
    ] {
        let (said, line) = next_handled(&mut seen).await;
        assert_eq!((&*said, line.generation()), (want, 1));
        assert_eq!(&**line.mailbox(), "w#mcp");
    }
    assert_eq!(*desk.refused.lock().unwrap(), [refusal(None)]);
    // An ack would arrive before this frame.
    client.offer_servers(Bytes::from_static(b"[]"));
    assert!(matches!(peer.next().await, BrokerFrame::Offer { .. }));
}

#[tokio::test]
async fn delivery_ends_with_receipt_or_error() {
    let broker = ScriptedBroker::start().await;
    let (_client, desk, mut seen, mut peer) = serving_client(&broker).await;
    peer.message("m", REQUEST_KIND).await;
    let (_, line) = next_handled(&mut seen).await;
    let to = "caller".into();
    let by = quick_options()
        .clock
        .instant(bowline_core::time::MonotonicTime(60_000));
    let serve = async {
        let BrokerFrame::Deliver { to, message } = peer.next().await else {
            panic!("no delivery")
        };
        assert_eq!((&*to, &*message.id), ("caller", "r1"));
        peer.receipt(&message).await;
        let BrokerFrame::Deliver { message, .. } = peer.next().await else {
            panic!("no delivery")
        };
        peer.send_frame(&BrokerFrame::Error(refusal(Some(message.id))))
            .await;
    };
    let deliver = async {
        let one = line
            .deliver(&to, mailbox_message("r1", REPLY_KIND), by)
            .await;
        let two = line
            .deliver(&to, mailbox_message("r2", REPLY_KIND), by)
            .await;
        (one, two)
    };
    let ((one, two), ()) = tokio::join!(deliver, serve);
    assert_eq!(one, Ok(()));
    assert_eq!(two, Err(DeliverError::Refused(refusal(Some("r2".into())))));
    assert_eq!(*desk.refused.lock().unwrap(), [], "somebody waited for it");

    // The handler sees the end, and the old sender reports unsent frames.
    peer.outgoing.close(1001, "going");
    let (said, over) = next_handled(&mut seen).await;
    assert_eq!((&*said, over.generation()), ("ended", 1));
    let late = line
        .deliver(&to, mailbox_message("r3", REPLY_KIND), by)
        .await;
    assert!(matches!(late, Err(DeliverError::NotSent(_))), "{late:?}");
}

#[tokio::test]
async fn offer_is_sent_after_each_connect() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[]).await;
    until(&client, BrokerClient::is_connected).await;
    let servers = |text: &'static str| Bytes::from_static(text.as_bytes());
    let offer = |revision, text| BrokerFrame::Offer {
        revision,
        servers: servers(text),
    };
    client.offer_servers(servers("[]"));
    assert_eq!(peer.next().await, offer(1, "[]"));
    client.offer_servers(servers("[1]"));
    assert_eq!(peer.next().await, offer(2, "[1]"));
    peer.outgoing.close(1001, "going");
    peer.end().await;
    let mut peer = broker.accept_client(&[]).await;
    assert_eq!(peer.next().await, offer(2, "[1]"));
}
