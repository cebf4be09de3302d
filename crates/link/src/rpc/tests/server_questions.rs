//! Server requests and their recipients.

use super::*;

const ELICIT: &str = r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"x":1}}"#;
const ROOTS: &str = r#"{"jsonrpc":"2.0","id":"r","method":"roots/list"}"#;
const WITHDRAW: &str =
    r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q"}}"#;

/// Starts a call of `heard` that the server has read.
async fn start_client_call(
    scene: &mut RpcScene,
    heard: &Arc<RecordingClient>,
) -> JoinHandle<RpcOutcome> {
    let call = scene
        .start_call({
            let mut request = test_request("tools/call");
            request.message.client = Some(Arc::clone(heard) as Arc<dyn ClientHandle>);
            request
        })
        .await;
    scene.read_line().await;
    call
}

/// Returns a server request as the client sees it, with the server name.
fn with_test_server_name(question: &str) -> String {
    let params = r#""params":{"_meta":{"dev.bowline/server":"s"},"#;
    question.replace(r#""params":{"#, params)
}

fn take_request(heard: &RecordingClient) -> ServerRequest {
    heard.asked.lock().unwrap().pop().expect("it was asked")
}

#[tokio::test]
async fn server_request_reaches_only_session_in_flight() {
    let mut scene = RpcScene::new();
    let heard = RecordingClient::with_all_capabilities(1);
    let _first = start_client_call(&mut scene, &heard).await;
    let _second = start_client_call(&mut scene, &RecordingClient::with_all_capabilities(1)).await;
    let third = RecordingClient::with_all_capabilities(1);
    let _third = start_client_call(&mut scene, &third).await;
    scene.write_line(ELICIT).await;
    scene.settle().await;
    let question = take_request(&third);
    assert_eq!(question.request, with_test_server_name(ELICIT));
    assert_eq!(question.id(), b"\"q\"");
    assert_eq!(question.capability, ClientCapability::ElicitationForm);
    let answer = r#"{"jsonrpc":"2.0","id":"q","result":{"action":"accept","more":[1]}}"#;
    question.respond(Bytes::from_static(answer.as_bytes()));
    assert_eq!(scene.read_line().await, answer);
}

#[tokio::test]
async fn server_request_between_two_sessions_is_refused() {
    let mut scene = RpcScene::new();
    let (one, two) = (
        RecordingClient::with_all_capabilities(1),
        RecordingClient::with_all_capabilities(2),
    );
    let _one = start_client_call(&mut scene, &one).await;
    let _two = start_client_call(&mut scene, &two).await;
    scene.write_line(ELICIT).await;
    assert!(
        scene
            .read_line()
            .await
            .contains(r#""error":{"code":-32603"#)
    );
    assert!(one.asked.lock().unwrap().is_empty());
    assert!(two.asked.lock().unwrap().is_empty());
    assert_eq!(
        scene.events.recv().await,
        Some(LinkEvent::UnattributedRequest)
    );
    // Log messages are unattributed meanwhile; alone, they belong to the caller.
    let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}"#;
    scene.write_line(log).await;
    let event = scene.events.recv().await;
    assert_eq!(
        event,
        Some(LinkEvent::Log(Bytes::from_static(log.as_bytes())))
    );
    scene.respond(1).await;
    scene.write_line(log).await;
    scene.settle().await;
    assert_eq!(*two.told.lock().unwrap(), [log]);
    assert!(one.told.lock().unwrap().is_empty());
}

#[tokio::test]
async fn client_gets_only_declared_requests() {
    let mut scene = RpcScene::new();
    let heard = Arc::new(RecordingClient {
        session: 1,
        abilities: ClientCapabilities::default().with_capability(ClientCapability::ElicitationForm),
        ..RecordingClient::default()
    });
    let _call = start_client_call(&mut scene, &heard).await;
    let by_address =
        r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"mode":"url"}}"#;
    for line in [ROOTS, by_address] {
        scene.write_line(line).await;
        assert!(
            scene
                .read_line()
                .await
                .contains(r#""error":{"code":-32601"#)
        );
    }
    scene.write_line(ELICIT).await;
    scene.settle().await;
    assert_eq!(take_request(&heard).request, with_test_server_name(ELICIT));
}

