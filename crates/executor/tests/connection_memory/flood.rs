//! Data beyond the credit is read and discarded.

use bowline_executor::frames::ExecutorFrame;
use bowline_link::http::http_client::HttpError;
use bowline_testkit::resident_bytes;
use bytes::Bytes;

use crate::scripted_executor::{dialed_tunnel_pair, read_chunks, read_text, start_get};

#[tokio::test]
async fn sec_47_unpermitted_gigabyte_takes_no_memory() {
    let _turn = crate::TURN.acquire().await.unwrap();
    let (tunnel, mut script) = dialed_tunnel_pair().await;
    let open = start_get(&tunnel);
    let stream = script.receive_bodyless_request().await;
    script.send_head(stream).await;
    let mut response = open.await.unwrap().unwrap();
    let before = resident_bytes(std::process::id());
    let piece = Bytes::from(vec![7; 60 * 1024]);
    let mut sent = 0;
    let mut most = before;
    while sent < 1024 * 1024 * 1024 {
        script.send_data(stream, sent, piece.clone()).await;
        sent += 60 * 1024;
        if sent % (64 * 60 * 1024) == 0 {
            most = most.max(resident_bytes(std::process::id()));
        }
    }
    let (read, error) = read_chunks(&mut response).await;
    let count: usize = read.iter().map(Bytes::len).sum();
    assert!(count <= 64 * 1024, "{count}");
    assert!(matches!(error, Some(HttpError::Lost(_))), "{error:?}");
    // The script's own write queue is bounded by the socket.
    let grown = most.saturating_sub(before);
    assert!(grown < 64 * 1024 * 1024, "{grown} bytes more");
    let next = start_get(&tunnel);
    assert_eq!(script.next_frame().await, ExecutorFrame::Cancel { stream });
    let stream = script.receive_bodyless_request().await;
    script.respond_whole(stream, "up").await;
    assert_eq!(read_text(&mut next.await.unwrap().unwrap()).await, "up");
}
