//! A server whose task stands as the test says, and what is asked of it.

use std::collections::VecDeque;
use std::future::ready;
use std::sync::{Arc, Mutex};

use bowline_core::caller::{Ability, CallerEnd, Question, QuestionId, SessionKey};
use bowline_core::era::Era;
use bytes::Bytes;
use serde_json::{Value, json};

use super::*;

/// A caller that answers every question of a person: what it was asked, and what it was told.
#[derive(Debug, Default)]
struct Person(Mutex<Vec<Value>>, Mutex<Vec<Bytes>>);

impl CallerEnd for Person {
    fn session(&self) -> SessionKey {
        SessionKey(1)
    }

    fn abilities(&self) -> Abilities {
        let form = Abilities::default().with(Ability::ElicitationForm);
        form.with(Ability::ElicitationUrl)
    }

    fn push(&self, notification: Bytes) {
        self.1.lock().unwrap().push(notification);
    }

    fn ask(&self, question: Question) -> Option<QuestionId> {
        let asked = serde_json::from_slice(&question.request).unwrap();
        self.0.lock().unwrap().push(asked);
        let answer = br#"{"jsonrpc":"2.0","id":0,"result":{"action":"accept"}}"#;
        question.answer(Bytes::from_static(answer));
        Some(QuestionId(1))
    }

    fn home(&self) -> Arc<dyn CallerEnd> {
        Arc::new(Self::default())
    }
}

fn answer(body: Body, text: &str) -> Answer {
    Answer {
        bytes: Bytes::copy_from_slice(text.as_bytes()),
        body,
        body_at: 0..text.len(),
        era: Era::Modern,
    }
}

fn task(status: &str, more: &str) -> Answer {
    let text = format!(
        r#"{{"resultType":"complete","taskId":"t","status":"{status}","pollIntervalMs":500{more}}}"#
    );
    answer(Body::Result, &text)
}

const ACK: &str = r#"{"resultType":"complete"}"#;

