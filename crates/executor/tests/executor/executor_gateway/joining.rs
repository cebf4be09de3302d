//! Executors that join the gateway.

use bowline_core::error::ExecutionStatus;
use bowline_executor::frames::ExecutorFrame;
use bowline_executor::{DialDirection, ExecutorProtocol, ExecutorRegistryOptions};
use bowline_link::websocket::DisconnectReason;
use bowline_testkit::registry_gateway::{
    RegistryGateway, ScriptedExecutor, asking, code, get, hello, quick,
};

fn close_reason(ended: &DisconnectReason) -> (u16, &str) {
    match ended {
        DisconnectReason::Closed { code, reason } => (*code, reason),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn requests_use_the_configured_executor() {
    let gateway = RegistryGateway::new(ExecutorRegistryOptions::default()).await;
    let client = gateway.client("office");
    let (mut office, _) = gateway.join("office", "first", false).await;
    let (mut lab, _) = gateway.join("lab", "first", false).await;
    let through = asking(&client);
    let (stream, url) = office.request().await;
    assert_eq!(&*url, "http://inside.example/mcp");
    office.answer(stream, "from the office").await;
    assert_eq!(through.await.unwrap().unwrap(), "from the office");
    let other = asking(&gateway.client("lab"));
    let (stream, _) = lab.request().await;
    lab.answer(stream, "from the lab").await;
    assert_eq!(other.await.unwrap().unwrap(), "from the lab");
}

#[tokio::test]
async fn unknown_executor_fails_as_not_started() {
    let gateway = RegistryGateway::new(ExecutorRegistryOptions::default()).await;
    let error = get(&*gateway.client("office"), None).await.unwrap_err();
    assert_eq!(code(&error), "executor_away");
    assert_eq!(error.execution(), ExecutionStatus::NotStarted);
    assert!(error.to_string().contains("`office`"), "{error}");
    let status = gateway.status("office");
    assert!(!status.connected && status.direction.is_none());
}

#[tokio::test]
async fn executor_info_is_listed() {
    let gateway = RegistryGateway::new(ExecutorRegistryOptions::default()).await;
    let (mut office, _) = gateway.join("office", "first", false).await;
    let asked = asking(&gateway.client("office"));
    let (stream, _) = office.request().await;
    office.answer(stream, "12345").await;
    asked.await.unwrap().unwrap();
    let status = gateway.status("office");
    assert!(status.connected);
    assert_eq!(status.direction, Some(DialDirection::Joined));
    assert_eq!(status.protocol, ExecutorProtocol::Bowline);
    assert_eq!(&*status.software, "script/1");
    assert_eq!(status.servers, ["files".into()]);
    assert_eq!(status.secrets, ["tracker".into()]);
    assert_eq!(status.traffic.opened, 1);
    assert_eq!(status.traffic.received_bytes, 5);
    assert!(status.peer.unwrap().starts_with("127.0.0.1:"));
    assert!(status.since_ms.is_some() && status.lost_reason.is_none());
    office.out.close(1001, "closing for the day");
    gateway.wait_lost("office").await;
    let status = gateway.status("office");
    assert_eq!(status.traffic.opened, 1);
    assert!(status.lost_reason.unwrap().contains("closing for the day"));
}

#[tokio::test]
async fn gracefully_closed_executor_is_not_awaited() {
    let gateway = RegistryGateway::new(ExecutorRegistryOptions::default()).await;
    let (office, _) = gateway.join("office", "first", false).await;
    office.out.close(1001, "closing for the day");
    gateway.wait_lost("office").await;
    let error = get(&*gateway.client("office"), None).await.unwrap_err();
    assert_eq!(code(&error), "executor_away");
}

#[tokio::test]
async fn newer_executor_fences_the_older() {
    let gateway = RegistryGateway::new(ExecutorRegistryOptions::default()).await;
    let (mut older, first) = gateway.join("office", "one", false).await;
    let open = asking(&gateway.client("office"));
    older.request().await;
    let mut newer = ScriptedExecutor::dial(&gateway.url, &gateway.tasks).await;
    let second = newer.open("office", "two", false).await;
    assert_ne!(first.session, second.session);
    let ended = older.end().await;
    assert_eq!(close_reason(&ended).0, 4001);
    let lost = open.await.unwrap().unwrap_err();
    assert_eq!(lost.execution(), ExecutionStatus::Unknown, "{lost:?}");
    let client = gateway.client("office");
    let asked = asking(&client);
    let (stream, _) = newer.request().await;
    newer.answer(stream, "newer").await;
    assert_eq!(asked.await.unwrap().unwrap(), "newer");
}

#[tokio::test]
async fn unauthorized_executor_is_refused_and_reported() {
    let gateway = RegistryGateway::new(ExecutorRegistryOptions::default()).await;
    for name in ["stranger", "No Name", ""] {
        let mut script = ScriptedExecutor::dial(&gateway.url, &gateway.tasks).await;
        script.send_frame(hello(name, "first")).await;
        let ended = script.end().await;
        assert_eq!(close_reason(&ended).0, 4003, "{name}");
    }
    let refused = gateway.authenticator.refused.lock().unwrap().clone();
    assert_eq!(refused.len(), 3);
    assert_eq!(
        refused[0],
        ("stranger".to_owned(), "nobody knows you".into())
    );
    assert!(gateway.executors.list_statuses().is_empty());
}

#[tokio::test]
async fn ended_credential_closes_the_executor() {
    let gateway = RegistryGateway::new(ExecutorRegistryOptions::default()).await;
    let (mut office, _) = gateway.join("office", "first", false).await;
    gateway.authenticator.end_rights();
    let ended = office.end().await;
    assert_eq!(close_reason(&ended), (4002, "the token was revoked"));
    gateway.wait_lost("office").await;
    let error = get(&*gateway.client("office"), None).await.unwrap_err();
    assert_eq!(code(&error), "executor_away");
}

#[tokio::test]
async fn closing_gateway_sends_going_away() {
    let gateway = RegistryGateway::new(quick()).await;
    let (mut office, _) = gateway.join("office", "first", false).await;
    gateway.executors.close();
    let ended = office.end().await;
    assert_eq!(close_reason(&ended).0, 1001);
}

#[tokio::test]
async fn invalid_hello_is_closed_with_reason() {
    let gateway = RegistryGateway::new(ExecutorRegistryOptions::default()).await;
    let mut script = ScriptedExecutor::dial(&gateway.url, &gateway.tasks).await;
    script.send_frame(ExecutorFrame::Cancel { stream: 1 }).await;
    let ended = script.end().await;
    assert_eq!(close_reason(&ended).0, 4004);
}
