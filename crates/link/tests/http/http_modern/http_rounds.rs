//! Input rounds of legacy clients at modern servers, and their limits.

use bowline_core::error::ExecutionStatus;
use bowline_link::InputRequestError;
use bowline_testkit::wait_bounded;

use super::*;

/// Returns a result with an input request and a request state.
fn input_required(state: &str) -> String {
    let form = r#"{"method":"elicitation/create","params":{"message":"who?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}}"#;
    format!(
        r#"{{"resultType":"input_required","inputRequests":{{"who":{form}}},"requestState":"{state}"}}"#
    )
}

/// Returns a link to a modern-only server.
async fn modern_only_scene() -> HttpScene {
    modern_scene_with("{}", |spec| {
        spec.era_setting = EraSetting::Only(Era::Modern)
    })
    .await
}

/// Returns a legacy call of a client with capabilities.
fn client_call() -> (LinkRequest, ClientInbox) {
    let (end, ears) = test_client();
    let mut call = test_request("tools/call");
    call.message.client = Some(end);
    (call, ears)
}

async fn answer_request(ears: &mut ClientInbox, value: &str) {
    let question = wait_bounded(ears.asked.recv()).await.unwrap();
    let id = String::from_utf8(question.id().to_vec()).unwrap();
    question.respond(result_body(&id, value).into());
}

