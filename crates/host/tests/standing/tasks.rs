//! Tasks: reached by the principal that made them, and told to its session.

use std::sync::Arc;

use bowline_core::call::{Call, Principal, Role, Scope, Subject, TaskVerb};
use bowline_core::caller::SessionKey;
use bowline_core::error::CallError;
use bowline_link::LinkEvent;
use bowline_sim::{Hearer, ask, body, call};

use super::{single, stage};

fn making(server: &str, who: &str, session: u64) -> Call {
    let mut made = call(&format!("{server}__make"), "{}");
    made.principal = Arc::new(Principal::new(who, Role::Owner));
    made.makes_task = true;
    made.caller = Some(Hearer::of(session));
    made
}

fn get(who: &str, id: &str, scope: &Scope) -> Call {
    let subject = Subject::Task {
        id: id.into(),
        verb: TaskVerb::Get,
    };
    let mut asked = ask(subject, "taskId");
    asked.principal = Arc::new(Principal::new(who, Role::Owner));
    asked.scope = scope.clone();
    asked
}

#[tokio::test(start_paused = true)]
async fn a_task_is_reached_by_who_made_it_and_by_nobody_else() {
    let stage = stage(&["s", "t"]).await;
    stage.host.call(making("s", "ann", 1)).await.unwrap();
    let reply = stage.host.call(get("ann", "1", &Scope::All)).await.unwrap();
    assert_eq!(body(&reply), r#"{"taskId":"1","status":"working"}"#);
    let before = stage.world.record().requests.len();
    for asked in [
        get("bob", "1", &Scope::All),
        get("bob", "1", &single("s")),
        get("ann", "1", &single("t")),
        get("ann", "9", &Scope::All),
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
async fn an_id_that_two_servers_gave_out_is_asked_for_at_one_of_them() {
    let stage = stage(&["s", "t"]).await;
    stage.host.call(making("s", "ann", 1)).await.unwrap();
    stage.host.call(making("t", "ann", 1)).await.unwrap();
    let error = stage
        .host
        .call(get("ann", "1", &Scope::All))
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::AmbiguousTask { .. }), "{error}");
    assert!(stage.host.call(get("ann", "1", &single("t"))).await.is_ok());
    assert_eq!(
        stage.asked("t", "tasks/get", 1).await,
        [r#"tasks/get {"taskId":"1"}"#]
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_of_tasks_holds_the_principals_own_from_every_page() {
    let stage = stage(&["s", "t"]).await;
    let ann = Principal::new("ann", Role::Owner);
    let none = stage.host.tasks_of(&ann, &Scope::All).await.unwrap();
    assert_eq!(none, r#"{"tasks":[]}"#);
    stage.host.call(making("s", "ann", 1)).await.unwrap();
    stage.host.call(making("t", "bob", 2)).await.unwrap();
    let own = stage.host.tasks_of(&ann, &Scope::All).await.unwrap();
    assert_eq!(own, r#"{"tasks":[{ "taskId" : "1" }]}"#);
    assert_eq!(
        stage.asked("t", "tasks/list", 0).await,
        [""; 0],
        "none of hers is there"
    );
    stage.host.call(making("t", "ann", 1)).await.unwrap();
    let own = stage.host.tasks_of(&ann, &Scope::All).await.unwrap();
    assert_eq!(own, r#"{"tasks":[{ "taskId" : "1" },{ "taskId" : "1" }]}"#);
    let own = stage.host.tasks_of(&ann, &single("t")).await.unwrap();
    assert_eq!(own, r#"{"tasks":[{ "taskId" : "1" }]}"#);
}

#[tokio::test(start_paused = true)]
async fn news_of_a_task_goes_to_the_session_that_made_it() {
    let stage = stage(&["s"]).await;
    stage.host.call(making("s", "ann", 5)).await.unwrap();
    let status = |task: &str| LinkEvent::TaskStatus {
        task: task.into(),
        notification: format!("{{{task}}}").into(),
    };
    assert!(stage.world.say("s", status("8")));
    assert!(stage.world.say("s", status("1")));
    let told = LinkEvent::Told {
        session: SessionKey(6),
        notification: "said".into(),
    };
    assert!(stage.world.say("s", told));
    let heard = stage.ears.heard(2).await;
    assert_eq!(heard, [(5, "{1}".to_owned()), (6, "said".to_owned())]);
}
