//! Connections that are lost and come back.

use std::time::Duration;

use bowline_core::error::Execution;
use bowline_host::executor::ExecutorsOptions;
use bowline_link::http::client::HttpError;

use super::rig::{Gateway, Script, asking, code, get, quick, soon};

#[tokio::test]
async fn a_request_waits_for_an_executor_that_was_lost_just_now() {
    let gateway = Gateway::new(ExecutorsOptions::default()).await;
    let (_office, before) = gateway.join("office", "first", false).await;
    gateway.cut("office").await;
    let asked = asking(&gateway.client("office"));
    let mut office = Script::dial(&gateway.url, &gateway.tasks).await;
    let after = office.open("office", "first", true).await;
    assert_eq!(before.session, after.session, "the same start goes on");
    let (stream, _) = office.request().await;
    assert_eq!(stream, 1);
    office.answer(stream, "back").await;
    assert_eq!(asked.await.unwrap().unwrap(), "back");
}

#[tokio::test]
async fn numbers_of_streams_go_on_where_a_session_does() {
    let gateway = Gateway::new(ExecutorsOptions::default()).await;
    let (mut office, _) = gateway.join("office", "first", false).await;
    let cut = asking(&gateway.client("office"));
    let (first, _) = office.request().await;
    gateway.cut("office").await;
    let error = cut.await.unwrap().unwrap_err();
    assert!(matches!(error, HttpError::Disconnected(_)), "{error:?}");
    assert_eq!(error.execution(), Execution::Unknown);
    let (mut office, _) = gateway.join("office", "first", true).await;
    // A frame of the stream that was cut is nobody's.
    office.answer(first, "of another time").await;
    let asked = asking(&gateway.client("office"));
    let (second, _) = office.request().await;
    assert_eq!(second, first + 1);
    office.answer(second, "its own").await;
    assert_eq!(asked.await.unwrap().unwrap(), "its own");
}

#[tokio::test]
async fn another_start_of_the_executor_has_another_session() {
    let gateway = Gateway::new(ExecutorsOptions::default()).await;
    let (_office, before) = gateway.join("office", "first", false).await;
    gateway.cut("office").await;
    let (_again, after) = gateway.join("office", "second", false).await;
    assert_ne!(before.session, after.session);
}

#[tokio::test]
async fn an_executor_that_does_not_come_back_is_away_after_a_while() {
    let short = ExecutorsOptions {
        recovery: Duration::from_millis(60),
        // Over by the time that nobody waits for it any more.
        keep: Duration::from_millis(20),
        ..quick()
    };
    let gateway = Gateway::new(short).await;
    let (_office, before) = gateway.join("office", "first", false).await;
    gateway.cut("office").await;
    let error = get(&*gateway.client("office"), Some(soon())).await;
    assert_eq!(code(&error.unwrap_err()), "executor_away");
    // At once from then on.
    let error = get(&*gateway.client("office"), None).await.unwrap_err();
    assert_eq!(code(&error), "executor_away");
    // What it held is given up as well.
    let (_again, after) = gateway.join("office", "first", false).await;
    assert_ne!(before.session, after.session);
}

#[tokio::test]
async fn a_caller_waits_no_longer_than_it_wants_to() {
    let gateway = Gateway::new(ExecutorsOptions::default()).await;
    let (_office, _) = gateway.join("office", "first", false).await;
    gateway.cut("office").await;
    let at_once = Some(soon() - super::rig::LONG);
    let error = get(&*gateway.client("office"), at_once).await.unwrap_err();
    assert_eq!(code(&error), "executor_away");
    assert_eq!(error.execution(), Execution::NotStarted);
}

#[tokio::test]
async fn the_same_executor_over_a_new_connection_takes_its_session_over() {
    let gateway = Gateway::new(ExecutorsOptions::default()).await;
    // The older connection is half open: nobody has noticed that it is dead.
    let (_half_open, before) = gateway.join("office", "first", false).await;
    let (mut office, after) = gateway.join("office", "first", true).await;
    assert_eq!(before.session, after.session);
    let asked = asking(&gateway.client("office"));
    let (stream, _) = office.request().await;
    office.answer(stream, "over").await;
    assert_eq!(asked.await.unwrap().unwrap(), "over");
}
