//! Server pipes resume at the exact byte after a cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bowline_link::LinkExit;
use bowline_link::stdio::ServerProcess as _;
use bowline_testkit::process_rig::{LifetimePipe, ProcessRig};
use bowline_testkit::{spawn_task, wait_bounded};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

/// Bytes that encode their position.
fn bytes_from(place: usize) -> Vec<u8> {
    let words = (place..place + 1_000).flat_map(|word| (word as u64 * 0x9e37_79b9).to_be_bytes());
    words.collect()
}

#[tokio::test]
async fn hundred_cuts_lose_and_repeat_nothing() {
    let mut random = fastrand::Rng::with_seed(11);
    let rig = ProcessRig::script("cat").await;
    let mut process = rig.start("s").await.unwrap();
    let streams = process.take_streams();
    let (mut stdin, mut stdout) = (streams.stdin.unwrap(), streams.stdout.unwrap());
    let is_enough = Arc::new(AtomicBool::new(false));
    let writing = {
        let is_enough = Arc::clone(&is_enough);
        spawn_task(async move {
            let mut pieces = 0;
            while !is_enough.load(Ordering::Relaxed) {
                stdin.write_all(&bytes_from(pieces)).await.unwrap();
                pieces += 1;
            }
            pieces
        })
    };
    let read = Arc::new(AtomicUsize::new(0));
    let reading = {
        let read = Arc::clone(&read);
        spawn_task(async move {
            let mut piece = vec![0; bytes_from(0).len()];
            while stdout.read_exact(&mut piece).await.is_ok() {
                let place = read.fetch_add(1, Ordering::Relaxed);
                assert!(piece == bytes_from(place), "piece {place} is another");
            }
        })
    };
    let mut before = 0;
    let mut cuts_in_motion = 0;
    for _ in 0..100 {
        // A handshake takes some hundred bytes; a frame may be cut anywhere.
        rig.reconnect_until(1_500 + random.usize(..200_000)).await;
        rig.cut_by_itself().await;
        let now = read.load(Ordering::Relaxed);
        cuts_in_motion += usize::from(now > before);
        before = now;
    }
    assert!(cuts_in_motion > 50, "{cuts_in_motion}");
    is_enough.store(true, Ordering::Relaxed);
    rig.reconnect().await;
    let written = wait_bounded(writing).await.unwrap();
    wait_bounded(reading).await.unwrap();
    assert_eq!(read.load(Ordering::Relaxed), written);
    assert_eq!(wait_bounded(process.wait()).await, LinkExit::Status(0));
}

#[tokio::test]
async fn cut_line_resumes_in_both_directions() {
    let rig = ProcessRig::script("printf 'half a '; read -r rest; printf '%s\\n' \"$rest\"").await;
    let mut process = rig.start("s").await.unwrap();
    let streams = process.take_streams();
    let (mut stdin, mut stdout) = (streams.stdin.unwrap(), streams.stdout.unwrap());
    let mut half = [0; 7];
    wait_bounded(stdout.read_exact(&mut half)).await.unwrap();
    wait_bounded(stdin.write_all(b"li")).await.unwrap();
    rig.cut().await;
    // Writes do not wait for the connection.
    wait_bounded(stdin.write_all(b"n")).await.unwrap();
    rig.reconnect().await;
    rig.cut().await;
    rig.reconnect().await;
    wait_bounded(stdin.write_all(b"e\n")).await.unwrap();
    let mut rest = String::new();
    wait_bounded(stdout.read_to_string(&mut rest))
        .await
        .unwrap();
    assert_eq!((&half, &*rest), (b"half a ", "line\n"));
    assert_eq!(wait_bounded(process.wait()).await, LinkExit::Status(0));
}

