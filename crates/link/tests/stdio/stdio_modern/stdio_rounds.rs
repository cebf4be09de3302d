//! Input rounds for legacy clients over stdio.

use super::*;

const FORM: &str = r#"{"method":"elicitation/create","params":{"message":"who?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}}"#;

/// Returns a server that sends `questions` until it gets an answer.
fn asking_scene(questions: &str) -> StdioScene {
    modern_scene(&format!(
        "{MODERN} *inputResponses*) answer '\"content\":[]' ;; *tools/call*) ask '{questions}' ;;"
    ))
}

#[tokio::test]
async fn input_request_is_answered_by_retry() {
    let state = r#""requestState":"a\u0062 \"c\"""#;
    let scene = asking_scene(&format!(r#""inputRequests":{{"who":{FORM}}},{state}"#));
    let link = scene.connect_link().await;
    let caller = ScriptedClient::new(
        &[ClientCapability::ElicitationForm],
        &[r#""result":{"action":"accept","content":{"name":"Ada"}}"#],
    );
    let answer = link.request(client_call(&caller)).await.unwrap();
    assert_eq!(
        answer.bytes,
        r#"{"jsonrpc":"2.0","id":77,"result":{"resultType":"complete","content":[]}}"#
    );
    let asked = caller.asked_methods();
    assert_eq!(asked.len(), 1);
    assert!(asked[0].contains(r#""method":"elicitation/create""#));
    assert!(
        asked[0].contains(r#""dev.bowline/server":"files""#),
        "{asked:?}"
    );
    let heard = scene.wait_lines(3).await;
    assert!(heard[1].contains(r#""id":2,"method":"tools/call""#));
    assert!(!heard[1].contains("inputResponses"));
    assert!(heard[2].contains(r#""id":3,"method":"tools/call""#));
    let answers = r#""inputResponses":{"who":{"action":"accept","content":{"name":"Ada"}}},"#;
    assert!(heard[2].contains(&format!("{answers}{state}")), "{heard:?}");
    assert!(heard[2].contains(r#""name":"t""#));
    assert_eq!(*caller.withdrawn.lock().unwrap(), [0_u64; 0]);
    link.close().await;
}

#[tokio::test]
async fn several_input_requests_are_answered() {
    let sampling = r#"{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}"#;
    let roots = r#"{"method":"roots/list"}"#;
    let scene = asking_scene(&format!(
        r#""inputRequests":{{"a":{FORM},"b":{sampling},"c":{roots}}}"#
    ));
    let link = scene.connect_link().await;
    let caller = ScriptedClient::new(
        &[
            ClientCapability::ElicitationForm,
            ClientCapability::Sampling,
            ClientCapability::Roots,
        ],
        &[
            r#""result":{"action":"decline"}"#,
            r#""result":{"model":"m"}"#,
            r#""result":{"roots":[]}"#,
        ],
    );
    link.request(client_call(&caller)).await.unwrap();
    assert_eq!(caller.asked_methods().len(), 3);
    let heard = scene.wait_lines(3).await;
    let answers =
        r#""inputResponses":{"a":{"action":"decline"},"b":{"model":"m"},"c":{"roots":[]}},"_meta""#;
    assert!(heard[2].contains(answers), "{heard:?}");
    link.close().await;
}

#[tokio::test]
async fn retry_without_input_is_sent() {
    let scene = modern_scene(&format!(
        "{MODERN} *requestState*) answer '\"content\":[]' ;; \
         *tools/call*) ask '\"requestState\":\"s\"' ;;"
    ));
    let link = scene.connect_link().await;
    let caller = ScriptedClient::new(&[], &[]);
    link.request(client_call(&caller)).await.unwrap();
    assert_eq!(caller.asked_methods().len(), 0);
    // No client is needed for a retry.
    let answer = call_tool(&*link).await.unwrap();
    assert_eq!(
        body_text(&answer),
        r#"{"resultType":"complete","content":[]}"#
    );
    link.close().await;
}

#[tokio::test]
async fn input_rounds_stop_after_ten() {
    let scene = modern_scene(&format!(
        "{MODERN} *tools/call*) ask '\"requestState\":\"s\"' ;;"
    ));
    let link = scene.connect_link().await;
    let error = link
        .request(client_call(&ScriptedClient::new(&[], &[])))
        .await
        .unwrap_err();
    assert_eq!(
        error,
        LinkError::InputFailed(InputRequestError::Rounds { rounds_max: 10 })
    );
    assert_eq!(error.execution(), ExecutionStatus::Unknown);
    assert_eq!(scene.wait_lines(12).await.len(), 12);
    link.close().await;
}

#[tokio::test]
async fn undeclared_input_request_fails_call() {
    let scene = asking_scene(&format!(r#""inputRequests":{{"who":{FORM}}}"#));
    let link = scene.connect_link().await;
    let undeclared = ScriptedClient::new(&[ClientCapability::Sampling], &[]);
    let error = link.request(client_call(&undeclared)).await.unwrap_err();
    let method = "elicitation/create".into();
    assert_eq!(
        error,
        LinkError::InputFailed(InputRequestError::Undeclared { method })
    );
    assert_eq!(undeclared.asked_methods().len(), 0);
    let error = call_tool(&*link).await.unwrap_err();
    assert_eq!(error, LinkError::InputFailed(InputRequestError::NoClient));
    link.close().await;
}

#[tokio::test]
async fn refused_input_cancels_form_or_fails() {
    let refusal = r#""error":{"code":-1,"message":"no"}"#;
    let form = asking_scene(&format!(r#""inputRequests":{{"who":{FORM}}}"#));
    let link = form.connect_link().await;
    let caller = ScriptedClient::new(&[ClientCapability::ElicitationForm], &[refusal]);
    link.request(client_call(&caller)).await.unwrap();
    let heard = form.wait_lines(3).await;
    assert!(heard[2].contains(r#""inputResponses":{"who":{"action":"cancel"}}"#));
    link.close().await;

    let roots = asking_scene(r#""inputRequests":{"r":{"method":"roots/list"}}"#);
    let link = roots.connect_link().await;
    let caller = ScriptedClient::new(&[ClientCapability::Roots], &[refusal]);
    let error = link.request(client_call(&caller)).await.unwrap_err();
    let method = "roots/list".into();
    assert_eq!(
        error,
        LinkError::InputFailed(InputRequestError::Refused { method })
    );
    link.close().await;
}

#[tokio::test]
async fn secret_form_is_declined_unseen() {
    let scene = asking_scene(&format!(
        r#""inputRequests":{{"who":{}}}"#,
        FORM.replace("name", "password")
    ));
    let link = scene.connect_link().await;
    let caller = ScriptedClient::new(&[ClientCapability::ElicitationForm], &[]);
    link.request(client_call(&caller)).await.unwrap();
    assert_eq!(caller.asked_methods().len(), 0);
    let heard = scene.wait_lines(3).await;
    assert!(heard[2].contains(r#"{"action":"decline"}"#), "{heard:?}");
    link.close().await;
}

#[tokio::test]
async fn url_elicitation_gets_id_and_completion() {
    let address = r#"{"method":"elicitation/create","params":{"mode":"url","message":"m","url":"https://x.example"}}"#;
    let scene = asking_scene(&format!(r#""inputRequests":{{"u":{address}}}"#));
    let link = scene.connect_link().await;
    let caller = ScriptedClient::new(
        &[ClientCapability::ElicitationUrl],
        &[r#""result":{"action":"accept"}"#],
    );
    link.request(client_call(&caller)).await.unwrap();
    let asked = caller.asked_methods();
    let id = asked[0].split(r#""elicitationId":""#).nth(1).unwrap();
    let id = id.split('"').next().unwrap();
    assert_eq!(id.len(), 32);
    let told = caller.pushed.lock().unwrap().clone();
    assert_eq!(
        told,
        [format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{{"elicitationId":"{id}"}}}}"#
        )]
    );
    link.close().await;
}

#[tokio::test]
async fn completion_is_sent_for_accepted_urls_only() {
    let address = r#"{"method":"elicitation/create","params":{"mode":"url","message":"m","url":"https://x.example"}}"#;
    let questions = format!(r#""inputRequests":{{"u":{address}}}"#);
    for (says, ends, told) in [
        (
            r#""result":{"action":"accept"}"#,
            "answer '\"content\":[]'",
            1,
        ),
        (
            r#""result":{"action":"decline"}"#,
            "answer '\"content\":[]'",
            0,
        ),
        (
            r#""result":{"action":"cancel"}"#,
            "answer '\"content\":[]'",
            0,
        ),
        (
            r#""error":{"code":1,"message":"no"}"#,
            "answer '\"content\":[]'",
            0,
        ),
        (r#""result":{"action":"accept"}"#, "refuse -32603", 0),
    ] {
        let scene = modern_scene(&format!(
            "{MODERN} *inputResponses*) {ends} ;; *tools/call*) ask '{questions}' ;;"
        ));
        let link = scene.connect_link().await;
        let caller = ScriptedClient::new(&[ClientCapability::ElicitationUrl], &[says]);
        link.request(client_call(&caller)).await.unwrap();
        let pushed = caller.pushed.lock().unwrap().len();
        assert_eq!(pushed, told, "{says} {ends}");
        link.close().await;
    }
}

#[tokio::test]
async fn dropped_call_cancels_its_requests() {
    let scene = asking_scene(&format!(r#""inputRequests":{{"who":{FORM}}}"#));
    let link = scene.connect_link().await;
    let caller = ScriptedClient::new(&[ClientCapability::ElicitationForm], &[]);
    let called = link.request(client_call(&caller));
    let asked = caller.wait_until(|caller| !caller.asked_methods().is_empty());
    tokio::select! {
        _ = called => panic!("nobody answered"),
        () = asked => {}
    }
    assert_eq!(*caller.withdrawn.lock().unwrap(), [7]);
    assert_eq!(link.in_flight(), 0);
    link.close().await;
}

#[tokio::test]
async fn client_wait_does_not_count_as_timeout() {
    let scene = modern_scene(&format!(
        "{MODERN} *inputResponses*) exit 5 ;; *tools/call*) ask '\"inputRequests\":{{\"w\":{FORM}}}' ;;"
    ));
    let link = scene.connect_link().await;
    let caller = ScriptedClient::new(&[ClientCapability::ElicitationForm], &[]);
    let mut request = client_call(&caller);
    request.deadline = deadline_after(Duration::from_secs(20));
    let called = link.request(request);
    let answers = async {
        caller
            .wait_until(|caller| !caller.asked_methods().is_empty())
            .await;
        // The deadline passes during the client wait.
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(30)).await;
        tokio::time::resume();
        let question = caller.open.lock().unwrap().pop().unwrap();
        question.respond(r#"{"jsonrpc":"2.0","id":0,"result":{"action":"decline"}}"#.into());
    };
    let (error, ()) = tokio::join!(called, answers);
    let error = error.unwrap_err();
    assert!(matches!(error, LinkError::Lost(_)), "{error:?}");
    assert_eq!(error.execution(), ExecutionStatus::Unknown);
}