/// Asks with these answers, and returns what came and what was sent.
async fn go(
    method: &'static str,
    caller: Option<Arc<Person>>,
    answers: Vec<Answer>,
) -> (Result<Answer, LinkError>, Vec<(String, Value)>) {
    let params = Bytes::from_static(br#"{"taskId":"t"}"#);
    let mut request = Request::own(method, Some(params), now() + Duration::from_secs(60));
    request.caller = caller.map(|caller| caller as Arc<dyn CallerEnd>);
    let client = ClientInfo {
        name: "c".into(),
        version: "1".into(),
    };
    let (mut answers, mut sent) = (VecDeque::from(answers), Vec::new());
    let mut once = |request: Request| {
        let params = serde_json::from_slice(request.params.as_deref().unwrap()).unwrap();
        sent.push((request.method.into_owned(), params));
        let lost = LinkError::Timeout { sent: Sent::No };
        ready(answers.pop_front().ok_or(lost))
    };
    let asking = Asking {
        server: "s",
        client: &client,
        request: &request,
    };
    let came = match method {
        method::TASKS_CANCEL => cancel(asking, &mut once).await,
        _ => result(asking, &mut once).await,
    };
    (came, sent)
}

fn methods(sent: &[(String, Value)]) -> Vec<&str> {
    sent.iter().map(|(method, _)| method.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_result_is_waited_for_by_looking_at_the_pace_of_the_server() {
    let done = task("completed", r#","result":{"content":[]}"#);
    let answers = vec![task("working", ""), task("working", ""), done.clone()];
    let started = now();
    let (came, sent) = go(method::TASKS_RESULT, None, answers).await;
    assert_eq!(came.unwrap(), done);
    assert_eq!(now() - started, Duration::from_secs(1));
    assert_eq!(methods(&sent), ["tasks/get"; 3]);
    let meta = &sent[0].1["_meta"];
    let capabilities = &meta["io.modelcontextprotocol/clientCapabilities"];
    let wanted = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    assert_eq!(*capabilities, wanted);
    assert_eq!(sent[0].1["taskId"], "t");
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_server_is_given_and_what_is_no_task_is_none() {
    let error = answer(Body::Error, r#"{"code":-32602,"message":"no task"}"#);
    let (came, _) = go(method::TASKS_RESULT, None, vec![error.clone()]).await;
    assert_eq!(came.unwrap(), error);
    let odd = answer(Body::Result, "{}");
    let (came, _) = go(method::TASKS_RESULT, None, vec![odd]).await;
    assert!(matches!(came, Err(LinkError::BadAnswer(_))), "{came:?}");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_does_not_end_is_waited_for_no_longer_than_the_call_may_last() {
    let slow = task("working", "");
    let started = now();
    let (came, sent) = go(method::TASKS_RESULT, None, vec![slow; 200]).await;
    assert!(matches!(came, Err(LinkError::Timeout { .. })), "{came:?}");
    assert_eq!(now() - started, Duration::from_secs(60));
    assert_eq!(sent.len(), 120);
}

#[tokio::test(start_paused = true)]
async fn what_a_task_asks_is_put_to_the_caller_once_and_answered_with_an_update() {
    let form = r#"{"message":"m","requestedSchema":{"type":"object","properties":{}}}"#;
    let asks =
        format!(r#","inputRequests":{{"k":{{"method":"elicitation/create","params":{form}}}}}"#);
    let asks = task("input_required", &asks);
    let done = task("completed", r#","result":{}"#);
    let answers = vec![
        asks.clone(),
        answer(Body::Result, ACK),
        asks.clone(),
        done.clone(),
    ];
    let person = Arc::new(Person::default());
    let (came, sent) = go(method::TASKS_RESULT, Some(Arc::clone(&person)), answers).await;
    assert_eq!(came.unwrap(), done);
    let wanted = ["tasks/get", "tasks/update", "tasks/get", "tasks/get"];
    assert_eq!(methods(&sent), wanted);
    assert_eq!(
        sent[1].1["inputResponses"],
        json!({"k": {"action": "accept"}})
    );
    assert_eq!(sent[1].1["taskId"], "t");
    let asked = person.0.lock().unwrap().clone();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!(asked[0]["method"], "elicitation/create");
    let (came, _) = go(method::TASKS_RESULT, None, vec![asks]).await;
    let nobody = LinkError::Unanswered(NoAnswer::Nobody);
    assert_eq!(came.unwrap_err().to_string(), nobody.to_string());
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_address_is_told_where_its_task_has_a_result() {
    let url = r#"{"mode":"url","message":"m","url":"https://x.example"}"#;
    let asks =
        format!(r#","inputRequests":{{"k":{{"method":"elicitation/create","params":{url}}}}}"#);
    for (status, told) in [("completed", 1), ("failed", 0), ("cancelled", 0)] {
        let answers = vec![
            task("input_required", &asks),
            answer(Body::Result, ACK),
            task(status, ""),
        ];
        let person = Arc::new(Person::default());
        let (came, _) = go(method::TASKS_RESULT, Some(Arc::clone(&person)), answers).await;
        came.unwrap();
        assert_eq!(person.1.lock().unwrap().len(), told, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_cancels_a_task_is_told_how_it_stands() {
    let ended = task("cancelled", "");
    let answers = vec![answer(Body::Result, ACK), ended.clone()];
    let (came, sent) = go(method::TASKS_CANCEL, None, answers).await;
    assert_eq!(came.unwrap(), ended);
    assert_eq!(methods(&sent), ["tasks/cancel", "tasks/get"]);
    let refused = answer(Body::Error, r#"{"code":-32602,"message":"no task"}"#);
    let (came, sent) = go(method::TASKS_CANCEL, None, vec![refused.clone()]).await;
    assert_eq!(came.unwrap(), refused);
    assert_eq!(sent.len(), 1);
    // What may have been cancelled may have been, whatever became of the look at it.
    let (came, _) = go(method::TASKS_CANCEL, None, vec![answer(Body::Result, ACK)]).await;
    let Err(LinkError::Timeout { sent }) = came else {
        panic!("{came:?}");
    };
    assert_eq!(sent, Sent::Perhaps);
}
