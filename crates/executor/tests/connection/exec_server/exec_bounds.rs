//! Buffer limits of an exec-server connection.

use super::*;

/// Buffered chunks per stream.
const PIECES_MAX: usize = 256;

const MIB: usize = 1024 * 1024;

fn assert_overflow(error: Option<HttpError>) {
    let Some(HttpError::Overflow(reason)) = error else {
        panic!("{error:?}");
    };
    assert!(reason.contains("http-"), "{reason}");
}

#[tokio::test]
async fn full_queue_is_read_before_disconnect() {
    let (client, mut peer) = connect_pair().await;
    let (mut body, name) = open_stream(&client, &mut peer).await;
    for seq in 1..=PIECES_MAX as u64 {
        peer.send_piece(&name, seq, b"x").await;
    }
    peer.settle().await;
    drop(peer);
    assert_ne!(client.wait_closed().await, DisconnectReason::Local);
    let (pieces, error) = read_chunks(&mut body).await;
    assert_eq!(pieces.len(), PIECES_MAX);
    let Some(HttpError::Disconnected(reason)) = error else {
        panic!("{error:?}");
    };
    assert!(reason.contains("http-1"), "{reason}");
}

#[tokio::test]
async fn full_queue_accepts_end() {
    let (client, mut peer) = connect_pair().await;
    let (mut body, name) = open_stream(&client, &mut peer).await;
    for seq in 1..=PIECES_MAX as u64 {
        peer.send_piece(&name, seq, b"x").await;
    }
    peer.send_end(&name, PIECES_MAX as u64 + 1).await;
    peer.settle().await;
    let (pieces, error) = read_chunks(&mut body).await;
    assert_eq!((pieces.len(), error), (PIECES_MAX, None));
}

#[tokio::test]
async fn small_pieces_are_joined_and_read() {
    let (client, mut peer) = connect_pair().await;
    let scripting = async {
        let asked = peer.receive_request().await;
        for seq in 1..=1_024 {
            peer.send_piece(asked.stream_name(), seq, b"x").await;
        }
        peer.send_end(asked.stream_name(), 1_025).await;
        peer.settle().await;
        peer.send_head(&asked).await;
    };
    let (response, ()) = tokio::join!(send_streamed(&client), scripting);
    let (pieces, error) = read_chunks(&mut response.unwrap().body).await;
    assert_eq!((pieces.concat().len(), error), (1_024, None));
    assert!(pieces.len() <= PIECES_MAX);
    assert_stream_works(&client, &mut peer, "http-2").await;
}

#[tokio::test]
async fn stalled_reader_overflows_alone() {
    let (client, mut peer) = connect_pair().await;
    let (mut unread, stuck) = open_stream(&client, &mut peer).await;
    let (mut body, name) = open_stream(&client, &mut peer).await;
    let piece = vec![b'x'; MIB];
    for seq in 1..=24 {
        peer.send_piece(&stuck, seq, &piece).await;
        peer.send_piece(&name, seq, b"x").await;
        let piece = wait_bounded(body.next_chunk()).await.unwrap().unwrap();
        assert_eq!(piece, &b"x"[..]);
    }
    peer.send_end(&name, 25).await;
    assert_eq!(wait_bounded(body.next_chunk()).await, None);
    // Buffered chunks are released at once, so only the error is left.
    let (pieces, error) = read_chunks(&mut unread).await;
    assert!(pieces.is_empty());
    assert_overflow(error);
    assert_eq!(client.disconnect_reason(), None);
    assert_stream_works(&client, &mut peer, "http-3").await;
}

/// Concurrent readers, and bytes per reader.
const READERS: usize = 20;
const BODY_BYTES: usize = 7 * MIB;

/// Bytes per delta.
const CHUNK_BYTES: usize = 256 * 1024;

