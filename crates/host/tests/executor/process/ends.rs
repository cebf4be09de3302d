//! How a server over there starts and ends, and what it may use.

use std::time::Duration;

use bowline_link::executor::{EXECUTOR_BUSY, EXECUTOR_REFUSED};
use bowline_link::stdio::Process as _;
use bowline_link::{Exit, LinkError, StdioLimits};
use tokio::io::AsyncReadExt as _;

use super::rig::{Leash, Rig, soon};

fn limits() -> StdioLimits {
    StdioLimits::default()
}

#[tokio::test]
async fn how_a_server_ended_is_told_by_its_kind() {
    for (script, exit) in [
        ("exit 0", Exit::Status(0)),
        ("exit 7", Exit::Status(7)),
        ("kill -9 $$", Exit::Signal(9)),
        ("exec sh -c 'kill -15 $$'", Exit::Signal(15)),
        // It lives on without its output, or without its input, and is stopped.
        ("exec >&-; exec sleep 60", Exit::Closed),
    ] {
        let rig = Rig::script(script).await;
        let mut process = rig.start("s").await.unwrap();
        assert_eq!(soon(process.wait()).await, exit, "{script}");
    }
}

#[tokio::test]
async fn a_server_is_stopped_in_order_where_it_lets_itself_be() {
    let rig = Rig::script("cat; exit 3").await;
    let mut process = rig.start("s").await.unwrap();
    let stdin = process.streams().stdin;
    assert_eq!(soon(process.stop(limits())).await, Some(Exit::Status(3)));
    drop(stdin);
}

#[tokio::test]
async fn a_server_that_does_not_go_is_told_and_then_killed() {
    let rig = Rig::script("trap 'exit 4' TERM; while :; do sleep 0.05; done").await;
    let mut process = rig.start("s").await.unwrap();
    assert_eq!(soon(process.stop(limits())).await, Some(Exit::Status(4)));
    let mut leash = Leash::new();
    let script = format!(
        "trap '' TERM; {}; while :; do sleep 0.05; done",
        leash.hold()
    );
    let rig = Rig::script(&script).await;
    let mut process = rig.start("s").await.unwrap();
    leash.held().await;
    assert_eq!(soon(process.stop(limits())).await, Some(Exit::Signal(9)));
    leash.let_go().await;
}

#[tokio::test]
async fn a_server_is_killed_at_once_with_all_it_started() {
    let mut leash = Leash::new();
    let script = format!("{}; sleep 60 & sleep 60 & wait", leash.hold());
    let rig = Rig::script(&script).await;
    let mut process = rig.start("s").await.unwrap();
    leash.held().await;
    assert_eq!(soon(process.kill()).await, Exit::Signal(9));
    leash.let_go().await;
}

#[tokio::test]
async fn a_server_that_nobody_holds_any_more_is_killed() {
    let mut leash = Leash::new();
    let rig = Rig::script(&format!("{}; exec sleep 60", leash.hold())).await;
    let process = rig.start("s").await.unwrap();
    leash.held().await;
    drop(process);
    leash.let_go().await;
}

#[tokio::test]
async fn an_executor_that_goes_down_takes_its_servers_with_it() {
    let mut leash = Leash::new();
    let rig = Rig::script(&format!("{}; exec sleep 60", leash.hold())).await;
    let mut process = rig.start("s").await.unwrap();
    leash.held().await;
    soon(rig.servant.close()).await;
    leash.let_go().await;
    // The gateway does not wait for it to come back.
    assert_eq!(soon(process.wait()).await, Exit::Away);
}

#[tokio::test]
async fn only_what_the_executor_itself_names_is_started() {
    let rig = Rig::script("cat").await;
    for name in ["t", "", "sh", "/bin/sh"] {
        let Err(LinkError::Elsewhere(failure)) = rig.start(name).await else {
            panic!("{name} was started");
        };
        assert_eq!(&*failure.code, EXECUTOR_REFUSED);
    }
    // The connection is as good as before.
    rig.start("s").await.unwrap();
}

#[tokio::test]
async fn one_server_more_than_there_may_be_is_refused() {
    let rig = Rig::script("exec cat").await;
    let mut running = Vec::new();
    let refused = loop {
        match rig.start("s").await {
            Ok(process) => running.push(process),
            Err(error) => break error,
        }
        assert!(running.len() <= 64);
    };
    let LinkError::Elsewhere(failure) = refused else {
        panic!("{refused}");
    };
    assert_eq!((running.len(), &*failure.code), (64, EXECUTOR_BUSY));
    let mut last = running.pop().unwrap();
    soon(last.kill()).await;
    drop(last);
    rig.start("s").await.unwrap();
}

#[tokio::test]
async fn a_server_whose_output_is_not_read_stands_still_and_others_do_not() {
    const WINDOW: usize = 256 * 1024;
    let scripts = [("flood", "exec yes"), ("quiet", "echo here; exec cat")];
    let rig = Rig::with(&scripts, Duration::from_secs(30)).await;
    let mut flood = rig.start("flood").await.unwrap();
    let mut quiet = rig.start("quiet").await.unwrap();
    let mut here = [0; 5];
    let mut stdout = quiet.streams().stdout.unwrap();
    soon(stdout.read_exact(&mut here)).await.unwrap();
    let carried = |tunnel: &dyn bowline_link::executor::Carrier| tunnel.carried().received_bytes;
    let tunnel = rig.tunnel();
    soon(async {
        while carried(&*tunnel) < WINDOW as u64 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // No more comes than the window, whatever else is done meanwhile.
    for _ in 0..3 {
        let mut process = rig.start("quiet").await.unwrap();
        let mut stdout = process.streams().stdout.unwrap();
        soon(stdout.read_exact(&mut here)).await.unwrap();
    }
    assert!(carried(&*tunnel) <= (WINDOW + 4 * here.len()) as u64);
    let mut out = flood.streams().stdout.unwrap();
    let mut read = vec![0; 4 * WINDOW];
    soon(out.read_exact(&mut read)).await.unwrap();
    assert!(read.chunks(2).all(|line| line == b"y\n"));
    soon(flood.kill()).await;
}

#[tokio::test]
async fn a_flood_on_stderr_that_nobody_reads_holds_nobody_up() {
    let script = "head -c 3000000 /dev/zero | tr '\\0' 'x' >&2; echo; echo last >&2; echo done; \
                  exit 5";
    let rig = Rig::script(script).await;
    let mut process = rig.start("s").await.unwrap();
    let streams = process.streams();
    let mut said = String::new();
    soon(streams.stdout.unwrap().read_to_string(&mut said))
        .await
        .unwrap();
    assert_eq!(said, "\ndone\n");
    assert_eq!(soon(process.wait()).await, Exit::Status(5));
}
