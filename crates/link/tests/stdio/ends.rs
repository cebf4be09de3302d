//! How servers are stopped.

use bowline_link::Exit;

use super::*;

fn hurry(scene: &mut Scene) {
    scene.spec.limits.stop_stdin = Duration::from_millis(100);
    scene.spec.limits.stop_term = Duration::from_secs(1);
}

#[tokio::test]
async fn a_server_that_ends_with_its_input_is_not_signalled() {
    for behind in BOTH {
        let script = r"trap 'echo term >&2' TERM
            while read -r line; do :; done; echo eof >&2; exit 5";
        let scene = Scene::server(behind, script);
        let link = scene.link().await;
        let (one, two) = tokio::join!(link.close(), link.close());
        assert_eq!((one, two), (Exit::Status(5), Exit::Status(5)));
        assert_eq!(link.close().await, Exit::Status(5));
        assert_eq!(scene.texts(), ["eof"]);
        let refused = call(&*link).await;
        assert_eq!(refused, Err(LinkError::Closed(Exit::Status(5))));
    }
}

#[tokio::test]
async fn a_server_that_stays_is_told_and_then_goes_by_itself() {
    for behind in BOTH {
        let script = r"trap 'echo term >&2; exit 6' TERM
            while read -r line; do :; done; echo eof >&2
            while :; do sleep 1000 & wait; done";
        let mut scene = Scene::server(behind, script);
        scene.spec.limits.stop_stdin = Duration::from_millis(200);
        let link = scene.link().await;
        assert_eq!(link.close().await, Exit::Status(6));
        assert_eq!(scene.texts(), ["eof", "term"]);
    }
}

#[tokio::test]
async fn a_server_that_ignores_all_is_killed() {
    for behind in BOTH {
        let script = "trap 'echo term >&2' TERM; while :; do sleep 1000 & wait; done";
        let mut scene = Scene::server(behind, script);
        hurry(&mut scene);
        let link = scene.link().await;
        assert_eq!(link.close().await, Exit::Signal(9));
        assert_eq!(scene.texts(), ["term"]);
    }
}

#[tokio::test]
async fn a_grandchild_is_killed_with_its_group() {
    for behind in BOTH {
        // It holds all three streams, and lives on when its parent goes.
        let script = "trap '' TERM; sleep 1000 & echo $! >&2; exec cat >/dev/null";
        let scene = Scene::server(behind, script);
        let link = scene.link().await;
        let grandchild = pid(&scene.lines(1).await[0]);
        assert_eq!(link.close().await, Exit::Status(0));
        gone(grandchild).await;
    }
}

#[tokio::test]
async fn a_link_that_is_dropped_stops_its_server() {
    for behind in BOTH {
        let scene = Scene::server(behind, "echo $$ >&2; while read -r line; do :; done");
        let link = scene.link().await;
        let server = pid(&scene.lines(1).await[0]);
        drop(link);
        gone(server).await;
    }
}

#[tokio::test]
async fn a_server_that_closes_its_output_is_stopped_and_its_calls_fail() {
    for behind in BOTH {
        let script = "read -r call; echo $$ >&2; exec >&-; while :; do sleep 1000 & wait; done";
        let mut scene = Scene::server(behind, script);
        hurry(&mut scene);
        let link = scene.link().await;
        let error = call(&*link).await.unwrap_err();
        assert_eq!(error, LinkError::Lost(Exit::Closed));
        assert_eq!(link.closed().await, Exit::Closed);
        gone(pid(&scene.texts()[0])).await;
    }
}

#[tokio::test]
async fn a_server_that_writes_a_line_without_end_is_killed() {
    for behind in BOTH {
        let script = r"trap '' TERM; echo $$ >&2; read -r call
            tr '\0' x </dev/zero";
        let mut scene = Scene::server(behind, script);
        scene.spec.limits.line_bytes_max = 1_000;
        scene.spec.limits.discard_bytes_max = 1_000_000;
        let link = scene.link().await;
        let error = call(&*link).await.unwrap_err();
        assert_eq!(error, LinkError::Lost(Exit::Overrun));
        assert_eq!(link.closed().await, Exit::Overrun);
        gone(pid(&scene.texts()[0])).await;
    }
}

#[test]
fn a_runtime_that_goes_takes_its_servers_with_it() {
    for behind in BOTH {
        let scene = Scene::server(
            behind,
            "trap '' TERM; echo $$ >&2; while :; do sleep 1000; done",
        );
        let first = runtime();
        let (link, server) = first.block_on(async {
            let link = scene.link().await;
            (link, pid(&scene.lines(1).await[0]))
        });
        drop(first);
        runtime().block_on(gone(server));
        assert!(!link.is_open());
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}
