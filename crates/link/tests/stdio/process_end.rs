//! Stopping of servers.

use bowline_link::LinkExit;

use super::*;

fn shorten_stop_timeouts(scene: &mut StdioScene) {
    scene.spec.limits.stop_stdin = Duration::from_millis(100);
    scene.spec.limits.stop_term = Duration::from_secs(1);
}

#[tokio::test]
async fn server_ending_on_eof_gets_no_signal() {
    for behind in BOTH {
        let script = r"trap 'echo term >&2' TERM
            while read -r line; do :; done; echo eof >&2; exit 5";
        let scene = StdioScene::from_server_script(behind, script);
        let link = scene.connect_link().await;
        let (one, two) = tokio::join!(link.close(), link.close());
        assert_eq!((one, two), (LinkExit::Status(5), LinkExit::Status(5)));
        assert_eq!(link.close().await, LinkExit::Status(5));
        assert_eq!(scene.stderr_texts(), ["eof"]);
        let refused = call_tool(&*link).await;
        assert_eq!(refused, Err(LinkError::Closed(LinkExit::Status(5))));
    }
}

#[tokio::test]
async fn lingering_server_gets_sigterm() {
    for behind in BOTH {
        let script = r"trap 'echo term >&2; exit 6' TERM
            while read -r line; do :; done; echo eof >&2
            while :; do sleep 1000 & wait; done";
        let mut scene = StdioScene::from_server_script(behind, script);
        scene.spec.limits.stop_stdin = Duration::from_millis(200);
        let link = scene.connect_link().await;
        assert_eq!(link.close().await, LinkExit::Status(6));
        assert_eq!(scene.stderr_texts(), ["eof", "term"]);
    }
}

#[tokio::test]
async fn unresponsive_server_is_killed() {
    for behind in BOTH {
        let script = "trap 'echo term >&2' TERM; while :; do sleep 1000 & wait; done";
        let mut scene = StdioScene::from_server_script(behind, script);
        shorten_stop_timeouts(&mut scene);
        let link = scene.connect_link().await;
        assert_eq!(link.close().await, LinkExit::Signal(9));
        assert_eq!(scene.stderr_texts(), ["term"]);
    }
}

#[tokio::test]
async fn grandchild_is_killed_with_group() {
    for behind in BOTH {
        // The grandchild holds all three streams, and survives its parent.
        let script = "trap '' TERM; sleep 1000 & echo $! >&2; exec cat >/dev/null";
        let scene = StdioScene::from_server_script(behind, script);
        let link = scene.connect_link().await;
        let grandchild = parse_pid(&scene.wait_lines(1).await[0]);
        assert_eq!(link.close().await, LinkExit::Status(0));
        wait_gone(grandchild).await;
    }
}

#[tokio::test]
async fn dropped_link_stops_server() {
    for behind in BOTH {
        let scene =
            StdioScene::from_server_script(behind, "echo $$ >&2; while read -r line; do :; done");
        let link = scene.connect_link().await;
        let server = parse_pid(&scene.wait_lines(1).await[0]);
        drop(link);
        wait_gone(server).await;
    }
}

#[tokio::test]
async fn closed_stdout_stops_server_and_calls() {
    for behind in BOTH {
        let script = "read -r call; echo $$ >&2; exec >&-; while :; do sleep 1000 & wait; done";
        let mut scene = StdioScene::from_server_script(behind, script);
        shorten_stop_timeouts(&mut scene);
        let link = scene.connect_link().await;
        let error = call_tool(&*link).await.unwrap_err();
        assert_eq!(error, LinkError::Lost(LinkExit::Closed));
        assert_eq!(link.wait_closed().await, LinkExit::Closed);
        wait_gone(parse_pid(&scene.stderr_texts()[0])).await;
    }
}

#[tokio::test]
async fn endless_line_kills_server() {
    for behind in BOTH {
        let script = r"trap '' TERM; echo $$ >&2; read -r call
            tr '\0' x </dev/zero";
        let mut scene = StdioScene::from_server_script(behind, script);
        scene.spec.limits.line_bytes_max = 1_000;
        scene.spec.limits.discard_bytes_max = 1_000_000;
        let link = scene.connect_link().await;
        let error = call_tool(&*link).await.unwrap_err();
        assert_eq!(error, LinkError::Lost(LinkExit::Overrun));
        assert_eq!(link.wait_closed().await, LinkExit::Overrun);
        wait_gone(parse_pid(&scene.stderr_texts()[0])).await;
    }
}

#[test]
fn dropped_runtime_kills_servers() {
    for behind in BOTH {
        let scene = StdioScene::from_server_script(
            behind,
            "trap '' TERM; echo $$ >&2; while :; do sleep 1000; done",
        );
        let first = new_runtime();
        let (link, server) = first.block_on(async {
            let link = scene.connect_link().await;
            (link, parse_pid(&scene.wait_lines(1).await[0]))
        });
        drop(first);
        new_runtime().block_on(wait_gone(server));
        assert!(!link.is_open());
    }
}

fn new_runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}
