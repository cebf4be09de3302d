//! Broker client: connection, manifest and fencing.

mod live_calls;
mod reconnect;
mod request_handler;
mod stored_calls;

use std::sync::Arc;
use std::time::Duration;

use bowline_broker::frames::{
    BrokerArguments, BrokerFrame, BrokerRefusal, BrokerRequest, BrokerResponse,
};
use bowline_broker::{
    BrokerCall, BrokerClient, BrokerConnectError, CredentialSource, RemotePeer as _,
};
use bowline_core::error::{
    ExecutionStatus, FailureClass, FailureOrigin, FailureReport, RetryAdvice,
};
use bowline_core::time::MonotonicTime;
use bowline_testkit::scripted_broker::{ScriptedBroker, client, item, quick_options};
use bowline_testkit::wait_bounded;

/// A call with a deadline far in the future.
fn broker_call(tool: &str, stored: bool) -> BrokerCall {
    BrokerCall {
        request: BrokerRequest::Call {
            tool: tool.into(),
            server: None,
            arguments: BrokerArguments::Object(br#"{"a":1.0}"#[..].into()),
        },
        stored,
        deadline: MonotonicTime(3_600_000),
        sender: None,
        client: None,
    }
}

fn failure(reason: &str) -> FailureReport {
    FailureReport {
        class: FailureClass::Unavailable,
        execution: ExecutionStatus::NotStarted,
        retry: RetryAdvice::Safe,
        origin: FailureOrigin::Broker,
        code: "server_stopped".into(),
        reason: reason.into(),
    }
}

/// Waits until `seen` is true.
async fn until(client: &BrokerClient, seen: impl Fn(&BrokerClient) -> bool) {
    let mut changes = client.subscribe_changes();
    let all = async {
        while !seen(client) {
            changes.changed().await.unwrap();
        }
    };
    wait_bounded(all).await;
}

#[tokio::test]
async fn client_authenticates_and_fetches_manifest() {
    let broker = ScriptedBroker::start().await;
    let mut options = quick_options();
    options.mailbox_part = Some("#mcp".into());
    let client = client(&broker, options);
    assert!(!client.is_connected() && client.manifest().items.is_empty());
    let mut peer = broker.peer().await;
    assert!(
        peer.head.starts_with("get /broker http/1.1\r\n"),
        "{}",
        peer.head
    );
    assert!(peer.head.contains("\r\nauthorization: bearer secret\r\n"));
    let hello = peer.handshake().await;
    assert_eq!(hello.token.as_deref(), Some("secret"));
    assert_eq!(&*hello.claimed_mailbox, "#mcp");
    assert!(!client.is_connected(), "the manifest is part of it");
    peer.respond_manifest(&[item("one", true)], 7).await;
    client.wait_ready(MonotonicTime(3_600_000)).await.unwrap();
    assert!(client.is_connected() && client.generation() == Some(1));
    assert_eq!(client.mailbox().as_deref(), Some("w#mcp"));
    assert_eq!(client.manifest().revision, 7);
    assert_eq!(client.find_tool("one"), Some(item("one", true)));
    assert_eq!(client.find_tool("two"), None);
    drop(client);
    assert!(matches!(
        peer.end().await,
        bowline_link::websocket::DisconnectReason::Closed { .. }
    ));
}

#[tokio::test]
async fn credential_is_read_for_every_connection() {
    let broker = ScriptedBroker::start().await;
    let count = std::sync::atomic::AtomicU32::new(0);
    let credential = CredentialSource::from_fn(move || {
        let nth = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(format!("secret-{nth}\n"))
    });
    let client = BrokerClient::start(&broker.url(), credential, quick_options(), None).unwrap();
    for nth in 0..2 {
        let mut peer = broker.peer().await;
        let hello = peer.handshake().await;
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
async fn missing_manifest_fails_the_connect() {
    let broker = ScriptedBroker::start().await;
    let mut options = quick_options();
    options.reconnect.attempts_max = 1;
    let client = client(&broker, options);
    let refuse = async {
        let mut peer = broker.peer().await;
        peer.handshake().await;
        let (id, ask) = peer.request().await;
        assert_eq!(ask, BrokerRequest::Manifest);
        peer.respond(&id, &BrokerResponse::Failed(failure("no list today")))
            .await;
        peer
    };
    let (ready, peer) = tokio::join!(client.wait_ready(MonotonicTime(3_600_000)), refuse);
    assert_eq!(
        ready,
        Err(BrokerConnectError::Manifest("no list today".into()))
    );
    assert!(!client.is_connected());
    // The connection is closed, not left half open.
    peer.end().await;
}

#[tokio::test]
async fn refused_client_backs_off() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let refusal = BrokerRefusal {
        reason: "a valid token is required".into(),
        id: None,
        code: Some("auth".into()),
    };
    let refuse = async {
        let mut peer = broker.peer().await;
        assert!(matches!(peer.next().await, BrokerFrame::Hello(_)));
        peer.send_frame(&BrokerFrame::Error(refusal.clone())).await;
        peer.outgoing.close(4003, "refused");
    };
    let (ready, ()) = tokio::join!(client.wait_ready(MonotonicTime(3_600_000)), refuse);
    assert_eq!(ready, Err(BrokerConnectError::Refused(refusal)));
    assert_eq!(client.closed_reason(), None, "a later call starts over");
}

#[tokio::test]
async fn changed_manifest_is_fetched_and_published() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[item("one", true)]).await;
    until(&client, BrokerClient::is_connected).await;
    let mut changes = client.subscribe_changes();
    peer.send_frame(&BrokerFrame::Changed { revision: 2 }).await;
    peer.respond_manifest(&[item("two", true)], 2).await;
    wait_bounded(changes.changed()).await.unwrap();
    assert_eq!(client.manifest().items, [item("two", true)]);
    assert_eq!(client.find_tool("one"), None);
}