#[tokio::test]
async fn exit_during_cut_follows_all_output() {
    let mut leash = LifetimePipe::create();
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let script = format!(
        "{}; until [ -e '{}' ]; do sleep 0.02; done; \
         echo why >&2; printf all; printf ' of it'; exit 7",
        leash.hold_command(),
        go.display()
    );
    let rig = ProcessRig::script(&script).await;
    let mut process = rig.start("s").await.unwrap();
    let streams = process.take_streams();
    leash.wait_held().await;
    rig.cut().await;
    std::fs::write(&go, "").unwrap();
    leash.wait_released().await;
    rig.reconnect().await;
    let mut said = String::new();
    wait_bounded(streams.stdout.unwrap().read_to_string(&mut said))
        .await
        .unwrap();
    assert_eq!(said, "all of it");
    assert_eq!(wait_bounded(process.wait()).await, LinkExit::Status(7));
    let mut why = String::new();
    wait_bounded(streams.stderr.unwrap().read_to_string(&mut why))
        .await
        .unwrap();
    assert_eq!(why, "why\n");
}

#[tokio::test]
async fn stdin_closed_during_cut_closes_remotely() {
    let rig = ProcessRig::script("cat; echo end").await;
    let mut process = rig.start("s").await.unwrap();
    let streams = process.take_streams();
    let mut stdin = streams.stdin.unwrap();
    rig.cut().await;
    wait_bounded(stdin.write_all(b"last words, then "))
        .await
        .unwrap();
    drop(stdin);
    rig.reconnect().await;
    let mut said = String::new();
    wait_bounded(streams.stdout.unwrap().read_to_string(&mut said))
        .await
        .unwrap();
    assert_eq!(said, "last words, then end\n");
    assert_eq!(wait_bounded(process.wait()).await, LinkExit::Status(0));
}

#[tokio::test]
async fn abandoned_server_is_killed_after_retention() {
    let mut leash = LifetimePipe::create();
    let script = format!(
        "{}; trap '' TERM; while :; do sleep 60; done",
        leash.hold_command()
    );
    let rig = ProcessRig::with(&[("s", &script)], Duration::from_millis(300)).await;
    let mut process = rig.start("s").await.unwrap();
    leash.wait_held().await;
    rig.cut().await;
    leash.wait_released().await;
    // The gateway learns of the end after a late reconnect too.
    rig.reconnect().await;
    assert_eq!(wait_bounded(process.wait()).await, LinkExit::Away);
}

#[tokio::test]
async fn new_session_kills_former_servers() {
    let mut leash = LifetimePipe::create();
    let script = format!("{}; cat", leash.hold_command());
    let rig = ProcessRig::script(&script).await;
    let process = rig.start("s").await.unwrap();
    leash.wait_held().await;
    rig.cut().await;
    let _rig = rig.another_session().await;
    leash.wait_released().await;
    drop(process);
}

#[tokio::test]
async fn unclaimed_server_is_killed_on_resume() {
    let (mut wanted, mut unwanted) = (LifetimePipe::create(), LifetimePipe::create());
    let scripts = [
        ("wanted", format!("{}; cat", wanted.hold_command())),
        ("unwanted", format!("{}; cat", unwanted.hold_command())),
    ];
    let scripts: Vec<_> = scripts
        .iter()
        .map(|(name, text)| (*name, &**text))
        .collect();
    let rig = ProcessRig::with(&scripts, Duration::from_secs(30)).await;
    let mut stays = rig.start("wanted").await.unwrap();
    let goes = rig.start("unwanted").await.unwrap();
    wanted.wait_held().await;
    unwanted.wait_held().await;
    rig.cut().await;
    drop(goes);
    rig.reconnect().await;
    unwanted.wait_released().await;
    let streams = stays.take_streams();
    let mut stdin = streams.stdin.unwrap();
    wait_bounded(stdin.write_all(b"still here\n"))
        .await
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(streams.stdout.unwrap());
    wait_bounded(stdout.read_line(&mut line)).await.unwrap();
    assert_eq!(line, "still here\n");
}

#[tokio::test]
async fn given_up_executor_ends_its_servers() {
    let rig = ProcessRig::script("cat").await;
    let mut process = rig.start("s").await.unwrap();
    rig.cut().await;
    rig.give_up();
    assert_eq!(wait_bounded(process.wait()).await, LinkExit::Away);
}
