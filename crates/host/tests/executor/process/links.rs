//! A link over stdio does not know where its server runs.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::era::Era;
use bowline_link::stdio::{self, ClientInfo, ConnectError, Opening, Seat};
use bowline_link::{Exit, Link, LinkError, Request, Stamps, StderrLimits, StderrLog, StdioLimits};
use bytes::Bytes;

use super::rig::{Leash, Rig, later, soon};

/// Shakes hands, and answers each call with its own name for it.
const SERVER: &str = r#"
read -r init
printf '%s' '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18",'
printf '%s\n' '"capabilities":{},"serverInfo":{"name":"t","version":"1.2"}}}'
read -r initialized
echo "ready" >&2
while read -r line; do
  id=${line#*\"id\":}
  id=${id%%,*}
  printf '{"jsonrpc":"2.0","id":%s,"result":"answer %s"}\n' "$id" "$id"
done
"#;

fn log() -> Arc<StderrLog> {
    StderrLog::new("s".into(), Stamps::new(|| 0), StderrLimits::default())
}

async fn connect(rig: &Rig, log: &Arc<StderrLog>) -> Result<Arc<dyn Link>, ConnectError> {
    let client = ClientInfo {
        name: "probe".into(),
        version: "9".into(),
    };
    let seat = Seat {
        server: "s".into(),
        owner: None,
        opening: Opening::Only(Era::Legacy),
        limits: StdioLimits::default(),
    };
    let linked = stdio::connect_over(rig, &seat, Arc::clone(log), client, later(), &rig.tasks);
    soon(linked).await.map(|(link, _heard)| link)
}

fn call() -> Request {
    Request {
        method: Cow::Borrowed("tools/call"),
        params: Some(Bytes::from_static(br#"{"name":"x"}"#)),
        ..Request::own("tools/call", None, later())
    }
}

#[tokio::test]
async fn a_server_over_there_is_called_logged_and_stopped_like_a_child_of_ours() {
    let rig = Rig::script(SERVER).await;
    let log = log();
    let link = connect(&rig, &log).await.unwrap();
    assert_eq!(&*link.server().name, "t");
    assert!(link.pid().is_some_and(|pid| pid > 1));
    // Its processes are none of this machine's, as far as we know.
    assert_eq!(link.processes(), None);
    for _ in 0..3 {
        let answer = soon(link.request(call())).await.unwrap();
        let text = String::from_utf8(answer.bytes.to_vec()).unwrap();
        assert!(text.contains("answer "), "{text}");
    }
    let mut newest = log.stamps().subscribe();
    soon(newest.wait_for(|seq| *seq >= 1)).await.unwrap();
    assert_eq!(log.tail(0, 5), ["ready".into()]);
    assert_eq!(soon(link.close()).await, Exit::Status(0));
}

#[tokio::test]
async fn calls_go_on_over_a_cut_and_are_answered_once() {
    let rig = Rig::script(SERVER).await;
    let link = connect(&rig, &log()).await.unwrap();
    for _ in 0..20 {
        rig.cut().await;
        // They wait for the connection, and not in vain.
        let calls = async {
            let calls = (0..10).map(|_| link.request(call()));
            for call in calls {
                call.await.unwrap();
            }
        };
        tokio::join!(soon(calls), rig.reconnect());
    }
    assert!(link.is_open());
    assert_eq!(link.in_flight(), 0);
}

#[tokio::test]
async fn calls_of_a_server_whose_executor_is_given_up_may_have_run() {
    let rig = Rig::script(&SERVER.replace("while read", "while sleep 60; read")).await;
    let link = connect(&rig, &log()).await.unwrap();
    let waiting = link.request(call());
    let ending = async {
        while link.in_flight() == 0 {
            tokio::task::yield_now().await;
        }
        rig.cut().await;
        rig.give_up();
    };
    let (outcome, ()) = tokio::join!(soon(waiting), ending);
    assert_eq!(outcome, Err(LinkError::Lost(Exit::Away)));
    assert_eq!(soon(link.closed()).await, Exit::Away);
}

#[tokio::test]
async fn a_gateway_that_stops_while_an_executor_is_away_does_not_wait_for_it() {
    let mut leash = Leash::new();
    let script = format!("{}{SERVER}", leash.hold());
    let rig = Rig::with(&[("s", &script)], Duration::from_secs(30)).await;
    let link = connect(&rig, &log()).await.unwrap();
    leash.held().await;
    rig.cut().await;
    let second = Duration::from_secs(2);
    let exit = tokio::time::timeout(second, link.close()).await.unwrap();
    assert_eq!(exit, Exit::Away);
    // The executor is told when it is back.
    rig.reconnect().await;
    leash.let_go().await;
}

#[tokio::test]
async fn a_server_that_dies_in_the_handshake_is_explained_with_its_last_words() {
    let rig = Rig::script("echo 'no licence' >&2; exit 9").await;
    let error = connect(&rig, &log()).await.unwrap_err();
    let ConnectError::ExitedBeforeHandshake {
        exit, stderr_tail, ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!(exit, Exit::Status(9));
    assert_eq!(stderr_tail, ["no licence".into()]);
}
