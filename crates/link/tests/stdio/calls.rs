//! Calls over real pipes.

use bowline_core::error::Execution;
use bowline_link::Exit;

use super::*;

#[tokio::test]
async fn a_call_goes_to_the_server_and_comes_back() {
    for behind in BOTH {
        let scene = Scene::server(behind, &format!("read -r call\n{ANSWER}\nread -r end"));
        let link = scene.link().await;
        let answer = call(&*link).await.unwrap();
        assert_eq!(
            &answer.bytes[..],
            br#"{"jsonrpc":"2.0","id":77,"result":"done"}"#
        );
        assert_eq!(
            link.close().await,
            Exit::Status(1),
            "`read` fails at the end"
        );
    }
}

#[tokio::test]
async fn a_server_that_floods_stderr_still_answers() {
    let flood = format!(
        "read -r call; printf '\\377\\376 bytes\\n' >&2
         head -c 10000000 /dev/zero | tr '\\0' 'x' >&2
         echo >&2; yes line | head -n 100000 >&2; {ANSWER}
         read -r end"
    );
    let scene = Scene::server(Behind::Nothing, &flood);
    let link = scene.link().await;
    call(&*link).await.unwrap();
    link.close().await;
    let lines = scene.texts();
    assert_eq!(lines.len(), 2_000, "the ring is bounded");
    assert!(lines.iter().all(|line| line == "line"));
}

#[tokio::test]
async fn a_large_call_to_a_server_that_reads_late_is_whole() {
    let script = format!("sed -n -e 's/^.*\"tail\":\\(.*\\)}}}}$/\\1/p' -e q >&2\n{ANSWER}");
    let scene = Scene::server(Behind::Nothing, &script);
    let link = scene.link().await;
    let body = "z".repeat(3_000_000);
    let params = format!(r#"{{"body":"{body}","tail":"end"}}"#);
    link.request(request(params)).await.unwrap();
    assert_eq!(scene.lines(1).await, [r#""end""#]);
}

#[tokio::test]
async fn a_crash_during_a_call_is_told_with_its_code() {
    for behind in BOTH {
        let link = Scene::server(behind, "read -r call; exit 3").link().await;
        let error = call(&*link).await.unwrap_err();
        assert_eq!(error, LinkError::Lost(Exit::Status(3)));
        assert_eq!(error.execution(), Execution::Unknown);
        assert_eq!(link.closed().await, Exit::Status(3));
        assert!(!link.is_open());
        let error = call(&*link).await.unwrap_err();
        assert_eq!(error, LinkError::Closed(Exit::Status(3)));
        assert_eq!(error.execution(), Execution::NotStarted);
    }
}

#[tokio::test]
async fn an_answer_given_just_before_the_end_still_counts() {
    for behind in BOTH {
        let link = Scene::server(behind, &format!("read -r call\n{ANSWER}\nexit 4"))
            .link()
            .await;
        let answer = call(&*link).await.unwrap();
        assert_eq!(answer.body_bytes(), br#""done""#);
        assert_eq!(link.closed().await, Exit::Status(4));
    }
}

#[tokio::test]
async fn a_server_that_stops_reading_holds_up_nothing_else() {
    let stuck = Scene::server(Behind::Nothing, "while :; do sleep 1000; done");
    let well = Scene::server(
        Behind::Nothing,
        &format!("read -r call\n{ANSWER}\nread -r x"),
    );
    let (stuck, well) = (stuck.link().await, well.link().await);
    let large = request(format!("[\"{}\"]", "z".repeat(1_000_000)));
    let hurried = Request {
        deadline: after(Duration::from_millis(200)),
        ..request("{}")
    };
    let mut large = stuck.request(large);
    let behind = async {
        // The large one is in the pipe, and fills it.
        while stuck.in_flight() == 0 {
            tokio::task::yield_now().await;
        }
        call(&*well).await.unwrap();
        stuck.request(hurried).await.unwrap_err()
    };
    let error = tokio::select! {
        _ = &mut large => panic!("nobody answers"),
        error = behind => error,
    };
    assert_eq!(error.execution(), Execution::NotStarted);
}

#[tokio::test]
async fn a_list_that_changed_is_told() {
    let script = r#"printf '%s\n' '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
        read -r end"#;
    let scene = Scene::server(Behind::Nothing, script);
    let (link, mut events) = scene.connect().await.unwrap();
    assert_eq!(events.recv().await, Some(LinkEvent::ToolsChanged));
    link.close().await;
    assert_eq!(events.recv().await, None, "nothing comes after the end");
}
