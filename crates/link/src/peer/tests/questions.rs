//! What a server asks, and whom.

use super::*;

const ELICIT: &str = r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"x":1}}"#;
const ROOTS: &str = r#"{"jsonrpc":"2.0","id":"r","method":"roots/list"}"#;
const WITHDRAW: &str =
    r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q"}}"#;

/// A call of `heard` whose request the server has read.
async fn call_of(scene: &mut Scene, heard: &Arc<Heard>) -> JoinHandle<Outcome> {
    let call = scene
        .call(Request {
            caller: Some(Arc::clone(heard) as Arc<dyn CallerEnd>),
            ..request("tools/call")
        })
        .await;
    scene.hears().await;
    call
}

/// A question as it is put to a client: it says which server asks.
fn marked(question: &str) -> String {
    let params = r#""params":{"_meta":{"dev.bowline/server":"s"},"#;
    question.replace(r#""params":{"#, params)
}

fn take(heard: &Heard) -> Question {
    heard.asked.lock().unwrap().pop().expect("it was asked")
}

#[tokio::test]
async fn a_question_goes_to_the_only_session_in_flight_and_its_answer_comes_back_whole() {
    let mut scene = Scene::new();
    let heard = Heard::able(1);
    let _first = call_of(&mut scene, &heard).await;
    let _second = call_of(&mut scene, &Heard::able(1)).await;
    let third = Heard::able(1);
    let _third = call_of(&mut scene, &third).await;
    scene.says(ELICIT).await;
    scene.settles().await;
    let question = take(&third);
    assert_eq!(question.request, marked(ELICIT));
    assert_eq!(question.id(), b"\"q\"");
    assert_eq!(question.ability, Ability::ElicitationForm);
    let answer = r#"{"jsonrpc":"2.0","id":"q","result":{"action":"accept","more":[1]}}"#;
    question.answer(Bytes::from_static(answer.as_bytes()));
    assert_eq!(scene.hears().await, answer);
}

#[tokio::test]
async fn a_question_while_two_sessions_are_in_flight_is_refused_and_told() {
    let mut scene = Scene::new();
    let (one, two) = (Heard::able(1), Heard::able(2));
    let _one = call_of(&mut scene, &one).await;
    let _two = call_of(&mut scene, &two).await;
    scene.says(ELICIT).await;
    assert!(scene.hears().await.contains(r#""error":{"code":-32603"#));
    assert!(one.asked.lock().unwrap().is_empty());
    assert!(two.asked.lock().unwrap().is_empty());
    assert_eq!(scene.events.recv().await, Some(LinkEvent::Ambiguous));
    // Log lines are nobody's then; alone, they are the caller's.
    let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}"#;
    scene.says(log).await;
    let event = scene.events.recv().await;
    assert_eq!(
        event,
        Some(LinkEvent::Log(Bytes::from_static(log.as_bytes())))
    );
    scene.answers(1).await;
    scene.says(log).await;
    scene.settles().await;
    assert_eq!(*two.told.lock().unwrap(), [log]);
    assert!(one.told.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_client_is_asked_only_what_it_declared() {
    let mut scene = Scene::new();
    let heard = Arc::new(Heard {
        session: 1,
        abilities: Abilities::default().with(Ability::ElicitationForm),
        ..Heard::default()
    });
    let _call = call_of(&mut scene, &heard).await;
    let by_address =
        r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"mode":"url"}}"#;
    for line in [ROOTS, by_address] {
        scene.says(line).await;
        assert!(scene.hears().await.contains(r#""error":{"code":-32601"#));
    }
    scene.says(ELICIT).await;
    scene.settles().await;
    assert_eq!(take(&heard).request, marked(ELICIT));
}

#[tokio::test]
async fn sec_33_a_form_that_asks_for_a_secret_is_refused_and_nobody_sees_it() {
    let mut scene = Scene::new();
    let heard = Heard::able(1);
    let _call = call_of(&mut scene, &heard).await;
    for property in ["password", "api_key", "accessToken"] {
        let form = format!(
            r#"{{"message":"m","requestedSchema":{{"type":"object","properties":{{"{property}":{{}}}}}}}}"#
        );
        let asks = ELICIT.replace(r#"{"x":1}"#, &form);
        scene.says(&asks).await;
        let refused = scene.hears().await;
        assert!(refused.contains(r#""error":{"code":-32602"#), "{refused}");
        assert!(refused.contains(property), "{refused}");
    }
    scene.settles().await;
    assert!(heard.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn sec_33_a_server_cannot_ask_in_the_name_of_another() {
    let mut scene = Scene::new();
    let heard = Heard::able(1);
    let _call = call_of(&mut scene, &heard).await;
    let claims = r#""params":{"_meta":{"dev.bowline/server":"bank"},"#;
    scene.says(&ELICIT.replace(r#""params":{"#, claims)).await;
    scene.settles().await;
    assert_eq!(take(&heard).request, marked(ELICIT));
}

#[tokio::test]
async fn outside_calls_there_are_no_roots_and_nobody_to_ask() {
    let mut scene = Scene::new();
    scene.says(ROOTS).await;
    assert_eq!(
        scene.hears().await,
        r#"{"jsonrpc":"2.0","id":"r","result":{"roots":[]}}"#
    );
    scene.says(ELICIT).await;
    assert!(scene.hears().await.contains(r#""error":{"code":-32603"#));
}

#[tokio::test]
async fn a_link_of_one_session_asks_that_session_outside_calls() {
    let owner = Heard::able(7);
    let mut scene = Scene::owned(StdioLimits::default(), 1024, Some(owner.clone()));
    scene.says(ROOTS).await;
    scene.settles().await;
    let named = ROOTS.replace('{', r#"{"params":{"_meta":{"dev.bowline/server":"s"}},"#);
    assert_eq!(take(&owner).request, named);
}

#[tokio::test]
async fn a_dropped_question_is_refused_and_a_withdrawn_one_is_not_answered() {
    let mut scene = Scene::new();
    let heard = Heard::able(1);
    let _call = call_of(&mut scene, &heard).await;
    scene.says(ELICIT).await;
    scene.settles().await;
    drop(take(&heard));
    assert!(
        scene
            .hears()
            .await
            .contains("the client gave no answer to `elicitation/create`")
    );
    scene.says(ELICIT).await;
    scene.says(ELICIT).await;
    assert!(
        scene.hears().await.contains(r#""error":{"code":-32603"#),
        "the id is taken"
    );
    scene.says(WITHDRAW).await;
    scene.settles().await;
    assert_eq!(heard.withdrawn.lock().unwrap().len(), 1);
    drop(take(&heard));
    scene.settles().await;
}

#[tokio::test(start_paused = true)]
async fn time_that_the_caller_takes_to_answer_is_not_the_servers() {
    let mut scene = Scene::new();
    let heard = Heard::able(1);
    let started = after(Duration::ZERO);
    let call = call_of(&mut scene, &heard).await;
    tokio::time::advance(Duration::from_secs(20)).await;
    scene.says(ELICIT).await;
    scene.settles().await;
    tokio::time::advance(Duration::from_secs(500)).await;
    assert!(!call.is_finished());
    let answer = Bytes::from_static(br#"{"jsonrpc":"2.0","id":"q","result":{}}"#);
    take(&heard).answer(answer);
    let outcome = call.await.unwrap();
    assert_eq!(
        outcome,
        Err(LinkError::Timeout {
            sent: Sent::Perhaps
        })
    );
    assert_eq!(started.elapsed().as_secs(), 560);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_withdraws_its_questions() {
    let mut scene = Scene::new();
    let heard = Heard::able(1);
    let call = call_of(&mut scene, &heard).await;
    scene.says(ELICIT).await;
    scene.settles().await;
    call.abort();
    assert!(call.await.is_err());
    assert_eq!(*heard.withdrawn.lock().unwrap(), [QuestionId(1)]);
    assert!(scene.hears().await.contains("notifications/cancelled"));
    drop(take(&heard));
    scene.settles().await;
}

#[tokio::test]
async fn what_is_done_at_an_address_is_told_to_who_was_sent_there() {
    let mut scene = Scene::new();
    let (one, two) = (Heard::able(1), Heard::able(2));
    let first = call_of(&mut scene, &one).await;
    scene
        .says(concat!(
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32042,"message":"go","data":"#,
            r#"{"elicitations":[{"mode":"url","elicitationId":"e","url":"u","message":"m"}]}}}"#
        ))
        .await;
    assert!(first.await.unwrap().is_ok());
    let _second = call_of(&mut scene, &two).await;
    let done = |id: &str| {
        let params = format!(r#"{{"elicitationId":"{id}"}}"#);
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{params}}}"#
        )
    };
    scene.says(&done("e")).await;
    let told = LinkEvent::Told {
        session: SessionKey(1),
        notification: done("e").into(),
    };
    assert_eq!(scene.events.recv().await, Some(told));
    scene.says(&done("unknown")).await;
    scene.settles().await;
    assert!(two.told.lock().unwrap().is_empty());
}
