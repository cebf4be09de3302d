//! A stdio link works the same for a local and a remote process.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::era::Era;
use bowline_link::stdio::{self, ClientInfo, EraNegotiation, LinkConnectError, StdioOptions};
use bowline_link::{
    Link, LinkError, LinkExit, LinkRequest, LogSequencer, StderrLimits, StderrLog, StdioLimits,
};
use bowline_testkit::process_rig::{LifetimePipe, ProcessRig};
use bowline_testkit::{poll_until, test_deadline, wait_bounded};
use bytes::Bytes;

/// Answers the handshake, and echoes the id of each call.
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
    StderrLog::new("s".into(), LogSequencer::new(|| 0), StderrLimits::default())
}

async fn connect(
    rig: &ProcessRig,
    log: &Arc<StderrLog>,
) -> Result<Arc<dyn Link>, LinkConnectError> {
    let client = ClientInfo {
        name: "probe".into(),
        version: "9".into(),
    };
    let seat = StdioOptions {
        server: "s".into(),
        owner: None,
        negotiation: EraNegotiation::Only(Era::Legacy),
        limits: StdioLimits::default(),
    };
    let linked = stdio::connect_process(
        rig,
        &seat,
        Arc::clone(log),
        client,
        test_deadline(),
        &rig.tasks,
    );
    wait_bounded(linked).await.map(|(link, _heard)| link)
}

fn call() -> LinkRequest {
    let params = Bytes::from_static(br#"{"name":"x"}"#);
    LinkRequest::new_internal("tools/call", params, test_deadline())
}

#[tokio::test]
async fn remote_process_behaves_like_local_child() {
    let rig = ProcessRig::script(SERVER).await;
    let log = log();
    let link = connect(&rig, &log).await.unwrap();
    assert_eq!(&*link.server_info().name, "t");
    assert!(link.pid().is_some_and(|pid| pid > 1));
    // The remote pid is no local process.
    assert_eq!(link.processes(), None);
    for _ in 0..3 {
        let answer = wait_bounded(link.request(call())).await.unwrap();
        let text = String::from_utf8(answer.bytes.to_vec()).unwrap();
        assert!(text.contains("answer "), "{text}");
    }
    let mut newest = log.sequencer().subscribe();
    wait_bounded(newest.wait_for(|seq| *seq >= 1))
        .await
        .unwrap();
    assert_eq!(log.tail(0, 5), ["ready".into()]);
    assert_eq!(wait_bounded(link.close()).await, LinkExit::Status(0));
}

#[tokio::test]
async fn calls_survive_a_cut_once() {
    let rig = ProcessRig::script(SERVER).await;
    let link = connect(&rig, &log()).await.unwrap();
    for _ in 0..20 {
        rig.cut().await;
        // The calls wait for the reconnect and succeed.
        let calls = async {
            let calls = (0..10).map(|_| link.request(call()));
            for call in calls {
                call.await.unwrap();
            }
        };
        tokio::join!(wait_bounded(calls), rig.reconnect());
    }
    assert!(link.is_open());
    assert_eq!(link.in_flight(), 0);
}

#[tokio::test]
async fn given_up_executor_makes_calls_unknown() {
    let rig = ProcessRig::script(&SERVER.replace("while read", "while sleep 60; read")).await;
    let link = connect(&rig, &log()).await.unwrap();
    let waiting = link.request(call());
    let ending = async {
        poll_until("the call is in flight", || link.in_flight() > 0).await;
        rig.cut().await;
        rig.give_up();
    };
    let (outcome, ()) = tokio::join!(wait_bounded(waiting), ending);
    assert_eq!(outcome, Err(LinkError::Lost(LinkExit::Away)));
    assert_eq!(wait_bounded(link.wait_closed()).await, LinkExit::Away);
}

#[tokio::test]
async fn stop_does_not_wait_for_absent_executor() {
    let mut leash = LifetimePipe::create();
    let script = format!("{}{SERVER}", leash.hold_command());
    let rig = ProcessRig::with(&[("s", &script)], Duration::from_secs(30)).await;
    let link = connect(&rig, &log()).await.unwrap();
    leash.wait_held().await;
    rig.cut().await;
    let second = Duration::from_secs(2);
    let exit = tokio::time::timeout(second, link.close()).await.unwrap();
    assert_eq!(exit, LinkExit::Away);
    // The executor gets the stop after the reconnect.
    rig.reconnect().await;
    leash.wait_released().await;
}

#[tokio::test]
async fn handshake_exit_reports_stderr_tail() {
    let rig = ProcessRig::script("echo 'no licence' >&2; exit 9").await;
    let error = connect(&rig, &log()).await.unwrap_err();
    let LinkConnectError::ExitedBeforeHandshake {
        exit, stderr_tail, ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!(exit, LinkExit::Status(9));
    assert_eq!(stderr_tail, ["no licence".into()]);
}
