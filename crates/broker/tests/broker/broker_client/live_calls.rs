//! Live calls: one connection, one response.

use std::pin::pin;
use std::sync::{Arc, Mutex};

use bowline_broker::frames::{BrokerFrame, BrokerRefusal, BrokerRequest, BrokerResponse};
use bowline_broker::{BrokerCallError, BrokerClient, RemotePeer as _};
use bowline_core::client_handle::{
    ClientCapabilities, ClientHandle, ServerRequest, ServerRequestId, SessionKey,
};
use bowline_core::error::{ExecutionStatus, FailureClass, FailureReport};
use bowline_core::time::MonotonicTime;
use bowline_testkit::scripted_broker::{ScriptedBroker, client, item, output, quick_options};
use bytes::Bytes;

use super::{broker_call, until};

/// Records notifications.
#[derive(Debug, Default)]
pub(super) struct NotificationRecorder(Mutex<Vec<Bytes>>);

impl NotificationRecorder {
    pub(super) fn notifications(&self) -> Vec<Bytes> {
        self.0.lock().unwrap().clone()
    }
}

impl ClientHandle for NotificationRecorder {
    fn session(&self) -> SessionKey {
        SessionKey(0)
    }

    fn capabilities(&self) -> ClientCapabilities {
        ClientCapabilities::default()
    }

    fn notify(&self, notification: Bytes) {
        self.0.lock().unwrap().push(notification);
    }

    fn request(&self, _: ServerRequest) -> Option<ServerRequestId> {
        None
    }

    fn cancel_request(&self, _: ServerRequestId) {}

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        Arc::new(Self::default())
    }
}

fn tool(ask: &BrokerRequest) -> Arc<str> {
    let BrokerRequest::Call { tool, .. } = ask else {
        panic!("no call")
    };
    Arc::clone(tool)
}

/// Polls a future once.
async fn assert_pending<T>(future: &mut std::pin::Pin<&mut impl Future<Output = T>>) {
    std::future::poll_fn(|context| {
        assert!(future.as_mut().poll(context).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn responses_match_requests_in_any_order() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[]).await;
    let serve = async {
        let (first, asked) = peer.request().await;
        let (second, then) = peer.request().await;
        assert_ne!(first, second);
        peer.respond(&second, &output(&tool(&then))).await;
        // Responses without a waiter.
        peer.respond(&"77".into(), &output("late")).await;
        peer.respond(&"x".into(), &output("never")).await;
        peer.respond(&second, &output("again")).await;
        peer.respond(&first, &output(&tool(&asked))).await;
    };
    let (one, two, ()) = tokio::join!(
        client.call(broker_call("one", false)),
        client.call(broker_call("two", false)),
        serve
    );
    assert_eq!((one, two), (Ok(output("one")), Ok(output("two"))));
    assert_eq!(client.pending_calls(), 0);
}

#[tokio::test]
async fn tool_notifications_reach_the_client() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[]).await;
    let said = Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/progress"}"#);
    let ear = Arc::new(NotificationRecorder::default());
    let mut asked = broker_call("one", false);
    asked.client = Some(Arc::clone(&ear) as _);
    let serve = async {
        let (id, _) = peer.request().await;
        for id in [Arc::clone(&id), "9".into()] {
            let notification = said.clone();
            peer.send_frame(&BrokerFrame::Event { id, notification })
                .await;
        }
        peer.respond(&id, &output("one")).await;
    };
    let (answer, ()) = tokio::join!(client.call(asked), serve);
    assert_eq!(answer, Ok(output("one")));
    assert_eq!(ear.notifications(), [said]);
}

#[tokio::test]
async fn timeout_cancels_the_request() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[]).await;
    until(&client, BrokerClient::is_connected).await;
    let mut asked = broker_call("one", false);
    asked.deadline = MonotonicTime(100);
    let (answer, (id, _)) = tokio::join!(client.call(asked), peer.request());
    assert_eq!(
        answer,
        Err(BrokerCallError::Timeout(ExecutionStatus::Unknown))
    );
    assert_eq!(client.pending_calls(), 0);
    let cancel = BrokerFrame::Cancel {
        to: None,
        correlation_id: Arc::clone(&id),
    };
    assert_eq!(peer.next().await, cancel);
    // A late response is ignored.
    peer.respond(&id, &output("late")).await;
    let serve = async {
        let (id, _) = peer.request().await;
        peer.respond(&id, &output("two")).await;
    };
    let (answer, ()) = tokio::join!(client.call(broker_call("two", false)), serve);
    assert_eq!(answer, Ok(output("two")));
}

