//! Task polling against scripted responses.

use std::collections::VecDeque;
use std::future::ready;
use std::sync::{Arc, Mutex};

use bowline_core::client_handle::{
    ClientCapability, ClientHandle, ServerRequest, ServerRequestId, SessionKey,
};
use bowline_core::era::Era;
use bytes::Bytes;
use serde_json::{Value, json};

use super::*;

/// A client that answers every elicitation: recorded requests and notifications.
#[derive(Debug, Default)]
struct AnsweringClient(Mutex<Vec<Value>>, Mutex<Vec<Bytes>>);

impl ClientHandle for AnsweringClient {
    fn session(&self) -> SessionKey {
        SessionKey(1)
    }

    fn capabilities(&self) -> ClientCapabilities {
        let form = ClientCapabilities::default().with_capability(ClientCapability::ElicitationForm);
        form.with_capability(ClientCapability::ElicitationUrl)
    }

    fn notify(&self, notification: Bytes) {
        self.1.lock().unwrap().push(notification);
    }

    fn request(&self, question: ServerRequest) -> Option<ServerRequestId> {
        let asked = serde_json::from_slice(&question.request).unwrap();
        self.0.lock().unwrap().push(asked);
        let answer = br#"{"jsonrpc":"2.0","id":0,"result":{"action":"accept"}}"#;
        question.respond(Bytes::from_static(answer));
        Some(ServerRequestId(1))
    }

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        Arc::new(Self::default())
    }
}

fn response(body: BodyKind, text: &str) -> ServerResponse {
    ServerResponse {
        bytes: Bytes::copy_from_slice(text.as_bytes()),
        body,
        body_at: 0..text.len(),
        era: Era::Modern,
    }
}

fn task_response(status: &str, more: &str) -> ServerResponse {
    let text = format!(
        r#"{{"resultType":"complete","taskId":"t","status":"{status}","pollIntervalMs":500{more}}}"#
    );
    response(BodyKind::Result, &text)
}

const ACK: &str = r#"{"resultType":"complete"}"#;

