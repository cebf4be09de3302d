//! What a hub asks of a client, and what the client offers.

use std::sync::{Arc, Mutex};

use bowline_host::broker::{Client, Credential, DeliverError, Line, Remote as _, Served};
use bowline_wire::broker::{Draft, Frame, Letter, REPLY, REQUEST, Refusal, Request};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::until;
use crate::script::{Broker, LONG, Peer, client, quick};

/// Keeps what it is handed, and the line it came over.
#[derive(Debug)]
struct Desk {
    taken: mpsc::Sender<(String, Line)>,
    refused: Mutex<Vec<Refusal>>,
}

impl Desk {
    fn note(&self, what: String, line: &Line) {
        self.taken.try_send((what, line.clone())).unwrap();
    }
}

impl Served for Desk {
    fn message(&self, letter: Letter, line: &Line) {
        self.note(format!("message {} {}", letter.kind, letter.id), line);
    }

    fn request(&self, request: Request, line: &Line) {
        self.note(format!("request {}", request.id), line);
    }

    fn cancel(&self, _of: Option<&Arc<str>>, correlation_id: &Arc<str>, line: &Line) {
        self.note(format!("cancel {correlation_id}"), line);
    }

    fn refused(&self, refusal: &Refusal) {
        self.refused.lock().unwrap().push(refusal.clone());
    }

    fn ended(&self, line: &Line) {
        self.note("ended".to_owned(), line);
    }
}

fn letter(id: &str, kind: &str) -> Letter {
    Letter::new(&Draft {
        id,
        kind,
        body: b"{}",
        correlation_id: None,
        ttl_ms: None,
        created_at_ms: 0,
    })
}

type Taken = mpsc::Receiver<(String, Line)>;

/// Connects a client that serves, and is let in.
async fn serving(broker: &Broker) -> (Client, Arc<Desk>, Taken, Peer) {
    let (taken, seen) = mpsc::channel(16);
    let desk = Arc::new(Desk {
        taken,
        refused: Mutex::default(),
    });
    let mut options = quick();
    options.wants_manifest = false;
    let served = Some(Arc::clone(&desk) as Arc<dyn Served>);
    let client = Client::start(&broker.url(), Credential::fixed("s"), options, served).unwrap();
    let mut peer = broker.peer().await;
    peer.greet().await;
    (client, desk, seen, peer)
}

async fn taken(seen: &mut Taken) -> (String, Line) {
    timeout(LONG, seen.recv()).await.unwrap().unwrap()
}

fn refusal(id: Option<Arc<str>>) -> Refusal {
    Refusal {
        reason: "`x` is taken".into(),
        id,
        code: Some("not_allowed".into()),
    }
}

#[tokio::test]
async fn what_a_hub_asks_is_handed_over_and_nothing_is_acknowledged_for_it() {
    let broker = Broker::start().await;
    let (client, desk, mut seen, mut peer) = serving(&broker).await;
    peer.message("m1", REQUEST).await;
    peer.message("m2", "note").await;
    peer.say(&Frame::Request(Request {
        id: "q".into(),
        body: Bytes::from_static(b"{}"),
        ..Request::default()
    }))
    .await;
    peer.say(&Frame::Error(refusal(None))).await;
    peer.say(&Frame::Cancel {
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
        let (said, line) = taken(&mut seen).await;
        assert_eq!((&*said, line.generation()), (want, 1));
        assert_eq!(&**line.mailbox(), "w#mcp");
    }
    assert_eq!(*desk.refused.lock().unwrap(), [refusal(None)]);
    // Acknowledgements would come before this.
    client.offer(Bytes::from_static(b"[]"));
    assert!(matches!(peer.next().await, Frame::Offer { .. }));
}

#[tokio::test]
async fn what_is_sent_over_a_line_has_a_receipt_or_a_reason() {
    let broker = Broker::start().await;
    let (_client, desk, mut seen, mut peer) = serving(&broker).await;
    peer.message("m", REQUEST).await;
    let (_, line) = taken(&mut seen).await;
    let to = "caller".into();
    let by = quick().clock.instant(bowline_core::time::Now(60_000));
    let serve = async {
        let Frame::Deliver { to, letter } = peer.next().await else {
            panic!("no delivery")
        };
        assert_eq!((&*to, &*letter.id), ("caller", "r1"));
        peer.receipt(&letter).await;
        let Frame::Deliver { letter, .. } = peer.next().await else {
            panic!("no delivery")
        };
        peer.say(&Frame::Error(refusal(Some(letter.id)))).await;
    };
    let deliver = async {
        let one = line.deliver(&to, letter("r1", REPLY), by).await;
        let two = line.deliver(&to, letter("r2", REPLY), by).await;
        (one, two)
    };
    let ((one, two), ()) = tokio::join!(deliver, serve);
    assert_eq!(one, Ok(()));
    assert_eq!(two, Err(DeliverError::Refused(refusal(Some("r2".into())))));
    assert_eq!(*desk.refused.lock().unwrap(), [], "somebody waited for it");

    // The end is told, and the old line says that nothing left.
    peer.outgoing.close(1001, "going");
    let (said, over) = taken(&mut seen).await;
    assert_eq!((&*said, over.generation()), ("ended", 1));
    let late = line.deliver(&to, letter("r3", REPLY), by).await;
    assert!(matches!(late, Err(DeliverError::NotSent(_))), "{late:?}");
}

#[tokio::test]
async fn an_offer_is_made_at_once_and_after_each_reconnect() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[]).await;
    until(&client, Client::is_connected).await;
    let servers = |text: &'static str| Bytes::from_static(text.as_bytes());
    let offer = |revision, text| Frame::Offer {
        revision,
        servers: servers(text),
    };
    client.offer(servers("[]"));
    assert_eq!(peer.next().await, offer(1, "[]"));
    client.offer(servers("[1]"));
    assert_eq!(peer.next().await, offer(2, "[1]"));
    peer.outgoing.close(1001, "going");
    peer.end().await;
    let mut peer = broker.let_in(&[]).await;
    assert_eq!(peer.next().await, offer(2, "[1]"));
}
