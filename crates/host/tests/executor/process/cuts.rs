//! What is cut goes on where it was.

use std::sync::Arc;
use std::time::Duration;

use bowline_link::Exit;
use bowline_link::stdio::Process as _;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

use super::rig::{Leash, Rig, soon};

#[tokio::test]
async fn a_hundred_cuts_lose_and_double_nothing_in_either_direction() {
    const BYTES: usize = 3 * 1024 * 1024;
    let mut random = fastrand::Rng::with_seed(11);
    let rig = Arc::new(Rig::script("cat").await);
    let mut process = rig.start("s").await.unwrap();
    let streams = process.streams();
    let sent: Arc<Vec<u8>> = Arc::new((0..BYTES).map(|_| random.u8(..)).collect());
    let (mut stdin, mut stdout) = (streams.stdin.unwrap(), streams.stdout.unwrap());
    let writing = {
        let sent = Arc::clone(&sent);
        tokio::spawn(async move {
            for piece in sent.chunks(7_001) {
                stdin.write_all(piece).await.unwrap();
            }
        })
    };
    let reading = tokio::spawn(async move {
        let mut read = Vec::new();
        stdout.read_to_end(&mut read).await.unwrap();
        read
    });
    for _ in 0..100 {
        // A handshake takes some hundred bytes; a frame may be cut anywhere.
        rig.reconnect_until(1_500 + random.usize(..60_000)).await;
        rig.cut_by_itself().await;
    }
    rig.reconnect().await;
    soon(writing).await.unwrap();
    let read = soon(reading).await.unwrap();
    assert_eq!(read.len(), sent.len());
    assert!(read == *sent, "the bytes differ");
    assert_eq!(soon(process.wait()).await, Exit::Status(0));
}

#[tokio::test]
async fn a_line_that_was_cut_in_the_middle_goes_on_in_both_directions() {
    let rig = Rig::script("printf 'half a '; read -r rest; printf '%s\\n' \"$rest\"").await;
    let mut process = rig.start("s").await.unwrap();
    let streams = process.streams();
    let (mut stdin, mut stdout) = (streams.stdin.unwrap(), streams.stdout.unwrap());
    let mut half = [0; 7];
    soon(stdout.read_exact(&mut half)).await.unwrap();
    soon(stdin.write_all(b"li")).await.unwrap();
    rig.cut().await;
    // Nobody has to wait with writing for the connection.
    soon(stdin.write_all(b"n")).await.unwrap();
    rig.reconnect().await;
    rig.cut().await;
    rig.reconnect().await;
    soon(stdin.write_all(b"e\n")).await.unwrap();
    let mut rest = String::new();
    soon(stdout.read_to_string(&mut rest)).await.unwrap();
    assert_eq!((&half, &*rest), (b"half a ", "line\n"));
    assert_eq!(soon(process.wait()).await, Exit::Status(0));
}

#[tokio::test]
async fn an_end_that_came_while_it_was_cut_is_told_after_all_that_was_said() {
    let mut leash = Leash::new();
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let script = format!(
        "{}; until [ -e '{}' ]; do sleep 0.02; done; \
         echo why >&2; printf all; printf ' of it'; exit 7",
        leash.hold(),
        go.display()
    );
    let rig = Rig::script(&script).await;
    let mut process = rig.start("s").await.unwrap();
    let streams = process.streams();
    leash.held().await;
    rig.cut().await;
    std::fs::write(&go, "").unwrap();
    leash.let_go().await;
    rig.reconnect().await;
    let mut said = String::new();
    soon(streams.stdout.unwrap().read_to_string(&mut said))
        .await
        .unwrap();
    assert_eq!(said, "all of it");
    assert_eq!(soon(process.wait()).await, Exit::Status(7));
    let mut why = String::new();
    soon(streams.stderr.unwrap().read_to_string(&mut why))
        .await
        .unwrap();
    assert_eq!(why, "why\n");
}

#[tokio::test]
async fn a_stdin_that_was_closed_while_it_was_cut_is_closed_over_there() {
    let rig = Rig::script("cat; echo end").await;
    let mut process = rig.start("s").await.unwrap();
    let streams = process.streams();
    let mut stdin = streams.stdin.unwrap();
    rig.cut().await;
    soon(stdin.write_all(b"last words, then ")).await.unwrap();
    drop(stdin);
    rig.reconnect().await;
    let mut said = String::new();
    soon(streams.stdout.unwrap().read_to_string(&mut said))
        .await
        .unwrap();
    assert_eq!(said, "last words, then end\n");
    assert_eq!(soon(process.wait()).await, Exit::Status(0));
}

#[tokio::test]
async fn a_server_that_nobody_came_back_for_in_time_is_killed() {
    let mut leash = Leash::new();
    let script = format!("{}; trap '' TERM; while :; do sleep 60; done", leash.hold());
    let rig = Rig::with(&[("s", &script)], Duration::from_millis(300)).await;
    let mut process = rig.start("s").await.unwrap();
    leash.held().await;
    rig.cut().await;
    leash.let_go().await;
    // The gateway hears of it where it comes back all the same.
    rig.reconnect().await;
    assert_eq!(soon(process.wait()).await, Exit::Away);
}

#[tokio::test]
async fn a_gateway_that_was_started_again_leaves_no_server_of_its_former_life() {
    let mut leash = Leash::new();
    let script = format!("{}; cat", leash.hold());
    let rig = Rig::script(&script).await;
    let process = rig.start("s").await.unwrap();
    leash.held().await;
    rig.cut().await;
    let _rig = rig.another_session().await;
    leash.let_go().await;
    drop(process);
}

#[tokio::test]
async fn a_server_that_is_not_wanted_any_more_after_a_cut_is_killed_and_others_live_on() {
    let (mut wanted, mut unwanted) = (Leash::new(), Leash::new());
    let scripts = [
        ("wanted", format!("{}; cat", wanted.hold())),
        ("unwanted", format!("{}; cat", unwanted.hold())),
    ];
    let scripts: Vec<_> = scripts
        .iter()
        .map(|(name, text)| (*name, &**text))
        .collect();
    let rig = Rig::with(&scripts, Duration::from_secs(30)).await;
    let mut stays = rig.start("wanted").await.unwrap();
    let goes = rig.start("unwanted").await.unwrap();
    wanted.held().await;
    unwanted.held().await;
    rig.cut().await;
    drop(goes);
    rig.reconnect().await;
    unwanted.let_go().await;
    let streams = stays.streams();
    let mut stdin = streams.stdin.unwrap();
    soon(stdin.write_all(b"still here\n")).await.unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(streams.stdout.unwrap());
    soon(stdout.read_line(&mut line)).await.unwrap();
    assert_eq!(line, "still here\n");
}

#[tokio::test]
async fn a_server_whose_executor_is_given_up_is_away() {
    let rig = Rig::script("cat").await;
    let mut process = rig.start("s").await.unwrap();
    rig.cut().await;
    rig.give_up();
    assert_eq!(soon(process.wait()).await, Exit::Away);
}
