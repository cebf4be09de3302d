//! More than was allowed: read and thrown away.

use bowline_link::http::client::HttpError;
use bowline_wire::executor::Frame;
use bytes::Bytes;

use crate::resident;
use crate::script::{asking, dialled_pair, pieces, text};

#[tokio::test]
async fn sec_47_a_gigabyte_that_nobody_allowed_takes_no_memory() {
    let _turn = crate::TURN.acquire().await.unwrap();
    let (tunnel, mut script) = dialled_pair().await;
    let open = asking(&tunnel);
    let stream = script.bare().await;
    script.answer(stream).await;
    let mut response = open.await.unwrap().unwrap();
    let before = resident();
    let piece = Bytes::from(vec![7; 60 * 1024]);
    let mut sent = 0;
    let mut most = before;
    while sent < 1024 * 1024 * 1024 {
        script.data(stream, sent, piece.clone()).await;
        sent += 60 * 1024;
        if sent % (64 * 60 * 1024) == 0 {
            most = most.max(resident());
        }
    }
    let (read, error) = pieces(&mut response).await;
    let count: usize = read.iter().map(Bytes::len).sum();
    assert!(count <= 64 * 1024, "{count}");
    assert!(matches!(error, Some(HttpError::Lost(_))), "{error:?}");
    // What the script itself queues to write is bounded by its socket.
    let grown = most.saturating_sub(before);
    assert!(grown < 64 * 1024 * 1024, "{grown} bytes more");
    let next = asking(&tunnel);
    assert_eq!(script.next().await, Frame::Cancel { stream });
    let stream = script.bare().await;
    script.whole(stream, "up").await;
    assert_eq!(text(&mut next.await.unwrap().unwrap()).await, "up");
}
