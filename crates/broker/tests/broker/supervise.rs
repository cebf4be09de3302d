//! Tools served over real sockets to a scripted broker.

use std::sync::Arc;
use std::time::Duration;

use bowline_broker::frames::{
    BrokerFrame, BrokerRefusal, BrokerRequest, BrokerResponse, MailboxMessage, MessageBody,
    MessageDraft, MessageSender, REPLY_KIND, REQUEST_KIND,
};
use bowline_broker::{BrokerConnectError, CredentialSource, ServeOptions, serve_with};
use bowline_core::BoxFuture;
use bowline_core::backoff::Backoff;
use bowline_core::policy::RoleAllowlist;
use bowline_testkit::scripted_broker::{ScriptedBroker, ScriptedBrokerPeer};
use bowline_testkit::serve_rig::{RunCounter, call, failure, output, run_number, tools};
use bowline_testkit::{spawn_task, wait_bounded};
use bowline_tools::Toolbox;
use bowline_tools::{ToolExecutor, ToolOutput};
use bytes::Bytes;
use serde_json::json;
use tokio::sync::{Semaphore, oneshot};

/// A run of the supervisor.
struct SupervisedRun {
    runs: RunCounter,
    gate: Arc<Semaphore>,
    stop: Option<oneshot::Sender<()>>,
    ended: BoxFuture<'static, Result<(), BrokerConnectError>>,
}

impl SupervisedRun {
    fn start(broker: &ScriptedBroker) -> Self {
        Self::with(broker, RoleAllowlist::unrestricted(), quick())
    }

    fn with(broker: &ScriptedBroker, list: RoleAllowlist, options: ServeOptions) -> Self {
        let (runs, gate) = (RunCounter::default(), Arc::new(Semaphore::new(0)));
        let executor = Arc::new(tools(&runs, &gate));
        let (stop, ended) = start(broker, executor, list, options);
        Self {
            runs,
            gate,
            stop: Some(stop),
            ended,
        }
    }

    async fn stop(mut self) -> Result<(), BrokerConnectError> {
        drop(self.stop.take());
        self.end().await
    }

    async fn end(self) -> Result<(), BrokerConnectError> {
        let _stop = self.stop;
        wait_bounded(self.ended).await
    }
}

type SupervisorFuture = BoxFuture<'static, Result<(), BrokerConnectError>>;

fn start(
    broker: &ScriptedBroker,
    executor: Arc<dyn ToolExecutor>,
    list: RoleAllowlist,
    options: ServeOptions,
) -> (oneshot::Sender<()>, SupervisorFuture) {
    let (stop, stopped) = oneshot::channel();
    let url = broker.url();
    let running = spawn_task(async move {
        let credential = CredentialSource::from_token("secret");
        let stopped = async {
            let _ = stopped.await;
        };
        serve_with(&url, credential, executor, list, options, stopped).await
    });
    (stop, Box::pin(async { running.await.unwrap() }))
}

/// Options with short waits.
fn quick() -> ServeOptions {
    ServeOptions {
        backoff: Backoff {
            base: Duration::from_millis(1),
            cap: Duration::from_millis(4),
        },
        ..ServeOptions::default()
    }
}

/// A wait long enough to hang a test that awaits it.
fn slow() -> ServeOptions {
    let wait = Duration::from_secs(3_600);
    ServeOptions {
        backoff: Backoff {
            base: wait,
            cap: wait,
        },
        ..ServeOptions::default()
    }
}

async fn accept_client(broker: &ScriptedBroker) -> ScriptedBrokerPeer {
    let mut peer = broker.peer().await;
    peer.handshake().await;
    peer
}

fn mailbox_message(from: &str, id: &str, kind: &str, body: &[u8]) -> BrokerFrame {
    let letter = MailboxMessage::new(&MessageDraft {
        id,
        kind,
        body: MessageBody::Json(body),
        correlation_id: None,
        ttl_ms: Some(60_000),
        created_at_ms: 0,
    });
    BrokerFrame::Message(letter.with_sender(MessageSender {
        session_id: from.into(),
        role: None,
        principal: None,
    }))
}

fn request(id: &str, tool: &str) -> BrokerFrame {
    mailbox_message("ann", id, REQUEST_KIND, &call(tool, "{}"))
}

/// Returns the next reply, to request `id` and mailbox `to`.
async fn reply(
    peer: &mut ScriptedBrokerPeer,
    to: &str,
    id: &str,
) -> (MailboxMessage, BrokerResponse) {
    let BrokerFrame::Deliver {
        to: mailbox,
        message,
    } = peer.next().await
    else {
        panic!("no reply")
    };
    assert_eq!(&*mailbox, to);
    assert_eq!(
        (&*message.kind, message.correlation_id.as_deref()),
        (REPLY_KIND, Some(id))
    );
    let answer = BrokerResponse::parse(&message.body).unwrap();
    (message, answer)
}

