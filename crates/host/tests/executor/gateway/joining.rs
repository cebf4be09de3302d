//! Executors that join.

use bowline_core::error::Execution;
use bowline_host::executor::{ExecutorsOptions, Protocol, Via};
use bowline_link::websocket::Ended;
use bowline_wire::executor::Frame;

use super::rig::{Gateway, Script, asking, code, get, hello, quick};

fn closed(ended: &Ended) -> (u16, &str) {
    match ended {
        Ended::Closed { code, reason } => (*code, reason),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn requests_go_through_the_executor_that_their_server_names() {
    let gateway = Gateway::new(ExecutorsOptions::default()).await;
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
async fn an_executor_that_never_joined_is_away_at_once_and_nothing_was_carried_out() {
    let gateway = Gateway::new(ExecutorsOptions::default()).await;
    let error = get(&*gateway.client("office"), None).await.unwrap_err();
    assert_eq!(code(&error), "executor_away");
    assert_eq!(error.execution(), Execution::NotStarted);
    assert!(error.to_string().contains("`office`"), "{error}");
    let status = gateway.status("office");
    assert!(!status.connected && status.via.is_none());
}

#[tokio::test]
async fn what_an_executor_says_of_itself_is_listed() {
    let gateway = Gateway::new(ExecutorsOptions::default()).await;
    let (mut office, _) = gateway.join("office", "first", false).await;
    let asked = asking(&gateway.client("office"));
    let (stream, _) = office.request().await;
    office.answer(stream, "12345").await;
    asked.await.unwrap().unwrap();
    let status = gateway.status("office");
    assert!(status.connected);
    assert_eq!(status.via, Some(Via::Joined));
    assert_eq!(status.protocol, Protocol::Bowline);
    assert_eq!(&*status.software, "script/1");
    assert_eq!(status.servers, ["files".into()]);
    assert_eq!(status.secrets, ["tracker".into()]);
    assert_eq!(status.carried.opened, 1);
    assert_eq!(status.carried.received_bytes, 5);
    assert!(status.peer.unwrap().starts_with("127.0.0.1:"));
    assert!(status.since_ms.is_some() && status.lost.is_none());
    office.out.close(1001, "closing for the day");
    gateway.lost("office").await;
    let status = gateway.status("office");
    assert_eq!(status.carried.opened, 1);
    assert!(status.lost.unwrap().contains("closing for the day"));
}

#[tokio::test]
async fn one_that_left_in_order_is_not_waited_for() {
    let gateway = Gateway::new(ExecutorsOptions::default()).await;
    let (office, _) = gateway.join("office", "first", false).await;
    office.out.close(1001, "closing for the day");
    gateway.lost("office").await;
    let error = get(&*gateway.client("office"), None).await.unwrap_err();
    assert_eq!(code(&error), "executor_away");
}

#[tokio::test]
async fn of_two_with_one_name_the_older_is_told_and_the_newer_is_used() {
    let gateway = Gateway::new(ExecutorsOptions::default()).await;
    let (mut older, first) = gateway.join("office", "one", false).await;
    let open = asking(&gateway.client("office"));
    older.request().await;
    let mut newer = Script::dial(&gateway.url, &gateway.tasks).await;
    let second = newer.open("office", "two", false).await;
    assert_ne!(first.session, second.session);
    let ended = older.end().await;
    assert_eq!(closed(&ended).0, 4001);
    let lost = open.await.unwrap().unwrap_err();
    assert_eq!(lost.execution(), Execution::Unknown, "{lost:?}");
    let client = gateway.client("office");
    let asked = asking(&client);
    let (stream, _) = newer.request().await;
    newer.answer(stream, "newer").await;
    assert_eq!(asked.await.unwrap().unwrap(), "newer");
}

#[tokio::test]
async fn who_may_not_come_in_is_refused_and_that_is_told() {
    let gateway = Gateway::new(ExecutorsOptions::default()).await;
    for name in ["stranger", "No Name", ""] {
        let mut script = Script::dial(&gateway.url, &gateway.tasks).await;
        script.say(hello(name, "first")).await;
        let ended = script.end().await;
        assert_eq!(closed(&ended).0, 4003, "{name}");
    }
    let refused = gateway.doorman.refused.lock().unwrap().clone();
    assert_eq!(refused.len(), 3);
    assert_eq!(
        refused[0],
        ("stranger".to_owned(), "nobody knows you".into())
    );
    assert!(gateway.executors.list().is_empty());
}

#[tokio::test]
async fn an_executor_whose_credential_is_over_is_cut_off() {
    let gateway = Gateway::new(ExecutorsOptions::default()).await;
    let (mut office, _) = gateway.join("office", "first", false).await;
    gateway.doorman.send_away();
    let ended = office.end().await;
    assert_eq!(closed(&ended), (4002, "the token was revoked"));
    gateway.lost("office").await;
    let error = get(&*gateway.client("office"), None).await.unwrap_err();
    assert_eq!(code(&error), "executor_away");
}

#[tokio::test]
async fn a_gateway_that_goes_down_says_so() {
    let gateway = Gateway::new(quick()).await;
    let (mut office, _) = gateway.join("office", "first", false).await;
    gateway.executors.close();
    let ended = office.end().await;
    assert_eq!(closed(&ended).0, 1001);
}

#[tokio::test]
async fn what_is_no_greeting_is_closed_with_a_reason() {
    let gateway = Gateway::new(ExecutorsOptions::default()).await;
    let mut script = Script::dial(&gateway.url, &gateway.tasks).await;
    script.say(Frame::Cancel { stream: 1 }).await;
    let ended = script.end().await;
    assert_eq!(closed(&ended).0, 4004);
}
