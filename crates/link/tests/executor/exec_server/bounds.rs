//! What may wait, and what becomes of more.

use super::*;

/// Pieces that may wait.
const PIECES_MAX: usize = 256;

const MIB: usize = 1024 * 1024;

fn overflowed(error: Option<HttpError>) {
    let Some(HttpError::Overflow(reason)) = error else {
        panic!("{error:?}");
    };
    assert!(reason.contains("http-"), "{reason}");
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
    let Some(HttpError::Disconnected(reason)) = error else {
        panic!("{error:?}");
    };
    assert!(reason.contains("http-1"), "{reason}");
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
async fn many_small_pieces_are_joined_and_all_read() {
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
    assert_eq!((pieces.concat().len(), error), (1_024, None));
    assert!(pieces.len() <= PIECES_MAX);
    works(&client, &mut peer, "http-2").await;
}

#[tokio::test]
async fn stalled_reader_overflows_and_others_go_on() {
    let (client, mut peer) = connected().await;
    let (mut unread, stuck) = opened(&client, &mut peer).await;
    let (mut body, name) = opened(&client, &mut peer).await;
    let piece = vec![b'x'; MIB];
    for seq in 1..=24 {
        peer.piece(&stuck, seq, &piece).await;
        peer.piece(&name, seq, b"x").await;
        let piece = in_time(body.chunk()).await.unwrap().unwrap();
        assert_eq!(piece, &b"x"[..]);
    }
    peer.end(&name, 25).await;
    assert_eq!(in_time(body.chunk()).await, None);
    // What it holds is given back at once, so that its error is all that is left.
    let (pieces, error) = read(&mut unread).await;
    assert!(pieces.is_empty());
    overflowed(error);
    assert_eq!(client.ended(), None);
    works(&client, &mut peer, "http-3").await;
}

/// Readers at once, and what each of them reads.
const READERS: usize = 20;
const BODY_BYTES: usize = 7 * MIB;

/// Of each body, so much comes at once.
const CHUNK_BYTES: usize = 256 * 1024;

#[tokio::test]
async fn many_large_bodies_all_reach_their_readers() {
    let (client, mut peer) = connected().await;
    let mut streams = Vec::new();
    for _ in 0..READERS {
        streams.push(opened(&client, &mut peer).await);
    }
    let (start, _) = tokio::sync::watch::channel(false);
    let mut readers = tokio::task::JoinSet::new();
    let mut names = Vec::new();
    for (mut body, name) in streams {
        let mut started = start.subscribe();
        names.push(name);
        readers.spawn(async move {
            started.wait_for(|started| *started).await.unwrap();
            let (pieces, error) = read(&mut body).await;
            (pieces.iter().map(Bytes::len).sum::<usize>(), error)
        });
    }
    let chunk = vec![b'x'; CHUNK_BYTES];
    let chunks = u64::try_from(BODY_BYTES / CHUNK_BYTES).unwrap();
    for seq in 1..=chunks {
        for name in &names {
            peer.piece(name, seq, &chunk).await;
        }
        // More than may wait has come before anybody reads.
        if seq == 4 {
            start.send_replace(true);
        }
    }
    for name in &names {
        peer.end(name, chunks + 1).await;
    }
    for outcome in readers.join_all().await {
        assert_eq!(outcome, (BODY_BYTES, None));
    }
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
    assert!(
        matches!(error, Some(HttpError::Disconnected(_))),
        "{error:?}"
    );
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
    assert!(
        matches!(error, Some(HttpError::Disconnected(_))),
        "{error:?}"
    );
    assert_eq!(in_time(client.over()).await, Ended::Local);
}

#[tokio::test]
async fn full_connection_waits_until_something_is_read() {
    let (client, mut peer) = connected().await;
    let (mut one, first) = opened(&client, &mut peer).await;
    let (mut two, second) = opened(&client, &mut peer).await;
    let piece = vec![b'x'; MIB];
    for seq in 1..=8 {
        peer.piece(&first, seq, &piece).await;
        peer.piece(&second, seq, &piece).await;
    }
    // One byte more has to wait, whoever it is for; nobody is told of it.
    peer.piece(&second, 9, b"x").await;
    peer.end(&second, 10).await;
    peer.end(&first, 9).await;
    let (two, one) = tokio::join!(read(&mut two), read(&mut one));
    assert_eq!((two.0.len(), two.1), (9, None));
    assert_eq!((one.0.len(), one.1), (8, None));
    works(&client, &mut peer, "http-3").await;
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