/// Runs with these responses; returns the outcome and the sent requests.
async fn run_with_responses(
    method: &'static str,
    caller: Option<Arc<AnsweringClient>>,
    answers: Vec<ServerResponse>,
) -> (Result<ServerResponse, LinkError>, Vec<(String, Value)>) {
    let params = Bytes::from_static(br#"{"taskId":"t"}"#);
    let mut request = LinkRequest::new_internal(method, params, now() + Duration::from_secs(60));
    request.message.client = caller.map(|caller| caller as Arc<dyn ClientHandle>);
    let client = ClientInfo {
        name: "c".into(),
        version: "1".into(),
    };
    let (mut answers, mut sent) = (VecDeque::from(answers), Vec::new());
    let mut once = |request: LinkRequest| {
        let params = serde_json::from_slice(&request.message.params).unwrap();
        sent.push((request.method.into_owned(), params));
        let lost = LinkError::Timeout {
            sent: SendState::NotSent,
        };
        ready(answers.pop_front().ok_or(lost))
    };
    let asking = TaskQuery {
        server: "s",
        client: &client,
        request: &request,
    };
    let came = match method {
        method::TASKS_CANCEL => cancel_task(asking, &mut once).await,
        _ => wait_task_result(asking, &mut once).await,
    };
    (came, sent)
}

fn sent_methods(sent: &[(String, Value)]) -> Vec<&str> {
    sent.iter().map(|(method, _)| method.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn task_is_polled_at_server_interval() {
    let done = task_response("completed", r#","result":{"content":[]}"#);
    let answers = vec![
        task_response("working", ""),
        task_response("working", ""),
        done.clone(),
    ];
    let started = now();
    let (came, sent) = run_with_responses(method::TASKS_RESULT, None, answers).await;
    assert_eq!(came.unwrap(), done);
    assert_eq!(now() - started, Duration::from_secs(1));
    assert_eq!(sent_methods(&sent), ["tasks/get"; 3]);
    let meta = &sent[0].1["_meta"];
    let capabilities = &meta["io.modelcontextprotocol/clientCapabilities"];
    let wanted = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    assert_eq!(*capabilities, wanted);
    assert_eq!(sent[0].1["taskId"], "t");
}

#[tokio::test(start_paused = true)]
async fn task_errors_pass_and_malformed_tasks_fail() {
    let error = response(BodyKind::Error, r#"{"code":-32602,"message":"no task"}"#);
    let (came, _) = run_with_responses(method::TASKS_RESULT, None, vec![error.clone()]).await;
    assert_eq!(came.unwrap(), error);
    let odd = response(BodyKind::Result, "{}");
    let (came, _) = run_with_responses(method::TASKS_RESULT, None, vec![odd]).await;
    assert!(matches!(came, Err(LinkError::BadResponse(_))), "{came:?}");
}

#[tokio::test(start_paused = true)]
async fn endless_task_times_out_at_deadline() {
    let slow = task_response("working", "");
    let started = now();
    let (came, sent) = run_with_responses(method::TASKS_RESULT, None, vec![slow; 200]).await;
    assert!(matches!(came, Err(LinkError::Timeout { .. })), "{came:?}");
    assert_eq!(now() - started, Duration::from_secs(60));
    assert_eq!(sent.len(), 120);
}

#[tokio::test(start_paused = true)]
async fn task_input_is_requested_once_and_updated() {
    let form = r#"{"message":"m","requestedSchema":{"type":"object","properties":{}}}"#;
    let asks =
        format!(r#","inputRequests":{{"k":{{"method":"elicitation/create","params":{form}}}}}"#);
    let asks = task_response("input_required", &asks);
    let done = task_response("completed", r#","result":{}"#);
    let answers = vec![
        asks.clone(),
        response(BodyKind::Result, ACK),
        asks.clone(),
        done.clone(),
    ];
    let person = Arc::new(AnsweringClient::default());
    let (came, sent) =
        run_with_responses(method::TASKS_RESULT, Some(Arc::clone(&person)), answers).await;
    assert_eq!(came.unwrap(), done);
    let wanted = ["tasks/get", "tasks/update", "tasks/get", "tasks/get"];
    assert_eq!(sent_methods(&sent), wanted);
    assert_eq!(
        sent[1].1["inputResponses"],
        json!({"k": {"action": "accept"}})
    );
    assert_eq!(sent[1].1["taskId"], "t");
    let asked = person.0.lock().unwrap().clone();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!(asked[0]["method"], "elicitation/create");
    let (came, _) = run_with_responses(method::TASKS_RESULT, None, vec![asks]).await;
    let nobody = LinkError::InputFailed(InputRequestError::NoClient);
    assert_eq!(came.unwrap_err().to_string(), nobody.to_string());
}

#[tokio::test(start_paused = true)]
async fn completed_task_notifies_elicitation_complete() {
    let url = r#"{"mode":"url","message":"m","url":"https://x.example"}"#;
    let asks =
        format!(r#","inputRequests":{{"k":{{"method":"elicitation/create","params":{url}}}}}"#);
    for (status, told) in [("completed", 1), ("failed", 0), ("cancelled", 0)] {
        let answers = vec![
            task_response("input_required", &asks),
            response(BodyKind::Result, ACK),
            task_response(status, ""),
        ];
        let person = Arc::new(AnsweringClient::default());
        let (came, _) =
            run_with_responses(method::TASKS_RESULT, Some(Arc::clone(&person)), answers).await;
        came.unwrap();
        assert_eq!(person.1.lock().unwrap().len(), told, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_task_returns_its_state() {
    let ended = task_response("cancelled", "");
    let answers = vec![response(BodyKind::Result, ACK), ended.clone()];
    let (came, sent) = run_with_responses(method::TASKS_CANCEL, None, answers).await;
    assert_eq!(came.unwrap(), ended);
    assert_eq!(sent_methods(&sent), ["tasks/cancel", "tasks/get"]);
    let refused = response(BodyKind::Error, r#"{"code":-32602,"message":"no task"}"#);
    let (came, sent) = run_with_responses(method::TASKS_CANCEL, None, vec![refused.clone()]).await;
    assert_eq!(came.unwrap(), refused);
    assert_eq!(sent.len(), 1);
    // The cancel may have succeeded, whatever the later poll returns.
    let (came, _) = run_with_responses(
        method::TASKS_CANCEL,
        None,
        vec![response(BodyKind::Result, ACK)],
    )
    .await;
    let Err(LinkError::Timeout { sent }) = came else {
        panic!("{came:?}");
    };
    assert_eq!(sent, SendState::MaybeSent);
}
