//! Tools served over real sockets, to a broker that does what a test says.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::policy::RoleAllowlist;
use bowline_host::broker::{ConnectError, Credential, ServeOptions, serve_with};
use bowline_host::tools::Toolbox;
use bowline_host::{BoxFuture, ToolExecutor, ToolOutput};
use bowline_wire::broker::{Answer, Ask, Draft, Frame, From, Letter, REPLY, REQUEST, Refusal};
use bytes::Bytes;
use serde_json::json;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use super::post::{Runs, call, failure, nth, output, tools};
use super::script::{Broker, LONG, Peer};

/// A run of the supervisor.
struct Run {
    runs: Runs,
    gate: Arc<Semaphore>,
    stop: Option<oneshot::Sender<()>>,
    ended: BoxFuture<'static, Result<(), ConnectError>>,
}

impl Run {
    fn start(broker: &Broker) -> Self {
        Self::with(broker, RoleAllowlist::unrestricted(), quick())
    }

    fn with(broker: &Broker, list: RoleAllowlist, options: ServeOptions) -> Self {
        let (runs, gate) = (Runs::default(), Arc::new(Semaphore::new(0)));
        let executor = Arc::new(tools(&runs, &gate));
        let (stop, ended) = start(broker, executor, list, options);
        Self {
            runs,
            gate,
            stop: Some(stop),
            ended,
        }
    }

    async fn stop(mut self) -> Result<(), ConnectError> {
        drop(self.stop.take());
        self.end().await
    }

    async fn end(self) -> Result<(), ConnectError> {
        let _stop = self.stop;
        timeout(LONG, self.ended).await.unwrap()
    }
}

type Ends = BoxFuture<'static, Result<(), ConnectError>>;

#[expect(clippy::disallowed_methods, reason = "a test watches what it starts")]
fn start(
    broker: &Broker,
    executor: Arc<dyn ToolExecutor>,
    list: RoleAllowlist,
    options: ServeOptions,
) -> (oneshot::Sender<()>, Ends) {
    let (stop, stopped) = oneshot::channel();
    let url = broker.url();
    let running = tokio::spawn(async move {
        let credential = Credential::fixed("secret");
        let stopped = async {
            let _ = stopped.await;
        };
        serve_with(&url, credential, (executor, list), options, stopped).await
    });
    (stop, Box::pin(async { running.await.unwrap() }))
}

/// Options whose waits are short.
fn quick() -> ServeOptions {
    ServeOptions {
        backoff: Backoff {
            base: Duration::from_millis(1),
            cap: Duration::from_millis(4),
        },
        ..ServeOptions::default()
    }
}

/// Waits so long that a test which waits for it hangs.
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

async fn let_in(broker: &Broker) -> Peer {
    let mut peer = broker.peer().await;
    peer.greet().await;
    peer
}

fn letter(from: (&str, Option<&str>), id: &str, kind: &str, body: &[u8]) -> Frame {
    let letter = Letter::new(&Draft {
        id,
        kind,
        body,
        correlation_id: None,
        ttl_ms: Some(60_000),
        created_at_ms: 0,
    });
    Frame::Message(letter.stamped(&From {
        session_id: from.0.into(),
        role: from.1.map(Into::into),
        principal: None,
    }))
}

fn request(id: &str, tool: &str) -> Frame {
    letter(("ann", None), id, REQUEST, &call(tool, "{}"))
}

/// Returns the next reply, which answers `id` and goes to `to`.
async fn reply(peer: &mut Peer, to: &str, id: &str) -> (Letter, Answer) {
    let Frame::Deliver {
        to: mailbox,
        letter,
    } = peer.next().await
    else {
        panic!("no reply")
    };
    assert_eq!(&*mailbox, to);
    assert_eq!(
        (&*letter.kind, letter.correlation_id.as_deref()),
        (REPLY, Some(id))
    );
    let answer = Answer::read(&letter.body).unwrap();
    (letter, answer)
}

