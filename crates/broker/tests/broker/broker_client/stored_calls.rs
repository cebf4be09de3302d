//! Stored calls: one id over all connections, one reply.

use std::sync::Arc;

use bowline_broker::frames::{BrokerFrame, BrokerRefusal, REQUEST_KIND, ResultForm};
use bowline_broker::{BrokerCallError, BrokerClient, RemotePeer as _};
use bowline_core::error::{ExecutionStatus, FailureClass};
use bowline_core::time::MonotonicTime;
use bowline_testkit::scripted_broker::{ScriptedBroker, client, output, quick_options};
use bytes::Bytes;

use super::live_calls::NotificationRecorder;
use super::{broker_call, until};

#[tokio::test]
async fn stored_reply_is_acked() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[]).await;
    let said = Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/progress"}"#);
    let ear = Arc::new(NotificationRecorder::default());
    let mut asked = broker_call("one", true);
    asked.client = Some(Arc::clone(&ear) as _);
    let serve = async {
        let letter = peer.delivery().await;
        assert!(letter.id.starts_with("broker-mcp-"), "{}", letter.id);
        assert_eq!(
            (&*letter.kind, letter.sender.as_ref()),
            (REQUEST_KIND, None)
        );
        assert!(letter.ttl_ms.is_some_and(|ttl| ttl > 0));
        let body = br#"{"op":"call","tool":"one","arguments":{"a":1.0}}"#;
        assert_eq!(letter.body, body[..]);
        peer.send_frame(&BrokerFrame::Event {
            id: Arc::clone(&letter.id),
            notification: said.clone(),
        })
        .await;
        peer.serve(&letter, &output("one")).await;
    };
    let (answer, ()) = tokio::join!(client.call(asked), serve);
    assert_eq!(answer, Ok(output("one")));
    assert_eq!(ear.notifications(), [said]);
    assert_eq!(client.pending_calls(), 0);
}

#[tokio::test]
async fn stored_request_keeps_id_until_receipt() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[]).await;
    let serve = async {
        let first = peer.delivery().await;
        peer.outgoing.close(1001, "before the receipt");
        let mut peer = broker.accept_client(&[]).await;
        let second = peer.delivery().await;
        assert_eq!(first.id, second.id);
        assert_eq!(first.body, second.body);
        peer.receipt(&second).await;
        // The client reads the receipt before the close.
        peer.outgoing.close(1001, "after the receipt");
        let mut peer = broker.accept_client(&[]).await;
        // Already stored and not sent again: the next frames belong to other calls.
        for _ in 0..2 {
            let respond = async {
                let (id, _) = peer.request().await;
                peer.respond(&id, &output("other")).await;
            };
            let (other, ()) = tokio::join!(client.call(broker_call("other", false)), respond);
            assert_eq!(other, Ok(output("other")));
        }
        let body = output("one").to_bytes(ResultForm::Whole);
        peer.reply("hub", "r", &second.id, &body).await;
        assert_eq!(peer.next().await, BrokerFrame::Ack { id: "r".into() });
    };
    let (answer, ()) = tokio::join!(client.call(broker_call("one", true)), serve);
    assert_eq!(answer, Ok(output("one")));
}

#[tokio::test]
async fn forged_reply_is_rejected() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[]).await;
    let serve = async {
        let letter = peer.delivery().await;
        let forged = output("forged").to_bytes(ResultForm::Whole);
        peer.reply("eve", "f1", &letter.id, &forged).await;
        peer.reply("hub", "f2", "broker-mcp", &forged).await;
        peer.reply("eve", "f3", "broker-mcp-00", &forged).await;
        peer.respond(&letter.id, &output("forged")).await;
        // Rejected as dead letters, so that the mailbox is not blocked.
        for id in ["f1", "f2", "f3"] {
            peer.assert_dead_letter(id).await;
        }
        peer.serve(&letter, &output("one")).await;
    };
    let (answer, ()) = tokio::join!(client.call(broker_call("one", true)), serve);
    assert_eq!(answer, Ok(output("one")));
}

#[tokio::test]
async fn unreadable_reply_becomes_dead_letter() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[]).await;
    let serve = async {
        let letter = peer.delivery().await;
        peer.reply("hub", "bad", &letter.id, b"{\"result\":7}")
            .await;
        peer.reply("hub", "worse", &letter.id, b"[]").await;
        // Neither acked nor used as the reply.
        peer.assert_dead_letter("bad").await;
        peer.assert_dead_letter("worse").await;
        peer.serve(&letter, &output("one")).await;
    };
    let (answer, ()) = tokio::join!(client.call(broker_call("one", true)), serve);
    assert_eq!(answer, Ok(output("one")));
}

#[tokio::test]
async fn reply_to_abandoned_request_is_acked() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[]).await;
    until(&client, BrokerClient::is_connected).await;
    let body = output("late").to_bytes(ResultForm::Whole);
    // From an earlier run of the program: same id prefix, and sent by the called hub.
    peer.reply("hub", "r", "broker-mcp-0123", &body).await;
    assert_eq!(peer.next().await, BrokerFrame::Ack { id: "r".into() });
}

#[tokio::test]
async fn unhandled_message_becomes_dead_letter() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[]).await;
    until(&client, BrokerClient::is_connected).await;
    peer.message("m", "note").await;
    peer.assert_dead_letter("m").await;
}

#[tokio::test]
async fn timeout_after_receipt_cancels_request() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[]).await;
    until(&client, BrokerClient::is_connected).await;
    let mut asked = broker_call("one", true);
    asked.deadline = MonotonicTime(200);
    let serve = async {
        let letter = peer.delivery().await;
        peer.receipt(&letter).await;
        let cancel = BrokerFrame::Cancel {
            to: Some("hub".into()),
            correlation_id: Arc::clone(&letter.id),
        };
        assert_eq!(peer.next().await, cancel);
    };
    let (answer, ()) = tokio::join!(client.call(asked), serve);
    assert_eq!(
        answer,
        Err(BrokerCallError::Timeout(ExecutionStatus::Unknown))
    );
    assert_eq!(client.pending_calls(), 0);
}

#[tokio::test]
async fn dropped_stored_call_cancels_request() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[]).await;
    let letter = {
        let asked = client.call(broker_call("one", true));
        tokio::select! {
            _ = asked => panic!("nobody answered"),
            letter = peer.delivery() => letter,
        }
    };
    assert_eq!(client.pending_calls(), 0);
    let cancel = BrokerFrame::Cancel {
        to: Some("hub".into()),
        correlation_id: letter.id,
    };
    assert_eq!(peer.next().await, cancel);
}

#[tokio::test]
async fn refused_stored_request_is_not_cancelled() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[]).await;
    let serve = async {
        let letter = peer.delivery().await;
        peer.send_frame(&BrokerFrame::Error(BrokerRefusal {
            reason: "the mailbox is full".into(),
            id: Some(letter.id),
            code: Some("mailbox_full".into()),
        }))
        .await;
    };
    let (answer, ()) = tokio::join!(client.call(broker_call("one", true)), serve);
    let Err(BrokerCallError::Refused(failure)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(failure.class, FailureClass::Throttled);
    assert_eq!(failure.execution, ExecutionStatus::NotStarted);
    assert_eq!(
        (&*failure.code, &*failure.reason),
        ("mailbox_full", "the mailbox is full")
    );
    // A cancel frame would arrive before this frame.
    let serve = async {
        let letter = peer.delivery().await;
        peer.serve(&letter, &output("two")).await;
    };
    let (answer, ()) = tokio::join!(client.call(broker_call("two", true)), serve);
    assert_eq!(answer, Ok(output("two")));
}
