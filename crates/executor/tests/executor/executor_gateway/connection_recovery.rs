//! Lost connections and reconnects.

use std::time::Duration;

use bowline_core::error::ExecutionStatus;
use bowline_executor::ExecutorRegistryOptions;
use bowline_link::http::http_client::HttpError;
use bowline_testkit::registry_gateway::{
    RegistryGateway, ScriptedExecutor, asking, code, get, quick,
};
use bowline_testkit::{deadline_after, test_deadline};

#[tokio::test]
async fn request_waits_for_recently_lost_executor() {
    let gateway = RegistryGateway::new(ExecutorRegistryOptions::default()).await;
    let (_office, before) = gateway.join("office", "first", false).await;
    gateway.cut("office").await;
    let asked = asking(&gateway.client("office"));
    let mut office = ScriptedExecutor::dial(&gateway.url, &gateway.tasks).await;
    let after = office.open("office", "first", true).await;
    assert_eq!(before.session, after.session, "the same start goes on");
    let (stream, _) = office.request().await;
    assert_eq!(stream, 1);
    office.answer(stream, "back").await;
    assert_eq!(asked.await.unwrap().unwrap(), "back");
}

#[tokio::test]
async fn resumed_session_continues_stream_numbers() {
    let gateway = RegistryGateway::new(ExecutorRegistryOptions::default()).await;
    let (mut office, _) = gateway.join("office", "first", false).await;
    let cut = asking(&gateway.client("office"));
    let (first, _) = office.request().await;
    gateway.cut("office").await;
    let error = cut.await.unwrap().unwrap_err();
    assert!(matches!(error, HttpError::Disconnected(_)), "{error:?}");
    assert_eq!(error.execution(), ExecutionStatus::Unknown);
    let (mut office, _) = gateway.join("office", "first", true).await;
    // A frame of the lost stream is ignored.
    office.answer(first, "of another time").await;
    let asked = asking(&gateway.client("office"));
    let (second, _) = office.request().await;
    assert_eq!(second, first + 1);
    office.answer(second, "its own").await;
    assert_eq!(asked.await.unwrap().unwrap(), "its own");
}

#[tokio::test]
async fn restarted_executor_gets_new_session() {
    let gateway = RegistryGateway::new(ExecutorRegistryOptions::default()).await;
    let (_office, before) = gateway.join("office", "first", false).await;
    gateway.cut("office").await;
    let (_again, after) = gateway.join("office", "second", false).await;
    assert_ne!(before.session, after.session);
}

#[tokio::test]
async fn lost_executor_is_away_after_recovery_wait() {
    let short = ExecutorRegistryOptions {
        recovery_wait: Duration::from_millis(60),
        // Ends before the recovery wait does.
        session_retention: Duration::from_millis(20),
        ..quick()
    };
    let gateway = RegistryGateway::new(short).await;
    let (_office, before) = gateway.join("office", "first", false).await;
    gateway.cut("office").await;
    let error = get(&*gateway.client("office"), Some(test_deadline())).await;
    assert_eq!(code(&error.unwrap_err()), "executor_away");
    // Immediate failure from now on.
    let error = get(&*gateway.client("office"), None).await.unwrap_err();
    assert_eq!(code(&error), "executor_away");
    // The session is given up too.
    let (_again, after) = gateway.join("office", "first", false).await;
    assert_ne!(before.session, after.session);
}

#[tokio::test]
async fn caller_timeout_limits_the_wait() {
    let gateway = RegistryGateway::new(ExecutorRegistryOptions::default()).await;
    let (_office, _) = gateway.join("office", "first", false).await;
    gateway.cut("office").await;
    let at_once = Some(deadline_after(Duration::ZERO));
    let error = get(&*gateway.client("office"), at_once).await.unwrap_err();
    assert_eq!(code(&error), "executor_away");
    assert_eq!(error.execution(), ExecutionStatus::NotStarted);
}

#[tokio::test]
async fn new_connection_resumes_the_session() {
    let gateway = RegistryGateway::new(ExecutorRegistryOptions::default()).await;
    // The older connection is half open: its death is unnoticed.
    let (_half_open, before) = gateway.join("office", "first", false).await;
    let (mut office, after) = gateway.join("office", "first", true).await;
    assert_eq!(before.session, after.session);
    let asked = asking(&gateway.client("office"));
    let (stream, _) = office.request().await;
    office.answer(stream, "over").await;
    assert_eq!(asked.await.unwrap().unwrap(), "over");
}