#[tokio::test]
async fn a_request_is_acknowledged_once_its_reply_is_received_and_not_before() {
    let broker = Broker::start().await;
    let run = Run::start(&broker);
    let mut peer = let_in(&broker).await;
    peer.say(&request("1", "write")).await;
    let (letter, answer) = reply(&mut peer, "ann", "1").await;
    assert_eq!(nth(&answer), 1);
    assert_ne!(&*letter.id, "1", "an id of its own");
    // A second request comes through, so the first would have been acknowledged by now.
    peer.say(&request("2", "write")).await;
    let (second, answer) = reply(&mut peer, "ann", "2").await;
    assert_eq!(nth(&answer), 2);
    peer.receipt(&second).await;
    assert_eq!(peer.next().await, Frame::Ack { id: "2".into() });
    peer.receipt(&letter).await;
    assert_eq!(peer.next().await, Frame::Ack { id: "1".into() });
    run.stop().await.unwrap();
}

#[tokio::test]
async fn what_is_redelivered_over_the_next_connection_is_answered_and_not_run_again() {
    let broker = Broker::start().await;
    let run = Run::start(&broker);
    let mut peer = let_in(&broker).await;
    peer.say(&request("1", "write")).await;
    let (first, _) = reply(&mut peer, "ann", "1").await;
    peer.outgoing.close(1001, "going");
    let mut peer = let_in(&broker).await;
    peer.say(&request("1", "write")).await;
    let (again, answer) = reply(&mut peer, "ann", "1").await;
    assert_eq!((nth(&answer), output(&answer).1), (json!(1), true));
    assert_eq!(
        again.id, first.id,
        "the same reply, so that the broker can tell"
    );
    // The broker has the first one, which says the same but for `again`.
    let refusal = Refusal {
        reason: "another message has this id".into(),
        id: Some(again.id),
        code: Some("conflict".into()),
    };
    peer.say(&Frame::Error(refusal)).await;
    assert_eq!(peer.next().await, Frame::Ack { id: "1".into() });
    assert_eq!(run.runs.count(), 1);
    run.stop().await.unwrap();
}

#[tokio::test]
async fn a_request_that_runs_while_its_connection_is_lost_is_answered_over_the_next() {
    let broker = Broker::start().await;
    let run = Run::start(&broker);
    let mut peer = let_in(&broker).await;
    peer.say(&request("1", "hang")).await;
    // Its answer shows that the one before it is in hand.
    peer.say(&request("2", "write")).await;
    let _ = reply(&mut peer, "ann", "2").await;
    peer.outgoing.close(1001, "going");
    let mut peer = let_in(&broker).await;
    peer.say(&request("1", "hang")).await;
    run.gate.add_permits(2);
    let (letter, answer) = reply(&mut peer, "ann", "1").await;
    assert_eq!(output(&answer).0["content"][0]["text"], "let go");
    peer.receipt(&letter).await;
    assert_eq!(peer.next().await, Frame::Ack { id: "1".into() });
    assert_eq!(run.runs.count(), 2, "each once");
    run.stop().await.unwrap();
}

#[tokio::test]
async fn one_full_mailbox_makes_one_dead_letter_and_disturbs_nobody() {
    let broker = Broker::start().await;
    let run = Run::start(&broker);
    let mut peer = let_in(&broker).await;
    peer.say(&letter(("bob", None), "1", REQUEST, &call("hang", "{}")))
        .await;
    peer.say(&request("1", "write")).await;
    let (refused, _) = reply(&mut peer, "ann", "1").await;
    let refusal = Refusal {
        reason: "the mailbox is full".into(),
        id: Some(refused.id),
        code: Some("mailbox_full".into()),
    };
    peer.say(&Frame::Error(refusal)).await;
    let dead = Frame::Nak {
        id: "1".into(),
        delay_ms: 0,
        dead: Some("the mailbox is full".into()),
    };
    assert_eq!(peer.next().await, dead);
    run.gate.add_permits(1);
    let (unrelated, answer) = reply(&mut peer, "bob", "1").await;
    assert_eq!(output(&answer).0["content"][0]["text"], "let go");
    peer.receipt(&unrelated).await;
    assert_eq!(peer.next().await, Frame::Ack { id: "1".into() });
    assert_eq!(run.runs.count(), 2, "each ran once, over one connection");
    run.stop().await.unwrap();
}

