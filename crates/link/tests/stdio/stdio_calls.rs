//! Calls over real pipes.

use bowline_core::error::ExecutionStatus;
use bowline_link::LinkExit;
use futures_util::FutureExt as _;

use super::*;

#[tokio::test]
async fn call_round_trips_to_server() {
    for behind in BOTH {
        let scene =
            StdioScene::from_server_script(behind, &format!("read -r call\n{ANSWER}\nread -r end"));
        let link = scene.connect_link().await;
        let answer = call_tool(&*link).await.unwrap();
        assert_eq!(
            &answer.bytes[..],
            br#"{"jsonrpc":"2.0","id":77,"result":"done"}"#
        );
        assert_eq!(
            link.close().await,
            LinkExit::Status(1),
            "`read` fails at the end"
        );
    }
}

#[tokio::test]
async fn stderr_flood_does_not_block_responses() {
    let flood = format!(
        "read -r call; printf '\\377\\376 bytes\\n' >&2
         head -c 10000000 /dev/zero | tr '\\0' 'x' >&2
         echo >&2; yes line | head -n 100000 >&2; {ANSWER}
         read -r end"
    );
    let scene = StdioScene::from_server_script(ReaperMode::Nothing, &flood);
    let link = scene.connect_link().await;
    call_tool(&*link).await.unwrap();
    link.close().await;
    let lines = scene.stderr_texts();
    assert_eq!(lines.len(), 2_000, "the ring is bounded");
    assert!(lines.iter().all(|line| line == "line"));
}

#[tokio::test]
async fn large_call_to_slow_reader_is_whole() {
    let script = format!("sed -n -e 's/^.*\"tail\":\\(.*\\)}}}}$/\\1/p' -e q >&2\n{ANSWER}");
    let scene = StdioScene::from_server_script(ReaperMode::Nothing, &script);
    let link = scene.connect_link().await;
    let body = "z".repeat(3_000_000);
    let params = format!(r#"{{"body":"{body}","tail":"end"}}"#);
    link.request(tool_request(params)).await.unwrap();
    assert_eq!(scene.wait_lines(1).await, [r#""end""#]);
}

#[tokio::test]
async fn crash_during_call_reports_exit_code() {
    for behind in BOTH {
        let link = StdioScene::from_server_script(behind, "read -r call; exit 3")
            .connect_link()
            .await;
        let error = call_tool(&*link).await.unwrap_err();
        assert_eq!(error, LinkError::Lost(LinkExit::Status(3)));
        assert_eq!(error.execution(), ExecutionStatus::Unknown);
        assert_eq!(link.wait_closed().await, LinkExit::Status(3));
        assert!(!link.is_open());
        let error = call_tool(&*link).await.unwrap_err();
        assert_eq!(error, LinkError::Closed(LinkExit::Status(3)));
        assert_eq!(error.execution(), ExecutionStatus::NotStarted);
    }
}

#[tokio::test]
async fn response_before_exit_counts() {
    for behind in BOTH {
        let link =
            StdioScene::from_server_script(behind, &format!("read -r call\n{ANSWER}\nexit 4"))
                .connect_link()
                .await;
        let answer = call_tool(&*link).await.unwrap();
        assert_eq!(answer.body_bytes(), br#""done""#);
        assert_eq!(link.wait_closed().await, LinkExit::Status(4));
    }
}

#[tokio::test]
async fn unreading_server_blocks_only_its_calls() {
    let stuck = StdioScene::from_server_script(ReaperMode::Nothing, "while :; do sleep 1000; done");
    let well = StdioScene::from_server_script(
        ReaperMode::Nothing,
        &format!("read -r call\n{ANSWER}\nread -r x"),
    );
    let (stuck, well) = (stuck.connect_link().await, well.connect_link().await);
    let large = tool_request(format!("[\"{}\"]", "z".repeat(1_000_000)));
    let hurried = LinkRequest {
        deadline: deadline_after(Duration::from_millis(200)),
        ..tool_request("{}")
    };
    let mut large = stuck.request(large);
    // The first poll queues the large request, which fills the pipe.
    assert!((&mut large).now_or_never().is_none());
    assert_eq!(stuck.in_flight(), 1);
    let behind = async {
        call_tool(&*well).await.unwrap();
        stuck.request(hurried).await.unwrap_err()
    };
    let error = tokio::select! {
        _ = &mut large => panic!("nobody answers"),
        error = behind => error,
    };
    assert_eq!(error.execution(), ExecutionStatus::NotStarted);
}

#[tokio::test]
async fn list_change_emits_event() {
    let script = r#"printf '%s\n' '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
        read -r end"#;
    let scene = StdioScene::from_server_script(ReaperMode::Nothing, script);
    let (link, mut events) = scene.connect().await.unwrap();
    assert_eq!(events.recv().await, Some(LinkEvent::ToolsChanged));
    link.close().await;
    assert_eq!(events.recv().await, None, "nothing comes after the end");
}
