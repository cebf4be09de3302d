//! Tasks: accessible to their principal, with notifications to its session.

use std::sync::Arc;

use bowline_core::call::{CallRequest, CallSubject, EndpointScope, Principal, Role, TaskOperation};
use bowline_core::client_handle::SessionKey;
use bowline_core::error::CallError;
use bowline_link::LinkEvent;
use bowline_testkit::{RecordingClient, reply_body, subject_call, tool_call};

use super::{server_scope, start_stage};

fn task_creating_call(server: &str, who: &str, session: u64) -> CallRequest {
    let mut made = tool_call(&format!("{server}__make"), "{}");
    made.principal = Arc::new(Principal::new(who, Role::Owner));
    made.wants_task = true;
    made.message.client = Some(RecordingClient::new(session));
    made
}

fn task_get_call(who: &str, id: &str, scope: &EndpointScope) -> CallRequest {
    let subject = CallSubject::Task {
        id: id.into(),
        operation: TaskOperation::Get,
    };
    let mut asked = subject_call(subject, "taskId");
    asked.principal = Arc::new(Principal::new(who, Role::Owner));
    asked.scope = scope.clone();
    asked
}

#[tokio::test(start_paused = true)]
async fn task_is_accessible_to_its_principal_only() {
    let stage = start_stage(&["s", "t"]).await;
    stage
        .host
        .call(task_creating_call("s", "ann", 1))
        .await
        .unwrap();
    let reply = stage
        .host
        .call(task_get_call("ann", "1", &EndpointScope::All))
        .await
        .unwrap();
    assert_eq!(reply_body(&reply), r#"{"taskId":"1","status":"working"}"#);
    let before = stage.world.record().requests.len();
    for asked in [
        task_get_call("bob", "1", &EndpointScope::All),
        task_get_call("bob", "1", &server_scope("s")),
        task_get_call("ann", "1", &server_scope("t")),
        task_get_call("ann", "9", &EndpointScope::All),
    ] {
        let error = stage.host.call(asked).await.unwrap_err();
        assert!(matches!(error, CallError::UnknownTask { .. }), "{error}");
    }
    assert_eq!(
        stage.world.record().requests.len(),
        before,
        "no server was asked"
    );
}

#[tokio::test(start_paused = true)]
async fn ambiguous_task_id_is_refused() {
    let stage = start_stage(&["s", "t"]).await;
    stage
        .host
        .call(task_creating_call("s", "ann", 1))
        .await
        .unwrap();
    stage
        .host
        .call(task_creating_call("t", "ann", 1))
        .await
        .unwrap();
    let error = stage
        .host
        .call(task_get_call("ann", "1", &EndpointScope::All))
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::AmbiguousTask { .. }), "{error}");
    assert!(
        stage
            .host
            .call(task_get_call("ann", "1", &server_scope("t")))
            .await
            .is_ok()
    );
    assert_eq!(
        stage.wait_requests("t", "tasks/get", 1).await,
        [r#"tasks/get {"taskId":"1"}"#]
    );
}

#[tokio::test(start_paused = true)]
async fn task_list_has_own_tasks_of_all_pages() {
    let stage = start_stage(&["s", "t"]).await;
    let ann = Principal::new("ann", Role::Owner);
    let none = stage
        .host
        .list_tasks(&ann, &EndpointScope::All)
        .await
        .unwrap();
    assert_eq!(none, r#"{"tasks":[]}"#);
    stage
        .host
        .call(task_creating_call("s", "ann", 1))
        .await
        .unwrap();
    stage
        .host
        .call(task_creating_call("t", "bob", 2))
        .await
        .unwrap();
    let own = stage
        .host
        .list_tasks(&ann, &EndpointScope::All)
        .await
        .unwrap();
    assert_eq!(own, r#"{"tasks":[{ "taskId" : "1" }]}"#);
    assert_eq!(
        stage.wait_requests("t", "tasks/list", 0).await,
        [""; 0],
        "none of hers is there"
    );
    stage
        .host
        .call(task_creating_call("t", "ann", 1))
        .await
        .unwrap();
    let own = stage
        .host
        .list_tasks(&ann, &EndpointScope::All)
        .await
        .unwrap();
    assert_eq!(own, r#"{"tasks":[{ "taskId" : "1" },{ "taskId" : "1" }]}"#);
    let own = stage
        .host
        .list_tasks(&ann, &server_scope("t"))
        .await
        .unwrap();
    assert_eq!(own, r#"{"tasks":[{ "taskId" : "1" }]}"#);
}

#[tokio::test(start_paused = true)]
async fn task_notification_goes_to_its_session() {
    let stage = start_stage(&["s"]).await;
    stage
        .host
        .call(task_creating_call("s", "ann", 5))
        .await
        .unwrap();
    let status = |task: &str| LinkEvent::TaskStatus {
        task: task.into(),
        notification: format!("{{{task}}}").into(),
    };
    assert!(stage.world.emit("s", status("8")));
    assert!(stage.world.emit("s", status("1")));
    let told = LinkEvent::SessionNotification {
        session: SessionKey(6),
        notification: "said".into(),
    };
    assert!(stage.world.emit("s", told));
    let heard = stage.ears.wait_for_notifications(2).await;
    assert_eq!(heard, [(5, "{1}".to_owned()), (6, "said".to_owned())]);
}