#[tokio::test]
async fn a_message_of_another_kind_is_never_acknowledged_away() {
    let broker = Broker::start().await;
    let run = Run::start(&broker);
    let mut peer = let_in(&broker).await;
    for kind in ["note", "mcp_request2"] {
        peer.say(&letter(("ann", None), kind, kind, b"{}")).await;
        let Frame::Nak { id, dead, .. } = peer.next().await else {
            panic!("not left alone")
        };
        assert_eq!(&*id, kind);
        assert_eq!(
            dead.as_deref(),
            Some("nobody here takes messages of this kind")
        );
    }
    run.stop().await.unwrap();
}

fn cancel(of: Option<&str>, id: &str) -> Frame {
    Frame::Cancel {
        to: of.map(Into::into),
        correlation_id: id.into(),
    }
}

#[tokio::test]
async fn a_cancelled_request_stops_and_is_answered_so_and_nobody_cancels_that_of_another() {
    let broker = Broker::start().await;
    let run = Run::start(&broker);
    let mut peer = let_in(&broker).await;
    peer.say(&request("1", "hang")).await;
    peer.say(&letter(("hub", None), "1", REQUEST, &call("hang", "{}")))
        .await;
    peer.say(&request("2", "write")).await;
    let (other, _) = reply(&mut peer, "ann", "2").await;
    peer.say(&cancel(Some("eve"), "1")).await;
    peer.say(&cancel(None, "1")).await;
    let (_, answer) = reply(&mut peer, "hub", "1").await;
    assert_eq!(&*failure(answer).code, "cancelled", "the hub's own");
    peer.say(&cancel(Some("ann"), "1")).await;
    let (_, answer) = reply(&mut peer, "ann", "1").await;
    assert_eq!(&*failure(answer).code, "cancelled");
    peer.receipt(&other).await;
    assert_eq!(peer.next().await, Frame::Ack { id: "2".into() });
    run.stop().await.unwrap();
}

fn live(id: &str, body: Bytes) -> Frame {
    Frame::Request(bowline_wire::broker::Request {
        id: id.into(),
        body,
        ttl_ms: Some(60_000),
        caller: Some(From {
            session_id: "ann".into(),
            role: Some("reader".into()),
            principal: None,
        }),
        ..Default::default()
    })
}

async fn response(peer: &mut Peer, of: &str) -> Answer {
    let Frame::Response { id, body } = peer.next().await else {
        panic!("no response")
    };
    assert_eq!(&*id, of);
    Answer::read(&body).unwrap()
}

