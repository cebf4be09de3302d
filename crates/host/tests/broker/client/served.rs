//! What a hub asks of a client, and what the client offers.

use std::sync::{Arc, Mutex};

use bowline_host::broker::{Client, Credential, DeliverError, Line, Remote as _, Served};
use bowline_wire::broker::{Draft, Frame, Letter, REPLY, REQUEST, Refusal, Request};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::until;
use crate::script::{Broker, LONG, client, quick};

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

    fn cancel(&self, correlation_id: &Arc<str>, line: &Line) {
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

#[tokio::test]
async fn what_a_hub_asks_is_handed_over_and_nothing_is_acknowledged_for_it() {
    let broker = Broker::start().await;
    let (taken, mut seen) = mpsc::channel(16);
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
    peer.say(&Frame::Message(letter("m1", REQUEST))).await;
    peer.say(&Frame::Message(letter("m2", "note"))).await;
    peer.say(&Frame::Request(Request {
        id: "q".into(),
        body: Bytes::from_static(b"{}"),
        ..Request::default()
    }))
    .await;
    peer.say(&Frame::Cancel {
        to: None,
        correlation_id: "m1".into(),
    })
    .await;
    let refusal = Refusal {
        reason: "`x` is taken".into(),
        id: None,
        code: Some("not_allowed".into()),
    };
    peer.say(&Frame::Error(refusal.clone())).await;
    let mut what = Vec::new();
    let mut line = None;
    for _ in 0..4 {
        let (said, over) = timeout(LONG, seen.recv()).await.unwrap().unwrap();
        what.push(said);
        line = Some(over);
    }
    let want = [
        "message mcp_request m1",
        "message note m2",
        "request q",
        "cancel m1",
    ];
    assert_eq!(what, want);
    let line = line.unwrap();
    assert_eq!((line.generation(), &**line.mailbox()), (1, "w#mcp"));

    // A reply has its receipt before anything is acknowledged, and a refusal is told.
    let (to, by) = (
        "caller".into(),
        quick().clock.instant(bowline_core::time::Now(60_000)),
    );
    let serve = async {
        let Frame::Deliver { to, letter } = peer.next().await else {
            panic!("no delivery")
        };
        assert_eq!((&*to, &*letter.id), ("caller", "r1"));
        peer.receipt(&letter).await;
        let Frame::Deliver { letter, .. } = peer.next().await else {
            panic!("no delivery")
        };
        peer.say(&Frame::Error(Refusal {
            id: Some(letter.id),
            ..refusal.clone()
        }))
        .await;
    };
    let deliver = async {
        let one = line.deliver(&to, letter("r1", REPLY), by).await;
        let two = line.deliver(&to, letter("r2", REPLY), by).await;
        (one, two)
    };
    let ((one, two), ()) = tokio::join!(deliver, serve);
    assert_eq!(one, Ok(()));
    assert!(matches!(two, Err(DeliverError::Refused(_))), "{two:?}");
    assert_eq!(*desk.refused.lock().unwrap(), [refusal]);

    // The end is told, and the old line says that nothing left.
    peer.outgoing.close(1001, "going");
    let (said, over) = timeout(LONG, seen.recv()).await.unwrap().unwrap();
    assert_eq!((&*said, over.generation()), ("ended", 1));
    let late = line.deliver(&to, letter("r3", REPLY), by).await;
    assert!(matches!(late, Err(DeliverError::NotSent(_))), "{late:?}");
    drop(client);
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
