//! A thousand concurrent streams with a single unread stream.

use bowline_executor::connection::ExecutorConnection as _;
use bowline_link::http::http_client::HttpResponse;
use bowline_testkit::{resident_bytes, spawn_task, wait_bounded};

use crate::fake_worker::{matches_body, serve_bodies};
use crate::scripted_executor::{send_get, tunnel_pair};

/// Body bytes of the unread stream.
const UNREAD_BYTES: u64 = 4 * 1024 * 1024;

/// Body bytes of each further stream.
const BYTES: u64 = 66 * 1024;

/// Reads a body to the end; returns the length.
async fn read_body(mut response: HttpResponse, seed: u64) -> u64 {
    let mut offset = 0;
    while let Some(piece) = wait_bounded(response.body.next_chunk()).await {
        let piece = piece.unwrap();
        assert!(
            matches_body(seed, offset, &piece),
            "stream {seed} at {offset}"
        );
        offset += u64::try_from(piece.len()).unwrap();
    }
    offset
}

#[tokio::test]
async fn unread_stream_does_not_block_a_thousand() {
    let _turn = crate::TURN.acquire().await.unwrap();
    let (tunnel, script) = tunnel_pair().await;
    spawn_task(serve_bodies(script));
    let before = resident_bytes(std::process::id());
    let unread = send_get(&tunnel, &format!("/0/{UNREAD_BYTES}"))
        .await
        .unwrap();
    // All streams are open before the first read, so none waits for a different stream.
    let mut open = Vec::new();
    for seed in 1..1_000 {
        let path = format!("/{seed}/{BYTES}");
        open.push((seed, send_get(&tunnel, &path).await.unwrap()));
    }
    assert_eq!(tunnel.traffic().streams, 1_000);
    let waiting = tunnel.session().waiting_bytes();
    assert!(waiting <= 16 * 1024 * 1024, "{waiting} bytes wait");
    let grown = resident_bytes(std::process::id()).saturating_sub(before);
    assert!(grown < 64 * 1024 * 1024, "{grown} bytes more");
    let reading: Vec<_> = open
        .into_iter()
        .map(|(seed, response)| spawn_task(read_body(response, seed)))
        .collect();
    for reading in reading {
        assert_eq!(wait_bounded(reading).await.unwrap(), BYTES);
    }
    let held = tunnel.session().waiting_bytes();
    assert!(held <= 1024 * 1024, "{held} bytes wait of the unread one");
    assert!(held > 0);
    print_figures(waiting, grown, held);
    assert_eq!(read_body(unread, 0).await, UNREAD_BYTES);
    assert_eq!(tunnel.session().waiting_bytes(), 0);
    assert_eq!(tunnel.traffic().streams, 0);
}

/// Shown with `--nocapture`.
#[expect(clippy::print_stderr, reason = "figures of a test")]
fn print_figures(waiting: u64, grown: usize, held: u64) {
    eprintln!("1,000 streams: {waiting} bytes queued, {grown} bytes more memory; unread {held}");
}
