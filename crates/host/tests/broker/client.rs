//! A client of a hub: one connection at a time, and what waits on it.

mod comeback;
mod live;
mod served;
mod stored;

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::{Class, Execution, Failure, Origin, Retry};
use bowline_core::time::Now;
use bowline_host::broker::{Client, ConnectError, Credential, Errand, Remote as _};
use bowline_wire::broker::{Answer, Arguments, Ask, Frame, Refusal};
use tokio::time::timeout;

use crate::script::{Broker, LONG, client, item, quick};

/// An errand that nobody gives up on by itself.
fn errand(tool: &str, stored: bool) -> Errand {
    Errand {
        ask: Ask::Call {
            tool: tool.into(),
            server: None,
            arguments: Arguments::Object(br#"{"a":1.0}"#[..].into()),
        },
        stored,
        deadline: Now(3_600_000),
        caller: None,
        sink: None,
    }
}

fn failure(reason: &str) -> Failure {
    Failure {
        class: Class::Unavailable,
        execution: Execution::NotStarted,
        retry: Retry::Safe,
        origin: Origin::Broker,
        code: "server_stopped".into(),
        reason: reason.into(),
    }
}

/// Waits until `seen` is so.
async fn until(client: &Client, seen: impl Fn(&Client) -> bool) {
    let mut changes = client.changes();
    let all = async {
        while !seen(client) {
            changes.changed().await.unwrap();
        }
    };
    timeout(LONG, all).await.unwrap();
}

#[tokio::test]
async fn a_client_says_who_it_is_and_learns_what_there_is() {
    let broker = Broker::start().await;
    let mut options = quick();
    options.part = Some("#mcp".into());
    let client = client(&broker, options);
    assert!(!client.is_connected() && client.manifest().items.is_empty());
    let mut peer = broker.peer().await;
    assert!(
        peer.head.starts_with("get /broker http/1.1\r\n"),
        "{}",
        peer.head
    );
    assert!(peer.head.contains("\r\nauthorization: bearer secret\r\n"));
    let hello = peer.greet().await;
    assert_eq!(hello.token.as_deref(), Some("secret"));
    assert_eq!(&*hello.session_id, "#mcp");
    assert!(!client.is_connected(), "the manifest is part of it");
    peer.list(&[item("one", true)], 7).await;
    client.ready(Now(3_600_000)).await.unwrap();
    assert!(client.is_connected() && client.generation() == Some(1));
    assert_eq!(client.mailbox().as_deref(), Some("w#mcp"));
    assert_eq!(client.manifest().revision, 7);
    assert_eq!(client.item("one"), Some(item("one", true)));
    assert_eq!(client.item("two"), None);
    drop(client);
    assert!(matches!(
        peer.end().await,
        bowline_link::websocket::Ended::Closed { .. }
    ));
}

#[tokio::test]
async fn a_credential_is_read_for_every_connection() {
    let broker = Broker::start().await;
    let count = std::sync::atomic::AtomicU32::new(0);
    let credential = Credential::reading(move || {
        let nth = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(format!("secret-{nth}\n"))
    });
    let client = Client::start(&broker.url(), credential, quick(), None).unwrap();
    for nth in 0..2 {
        let mut peer = broker.peer().await;
        let hello = peer.greet().await;
        let token = format!("secret-{nth}");
        assert_eq!(hello.token.as_deref(), Some(&*token));
        assert!(
            peer.head
                .contains(&format!("authorization: bearer {token}\r\n"))
        );
        peer.outgoing.close(1001, "going");
        peer.end().await;
    }
    drop(client);
}

#[tokio::test]
async fn a_hub_that_does_not_say_what_it_offers_fails_the_connect() {
    let broker = Broker::start().await;
    let mut options = quick();
    options.reconnect.attempts_max = 1;
    let client = client(&broker, options);
    let refuse = async {
        let mut peer = broker.peer().await;
        peer.greet().await;
        let (id, ask) = peer.request().await;
        assert_eq!(ask, Ask::Manifest);
        peer.respond(&id, &Answer::Failed(failure("no list today")))
            .await;
        peer
    };
    let (ready, peer) = tokio::join!(client.ready(Now(3_600_000)), refuse);
    assert_eq!(ready, Err(ConnectError::Manifest("no list today".into())));
    assert!(!client.is_connected());
    // It is not left half open.
    peer.end().await;
}

#[tokio::test]
async fn a_hub_that_refuses_us_is_not_asked_again_at_once() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let refusal = Refusal {
        reason: "a valid token is required".into(),
        id: None,
        code: Some("auth".into()),
    };
    let refuse = async {
        let mut peer = broker.peer().await;
        assert!(matches!(peer.next().await, Frame::Hello(_)));
        peer.say(&Frame::Error(refusal.clone())).await;
        peer.outgoing.close(4003, "refused");
    };
    let (ready, ()) = tokio::join!(client.ready(Now(3_600_000)), refuse);
    assert_eq!(ready, Err(ConnectError::Refused(refusal)));
    assert_eq!(client.ended(), None, "a later call starts over");
}

