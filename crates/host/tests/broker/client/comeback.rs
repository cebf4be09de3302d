//! Coming back: once for all, inside the deadline of whoever asks, and never for nothing.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::error::Execution;
use bowline_core::time::Now;
use bowline_host::broker::{
    Client, ClientOptions, ConnectError, Credential, ErrandError, Remote as _,
};
use bowline_link::websocket::DialError;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

use super::{errand, until};
use crate::script::{Broker, LONG, Wire, client, item, output, quick};

/// Options of one who comes back within milliseconds.
fn hasty() -> ClientOptions {
    let mut options = quick();
    let short = Backoff {
        base: Duration::from_millis(2),
        cap: Duration::from_millis(8),
    };
    options.reconnect.backoff = short;
    options
}

/// Returns an address where nobody listens.
async fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[tokio::test]
async fn many_callers_wait_for_one_new_connection() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let peer = broker.let_in(&[]).await;
    until(&client, Client::is_connected).await;
    peer.outgoing.close(1001, "going");
    until(&client, |client| !client.is_connected()).await;
    let callers = async {
        let ask = || client.ask(errand("one", false));
        tokio::join!(ask(), ask(), ask(), ask(), ask(), ask(), ask(), ask())
    };
    let serve = async {
        let mut peer = broker.let_in(&[]).await;
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
async fn a_half_open_connection_is_found_and_left() {
    let broker = Broker::start().await;
    let mut options = quick();
    options.socket.ping_every = Duration::from_millis(20);
    options.socket.silence_max = Duration::from_millis(120);
    // Frames go through a wire that can be cut without a word.
    let wire = Wire::to(broker.address()).await;
    let client = Client::start(&wire.url(), Credential::fixed("secret"), options, None).unwrap();
    let tasks = bowline_host::tasks::Tasks::default();
    let (cut, was_cut) = watch::channel(false);
    let whole = watch::Sender::new(false);
    let carry = async {
        // The first connection is cut, the next is not.
        wire.carry(&tasks, was_cut).await;
        wire.carry(&tasks, whole.subscribe()).await;
    };
    let serve = async {
        let mut peer = broker.let_in(&[]).await;
        peer.request().await;
        cut.send_replace(true);
        let mut peer = broker.let_in(&[]).await;
        let (id, _) = peer.request().await;
        peer.respond(&id, &output("two")).await;
        peer
    };
    let calls = async {
        let lost = client.ask(errand("one", false)).await.unwrap_err();
        assert!(matches!(lost, ErrandError::Lost(_)), "{lost:?}");
        client.ask(errand("two", false)).await
    };
    let ((), _peer, answer) = tokio::join!(carry, serve, calls);
    assert_eq!(answer, Ok(output("two")));
    assert_eq!(client.generation(), Some(2));
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_after_the_last_attempt() {
    let mut options = ClientOptions::default();
    // So long that a rest cannot be taken for a wait.
    options.reconnect.rest.base = Duration::from_secs(600);
    let clock = Arc::clone(&options.clock);
    let credential = Credential::fixed("secret");
    let client = Client::start(&nobody().await, credential, options, None).unwrap();
    let ready = client.ready(Now(3_600_000)).await;
    let refused =
        |error: &ConnectError| matches!(error, ConnectError::Dial(DialError::Unreachable(_)));
    assert!(ready.as_ref().is_err_and(refused), "{ready:?}");
    // Four waits between five attempts, each shortened by up to a quarter: 200, 400, 800, 1600.
    let took = clock.now().0;
    assert!((2_250..3_020).contains(&took), "{took} ms");
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_until_its_deadline() {
    let options = ClientOptions::default();
    let clock = Arc::clone(&options.clock);
    let credential = Credential::fixed("secret");
    let client = Client::start(&nobody().await, credential, options, None).unwrap();
    for (stored, until) in [(false, 500), (true, 1_000)] {
        let mut asked = errand("one", stored);
        asked.deadline = Now(until);
        let answer = client.ask(asked).await;
        assert_eq!(answer, Err(ErrandError::Timeout(Execution::NotStarted)));
        let now = clock.now().0;
        assert!((until..until + 20).contains(&now), "{now} ms");
        assert_eq!(client.waiting(), 0);
    }
}

#[tokio::test]
async fn a_request_whose_time_is_over_is_not_sent_over_the_next_connection() {
    let broker = Broker::start().await;
    let client = client(&broker, hasty());
    let mut asked = errand("late", true);
    asked.deadline = Now(50);
    let answer = client.ask(asked).await;
    assert_eq!(answer, Err(ErrandError::Timeout(Execution::NotStarted)));
    let mut peer = broker.let_in(&[]).await;
    let serve = async {
        let letter = peer.delivery().await;
        assert!(letter.body.windows(5).any(|part| part == b"\"new\""));
        peer.serve(&letter, &output("new")).await;
    };
    let (answer, ()) = tokio::join!(client.ask(errand("new", true)), serve);
    assert_eq!(answer, Ok(output("new")));
}

#[tokio::test]
async fn where_all_attempts_failed_a_later_call_starts_over() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut options = hasty();
    // Nothing happens by itself: the call must do it.
    options.reconnect.rest.base = Duration::from_secs(600);
    options.reconnect.rest.cap = Duration::from_secs(600);
    let url = format!("http://{address}");
    let client = Client::start(&url, Credential::fixed("secret"), options, None).unwrap();
    for stored in [false, true] {
        let asked = timeout(LONG, client.ask(errand("one", stored)));
        let error = asked.await.unwrap().unwrap_err();
        assert!(matches!(error, ErrandError::NotSent(_)), "{error:?}");
    }
    assert_eq!(client.ended(), None);
    let broker = Broker::at(address).await;
    let serve = async {
        let mut peer = broker.let_in(&[item("one", true)]).await;
        let (id, _) = peer.request().await;
        peer.respond(&id, &output("one")).await;
        peer
    };
    let asked = timeout(LONG, client.ask(errand("one", false)));
    let (answer, _peer) = tokio::join!(asked, serve);
    assert_eq!(answer.unwrap(), Ok(output("one")));
}

#[tokio::test]
async fn a_client_comes_back_by_itself() {
    let broker = Broker::start().await;
    let client = client(&broker, hasty());
    for generation in 1..=4 {
        let peer = broker.let_in(&[]).await;
        until(&client, |client| client.generation() == Some(generation)).await;
        peer.outgoing.close(4002, "the token has expired");
        peer.end().await;
    }
}