#[tokio::test]
async fn sec_33_secret_form_is_refused_unseen() {
    let mut scene = RpcScene::new();
    let heard = RecordingClient::with_all_capabilities(1);
    let _call = start_client_call(&mut scene, &heard).await;
    for property in ["password", "api_key", "accessToken"] {
        let form = format!(
            r#"{{"message":"m","requestedSchema":{{"type":"object","properties":{{"{property}":{{}}}}}}}}"#
        );
        let asks = ELICIT.replace(r#"{"x":1}"#, &form);
        scene.write_line(&asks).await;
        let refused = scene.read_line().await;
        assert!(refused.contains(r#""error":{"code":-32602"#), "{refused}");
        assert!(refused.contains(property), "{refused}");
    }
    scene.settle().await;
    assert!(heard.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn sec_33_server_cannot_forge_server_name() {
    let mut scene = RpcScene::new();
    let heard = RecordingClient::with_all_capabilities(1);
    let _call = start_client_call(&mut scene, &heard).await;
    let claims = r#""params":{"_meta":{"dev.bowline/server":"bank"},"#;
    scene
        .write_line(&ELICIT.replace(r#""params":{"#, claims))
        .await;
    scene.settle().await;
    assert_eq!(take_request(&heard).request, with_test_server_name(ELICIT));
}

#[tokio::test]
async fn outside_calls_roots_empty_and_requests_refused() {
    let mut scene = RpcScene::new();
    scene.write_line(ROOTS).await;
    assert_eq!(
        scene.read_line().await,
        r#"{"jsonrpc":"2.0","id":"r","result":{"roots":[]}}"#
    );
    scene.write_line(ELICIT).await;
    assert!(
        scene
            .read_line()
            .await
            .contains(r#""error":{"code":-32603"#)
    );
}

#[tokio::test]
async fn owned_link_relays_requests_outside_calls() {
    let owner = RecordingClient::with_all_capabilities(7);
    let mut scene = RpcScene::with_owner(StdioLimits::default(), 1024, Some(owner.clone()));
    scene.write_line(ROOTS).await;
    scene.settle().await;
    let named = ROOTS.replace('{', r#"{"params":{"_meta":{"dev.bowline/server":"s"}},"#);
    assert_eq!(take_request(&owner).request, named);
}

#[tokio::test]
async fn dropped_request_is_refused_cancelled_is_silent() {
    let mut scene = RpcScene::new();
    let heard = RecordingClient::with_all_capabilities(1);
    let _call = start_client_call(&mut scene, &heard).await;
    scene.write_line(ELICIT).await;
    scene.settle().await;
    drop(take_request(&heard));
    assert!(
        scene
            .read_line()
            .await
            .contains("the client gave no answer to `elicitation/create`")
    );
    scene.write_line(ELICIT).await;
    scene.write_line(ELICIT).await;
    assert!(
        scene
            .read_line()
            .await
            .contains(r#""error":{"code":-32603"#),
        "the id is taken"
    );
    scene.write_line(WITHDRAW).await;
    scene.settle().await;
    assert_eq!(heard.withdrawn.lock().unwrap().len(), 1);
    drop(take_request(&heard));
    scene.settle().await;
}

#[tokio::test(start_paused = true)]
async fn client_wait_does_not_count_against_server() {
    let mut scene = RpcScene::new();
    let heard = RecordingClient::with_all_capabilities(1);
    let started = deadline_after(Duration::ZERO);
    let call = start_client_call(&mut scene, &heard).await;
    tokio::time::advance(Duration::from_secs(20)).await;
    scene.write_line(ELICIT).await;
    scene.settle().await;
    tokio::time::advance(Duration::from_secs(500)).await;
    assert!(!call.is_finished());
    let answer = Bytes::from_static(br#"{"jsonrpc":"2.0","id":"q","result":{}}"#);
    take_request(&heard).respond(answer);
    let outcome = call.await.unwrap();
    assert_eq!(
        outcome,
        Err(LinkError::Timeout {
            sent: SendState::MaybeSent
        })
    );
    assert_eq!(started.elapsed().as_secs(), 560);
}

#[tokio::test(start_paused = true)]
async fn abandoned_call_cancels_its_server_requests() {
    let mut scene = RpcScene::new();
    let heard = RecordingClient::with_all_capabilities(1);
    let call = start_client_call(&mut scene, &heard).await;
    scene.write_line(ELICIT).await;
    scene.settle().await;
    call.abort();
    assert!(call.await.is_err());
    assert_eq!(*heard.withdrawn.lock().unwrap(), [ServerRequestId(1)]);
    assert!(scene.read_line().await.contains("notifications/cancelled"));
    drop(take_request(&heard));
    scene.settle().await;
}

#[tokio::test]
async fn elicitation_completion_reaches_its_session() {
    let mut scene = RpcScene::new();
    let (one, two) = (
        RecordingClient::with_all_capabilities(1),
        RecordingClient::with_all_capabilities(2),
    );
    let first = start_client_call(&mut scene, &one).await;
    scene
        .write_line(concat!(
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32042,"message":"go","data":"#,
            r#"{"elicitations":[{"mode":"url","elicitationId":"e","url":"u","message":"m"}]}}}"#
        ))
        .await;
    assert!(first.await.unwrap().is_ok());
    let _second = start_client_call(&mut scene, &two).await;
    let done = |id: &str| {
        let params = format!(r#"{{"elicitationId":"{id}"}}"#);
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{params}}}"#
        )
    };
    scene.write_line(&done("e")).await;
    let told = LinkEvent::SessionNotification {
        session: SessionKey(1),
        notification: done("e").into(),
    };
    assert_eq!(scene.events.recv().await, Some(told));
    scene.write_line(&done("unknown")).await;
    scene.settle().await;
    assert!(two.told.lock().unwrap().is_empty());
}
