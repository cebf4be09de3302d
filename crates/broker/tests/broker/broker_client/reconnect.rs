//! Reconnects: shared by all callers, within each caller's deadline, and only on demand.

use std::sync::Arc;
use std::time::Duration;

use bowline_broker::{
    BrokerCallError, BrokerClient, BrokerClientOptions, BrokerConnectError, CredentialSource,
    RemotePeer as _,
};
use bowline_core::backoff::Backoff;
use bowline_core::error::ExecutionStatus;
use bowline_core::time::MonotonicTime;
use bowline_link::websocket::DialError;
use bowline_testkit::scripted_broker::{
    CuttableProxy, ScriptedBroker, client, item, output, quick_options,
};
use bowline_testkit::wait_bounded;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::{broker_call, until};

/// Options with reconnects within milliseconds.
fn quick_reconnect() -> BrokerClientOptions {
    let mut options = quick_options();
    let short = Backoff {
        base: Duration::from_millis(2),
        cap: Duration::from_millis(8),
    };
    options.reconnect.backoff = short;
    options
}

/// Returns an address without a listener.
async fn unused_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[tokio::test]
async fn callers_share_one_reconnect() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let peer = broker.accept_client(&[]).await;
    until(&client, BrokerClient::is_connected).await;
    peer.outgoing.close(1001, "going");
    until(&client, |client| !client.is_connected()).await;
    let callers = async {
        let ask = || client.call(broker_call("one", false));
        tokio::join!(ask(), ask(), ask(), ask(), ask(), ask(), ask(), ask())
    };
    let serve = async {
        let mut peer = broker.accept_client(&[]).await;
        for _ in 0..8 {
            let (id, _) = peer.request().await;
            peer.respond(&id, &output("one")).await;
        }
        peer
    };
    let (answers, _peer) = tokio::join!(callers, serve);
    assert_eq!(answers.0, Ok(output("one")));
    assert_eq!(answers.7, Ok(output("one")));
    assert_eq!(client.generation(), Some(2));
    assert!(!broker.is_dialled_within(Duration::ZERO).await, "a third");
}

#[tokio::test]
async fn half_open_connection_is_detected() {
    let broker = ScriptedBroker::start().await;
    let mut options = quick_options();
    options.socket.ping_interval = Duration::from_millis(20);
    options.socket.silence_max = Duration::from_millis(120);
    // Frames go through a proxy that can be cut silently.
    let wire = CuttableProxy::proxy_to(broker.address()).await;
    let client = BrokerClient::start(
        &wire.url(),
        CredentialSource::from_token("secret"),
        options,
        None,
    )
    .unwrap();
    let tasks = bowline_runtime::TaskTracker::default();
    let (cut, was_cut) = watch::channel(false);
    let whole = watch::Sender::new(false);
    let carry = async {
        // Only the first connection is cut.
        wire.forward_until_cut(&tasks, was_cut).await;
        wire.forward_until_cut(&tasks, whole.subscribe()).await;
    };
    let serve = async {
        let mut peer = broker.accept_client(&[]).await;
        peer.request().await;
        cut.send_replace(true);
        let mut peer = broker.accept_client(&[]).await;
        let (id, _) = peer.request().await;
        peer.respond(&id, &output("two")).await;
        peer
    };
    let calls = async {
        let lost = client.call(broker_call("one", false)).await.unwrap_err();
        assert!(matches!(lost, BrokerCallError::Lost(_)), "{lost:?}");
        client.call(broker_call("two", false)).await
    };
    let ((), _peer, answer) = tokio::join!(carry, serve, calls);
    assert_eq!(answer, Ok(output("two")));
    assert_eq!(client.generation(), Some(2));
}

#[tokio::test(start_paused = true)]
async fn callers_fail_after_the_last_attempt() {
    let mut options = BrokerClientOptions::default();
    // Far longer than the backoff between attempts.
    options.reconnect.round_backoff.base = Duration::from_secs(600);
    let clock = Arc::clone(&options.clock);
    let credential = CredentialSource::from_token("secret");
    let client = BrokerClient::start(&unused_address().await, credential, options, None).unwrap();
    let ready = client.wait_ready(MonotonicTime(3_600_000)).await;
    let refused = |error: &BrokerConnectError| {
        matches!(error, BrokerConnectError::Dial(DialError::Unreachable(_)))
    };
    assert!(ready.as_ref().is_err_and(refused), "{ready:?}");
    // Four waits between five attempts, each shortened by up to a quarter: 200, 400, 800, 1600.
    let took = clock.now().0;
    assert!((2_250..3_020).contains(&took), "{took} ms");
}

#[tokio::test(start_paused = true)]
async fn callers_fail_at_their_deadline() {
    let options = BrokerClientOptions::default();
    let clock = Arc::clone(&options.clock);
    let credential = CredentialSource::from_token("secret");
    let client = BrokerClient::start(&unused_address().await, credential, options, None).unwrap();
    for (stored, until) in [(false, 500), (true, 1_000)] {
        let mut asked = broker_call("one", stored);
        asked.deadline = MonotonicTime(until);
        let answer = client.call(asked).await;
        assert_eq!(
            answer,
            Err(BrokerCallError::Timeout(ExecutionStatus::NotStarted))
        );
        let now = clock.now().0;
        assert!((until..until + 20).contains(&now), "{now} ms");
        assert_eq!(client.pending_calls(), 0);
    }
}

#[tokio::test]
async fn expired_request_is_not_sent_after_reconnect() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_reconnect());
    let mut asked = broker_call("late", true);
    asked.deadline = MonotonicTime(50);
    let answer = client.call(asked).await;
    assert_eq!(
        answer,
        Err(BrokerCallError::Timeout(ExecutionStatus::NotStarted))
    );
    let mut peer = broker.accept_client(&[]).await;
    let serve = async {
        let letter = peer.delivery().await;
        assert!(letter.body.windows(5).any(|part| part == b"\"new\""));
        peer.serve(&letter, &output("new")).await;
    };
    let (answer, ()) = tokio::join!(client.call(broker_call("new", true)), serve);
    assert_eq!(answer, Ok(output("new")));
}

#[tokio::test]
async fn later_call_starts_a_new_round() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut options = quick_reconnect();
    // No background retry: only the call reconnects.
    options.reconnect.round_backoff.base = Duration::from_secs(600);
    options.reconnect.round_backoff.cap = Duration::from_secs(600);
    let url = format!("http://{address}");
    let client =
        BrokerClient::start(&url, CredentialSource::from_token("secret"), options, None).unwrap();
    for stored in [false, true] {
        let asked = wait_bounded(client.call(broker_call("one", stored)));
        let error = asked.await.unwrap_err();
        assert!(matches!(error, BrokerCallError::NotSent(_)), "{error:?}");
    }
    assert_eq!(client.closed_reason(), None);
    let broker = ScriptedBroker::bind_at(address).await;
    let serve = async {
        let mut peer = broker.accept_client(&[item("one", true)]).await;
        let (id, _) = peer.request().await;
        peer.respond(&id, &output("one")).await;
        peer
    };
    let asked = wait_bounded(client.call(broker_call("one", false)));
    let (answer, _peer) = tokio::join!(asked, serve);
    assert_eq!(answer, Ok(output("one")));
}

#[tokio::test]
async fn idle_client_reconnects() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_reconnect());
    for generation in 1..=4 {
        let peer = broker.accept_client(&[]).await;
        until(&client, |client| client.generation() == Some(generation)).await;
        peer.outgoing.close(4002, "the token has expired");
        peer.end().await;
    }
}
