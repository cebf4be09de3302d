//! Callers of the old era that a server of the new one asks, and what it may not do with that.

use bowline_core::error::Execution;
use bowline_link::NoAnswer;

use super::*;

/// A question, and what is to be given back with its answer.
fn asks(state: &str) -> String {
    let form = r#"{"method":"elicitation/create","params":{"message":"who?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}}"#;
    format!(
        r#"{{"resultType":"input_required","inputRequests":{{"who":{form}}},"requestState":"{state}"}}"#
    )
}

/// A link with a server that is known to keep no sessions.
async fn scene() -> Scene {
    scene_with("{}", |spec| spec.speaks = Speaks::Only(Era::Modern)).await
}

/// A call of the old era whose caller can be asked.
fn call() -> (Request, Ears) {
    let (end, ears) = caller();
    let mut call = request("tools/call");
    call.caller = Some(end);
    (call, ears)
}

async fn answers(ears: &mut Ears, value: &str) {
    let question = soon(ears.asked.recv()).await.unwrap();
    let id = String::from_utf8(question.id().to_vec()).unwrap();
    question.answer(result(&id, value).into());
}

#[tokio::test]
async fn a_question_reaches_the_caller_and_its_answer_goes_with_a_new_request() {
    let mut scene = scene().await;
    let (call, mut ears) = call();
    let call = scene.begin(call);
    let first = scene.server.post().await;
    assert!(first.body.contains(r#""elicitation":{"form":{}}"#));
    assert!(!first.body.contains("requestState"));
    let id = first.id();
    first.result(&asks("s-1 \\u00fc")).await;
    answers(&mut ears, r#"{"action":"accept","content":{"name":"Ada"}}"#).await;
    let second = scene.server.post().await;
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
        .result(r#"{"resultType":"complete","content":[]}"#)
        .await;
    let answer = call.await.unwrap().unwrap();
    assert_eq!(answer.era, Era::Modern);
    assert_eq!(
        text(Ok(answer)),
        answered(r#"{"resultType":"complete","content":[]}"#)
    );
}

#[tokio::test]
async fn a_caller_of_the_new_era_gets_the_question_as_it_is() {
    let mut scene = scene().await;
    let (end, mut ears) = caller();
    let mut asking = modern("tools/call", r#""name":"x""#);
    asking.caller = Some(end);
    let call = scene.begin(asking);
    scene.server.post().await.result(&asks("s")).await;
    assert_eq!(text(call.await.unwrap()), answered(&asks("s")));
    assert!(ears.asked.try_recv().is_err());
    assert!(scene.server.is_quiet());
}

#[tokio::test]
async fn a_server_that_asks_without_end_is_given_up() {
    let mut scene = scene().await;
    let (call, mut ears) = call();
    let call = scene.begin(call);
    let mut asked = 0;
    let error = soon(async {
        let mut call = call;
        loop {
            tokio::select! {
                ended = &mut call => break ended.unwrap().unwrap_err(),
                seen = scene.server.post() => {
                    asked += 1;
                    seen.result(&asks("s")).await;
                }
                Some(question) = ears.asked.recv() => {
                    let id = String::from_utf8(question.id().to_vec()).unwrap();
                    question.answer(result(&id, r#"{"action":"decline"}"#).into());
                }
            }
        }
    })
    .await;
    assert!(
        matches!(error, LinkError::Unanswered(NoAnswer::Rounds { .. })),
        "{error:?}"
    );
    assert_eq!(error.execution(), Execution::Unknown);
    assert_eq!(asked, 11);
    assert_eq!(scene.link.in_flight(), 0);
}

#[tokio::test]
async fn a_server_that_wants_only_to_be_called_again_is_given_up_too() {
    let mut scene = scene().await;
    let (call, _ears) = call();
    let call = scene.begin(call);
    for _ in 0..11 {
        let seen = scene.server.post().await;
        seen.result(r#"{"resultType":"input_required","requestState":"s"}"#)
            .await;
    }
    let error = call.await.unwrap().unwrap_err();
    assert!(
        matches!(error, LinkError::Unanswered(NoAnswer::Rounds { .. })),
        "{error:?}"
    );
    assert!(scene.server.is_quiet());
}

#[tokio::test]
async fn a_state_that_cannot_be_given_back_ends_the_call_and_sends_nothing() {
    let mut scene = scene_with("{}", |spec| {
        spec.speaks = Speaks::Only(Era::Modern);
        spec.limits.body_bytes_max = 20_000;
    })
    .await;
    let (call, mut ears) = call();
    let call = scene.begin(call);
    let seen = scene.server.post().await;
    // It fits into an answer, and not into a request.
    seen.result(&asks(&"s".repeat(19_720))).await;
    answers(&mut ears, r#"{"action":"decline"}"#).await;
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.execution(), Execution::Unknown, "{error:?}");
    assert!(scene.server.is_quiet());
    // Nor is one taken that is larger than any answer may be.
    let (call, mut ears) = self::call();
    let call = scene.begin(call);
    let seen = scene.server.post().await;
    seen.result(&asks(&"s".repeat(30_000))).await;
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::TooLong { .. }), "{error:?}");
    assert!(ears.asked.try_recv().is_err());
}

#[tokio::test]
async fn a_server_that_asks_too_much_at_once_asks_nobody() {
    let mut scene = scene().await;
    let (call, mut ears) = call();
    let call = scene.begin(call);
    let seen = scene.server.post().await;
    let form = r#"{"method":"elicitation/create","params":{"message":"m","requestedSchema":{}}}"#;
    let many: Vec<_> = (0..1_000).map(|key| format!(r#""{key}":{form}"#)).collect();
    let many = many.join(",");
    seen.result(&format!(
        r#"{{"resultType":"input_required","inputRequests":{{{many}}}}}"#
    ))
    .await;
    let error = call.await.unwrap().unwrap_err();
    assert!(
        matches!(error, LinkError::Unanswered(NoAnswer::TooMany { .. })),
        "{error:?}"
    );
    assert!(ears.asked.try_recv().is_err());
}

#[tokio::test]
async fn a_call_that_is_taken_back_while_its_caller_is_asked_sends_no_more() {
    let mut scene = scene().await;
    let (call, mut ears) = call();
    let call = scene.begin(call);
    scene.server.post().await.result(&asks("s")).await;
    let question = soon(ears.asked.recv()).await.unwrap();
    call.abort();
    assert!(call.await.is_err());
    question.answer(result("0", r#"{"action":"decline"}"#).into());
    let after = scene.begin(modern("tools/list", ""));
    let seen = scene.server.post().await;
    assert_eq!(seen.header("mcp-method"), Some("tools/list"));
    seen.result("{}").await;
    after.await.unwrap().unwrap();
    assert!(scene.server.is_quiet());
}

#[tokio::test]
async fn a_connection_that_is_lost_after_the_first_round_leaves_it_unknown() {
    let mut scene = scene().await;
    let (call, mut ears) = call();
    let call = scene.begin(call);
    let seen = scene.server.post().await;
    scene.server.stop().await;
    let body = result(&seen.id(), &asks("s"));
    seen.answer(200, &format!("{JSON}Connection: close\r\n"), &body)
        .await;
    answers(&mut ears, r#"{"action":"decline"}"#).await;
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.execution(), Execution::Unknown, "{error:?}");
}