#[tokio::test]
async fn live_requests_are_answered_by_the_role_that_the_hub_stamped_and_can_be_taken_back() {
    let broker = Broker::start().await;
    let list = RoleAllowlist::unrestricted().with_role("reader", ["read", "hang"]);
    let run = Run::with(&broker, list, quick());
    let mut peer = let_in(&broker).await;
    peer.say(&live("1", Ask::Manifest.to_bytes())).await;
    let Answer::Manifest { items, .. } = response(&mut peer, "1").await else {
        panic!("no manifest")
    };
    let names: Vec<_> = items
        .iter()
        .map(|item| (&*item.name, item.repeatable))
        .collect();
    assert_eq!(names, [("read", true), ("hang", false)]);
    peer.say(&live("2", call("write", "{}"))).await;
    let told = failure(response(&mut peer, "2").await);
    assert_eq!(
        *told.reason,
        *"tool `write` is not allowed for role `reader`"
    );
    // One that hangs is taken back, and its id can be used again.
    peer.say(&live("3", call("hang", "{}"))).await;
    peer.say(&live("4", call("read", "{}"))).await;
    output(&response(&mut peer, "4").await);
    peer.say(&cancel(None, "3")).await;
    let mut nth = 5;
    loop {
        peer.say(&live("3", call("read", "{}"))).await;
        match response(&mut peer, "3").await {
            Answer::Failed(told) => assert_eq!(&*told.code, "throttled", "still in hand"),
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
async fn what_a_tool_says_before_it_answers_goes_out_at_once_and_is_bounded() {
    let broker = Broker::start().await;
    let talk = Toolbox::default().with(("talk", ""), &json!({}), |_, context| async move {
        for _ in 0..100 {
            let caller = context.caller.as_ref().unwrap();
            caller.push(Bytes::from_static(br#"{"jsonrpc":"2.0","method":"x"}"#));
        }
        Ok(ToolOutput::of_text("done"))
    });
    let list = RoleAllowlist::unrestricted();
    let (stop, ended) = start(&broker, Arc::new(talk), list, quick());
    let mut peer = let_in(&broker).await;
    peer.say(&live("1", call("talk", "{}"))).await;
    let mut events = 0;
    loop {
        match peer.next().await {
            Frame::Event { id, .. } => {
                assert_eq!(&*id, "1");
                events += 1;
            }
            Frame::Response { .. } => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(events, 64);
    drop(stop);
    timeout(LONG, ended).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_supervisor_starts_again_after_each_end_and_not_after_shutdown() {
    let broker = Broker::start().await;
    let run = Run::start(&broker);
    for _ in 0..4 {
        let peer = let_in(&broker).await;
        peer.outgoing.close(1000, "done");
    }
    // One that is not let in, and one that is not even a WebSocket.
    let mut peer = broker.peer().await;
    let refusal = Refusal {
        reason: "no".into(),
        id: None,
        code: Some("auth".into()),
    };
    assert!(matches!(peer.next().await, Frame::Hello(_)));
    peer.say(&Frame::Error(refusal)).await;
    drop(broker.stream().await);
    let mut peer = let_in(&broker).await;
    peer.say(&request("1", "read")).await;
    let _ = reply(&mut peer, "ann", "1").await;
    run.stop().await.unwrap();
    peer.end().await;
    assert!(!broker.is_dialled_within(Duration::from_millis(50)).await);
}

#[tokio::test]
async fn shutdown_wins_over_a_wait_and_over_an_attempt_to_connect() {
    let broker = Broker::start().await;
    let options = slow();
    let tasks = options.client.tasks.clone();
    let run = Run::with(&broker, RoleAllowlist::unrestricted(), options);
    let peer = let_in(&broker).await;
    peer.outgoing.close(1000, "done");
    // The client is gone, so the wait has begun.
    timeout(LONG, tasks.finished()).await.unwrap();
    run.stop().await.unwrap();
    let run = Run::with(&broker, RoleAllowlist::unrestricted(), slow());
    let _unanswered = broker.stream().await;
    run.stop().await.unwrap();
}

#[tokio::test]
async fn at_shutdown_what_runs_is_taken_back_and_told_so() {
    let broker = Broker::start().await;
    let options = ServeOptions {
        drain: Duration::ZERO,
        ..quick()
    };
    let mut run = Run::with(&broker, RoleAllowlist::unrestricted(), options);
    let mut peer = let_in(&broker).await;
    peer.say(&request("1", "hang")).await;
    peer.say(&request("2", "write")).await;
    let (other, _) = reply(&mut peer, "ann", "2").await;
    peer.receipt(&other).await;
    assert_eq!(peer.next().await, Frame::Ack { id: "2".into() });
    drop(run.stop.take());
    let (told, answer) = reply(&mut peer, "ann", "1").await;
    assert_eq!(&*failure(answer).code, "cancelled");
    peer.receipt(&told).await;
    assert_eq!(peer.next().await, Frame::Ack { id: "1".into() });
    run.end().await.unwrap();
}

#[tokio::test]
async fn one_whose_place_was_taken_says_so_and_does_not_come_back() {
    let broker = Broker::start().await;
    let run = Run::start(&broker);
    let peer = let_in(&broker).await;
    let refusal = Refusal {
        reason: "another came".into(),
        id: None,
        code: Some("fenced".into()),
    };
    peer.say(&Frame::Error(refusal)).await;
    peer.outgoing.close(4001, "fenced");
    assert!(matches!(run.end().await, Err(ConnectError::Fenced(_))));
    assert!(!broker.is_dialled_within(Duration::from_millis(50)).await);
}
