//! Start, end and limits of servers on an executor.

use std::time::Duration;

use bowline_executor::connection::{EXECUTOR_BUSY, EXECUTOR_REFUSED};
use bowline_link::stdio::ServerProcess as _;
use bowline_link::{LinkError, LinkExit, StdioLimits};
use bowline_testkit::process_rig::{LifetimePipe, ProcessRig};
use bowline_testkit::{poll_until, wait_bounded};
use tokio::io::AsyncReadExt as _;

fn limits() -> StdioLimits {
    StdioLimits::default()
}

#[tokio::test]
async fn exit_kind_is_reported() {
    for (script, exit) in [
        ("exit 0", LinkExit::Status(0)),
        ("exit 7", LinkExit::Status(7)),
        ("kill -9 $$", LinkExit::Signal(9)),
        ("exec sh -c 'kill -15 $$'", LinkExit::Signal(15)),
        // The server closed stdout or stdin, lives on, and is stopped.
        ("exec >&-; exec sleep 60", LinkExit::Closed),
    ] {
        let rig = ProcessRig::script(script).await;
        let mut process = rig.start("s").await.unwrap();
        assert_eq!(wait_bounded(process.wait()).await, exit, "{script}");
    }
}

#[tokio::test]
async fn cooperative_server_stops_gracefully() {
    let rig = ProcessRig::script("cat; exit 3").await;
    let mut process = rig.start("s").await.unwrap();
    let stdin = process.take_streams().stdin;
    assert_eq!(
        wait_bounded(process.stop(limits())).await,
        Some(LinkExit::Status(3))
    );
    drop(stdin);
}

#[tokio::test]
async fn stubborn_server_is_killed_after_grace() {
    let rig = ProcessRig::script("trap 'exit 4' TERM; while :; do sleep 0.05; done").await;
    let mut process = rig.start("s").await.unwrap();
    assert_eq!(
        wait_bounded(process.stop(limits())).await,
        Some(LinkExit::Status(4))
    );
    let mut leash = LifetimePipe::create();
    let script = format!(
        "trap '' TERM; {}; while :; do sleep 0.05; done",
        leash.hold_command()
    );
    let rig = ProcessRig::script(&script).await;
    let mut process = rig.start("s").await.unwrap();
    leash.wait_held().await;
    assert_eq!(
        wait_bounded(process.stop(limits())).await,
        Some(LinkExit::Signal(9))
    );
    leash.wait_released().await;
}

#[tokio::test]
async fn immediate_stop_kills_process_tree() {
    let mut leash = LifetimePipe::create();
    let script = format!("{}; sleep 60 & sleep 60 & wait", leash.hold_command());
    let rig = ProcessRig::script(&script).await;
    let mut process = rig.start("s").await.unwrap();
    leash.wait_held().await;
    assert_eq!(wait_bounded(process.kill()).await, LinkExit::Signal(9));
    leash.wait_released().await;
}

#[tokio::test]
async fn dropped_process_is_killed() {
    let mut leash = LifetimePipe::create();
    let rig = ProcessRig::script(&format!("{}; exec sleep 60", leash.hold_command())).await;
    let process = rig.start("s").await.unwrap();
    leash.wait_held().await;
    drop(process);
    leash.wait_released().await;
}

#[tokio::test]
async fn closing_executor_ends_its_servers() {
    let mut leash = LifetimePipe::create();
    let rig = ProcessRig::script(&format!("{}; exec sleep 60", leash.hold_command())).await;
    let mut process = rig.start("s").await.unwrap();
    leash.wait_held().await;
    wait_bounded(rig.servant.close()).await;
    leash.wait_released().await;
    // The gateway does not wait for a reconnect.
    assert_eq!(wait_bounded(process.wait()).await, LinkExit::Away);
}

#[tokio::test]
async fn only_configured_servers_are_started() {
    let rig = ProcessRig::script("cat").await;
    for name in ["t", "", "sh", "/bin/sh"] {
        let Err(LinkError::RemoteFailure(failure)) = rig.start(name).await else {
            panic!("{name} was started");
        };
        assert_eq!(&*failure.code, EXECUTOR_REFUSED);
    }
    // The connection is unaffected.
    rig.start("s").await.unwrap();
}

#[tokio::test]
async fn excess_server_is_refused() {
    let rig = ProcessRig::script("exec cat").await;
    let mut running = Vec::new();
    let refused = loop {
        match rig.start("s").await {
            Ok(process) => running.push(process),
            Err(error) => break error,
        }
        assert!(running.len() <= 64);
    };
    let LinkError::RemoteFailure(failure) = refused else {
        panic!("{refused}");
    };
    assert_eq!((running.len(), &*failure.code), (64, EXECUTOR_BUSY));
    let mut last = running.pop().unwrap();
    wait_bounded(last.kill()).await;
    drop(last);
    rig.start("s").await.unwrap();
}

#[tokio::test]
async fn unread_output_blocks_only_its_server() {
    const WINDOW: usize = 256 * 1024;
    let scripts = [("flood", "exec yes"), ("quiet", "echo here; exec cat")];
    let rig = ProcessRig::with(&scripts, Duration::from_secs(30)).await;
    let mut flood = rig.start("flood").await.unwrap();
    let mut quiet = rig.start("quiet").await.unwrap();
    let mut here = [0; 5];
    let mut stdout = quiet.take_streams().stdout.unwrap();
    wait_bounded(stdout.read_exact(&mut here)).await.unwrap();
    let carried = |tunnel: &dyn bowline_executor::connection::ExecutorConnection| {
        tunnel.traffic().received_bytes
    };
    let tunnel = rig.tunnel();
    poll_until("the window is full", || carried(&*tunnel) >= WINDOW as u64).await;
    // No more than the window arrives, whatever happens meanwhile.
    for _ in 0..3 {
        let mut process = rig.start("quiet").await.unwrap();
        let mut stdout = process.take_streams().stdout.unwrap();
        wait_bounded(stdout.read_exact(&mut here)).await.unwrap();
    }
    assert!(carried(&*tunnel) <= (WINDOW + 4 * here.len()) as u64);
    let mut out = flood.take_streams().stdout.unwrap();
    let mut read = vec![0; 4 * WINDOW];
    wait_bounded(out.read_exact(&mut read)).await.unwrap();
    assert!(read.chunks(2).all(|line| line == b"y\n"));
    wait_bounded(flood.kill()).await;
}

#[tokio::test]
async fn unread_stderr_flood_blocks_nothing() {
    let script = "head -c 3000000 /dev/zero | tr '\\0' 'x' >&2; echo; echo last >&2; echo done; \
                  exit 5";
    let rig = ProcessRig::script(script).await;
    let mut process = rig.start("s").await.unwrap();
    let streams = process.take_streams();
    let mut said = String::new();
    wait_bounded(streams.stdout.unwrap().read_to_string(&mut said))
        .await
        .unwrap();
    assert_eq!(said, "\ndone\n");
    assert_eq!(wait_bounded(process.wait()).await, LinkExit::Status(5));
}
