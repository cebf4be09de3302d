//! Questions in place of answers, for callers that know only requests.

use super::*;

const FORM: &str = r#"{"method":"elicitation/create","params":{"message":"who?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}}"#;

/// A server that asks `questions` until it hears of an answer.
fn asking(questions: &str) -> Scene {
    modern(&format!(
        "{MODERN} *inputResponses*) answer '\"content\":[]' ;; *tools/call*) ask '{questions}' ;;"
    ))
}

#[tokio::test]
async fn a_caller_is_asked_and_the_request_is_sent_again_with_its_answer() {
    let state = r#""requestState":"a\u0062 \"c\"""#;
    let scene = asking(&format!(r#""inputRequests":{{"who":{FORM}}},{state}"#));
    let link = scene.link().await;
    let caller = Caller::new(
        &[Ability::ElicitationForm],
        &[r#""result":{"action":"accept","content":{"name":"Ada"}}"#],
    );
    let answer = link.request(call_of(&caller)).await.unwrap();
    assert_eq!(
        answer.bytes,
        r#"{"jsonrpc":"2.0","id":77,"result":{"resultType":"complete","content":[]}}"#
    );
    let asked = caller.asked();
    assert_eq!(asked.len(), 1);
    assert!(asked[0].contains(r#""method":"elicitation/create""#));
    assert!(
        asked[0].contains(r#""dev.bowline/server":"files""#),
        "{asked:?}"
    );
    let heard = scene.lines(3).await;
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
async fn several_things_are_asked_at_once() {
    let sampling = r#"{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}"#;
    let roots = r#"{"method":"roots/list"}"#;
    let scene = asking(&format!(
        r#""inputRequests":{{"a":{FORM},"b":{sampling},"c":{roots}}}"#
    ));
    let link = scene.link().await;
    let caller = Caller::new(
        &[Ability::ElicitationForm, Ability::Sampling, Ability::Roots],
        &[
            r#""result":{"action":"decline"}"#,
            r#""result":{"model":"m"}"#,
            r#""result":{"roots":[]}"#,
        ],
    );
    link.request(call_of(&caller)).await.unwrap();
    assert_eq!(caller.asked().len(), 3);
    let heard = scene.lines(3).await;
    let answers =
        r#""inputResponses":{"a":{"action":"decline"},"b":{"model":"m"},"c":{"roots":[]}},"_meta""#;
    assert!(heard[2].contains(answers), "{heard:?}");
    link.close().await;
}

#[tokio::test]
async fn a_server_that_only_wants_to_be_asked_again_is() {
    let scene = modern(&format!(
        "{MODERN} *requestState*) answer '\"content\":[]' ;; \
         *tools/call*) ask '\"requestState\":\"s\"' ;;"
    ));
    let link = scene.link().await;
    let caller = Caller::new(&[], &[]);
    link.request(call_of(&caller)).await.unwrap();
    assert_eq!(caller.asked().len(), 0);
    // Nobody is needed for that.
    let answer = call(&*link).await.unwrap();
    assert_eq!(body(&answer), r#"{"resultType":"complete","content":[]}"#);
    link.close().await;
}

#[tokio::test]
async fn a_server_may_ask_ten_times_and_no_more() {
    let scene = modern(&format!(
        "{MODERN} *tools/call*) ask '\"requestState\":\"s\"' ;;"
    ));
    let link = scene.link().await;
    let error = link
        .request(call_of(&Caller::new(&[], &[])))
        .await
        .unwrap_err();
    assert_eq!(
        error,
        LinkError::Unanswered(NoAnswer::Rounds { rounds_max: 10 })
    );
    assert_eq!(error.execution(), Execution::Unknown);
    assert_eq!(scene.lines(12).await.len(), 12);
    link.close().await;
}

#[tokio::test]
async fn what_nobody_can_be_asked_fails_the_call() {
    let scene = asking(&format!(r#""inputRequests":{{"who":{FORM}}}"#));
    let link = scene.link().await;
    let undeclared = Caller::new(&[Ability::Sampling], &[]);
    let error = link.request(call_of(&undeclared)).await.unwrap_err();
    let method = "elicitation/create".into();
    assert_eq!(
        error,
        LinkError::Unanswered(NoAnswer::Undeclared { method })
    );
    assert_eq!(undeclared.asked().len(), 0);
    let error = call(&*link).await.unwrap_err();
    assert_eq!(error, LinkError::Unanswered(NoAnswer::Nobody));
    link.close().await;
}

#[tokio::test]
async fn what_a_caller_refuses_is_a_cancelled_form_or_the_end_of_the_call() {
    let refusal = r#""error":{"code":-1,"message":"no"}"#;
    let form = asking(&format!(r#""inputRequests":{{"who":{FORM}}}"#));
    let link = form.link().await;
    let caller = Caller::new(&[Ability::ElicitationForm], &[refusal]);
    link.request(call_of(&caller)).await.unwrap();
    let heard = form.lines(3).await;
    assert!(heard[2].contains(r#""inputResponses":{"who":{"action":"cancel"}}"#));
    link.close().await;

    let roots = asking(r#""inputRequests":{"r":{"method":"roots/list"}}"#);
    let link = roots.link().await;
    let caller = Caller::new(&[Ability::Roots], &[refusal]);
    let error = link.request(call_of(&caller)).await.unwrap_err();
    let method = "roots/list".into();
    assert_eq!(error, LinkError::Unanswered(NoAnswer::Refused { method }));
    link.close().await;
}

#[tokio::test]
async fn a_form_that_asks_for_a_secret_is_declined_unseen() {
    let scene = asking(&format!(
        r#""inputRequests":{{"who":{}}}"#,
        FORM.replace("name", "password")
    ));
    let link = scene.link().await;
    let caller = Caller::new(&[Ability::ElicitationForm], &[]);
    link.request(call_of(&caller)).await.unwrap();
    assert_eq!(caller.asked().len(), 0);
    let heard = scene.lines(3).await;
    assert!(heard[2].contains(r#"{"action":"decline"}"#), "{heard:?}");
    link.close().await;
}

#[tokio::test]
async fn an_address_has_an_id_and_its_end_is_told() {
    let address = r#"{"method":"elicitation/create","params":{"mode":"url","message":"m","url":"https://x.example"}}"#;
    let scene = asking(&format!(r#""inputRequests":{{"u":{address}}}"#));
    let link = scene.link().await;
    let caller = Caller::new(
        &[Ability::ElicitationUrl],
        &[r#""result":{"action":"accept"}"#],
    );
    link.request(call_of(&caller)).await.unwrap();
    let asked = caller.asked();
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
async fn the_end_of_an_address_is_told_to_whoever_opened_it_for_a_result() {
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
        let scene = modern(&format!(
            "{MODERN} *inputResponses*) {ends} ;; *tools/call*) ask '{questions}' ;;"
        ));
        let link = scene.link().await;
        let caller = Caller::new(&[Ability::ElicitationUrl], &[says]);
        link.request(call_of(&caller)).await.unwrap();
        let pushed = caller.pushed.lock().unwrap().len();
        assert_eq!(pushed, told, "{says} {ends}");
        link.close().await;
    }
}

#[tokio::test]
async fn a_caller_that_leaves_takes_its_questions_with_it() {
    let scene = asking(&format!(r#""inputRequests":{{"who":{FORM}}}"#));
    let link = scene.link().await;
    let caller = Caller::new(&[Ability::ElicitationForm], &[]);
    let called = link.request(call_of(&caller));
    let asked = async {
        while caller.asked().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = called => panic!("nobody answered"),
        () = asked => {}
    }
    assert_eq!(*caller.withdrawn.lock().unwrap(), [7]);
    assert_eq!(link.in_flight(), 0);
    link.close().await;
}

#[tokio::test]
async fn the_time_of_asking_does_not_count_and_a_link_lost_later_leaves_doubt() {
    let scene = modern(&format!(
        "{MODERN} *inputResponses*) exit 5 ;; *tools/call*) ask '\"inputRequests\":{{\"w\":{FORM}}}' ;;"
    ));
    let link = scene.link().await;
    let caller = Caller::new(&[Ability::ElicitationForm], &[]);
    let mut request = call_of(&caller);
    request.deadline = after(Duration::from_secs(20));
    let called = link.request(request);
    let answers = async {
        while caller.asked().is_empty() {
            tokio::task::yield_now().await;
        }
        // Its time is over while its caller thinks.
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(30)).await;
        tokio::time::resume();
        let question = caller.open.lock().unwrap().pop().unwrap();
        question.answer(r#"{"jsonrpc":"2.0","id":0,"result":{"action":"decline"}}"#.into());
    };
    let (error, ()) = tokio::join!(called, answers);
    let error = error.unwrap_err();
    assert!(matches!(error, LinkError::Lost(_)), "{error:?}");
    assert_eq!(error.execution(), Execution::Unknown);
}
