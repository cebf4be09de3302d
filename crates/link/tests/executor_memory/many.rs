//! A thousand streams at once, of which one is never read.

use bowline_link::executor::Carrier as _;
use bowline_link::http::client::Response;

use crate::resident;
use crate::script::{get, pair, start, within};
use crate::worker::{fits, work};

/// Bytes of the body that nobody reads at first.
const UNREAD_BYTES: u64 = 4 * 1024 * 1024;

/// Bytes of each of the others.
const BYTES: u64 = 66 * 1024;

/// Reads a body to its end; returns how long it was.
async fn read(mut response: Response, seed: u64) -> u64 {
    let mut offset = 0;
    while let Some(piece) = within(response.body.chunk()).await {
        let piece = piece.unwrap();
        assert!(fits(seed, offset, &piece), "stream {seed} at {offset}");
        offset += u64::try_from(piece.len()).unwrap();
    }
    offset
}

#[tokio::test]
async fn of_a_thousand_streams_one_that_nobody_reads_holds_up_no_other_and_goes_on_when_read() {
    let _turn = crate::TURN.acquire().await.unwrap();
    let (tunnel, script) = pair().await;
    start(work(script));
    let before = resident();
    let unread = get(&tunnel, &format!("/0/{UNREAD_BYTES}")).await.unwrap();
    // All are open before any of them is read: none of the thousand is waited for by another.
    let mut open = Vec::new();
    for seed in 1..1_000 {
        let path = format!("/{seed}/{BYTES}");
        open.push((seed, get(&tunnel, &path).await.unwrap()));
    }
    assert_eq!(tunnel.carried().streams, 1_000);
    let waiting = tunnel.session().waiting_bytes();
    assert!(waiting <= 16 * 1024 * 1024, "{waiting} bytes wait");
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 * 1024 * 1024, "{grown} bytes more");
    let reading: Vec<_> = open
        .into_iter()
        .map(|(seed, response)| start(read(response, seed)))
        .collect();
    for reading in reading {
        assert_eq!(within(reading).await.unwrap(), BYTES);
    }
    let held = tunnel.session().waiting_bytes();
    assert!(held <= 1024 * 1024, "{held} bytes wait of the unread one");
    assert!(held > 0);
    figures(waiting, grown, held);
    assert_eq!(read(unread, 0).await, UNREAD_BYTES);
    assert_eq!(tunnel.session().waiting_bytes(), 0);
    assert_eq!(tunnel.carried().streams, 0);
}

/// Shown with `--nocapture`.
#[expect(clippy::print_stderr, reason = "figures of a test")]
fn figures(waiting: u64, grown: u64, held: u64) {
    eprintln!("1,000 streams: {waiting} bytes queued, {grown} bytes more memory; unread {held}");
}