#[tokio::test]
async fn ack_follows_the_reply_receipt() {
    let broker = ScriptedBroker::start().await;
    let run = SupervisedRun::start(&broker);
    let mut peer = accept_client(&broker).await;
    peer.send_frame(&request("1", "write")).await;
    let (letter, answer) = reply(&mut peer, "ann", "1").await;
    assert_eq!(run_number(&answer), 1);
    assert_ne!(&*letter.id, "1", "an id of its own");
    // The second request shows that an ack of the first would have arrived by now.
    peer.send_frame(&request("2", "write")).await;
    let (second, answer) = reply(&mut peer, "ann", "2").await;
    assert_eq!(run_number(&answer), 2);
    peer.receipt(&second).await;
    assert_eq!(peer.next().await, BrokerFrame::Ack { id: "2".into() });
    peer.receipt(&letter).await;
    assert_eq!(peer.next().await, BrokerFrame::Ack { id: "1".into() });
    run.stop().await.unwrap();
}

#[tokio::test]
async fn redelivery_over_next_connection_is_replayed() {
    let broker = ScriptedBroker::start().await;
    let run = SupervisedRun::start(&broker);
    let mut peer = accept_client(&broker).await;
    peer.send_frame(&request("1", "write")).await;
    let (first, _) = reply(&mut peer, "ann", "1").await;
    peer.outgoing.close(1001, "going");
    let mut peer = accept_client(&broker).await;
    peer.send_frame(&request("1", "write")).await;
    let (again, answer) = reply(&mut peer, "ann", "1").await;
    assert_eq!((run_number(&answer), output(&answer).1), (json!(1), true));
    assert_eq!(
        again.id, first.id,
        "the same reply, so that the broker can tell"
    );
    // The broker already has the first reply, equal except for `again`.
    let refusal = BrokerRefusal {
        reason: "another message has this id".into(),
        id: Some(again.id),
        code: Some("conflict".into()),
    };
    peer.send_frame(&BrokerFrame::Error(refusal)).await;
    assert_eq!(peer.next().await, BrokerFrame::Ack { id: "1".into() });
    assert_eq!(run.runs.count(), 1);
    run.stop().await.unwrap();
}

#[tokio::test]
async fn running_request_replies_over_next_connection() {
    let broker = ScriptedBroker::start().await;
    let run = SupervisedRun::start(&broker);
    let mut peer = accept_client(&broker).await;
    peer.send_frame(&request("1", "hang")).await;
    // The reply shows that the earlier request is in flight.
    peer.send_frame(&request("2", "write")).await;
    let _ = reply(&mut peer, "ann", "2").await;
    peer.outgoing.close(1001, "going");
    let mut peer = accept_client(&broker).await;
    peer.send_frame(&request("1", "hang")).await;
    run.gate.add_permits(2);
    let (letter, answer) = reply(&mut peer, "ann", "1").await;
    assert_eq!(output(&answer).0["content"][0]["text"], "let go");
    peer.receipt(&letter).await;
    assert_eq!(peer.next().await, BrokerFrame::Ack { id: "1".into() });
    assert_eq!(run.runs.count(), 2, "each once");
    run.stop().await.unwrap();
}

#[tokio::test]
async fn full_mailbox_dead_letters_one_request() {
    let broker = ScriptedBroker::start().await;
    let run = SupervisedRun::start(&broker);
    let mut peer = accept_client(&broker).await;
    peer.send_frame(&mailbox_message(
        "bob",
        "1",
        REQUEST_KIND,
        &call("hang", "{}"),
    ))
    .await;
    peer.send_frame(&request("1", "write")).await;
    let (refused, _) = reply(&mut peer, "ann", "1").await;
    let refusal = BrokerRefusal {
        reason: "the mailbox is full".into(),
        id: Some(refused.id),
        code: Some("mailbox_full".into()),
    };
    peer.send_frame(&BrokerFrame::Error(refusal)).await;
    let dead = BrokerFrame::Nak {
        id: "1".into(),
        delay_ms: 0,
        dead_letter_reason: Some("the mailbox is full".into()),
    };
    assert_eq!(peer.next().await, dead);
    run.gate.add_permits(1);
    let (unrelated, answer) = reply(&mut peer, "bob", "1").await;
    assert_eq!(output(&answer).0["content"][0]["text"], "let go");
    peer.receipt(&unrelated).await;
    assert_eq!(peer.next().await, BrokerFrame::Ack { id: "1".into() });
    assert_eq!(run.runs.count(), 2, "each ran once, over one connection");
    run.stop().await.unwrap();
}