#[tokio::test]
async fn input_request_is_answered_by_retry() {
    let mut scene = modern_only_scene().await;
    let (call, mut ears) = client_call();
    let call = scene.start_request(call);
    let first = scene.server.next_post().await;
    assert!(first.body.contains(r#""elicitation":{"form":{}}"#));
    assert!(!first.body.contains("requestState"));
    let id = first.id();
    first.respond_result(&input_required("s-1 \\u00fc")).await;
    answer_request(&mut ears, r#"{"action":"accept","content":{"name":"Ada"}}"#).await;
    let second = scene.server.next_post().await;
    assert_ne!(second.id(), id);
    assert_eq!(second.header("mcp-method"), Some("tools/call"));
    assert_eq!(second.header("mcp-name"), Some("x"));
    for part in [
        r#""inputResponses":{"who":{"action":"accept","content":{"name":"Ada"}}}"#,
        r#""requestState":"s-1 \u00fc""#,
        r#""name":"x""#,
    ] {
        assert!(second.body.contains(part), "{part} in {}", second.body);
    }
    second
        .respond_result(r#"{"resultType":"complete","content":[]}"#)
        .await;
    let answer = call.await.unwrap().unwrap();
    assert_eq!(answer.era, Era::Modern);
    assert_eq!(
        response_text(Ok(answer)),
        result_text(r#"{"resultType":"complete","content":[]}"#)
    );
}

#[tokio::test]
async fn modern_client_gets_input_request_unchanged() {
    let mut scene = modern_only_scene().await;
    let (end, mut ears) = test_client();
    let mut asking = modern_request("tools/call", r#""name":"x""#);
    asking.message.client = Some(end);
    let call = scene.start_request(asking);
    scene
        .server
        .next_post()
        .await
        .respond_result(&input_required("s"))
        .await;
    assert_eq!(
        response_text(call.await.unwrap()),
        result_text(&input_required("s"))
    );
    assert!(ears.asked.try_recv().is_err());
    assert!(scene.server.has_no_post());
}

#[tokio::test]
async fn endless_input_rounds_are_given_up() {
    let mut scene = modern_only_scene().await;
    let (call, mut ears) = client_call();
    let call = scene.start_request(call);
    let mut asked = 0;
    let error = wait_bounded(async {
        let mut call = call;
        loop {
            tokio::select! {
                ended = &mut call => break ended.unwrap().unwrap_err(),
                seen = scene.server.next_post() => {
                    asked += 1;
                    seen.respond_result(&input_required("s")).await;
                }
                Some(question) = ears.asked.recv() => {
                    let id = String::from_utf8(question.id().to_vec()).unwrap();
                    question.respond(result_body(&id, r#"{"action":"decline"}"#).into());
                }
            }
        }
    })
    .await;
    assert!(
        matches!(
            error,
            LinkError::InputFailed(InputRequestError::Rounds { .. })
        ),
        "{error:?}"
    );
    assert_eq!(error.execution(), ExecutionStatus::Unknown);
    assert_eq!(asked, 11);
    assert_eq!(scene.link.in_flight(), 0);
}

#[tokio::test]
async fn endless_retry_rounds_are_given_up() {
    let mut scene = modern_only_scene().await;
    let (call, _ears) = client_call();
    let call = scene.start_request(call);
    for _ in 0..11 {
        let seen = scene.server.next_post().await;
        seen.respond_result(r#"{"resultType":"input_required","requestState":"s"}"#)
            .await;
    }
    let error = call.await.unwrap().unwrap_err();
    assert!(
        matches!(
            error,
            LinkError::InputFailed(InputRequestError::Rounds { .. })
        ),
        "{error:?}"
    );
    assert!(scene.server.has_no_post());
}

#[tokio::test]
async fn oversized_request_state_ends_call() {
    let mut scene = modern_scene_with("{}", |spec| {
        spec.era_setting = EraSetting::Only(Era::Modern);
        spec.limits.body_bytes_max = 20_000;
    })
    .await;
    let (call, mut ears) = client_call();
    let call = scene.start_request(call);
    let seen = scene.server.next_post().await;
    // The state fits into a response, but not into a request.
    seen.respond_result(&input_required(&"s".repeat(19_720)))
        .await;
    answer_request(&mut ears, r#"{"action":"decline"}"#).await;
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.execution(), ExecutionStatus::Unknown, "{error:?}");
    assert!(scene.server.has_no_post());
    // A state beyond the response limit is refused as well.
    let (call, mut ears) = client_call();
    let call = scene.start_request(call);
    let seen = scene.server.next_post().await;
    seen.respond_result(&input_required(&"s".repeat(30_000)))
        .await;
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::TooLong { .. }), "{error:?}");
    assert!(ears.asked.try_recv().is_err());
}

#[tokio::test]
async fn excess_input_requests_are_refused() {
    let mut scene = modern_only_scene().await;
    let (call, mut ears) = client_call();
    let call = scene.start_request(call);
    let seen = scene.server.next_post().await;
    let form = r#"{"method":"elicitation/create","params":{"message":"m","requestedSchema":{}}}"#;
    let many: Vec<_> = (0..1_000).map(|key| format!(r#""{key}":{form}"#)).collect();
    let many = many.join(",");
    seen.respond_result(&format!(
        r#"{{"resultType":"input_required","inputRequests":{{{many}}}}}"#
    ))
    .await;
    let error = call.await.unwrap().unwrap_err();
    assert!(
        matches!(
            error,
            LinkError::InputFailed(InputRequestError::TooMany { .. })
        ),
        "{error:?}"
    );
    assert!(ears.asked.try_recv().is_err());
}

#[tokio::test]
async fn dropped_call_sends_no_further_round() {
    let mut scene = modern_only_scene().await;
    let (call, mut ears) = client_call();
    let call = scene.start_request(call);
    scene
        .server
        .next_post()
        .await
        .respond_result(&input_required("s"))
        .await;
    let question = wait_bounded(ears.asked.recv()).await.unwrap();
    call.abort();
    assert!(call.await.is_err());
    question.respond(result_body("0", r#"{"action":"decline"}"#).into());
    let after = scene.start_request(modern_request("tools/list", ""));
    let seen = scene.server.next_post().await;
    assert_eq!(seen.header("mcp-method"), Some("tools/list"));
    seen.respond_result("{}").await;
    after.await.unwrap().unwrap();
    assert!(scene.server.has_no_post());
}

#[tokio::test]
async fn loss_after_first_round_means_unknown() {
    let mut scene = modern_only_scene().await;
    let (call, mut ears) = client_call();
    let call = scene.start_request(call);
    let seen = scene.server.next_post().await;
    scene.server.stop().await;
    let body = result_body(&seen.id(), &input_required("s"));
    seen.respond(200, &format!("{JSON}Connection: close\r\n"), &body)
        .await;
    answer_request(&mut ears, r#"{"action":"decline"}"#).await;
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.execution(), ExecutionStatus::Unknown, "{error:?}");
}