#[tokio::test]
async fn large_bodies_reach_all_readers() {
    let (client, mut peer) = connect_pair().await;
    let mut streams = Vec::new();
    for _ in 0..READERS {
        streams.push(open_stream(&client, &mut peer).await);
    }
    let (start, _) = tokio::sync::watch::channel(false);
    let mut readers = tokio::task::JoinSet::new();
    let mut names = Vec::new();
    for (mut body, name) in streams {
        let mut started = start.subscribe();
        names.push(name);
        readers.spawn(async move {
            started.wait_for(|started| *started).await.unwrap();
            let (pieces, error) = read_chunks(&mut body).await;
            (pieces.iter().map(Bytes::len).sum::<usize>(), error)
        });
    }
    let chunk = vec![b'x'; CHUNK_BYTES];
    let chunks = u64::try_from(BODY_BYTES / CHUNK_BYTES).unwrap();
    for seq in 1..=chunks {
        for name in &names {
            peer.send_piece(name, seq, &chunk).await;
        }
        // More than the buffer limit arrives before the first read.
        if seq == 4 {
            start.send_replace(true);
        }
    }
    for name in &names {
        peer.send_end(name, chunks + 1).await;
    }
    for outcome in readers.join_all().await {
        assert_eq!(outcome, (BODY_BYTES, None));
    }
}

#[tokio::test]
async fn piece_over_one_mebibyte_ends_connection() {
    let (client, mut peer) = connect_pair().await;
    let (mut body, name) = open_stream(&client, &mut peer).await;
    let piece = vec![b'x'; MIB];
    peer.send_piece(&name, 1, &piece).await;
    peer.send_piece(&name, 2, &vec![b'x'; MIB + 1]).await;
    let (pieces, error) = read_chunks(&mut body).await;
    assert_eq!(pieces.concat(), piece);
    assert!(
        matches!(error, Some(HttpError::Disconnected(_))),
        "{error:?}"
    );
    let ended = wait_bounded(async {
        loop {
            if let Err(ended) = peer.socket.receiver.next().await {
                return ended;
            }
        }
    });
    assert!(matches!(
        ended.await,
        DisconnectReason::Closed { code: 4004, .. }
    ));
}

#[tokio::test]
async fn invalid_base64_ends_connection() {
    let (client, mut peer) = connect_pair().await;
    let (mut body, name) = open_stream(&client, &mut peer).await;
    let params = json!({"requestId": name, "seq": 1, "deltaBase64": "!!!!"});
    peer.write_message(&json!({"method": "http/request/bodyDelta", "params": params}))
        .await;
    let (pieces, error) = read_chunks(&mut body).await;
    assert!(pieces.is_empty());
    assert!(
        matches!(error, Some(HttpError::Disconnected(_))),
        "{error:?}"
    );
    assert_eq!(
        wait_bounded(client.wait_closed()).await,
        DisconnectReason::Local
    );
}

#[tokio::test]
async fn full_connection_waits_for_reader() {
    let (client, mut peer) = connect_pair().await;
    let (mut one, first) = open_stream(&client, &mut peer).await;
    let (mut two, second) = open_stream(&client, &mut peer).await;
    let piece = vec![b'x'; MIB];
    for seq in 1..=8 {
        peer.send_piece(&first, seq, &piece).await;
        peer.send_piece(&second, seq, &piece).await;
    }
    // A further byte of any stream waits, without an error.
    peer.send_piece(&second, 9, b"x").await;
    peer.send_end(&second, 10).await;
    peer.send_end(&first, 9).await;
    let (two, one) = tokio::join!(read_chunks(&mut two), read_chunks(&mut one));
    assert_eq!((two.0.len(), two.1), (9, None));
    assert_eq!((one.0.len(), one.1), (8, None));
    assert_stream_works(&client, &mut peer, "http-3").await;
}

#[tokio::test]
async fn dropped_body_releases_buffered_bytes() {
    let (client, mut peer) = connect_pair().await;
    let piece = vec![b'x'; MIB];
    for _ in 0..3 {
        let (body, name) = open_stream(&client, &mut peer).await;
        for seq in 1..=16 {
            peer.send_piece(&name, seq, &piece).await;
        }
        peer.settle().await;
        drop(body);
    }
    assert_stream_works(&client, &mut peer, "http-4").await;
}

#[tokio::test]
async fn excess_requests_are_refused_unsent() {
    let (client, mut peer) = connect_pair().await;
    let mut bodies = Vec::new();
    for _ in 0..1_024 {
        bodies.push(open_stream(&client, &mut peer).await);
    }
    let refused = send_streamed(&client).await.unwrap_err();
    let HttpError::RemoteFailure(failure) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(&*failure.code, "executor_busy");
    let (_, name) = bodies.pop().unwrap();
    assert_eq!(name, "http-1024");
    assert_stream_works(&client, &mut peer, "http-1025").await;
}