#[tokio::test]
async fn foreign_message_is_never_acked() {
    let broker = ScriptedBroker::start().await;
    let run = SupervisedRun::start(&broker);
    let mut peer = accept_client(&broker).await;
    for kind in ["note", "mcp_request2"] {
        peer.send_frame(&mailbox_message("ann", kind, kind, b"{}"))
            .await;
        let BrokerFrame::Nak {
            id,
            dead_letter_reason,
            ..
        } = peer.next().await
        else {
            panic!("not left alone")
        };
        assert_eq!(&*id, kind);
        assert_eq!(
            dead_letter_reason.as_deref(),
            Some("nobody here takes messages of this kind")
        );
    }
    run.stop().await.unwrap();
}

fn cancel(of: Option<&str>, id: &str) -> BrokerFrame {
    BrokerFrame::Cancel {
        to: of.map(Into::into),
        correlation_id: id.into(),
    }
}

#[tokio::test]
async fn cancel_stops_only_the_senders_request() {
    let broker = ScriptedBroker::start().await;
    let run = SupervisedRun::start(&broker);
    let mut peer = accept_client(&broker).await;
    peer.send_frame(&request("1", "hang")).await;
    peer.send_frame(&mailbox_message(
        "hub",
        "1",
        REQUEST_KIND,
        &call("hang", "{}"),
    ))
    .await;
    peer.send_frame(&request("2", "write")).await;
    let (other, _) = reply(&mut peer, "ann", "2").await;
    peer.send_frame(&cancel(Some("eve"), "1")).await;
    peer.send_frame(&cancel(None, "1")).await;
    let (_, answer) = reply(&mut peer, "hub", "1").await;
    assert_eq!(&*failure(answer).code, "cancelled", "the hub's own");
    peer.send_frame(&cancel(Some("ann"), "1")).await;
    let (_, answer) = reply(&mut peer, "ann", "1").await;
    assert_eq!(&*failure(answer).code, "cancelled");
    peer.receipt(&other).await;
    assert_eq!(peer.next().await, BrokerFrame::Ack { id: "2".into() });
    run.stop().await.unwrap();
}

fn live(id: &str, body: Bytes) -> BrokerFrame {
    BrokerFrame::Request(bowline_broker::frames::LiveRequest {
        id: id.into(),
        body,
        ttl_ms: Some(60_000),
        caller: Some(MessageSender {
            session_id: "ann".into(),
            role: Some("reader".into()),
            principal: None,
        }),
        ..Default::default()
    })
}

async fn response(peer: &mut ScriptedBrokerPeer, of: &str) -> BrokerResponse {
    let BrokerFrame::Response { id, body } = peer.next().await else {
        panic!("no response")
    };
    assert_eq!(&*id, of);
    BrokerResponse::parse(&body).unwrap()
}

#[tokio::test]
async fn live_requests_use_stamped_role_and_cancel() {
    let broker = ScriptedBroker::start().await;
    let list = RoleAllowlist::unrestricted().with_role("reader", ["read", "hang"]);
    let run = SupervisedRun::with(&broker, list, quick());
    let mut peer = accept_client(&broker).await;
    peer.send_frame(&live("1", BrokerRequest::Manifest.to_bytes()))
        .await;
    let BrokerResponse::Manifest { items, .. } = response(&mut peer, "1").await else {
        panic!("no manifest")
    };
    let names: Vec<_> = items
        .iter()
        .map(|item| (&*item.name, item.is_repeatable))
        .collect();
    assert_eq!(names, [("read", true), ("hang", false)]);
    peer.send_frame(&live("2", call("write", "{}"))).await;
    let told = failure(response(&mut peer, "2").await);
    assert_eq!(
        *told.reason,
        *"tool `write` is not allowed for role `reader`"
    );
    // A hanging request is cancelled, and the id is free again.
    peer.send_frame(&live("3", call("hang", "{}"))).await;
    peer.send_frame(&live("4", call("read", "{}"))).await;
    output(&response(&mut peer, "4").await);
    peer.send_frame(&cancel(None, "3")).await;
    let mut nth = 5;
    loop {
        peer.send_frame(&live("3", call("read", "{}"))).await;
        match response(&mut peer, "3").await {
            BrokerResponse::Failed(told) => assert_eq!(&*told.code, "throttled", "still in hand"),
            answer => {
                output(&answer);
                break;
            }
        }
        nth += 1;
        assert!(nth < 1_000, "it is never given up");
    }
    run.stop().await.unwrap();
}