#[tokio::test]
async fn a_changed_list_is_fetched_and_told() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[item("one", true)]).await;
    until(&client, Client::is_connected).await;
    let mut changes = client.changes();
    peer.say(&Frame::Changed { revision: 2 }).await;
    peer.list(&[item("two", true)], 2).await;
    timeout(LONG, changes.changed()).await.unwrap().unwrap();
    assert_eq!(client.manifest().items, [item("two", true)]);
    assert_eq!(client.item("one"), None);
}

#[tokio::test]
async fn a_list_that_cannot_be_fetched_again_stays_as_it_was_known() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[item("one", true)]).await;
    until(&client, Client::is_connected).await;
    peer.say(&Frame::Changed { revision: 2 }).await;
    let (id, _) = peer.request().await;
    peer.respond(&id, &Answer::Failed(failure("busy"))).await;
    // It asks again by itself, and until then has what it had.
    let (id, ask) = peer.request().await;
    assert_eq!(ask, Ask::Manifest);
    assert_eq!(client.manifest().items, [item("one", true)]);
    assert!(client.is_connected());
    let items = vec![item("two", true)];
    peer.respond(&id, &Answer::Manifest { items, revision: 2 })
        .await;
    until(&client, |client| client.item("two").is_some()).await;
}

#[tokio::test]
async fn connection_and_manifest_change_as_one() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut changes = client.changes();
    let peer = broker.let_in(&[item("one", true)]).await;
    until(&client, Client::is_connected).await;
    let watched = async {
        loop {
            changes.changed().await.unwrap();
            match client.generation() {
                Some(2) => return assert_eq!(client.manifest().revision, 2),
                Some(_) | None => assert_eq!(client.manifest().revision, 1),
            }
        }
    };
    let again = async {
        peer.outgoing.close(1001, "going");
        let mut peer = broker.peer().await;
        peer.greet().await;
        peer.list(&[item("two", true)], 2).await;
        peer
    };
    let ((), _peer) = tokio::join!(watched, again);
    assert_eq!(client.item("one"), None);
}

#[tokio::test]
async fn whoever_was_fenced_says_so_and_does_not_come_back() {
    let broker = Broker::start().await;
    let options = quick();
    let tasks = options.tasks.clone();
    let client = client(&broker, options);
    let peer = broker.let_in(&[item("one", false)]).await;
    until(&client, Client::is_connected).await;
    let reason: Arc<str> = "another subscriber took this mailbox".into();
    peer.say(&Frame::Error(Refusal {
        reason: Arc::clone(&reason),
        id: None,
        code: Some("fenced".into()),
    }))
    .await;
    peer.outgoing.close(4001, "fenced");
    // All its tasks end, so nobody is left who could dial.
    timeout(LONG, tasks.finished()).await.unwrap();
    assert_eq!(client.ended(), Some(ConnectError::Fenced(reason)));
    let asked = client.ask(errand("one", false)).await.unwrap_err();
    assert_eq!(asked.execution(), Execution::NotStarted);
    assert!(!broker.is_dialled_within(Duration::ZERO).await);
}
