//! What may wait, and what becomes of more.

use super::*;

/// Pieces that may wait.
const PIECES_MAX: usize = 256;

const MIB: usize = 1024 * 1024;

fn overflowed(error: Option<HttpError>) {
    let Some(HttpError::Lost(reason)) = error else {
        panic!("{error:?}");
    };
    assert!(reason.contains("http-") && reason.contains("overflowed"));
}

#[tokio::test]
async fn a_full_queue_is_read_to_its_last_piece_before_a_lost_connection_is_told() {
    let (client, mut peer) = connected().await;
    let (mut body, name) = opened(&client, &mut peer).await;
    for seq in 1..=PIECES_MAX as u64 {
        peer.piece(&name, seq, b"x").await;
    }
    peer.settle().await;
    drop(peer);
    assert_ne!(client.over().await, Ended::Local);
    let (pieces, error) = read(&mut body).await;
    assert_eq!(pieces.len(), PIECES_MAX);
    let Some(HttpError::Lost(reason)) = error else {
        panic!("{error:?}");
    };
    assert!(reason.contains("http-1") && reason.contains("not connected"));
}

#[tokio::test]
async fn a_full_queue_still_takes_the_end() {
    let (client, mut peer) = connected().await;
    let (mut body, name) = opened(&client, &mut peer).await;
    for seq in 1..=PIECES_MAX as u64 {
        peer.piece(&name, seq, b"x").await;
    }
    peer.end(&name, PIECES_MAX as u64 + 1).await;
    peer.settle().await;
    let (pieces, error) = read(&mut body).await;
    assert_eq!((pieces.len(), error), (PIECES_MAX, None));
}

#[tokio::test]
async fn more_pieces_than_may_wait_end_their_stream_behind_those_that_do() {
    let (client, mut peer) = connected().await;
    let scripting = async {
        let asked = peer.asked().await;
        for seq in 1..=1_024 {
            peer.piece(asked.name(), seq, b"x").await;
        }
        peer.end(asked.name(), 1_025).await;
        peer.settle().await;
        peer.head(&asked).await;
    };
    let (response, ()) = tokio::join!(carry(&client), scripting);
    let (pieces, error) = read(&mut response.unwrap().body).await;
    assert_eq!(pieces.len(), PIECES_MAX);
    overflowed(error);
    assert_eq!(client.ended(), None);
    works(&client, &mut peer, "http-2").await;
}

#[tokio::test]
async fn a_stream_that_nobody_reads_slows_no_other() {
    let (client, mut peer) = connected().await;
    let (mut unread, stuck) = opened(&client, &mut peer).await;
    let (mut body, name) = opened(&client, &mut peer).await;
    for seq in 1..=2_000 {
        peer.piece(&stuck, seq, b"to nobody").await;
        peer.piece(&name, seq, b"x").await;
        let piece = in_time(body.chunk()).await.unwrap().unwrap();
        assert_eq!(piece, &b"x"[..]);
    }
    peer.end(&name, 2_001).await;
    assert_eq!(in_time(body.chunk()).await, None);
    let (pieces, error) = read(&mut unread).await;
    assert_eq!(pieces.len(), PIECES_MAX);
    overflowed(error);
}

#[tokio::test]
async fn a_piece_of_a_mebibyte_is_taken_and_a_larger_one_ends_the_connection() {
    let (client, mut peer) = connected().await;
    let (mut body, name) = opened(&client, &mut peer).await;
    let piece = vec![b'x'; MIB];
    peer.piece(&name, 1, &piece).await;
    peer.piece(&name, 2, &vec![b'x'; MIB + 1]).await;
    let (pieces, error) = read(&mut body).await;
    assert_eq!(pieces.concat(), piece);
    assert!(matches!(error, Some(HttpError::Lost(_))), "{error:?}");
    let ended = in_time(async {
        loop {
            if let Err(ended) = peer.incoming.next().await {
                return ended;
            }
        }
    });
    assert!(matches!(ended.await, Ended::Closed { code: 4004, .. }));
}

#[tokio::test]
async fn what_is_no_base64_ends_the_connection() {
    let (client, mut peer) = connected().await;
    let (mut body, name) = opened(&client, &mut peer).await;
    let params = json!({"requestId": name, "seq": 1, "deltaBase64": "!!!!"});
    peer.write(&json!({"method": "http/request/bodyDelta", "params": params}))
        .await;
    let (pieces, error) = read(&mut body).await;
    assert!(pieces.is_empty());
    assert!(matches!(error, Some(HttpError::Lost(_))), "{error:?}");
    assert_eq!(in_time(client.over()).await, Ended::Local);
}

#[tokio::test]
async fn all_streams_share_sixteen_mebibytes_and_give_them_back_when_read() {
    let (client, mut peer) = connected().await;
    let (mut one, first) = opened(&client, &mut peer).await;
    let (mut two, second) = opened(&client, &mut peer).await;
    let piece = vec![b'x'; MIB];
    for seq in 1..=8 {
        peer.piece(&first, seq, &piece).await;
        peer.piece(&second, seq, &piece).await;
    }
    // One byte more is too much, whoever it is for.
    peer.piece(&second, 9, b"x").await;
    peer.settle().await;
    let (pieces, error) = read(&mut two).await;
    assert_eq!(pieces.len(), 8);
    overflowed(error);
    // What was read can come again.
    for seq in 9..=16 {
        peer.piece(&first, seq, &piece).await;
    }
    peer.end(&first, 17).await;
    peer.settle().await;
    let (pieces, error) = read(&mut one).await;
    assert_eq!((pieces.len(), error), (16, None));
}

#[tokio::test]
async fn a_body_that_is_dropped_gives_its_bytes_back() {
    let (client, mut peer) = connected().await;
    let piece = vec![b'x'; MIB];
    for _ in 0..3 {
        let (body, name) = opened(&client, &mut peer).await;
        for seq in 1..=16 {
            peer.piece(&name, seq, &piece).await;
        }
        peer.settle().await;
        drop(body);
    }
    works(&client, &mut peer, "http-4").await;
}

#[tokio::test]
async fn more_requests_at_once_than_there_may_be_are_refused_unsent() {
    let (client, mut peer) = connected().await;
    let mut bodies = Vec::new();
    for _ in 0..1_024 {
        bodies.push(opened(&client, &mut peer).await);
    }
    let refused = carry(&client).await.unwrap_err();
    let HttpError::Elsewhere(failure) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(&*failure.code, "executor_busy");
    let (_, name) = bodies.pop().unwrap();
    assert_eq!(name, "http-1024");
    works(&client, &mut peer, "http-1025").await;
}