#[tokio::test]
async fn failed_refetch_keeps_the_known_manifest() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[item("one", true)]).await;
    until(&client, BrokerClient::is_connected).await;
    peer.send_frame(&BrokerFrame::Changed { revision: 2 }).await;
    let (id, _) = peer.request().await;
    peer.respond(&id, &BrokerResponse::Failed(failure("busy")))
        .await;
    // The client retries the fetch, and keeps the known manifest meanwhile.
    let (id, ask) = peer.request().await;
    assert_eq!(ask, BrokerRequest::Manifest);
    assert_eq!(client.manifest().items, [item("one", true)]);
    assert!(client.is_connected());
    let items = vec![item("two", true)];
    peer.respond(&id, &BrokerResponse::Manifest { items, revision: 2 })
        .await;
    until(&client, |client| client.find_tool("two").is_some()).await;
}

#[tokio::test]
async fn connection_and_manifest_change_atomically() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut changes = client.subscribe_changes();
    let peer = broker.accept_client(&[item("one", true)]).await;
    until(&client, BrokerClient::is_connected).await;
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
        peer.handshake().await;
        peer.respond_manifest(&[item("two", true)], 2).await;
        peer
    };
    let ((), _peer) = tokio::join!(watched, again);
    assert_eq!(client.find_tool("one"), None);
}

#[tokio::test]
async fn fenced_client_does_not_reconnect() {
    let broker = ScriptedBroker::start().await;
    let options = quick_options();
    let tasks = options.tasks.clone();
    let client = client(&broker, options);
    let peer = broker.accept_client(&[item("one", false)]).await;
    until(&client, BrokerClient::is_connected).await;
    let reason: Arc<str> = "another subscriber took this mailbox".into();
    peer.send_frame(&BrokerFrame::Error(BrokerRefusal {
        reason: Arc::clone(&reason),
        id: None,
        code: Some("fenced".into()),
    }))
    .await;
    peer.outgoing.close(4001, "fenced");
    // All tasks end, so no redial is possible.
    wait_bounded(tasks.wait_finished()).await;
    assert_eq!(
        client.closed_reason(),
        Some(BrokerConnectError::Fenced(reason))
    );
    let asked = client.call(broker_call("one", false)).await.unwrap_err();
    assert_eq!(asked.execution(), ExecutionStatus::NotStarted);
    assert!(!broker.is_dialled_within(Duration::ZERO).await);
}