#[tokio::test]
async fn dropped_call_cancels_the_request() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[]).await;
    let id = {
        let asked = client.call(broker_call("one", false));
        tokio::select! {
            _ = asked => panic!("nobody answered"),
            (id, _) = peer.request() => id,
        }
    };
    assert_eq!(client.pending_calls(), 0);
    let cancel = BrokerFrame::Cancel {
        to: None,
        correlation_id: id,
    };
    assert_eq!(peer.next().await, cancel);
}

#[tokio::test]
async fn completed_request_is_not_cancelled() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[]).await;
    for nth in ["1", "2"] {
        let serve = async {
            // A cancel frame would arrive before the second request.
            let (id, _) = peer.request().await;
            peer.respond(&id, &output(nth)).await;
        };
        let (answer, ()) = tokio::join!(client.call(broker_call("one", false)), serve);
        assert_eq!(answer, Ok(output(nth)));
    }
}

#[tokio::test]
async fn sent_request_is_lost_with_connection() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[]).await;
    let drop_it = async {
        peer.request().await;
        peer.outgoing.close(1001, "going");
        broker.accept_client(&[item("one", true)]).await
    };
    let (answer, mut peer) = tokio::join!(client.call(broker_call("one", false)), drop_it);
    let error = answer.unwrap_err();
    assert!(matches!(error, BrokerCallError::Lost(_)), "{error:?}");
    assert_eq!(error.execution(), ExecutionStatus::Unknown);
    // The first call after the loss uses the new connection at once.
    let serve = async {
        let (id, _) = peer.request().await;
        peer.respond(&id, &output("one")).await;
    };
    let (answer, ()) = tokio::join!(client.call(broker_call("one", false)), serve);
    assert_eq!(answer, Ok(output("one")));
}

#[tokio::test]
async fn callers_wait_for_a_live_permit() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.peer().await;
    assert!(matches!(peer.next().await, BrokerFrame::Hello(_)));
    peer.welcome(2).await;
    assert_eq!(peer.next().await, BrokerFrame::Subscribe);
    peer.respond_manifest(&[], 1).await;
    until(&client, BrokerClient::is_connected).await;
    let mut one = pin!(client.call(broker_call("one", false)));
    let mut two = pin!(client.call(broker_call("two", false)));
    let mut three = pin!(client.call(broker_call("three", false)));
    let mut four = pin!(client.call(broker_call("four", true)));
    assert_pending(&mut one).await;
    assert_pending(&mut two).await;
    assert_pending(&mut three).await;
    assert_pending(&mut four).await;
    let serve = async {
        let (one, _) = peer.request().await;
        let (two, _) = peer.request().await;
        // The third call waits here, so a later request arrives first.
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
async fn unreadable_response_counts_as_completed() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[]).await;
    let serve = async {
        let (id, _) = peer.request().await;
        let body = Bytes::from_static(br#"{"result":7}"#);
        peer.send_frame(&BrokerFrame::Response { id, body }).await;
    };
    let (answer, ()) = tokio::join!(client.call(broker_call("one", false)), serve);
    let Err(BrokerCallError::Refused(failure)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(failure.class, FailureClass::ProtocolError);
    assert_eq!(failure.execution, ExecutionStatus::Completed);
}

#[tokio::test]
async fn refused_request_did_not_run() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[]).await;
    let serve = async {
        let (id, _) = peer.request().await;
        peer.send_frame(&BrokerFrame::Error(BrokerRefusal {
            reason: "not for you".into(),
            id: Some(id),
            code: Some("not_allowed".into()),
        }))
        .await;
    };
    let (answer, ()) = tokio::join!(client.call(broker_call("one", false)), serve);
    let Err(BrokerCallError::Refused(failure)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(failure.class, FailureClass::Denied);
    assert_eq!(failure.execution, ExecutionStatus::NotStarted);
}

#[tokio::test]
async fn throttled_request_is_retried() {
    let broker = ScriptedBroker::start().await;
    let client = client(&broker, quick_options());
    let mut peer = broker.accept_client(&[]).await;
    let full = FailureReport {
        class: FailureClass::Throttled,
        ..super::failure("too many requests at once")
    };
    let serve = async {
        let (id, _) = peer.request().await;
        peer.respond(&id, &BrokerResponse::Failed(full)).await;
        let (again, _) = peer.request().await;
        assert_ne!(id, again);
        peer.respond(&again, &output("one")).await;
    };
    let (answer, ()) = tokio::join!(client.call(broker_call("one", false)), serve);
    assert_eq!(answer, Ok(output("one")));
}
