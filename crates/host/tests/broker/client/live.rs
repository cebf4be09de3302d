//! Live errands: one connection, one answer.

use std::pin::pin;
use std::sync::{Arc, Mutex};

use bowline_core::caller::{Abilities, CallerEnd, Question, QuestionId, SessionKey};
use bowline_core::error::{Class, Execution, Failure};
use bowline_core::time::Now;
use bowline_host::broker::{Client, ErrandError, Remote as _};
use bowline_wire::broker::{Answer, Ask, Frame, Refusal};
use bytes::Bytes;

use super::{errand, until};
use crate::script::{Broker, client, item, output, quick};

/// Keeps what it is told.
#[derive(Debug, Default)]
pub(super) struct Ear(Mutex<Vec<Bytes>>);

impl Ear {
    pub(super) fn heard(&self) -> Vec<Bytes> {
        self.0.lock().unwrap().clone()
    }
}

impl CallerEnd for Ear {
    fn session(&self) -> SessionKey {
        SessionKey(0)
    }

    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    fn push(&self, notification: Bytes) {
        self.0.lock().unwrap().push(notification);
    }

    fn ask(&self, _: Question) -> Option<QuestionId> {
        None
    }

    fn withdraw(&self, _: QuestionId) {}

    fn home(&self) -> Arc<dyn CallerEnd> {
        Arc::new(Self::default())
    }
}

fn tool(ask: &Ask) -> Arc<str> {
    let Ask::Call { tool, .. } = ask else {
        panic!("no call")
    };
    Arc::clone(tool)
}

/// Lets a future begin.
async fn begin<T>(future: &mut std::pin::Pin<&mut impl Future<Output = T>>) {
    std::future::poll_fn(|context| {
        assert!(future.as_mut().poll(context).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn answers_find_their_own_questions_in_any_order() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[]).await;
    let serve = async {
        let (first, asked) = peer.request().await;
        let (second, then) = peer.request().await;
        assert_ne!(first, second);
        peer.respond(&second, &output(&tool(&then))).await;
        // Nobody waits for these.
        peer.respond(&"77".into(), &output("late")).await;
        peer.respond(&"x".into(), &output("never")).await;
        peer.respond(&second, &output("again")).await;
        peer.respond(&first, &output(&tool(&asked))).await;
    };
    let (one, two, ()) = tokio::join!(
        client.ask(errand("one", false)),
        client.ask(errand("two", false)),
        serve
    );
    assert_eq!((one, two), (Ok(output("one")), Ok(output("two"))));
    assert_eq!(client.waiting(), 0);
}

#[tokio::test]
async fn what_a_tool_says_before_it_answers_is_heard() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[]).await;
    let said = Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/progress"}"#);
    let ear = Arc::new(Ear::default());
    let mut asked = errand("one", false);
    asked.sink = Some(Arc::clone(&ear) as _);
    let serve = async {
        let (id, _) = peer.request().await;
        for id in [Arc::clone(&id), "9".into()] {
            let notification = said.clone();
            peer.say(&Frame::Event { id, notification }).await;
        }
        peer.respond(&id, &output("one")).await;
    };
    let (answer, ()) = tokio::join!(client.ask(asked), serve);
    assert_eq!(answer, Ok(output("one")));
    assert_eq!(ear.heard(), [said]);
}

#[tokio::test]
async fn a_timeout_ends_the_wait_and_takes_the_request_back() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[]).await;
    until(&client, Client::is_connected).await;
    let mut asked = errand("one", false);
    asked.deadline = Now(100);
    let (answer, (id, _)) = tokio::join!(client.ask(asked), peer.request());
    assert_eq!(answer, Err(ErrandError::Timeout(Execution::Unknown)));
    assert_eq!(client.waiting(), 0);
    let cancel = Frame::Cancel {
        to: None,
        correlation_id: Arc::clone(&id),
    };
    assert_eq!(peer.next().await, cancel);
    // A late answer reaches nobody, and harms nobody.
    peer.respond(&id, &output("late")).await;
    let serve = async {
        let (id, _) = peer.request().await;
        peer.respond(&id, &output("two")).await;
    };
    let (answer, ()) = tokio::join!(client.ask(errand("two", false)), serve);
    assert_eq!(answer, Ok(output("two")));
}

#[tokio::test]
async fn a_caller_that_leaves_takes_its_request_back() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[]).await;
    let id = {
        let asked = client.ask(errand("one", false));
        tokio::select! {
            _ = asked => panic!("nobody answered"),
            (id, _) = peer.request() => id,
        }
    };
    assert_eq!(client.waiting(), 0);
    let cancel = Frame::Cancel {
        to: None,
        correlation_id: id,
    };
    assert_eq!(peer.next().await, cancel);
}