#[tokio::test]
async fn tool_notifications_are_immediate_and_bounded() {
    let broker = ScriptedBroker::start().await;
    let talk = Toolbox::default().with("talk", "", &json!({}), |_, context| async move {
        for _ in 0..100 {
            let caller = context.caller.as_ref().unwrap();
            caller.notify(Bytes::from_static(br#"{"jsonrpc":"2.0","method":"x"}"#));
        }
        Ok(ToolOutput::from_text("done"))
    });
    let list = RoleAllowlist::unrestricted();
    let (stop, ended) = start(&broker, Arc::new(talk), list, quick());
    let mut peer = accept_client(&broker).await;
    peer.send_frame(&live("1", call("talk", "{}"))).await;
    let mut events = 0;
    loop {
        match peer.next().await {
            BrokerFrame::Event { id, .. } => {
                assert_eq!(&*id, "1");
                events += 1;
            }
            BrokerFrame::Response { .. } => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(events, 64);
    drop(stop);
    wait_bounded(ended).await.unwrap();
}

#[tokio::test]
async fn supervisor_reconnects_until_shutdown() {
    let broker = ScriptedBroker::start().await;
    let run = SupervisedRun::start(&broker);
    for _ in 0..4 {
        let peer = accept_client(&broker).await;
        peer.outgoing.close(1000, "done");
    }
    // One refused connection, and one that is no WebSocket.
    let mut peer = broker.peer().await;
    let refusal = BrokerRefusal {
        reason: "no".into(),
        id: None,
        code: Some("auth".into()),
    };
    assert!(matches!(peer.next().await, BrokerFrame::Hello(_)));
    peer.send_frame(&BrokerFrame::Error(refusal)).await;
    drop(broker.stream().await);
    let mut peer = accept_client(&broker).await;
    peer.send_frame(&request("1", "read")).await;
    let _ = reply(&mut peer, "ann", "1").await;
    run.stop().await.unwrap();
    peer.end().await;
    assert!(!broker.is_dialled_within(Duration::from_millis(50)).await);
}

#[tokio::test]
async fn shutdown_interrupts_backoff_and_connect() {
    let broker = ScriptedBroker::start().await;
    let options = slow();
    let tasks = options.client.tasks.clone();
    let run = SupervisedRun::with(&broker, RoleAllowlist::unrestricted(), options);
    let peer = accept_client(&broker).await;
    peer.outgoing.close(1000, "done");
    // The client is gone, so the backoff has started.
    wait_bounded(tasks.wait_finished()).await;
    run.stop().await.unwrap();
    let run = SupervisedRun::with(&broker, RoleAllowlist::unrestricted(), slow());
    let _unanswered = broker.stream().await;
    run.stop().await.unwrap();
}

#[tokio::test]
async fn shutdown_cancels_running_requests() {
    let broker = ScriptedBroker::start().await;
    let options = ServeOptions {
        drain: Duration::ZERO,
        ..quick()
    };
    let mut run = SupervisedRun::with(&broker, RoleAllowlist::unrestricted(), options);
    let mut peer = accept_client(&broker).await;
    peer.send_frame(&request("1", "hang")).await;
    peer.send_frame(&request("2", "write")).await;
    let (other, _) = reply(&mut peer, "ann", "2").await;
    peer.receipt(&other).await;
    assert_eq!(peer.next().await, BrokerFrame::Ack { id: "2".into() });
    drop(run.stop.take());
    let (told, answer) = reply(&mut peer, "ann", "1").await;
    assert_eq!(&*failure(answer).code, "cancelled");
    peer.receipt(&told).await;
    assert_eq!(peer.next().await, BrokerFrame::Ack { id: "1".into() });
    run.end().await.unwrap();
}

#[tokio::test]
async fn fenced_supervisor_stops_with_error() {
    let broker = ScriptedBroker::start().await;
    let run = SupervisedRun::start(&broker);
    let peer = accept_client(&broker).await;
    let refusal = BrokerRefusal {
        reason: "another came".into(),
        id: None,
        code: Some("fenced".into()),
    };
    peer.send_frame(&BrokerFrame::Error(refusal)).await;
    peer.outgoing.close(4001, "fenced");
    assert!(matches!(
        run.end().await,
        Err(BrokerConnectError::Fenced(_))
    ));
    assert!(!broker.is_dialled_within(Duration::from_millis(50)).await);
}
