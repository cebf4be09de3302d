//! Stored errands: one id over all connections, one reply.

use std::sync::Arc;

use bowline_core::error::{Class, Execution};
use bowline_core::time::Now;
use bowline_host::broker::{Client, ErrandError, Remote as _};
use bowline_wire::broker::{Frame, REQUEST, Refusal, Said};
use bytes::Bytes;

use super::live::Ear;
use super::{errand, until};
use crate::script::{Broker, client, output, quick};

#[tokio::test]
async fn a_stored_request_is_answered_by_a_message_that_is_acknowledged() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[]).await;
    let said = Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/progress"}"#);
    let ear = Arc::new(Ear::default());
    let mut asked = errand("one", true);
    asked.sink = Some(Arc::clone(&ear) as _);
    let serve = async {
        let letter = peer.delivery().await;
        assert!(letter.id.starts_with("broker-mcp-"), "{}", letter.id);
        assert_eq!((&*letter.kind, letter.from.as_ref()), (REQUEST, None));
        assert!(letter.ttl_ms.is_some_and(|ttl| ttl > 0));
        let body = br#"{"op":"call","tool":"one","arguments":{"a":1.0}}"#;
        assert_eq!(letter.body, body[..]);
        peer.say(&Frame::Event {
            id: Arc::clone(&letter.id),
            notification: said.clone(),
        })
        .await;
        peer.serve(&letter, &output("one")).await;
    };
    let (answer, ()) = tokio::join!(client.ask(asked), serve);
    assert_eq!(answer, Ok(output("one")));
    assert_eq!(ear.heard(), [said]);
    assert_eq!(client.waiting(), 0);
}

#[tokio::test]
async fn a_stored_request_keeps_its_id_over_connections_until_its_receipt() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[]).await;
    let serve = async {
        let first = peer.delivery().await;
        peer.outgoing.close(1001, "before the receipt");
        let mut peer = broker.let_in(&[]).await;
        let second = peer.delivery().await;
        assert_eq!(first.id, second.id);
        assert_eq!(first.body, second.body);
        peer.receipt(&second).await;
        // The receipt is taken before the close is seen.
        peer.outgoing.close(1001, "after the receipt");
        let mut peer = broker.let_in(&[]).await;
        // It is stored by now and not sent again: others are the next that are heard.
        for _ in 0..2 {
            let respond = async {
                let (id, _) = peer.request().await;
                peer.respond(&id, &output("other")).await;
            };
            let (other, ()) = tokio::join!(client.ask(errand("other", false)), respond);
            assert_eq!(other, Ok(output("other")));
        }
        let body = output("one").to_bytes(Said::Whole);
        peer.reply("hub", "r", &second.id, &body).await;
        assert_eq!(peer.next().await, Frame::Ack { id: "r".into() });
    };
    let (answer, ()) = tokio::join!(client.ask(errand("one", true)), serve);
    assert_eq!(answer, Ok(output("one")));
}

#[tokio::test]
async fn a_forged_reply_neither_ends_a_wait_nor_is_acknowledged() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[]).await;
    let serve = async {
        let letter = peer.delivery().await;
        let forged = output("forged").to_bytes(Said::Whole);
        peer.reply("eve", "f1", &letter.id, &forged).await;
        peer.reply("hub", "f2", "broker-mcp", &forged).await;
        peer.reply("eve", "f3", "broker-mcp-00", &forged).await;
        peer.respond(&letter.id, &output("forged")).await;
        // They are kept as dead letters, so that they stand in nobody's way.
        for id in ["f1", "f2", "f3"] {
            peer.buries(id).await;
        }
        peer.serve(&letter, &output("one")).await;
    };
    let (answer, ()) = tokio::join!(client.ask(errand("one", true)), serve);
    assert_eq!(answer, Ok(output("one")));
}

#[tokio::test]
async fn a_reply_that_cannot_be_read_is_kept() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[]).await;
    let serve = async {
        let letter = peer.delivery().await;
        peer.reply("hub", "bad", &letter.id, b"{\"result\":7}")
            .await;
        peer.reply("hub", "worse", &letter.id, b"[]").await;
        // Neither acknowledged nor taken for the answer.
        peer.buries("bad").await;
        peer.buries("worse").await;
        peer.serve(&letter, &output("one")).await;
    };
    let (answer, ()) = tokio::join!(client.ask(errand("one", true)), serve);
    assert_eq!(answer, Ok(output("one")));
}

#[tokio::test]
async fn a_reply_to_a_request_that_was_given_up_is_acknowledged() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[]).await;
    until(&client, Client::is_connected).await;
    let body = output("late").to_bytes(Said::Whole);
    // Of an earlier run of the same program: its name space, and the hub that it asked.
    peer.reply("hub", "r", "broker-mcp-0123", &body).await;
    assert_eq!(peer.next().await, Frame::Ack { id: "r".into() });
}

#[tokio::test]
async fn a_message_that_nobody_takes_is_kept() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[]).await;
    until(&client, Client::is_connected).await;
    peer.message("m", "note").await;
    peer.buries("m").await;
}

#[tokio::test]
async fn a_timeout_after_the_receipt_takes_the_request_back() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[]).await;
    until(&client, Client::is_connected).await;
    let mut asked = errand("one", true);
    asked.deadline = Now(200);
    let serve = async {
        let letter = peer.delivery().await;
        peer.receipt(&letter).await;
        let cancel = Frame::Cancel {
            to: Some("hub".into()),
            correlation_id: Arc::clone(&letter.id),
        };
        assert_eq!(peer.next().await, cancel);
    };
    let (answer, ()) = tokio::join!(client.ask(asked), serve);
    assert_eq!(answer, Err(ErrandError::Timeout(Execution::Unknown)));
    assert_eq!(client.waiting(), 0);
}

#[tokio::test]
async fn a_caller_that_leaves_takes_its_stored_request_back() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[]).await;
    let letter = {
        let asked = client.ask(errand("one", true));
        tokio::select! {
            _ = asked => panic!("nobody answered"),
            letter = peer.delivery() => letter,
        }
    };
    assert_eq!(client.waiting(), 0);
    let cancel = Frame::Cancel {
        to: Some("hub".into()),
        correlation_id: letter.id,
    };
    assert_eq!(peer.next().await, cancel);
}

#[tokio::test]
async fn a_refused_request_did_not_run_and_is_not_taken_back() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[]).await;
    let serve = async {
        let letter = peer.delivery().await;
        peer.say(&Frame::Error(Refusal {
            reason: "the mailbox is full".into(),
            id: Some(letter.id),
            code: Some("mailbox_full".into()),
        }))
        .await;
    };
    let (answer, ()) = tokio::join!(client.ask(errand("one", true)), serve);
    let Err(ErrandError::Refused(failure)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(failure.class, Class::Throttled);
    assert_eq!(failure.execution, Execution::NotStarted);
    assert_eq!(
        (&*failure.code, &*failure.reason),
        ("mailbox_full", "the mailbox is full")
    );
    // A cancel would come before this.
    let serve = async {
        let letter = peer.delivery().await;
        peer.serve(&letter, &output("two")).await;
    };
    let (answer, ()) = tokio::join!(client.ask(errand("two", true)), serve);
    assert_eq!(answer, Ok(output("two")));
}