#[tokio::test]
async fn an_answered_request_is_not_taken_back() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[]).await;
    for nth in ["1", "2"] {
        let serve = async {
            // The second would meet a cancel first, if there were one.
            let (id, _) = peer.request().await;
            peer.respond(&id, &output(nth)).await;
        };
        let (answer, ()) = tokio::join!(client.ask(errand("one", false)), serve);
        assert_eq!(answer, Ok(output(nth)));
    }
}

#[tokio::test]
async fn a_request_that_may_have_left_is_lost_with_its_connection() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[]).await;
    let drop_it = async {
        peer.request().await;
        peer.outgoing.close(1001, "going");
        broker.let_in(&[item("one", true)]).await
    };
    let (answer, mut peer) = tokio::join!(client.ask(errand("one", false)), drop_it);
    let error = answer.unwrap_err();
    assert!(matches!(error, ErrandError::Lost(_)), "{error:?}");
    assert_eq!(error.execution(), Execution::Unknown);
    // The first call after the loss finds the new connection: no flag has to catch up.
    let serve = async {
        let (id, _) = peer.request().await;
        peer.respond(&id, &output("one")).await;
    };
    let (answer, ()) = tokio::join!(client.ask(errand("one", false)), serve);
    assert_eq!(answer, Ok(output("one")));
}

#[tokio::test]
async fn callers_wait_for_a_place_where_too_many_are_in_flight() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.peer().await;
    assert!(matches!(peer.next().await, Frame::Hello(_)));
    peer.welcome(2).await;
    assert_eq!(peer.next().await, Frame::Subscribe);
    peer.list(&[], 1).await;
    until(&client, Client::is_connected).await;
    let mut one = pin!(client.ask(errand("one", false)));
    let mut two = pin!(client.ask(errand("two", false)));
    let mut three = pin!(client.ask(errand("three", false)));
    let mut four = pin!(client.ask(errand("four", true)));
    begin(&mut one).await;
    begin(&mut two).await;
    begin(&mut three).await;
    begin(&mut four).await;
    let serve = async {
        let (one, _) = peer.request().await;
        let (two, _) = peer.request().await;
        // The third waits here, so what was asked after it comes before it.
        let letter = peer.delivery().await;
        peer.respond(&one, &output("one")).await;
        let (three, ask) = peer.request().await;
        assert_eq!(&*tool(&ask), "three");
        peer.respond(&two, &output("two")).await;
        peer.respond(&three, &output("three")).await;
        peer.serve(&letter, &output("four")).await;
    };
    let answers = tokio::join!(one, two, three, four, serve);
    let want = ["one", "two", "three", "four"].map(|text| Ok(output(text)));
    assert_eq!([answers.0, answers.1, answers.2, answers.3], want);
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_is_told_as_one_that_ran() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[]).await;
    let serve = async {
        let (id, _) = peer.request().await;
        let body = Bytes::from_static(br#"{"result":7}"#);
        peer.say(&Frame::Response { id, body }).await;
    };
    let (answer, ()) = tokio::join!(client.ask(errand("one", false)), serve);
    let Err(ErrandError::Refused(failure)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(failure.class, Class::ProtocolError);
    assert_eq!(failure.execution, Execution::Completed);
}

#[tokio::test]
async fn a_request_that_is_refused_did_not_run() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[]).await;
    let serve = async {
        let (id, _) = peer.request().await;
        peer.say(&Frame::Error(Refusal {
            reason: "not for you".into(),
            id: Some(id),
            code: Some("not_allowed".into()),
        }))
        .await;
    };
    let (answer, ()) = tokio::join!(client.ask(errand("one", false)), serve);
    let Err(ErrandError::Refused(failure)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(failure.class, Class::Denied);
    assert_eq!(failure.execution, Execution::NotStarted);
}

#[tokio::test]
async fn a_request_that_finds_no_place_at_the_hub_looks_again() {
    let broker = Broker::start().await;
    let client = client(&broker, quick());
    let mut peer = broker.let_in(&[]).await;
    let full = Failure {
        class: Class::Throttled,
        ..super::failure("too many requests at once")
    };
    let serve = async {
        let (id, _) = peer.request().await;
        peer.respond(&id, &Answer::Failed(full)).await;
        let (again, _) = peer.request().await;
        assert_ne!(id, again);
        peer.respond(&again, &output("one")).await;
    };
    let (answer, ()) = tokio::join!(client.ask(errand("one", false)), serve);
    assert_eq!(answer, Ok(output("one")));
}
