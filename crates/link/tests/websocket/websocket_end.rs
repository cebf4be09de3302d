//! Every disconnect reason, equal for both halves.

use super::*;

/// Returns limits with quick detection of dead peers.
fn short_timeouts() -> WebSocketLimits {
    WebSocketLimits {
        ping_interval: Duration::from_millis(20),
        silence_max: Duration::from_millis(800),
        write_timeout: Duration::from_millis(800),
        ..WebSocketLimits::default()
    }
}

#[tokio::test]
async fn half_open_peer_is_found_by_silence() {
    let spawner = JoiningSpawner::default();
    let (outgoing, mut incoming, stream) = connect_raw_server(short_timeouts(), &spawner).await;
    let silent = DisconnectReason::Silent(short_timeouts().silence_max);
    assert_eq!(wait_end(&mut incoming).await, silent);
    assert_eq!(outgoing.wait_closed().await, silent);
    assert_eq!(outgoing.disconnect_reason(), Some(silent.clone()));
    assert_eq!(outgoing.send(Bytes::new()).await, Err(silent));
    drop((outgoing, incoming));
    spawner.wait_idle().await;
    drop(stream);
}

#[tokio::test]
async fn peer_with_pongs_only_is_alive() {
    let spawner = JoiningSpawner::default();
    let (_outgoing, mut incoming, mut stream) =
        connect_raw_server(short_timeouts(), &spawner).await;
    let answering = async {
        // Far longer than the silence limit.
        for _ in 0..60 {
            let (first, said) = read_frame(&mut stream).await.unwrap();
            assert_eq!(first, PING);
            stream
                .write_all(&encode_frame(PONG, None, &said))
                .await
                .unwrap();
        }
        stream
            .write_all(&encode_frame(TEXT, None, b"done"))
            .await
            .unwrap();
    };
    let (next, ()) = tokio::join!(incoming.next(), answering);
    assert_eq!(next.unwrap(), "done");
}

#[tokio::test]
async fn unread_peer_is_not_considered_dead() {
    let spawner = JoiningSpawner::default();
    let (_outgoing, mut incoming, mut stream) =
        connect_raw_server(short_timeouts(), &spawner).await;
    // Nothing is read meanwhile; our pings continue and keep the peer informed.
    for count in 0..60_u8 {
        let (first, _) = read_frame(&mut stream).await.unwrap();
        assert_eq!(first, PING);
        stream
            .write_all(&encode_frame(TEXT, None, &[b'a' + count % 26]))
            .await
            .unwrap();
    }
    for count in 0..60_u8 {
        assert_eq!(incoming.next().await.unwrap(), vec![b'a' + count % 26]);
    }
}

#[tokio::test]
async fn idle_peers_stay_connected() {
    let spawner = JoiningSpawner::default();
    let ((client, mut from_server), (server, mut from_client)) =
        websocket_pair(short_timeouts(), short_timeouts(), &spawner).await;
    let quiet = async {
        tokio::select! {
            said = from_server.next() => panic!("{said:?}"),
            said = from_client.next() => panic!("{said:?}"),
        }
    };
    let long = short_timeouts().silence_max * 2;
    assert!(tokio::time::timeout(long, quiet).await.is_err());
    assert_eq!(
        (client.disconnect_reason(), server.disconnect_reason()),
        (None, None)
    );
}

#[tokio::test]
async fn unreading_peer_is_disconnected() {
    let spawner = JoiningSpawner::default();
    let limits = WebSocketLimits {
        silence_max: Duration::from_secs(20),
        ..short_timeouts()
    };
    let (outgoing, mut incoming, stream) = connect_raw_server(limits, &spawner).await;
    let large = Bytes::from("x".repeat(1024 * 1024));
    let stuck = DisconnectReason::Stuck(limits.write_timeout);
    let sending = async {
        loop {
            if let Err(ended) = outgoing.send(large.clone()).await {
                return ended;
            }
        }
    };
    let (sent, read) = tokio::join!(sending, wait_end(&mut incoming));
    assert_eq!((sent, read), (stuck.clone(), stuck));
    drop((outgoing, incoming));
    spawner.wait_idle().await;
    drop(stream);
}

#[tokio::test]
async fn vanished_peer_is_broken_not_closed() {
    let spawner = JoiningSpawner::default();
    let (outgoing, mut incoming, stream) =
        connect_raw_server(WebSocketLimits::default(), &spawner).await;
    drop(stream);
    assert!(matches!(
        wait_end(&mut incoming).await,
        DisconnectReason::Broken(_)
    ));
    assert!(matches!(
        outgoing.wait_closed().await,
        DisconnectReason::Broken(_)
    ));
    drop((outgoing, incoming));
    spawner.wait_idle().await;
}

#[tokio::test]
async fn writer_without_reader_detects_break() {
    let spawner = JoiningSpawner::default();
    let (outgoing, incoming, stream) = connect_raw_server(short_timeouts(), &spawner).await;
    drop((incoming, stream));
    let broken = wait_bounded(outgoing.wait_closed()).await;
    assert!(matches!(broken, DisconnectReason::Broken(_)), "{broken:?}");
}

#[tokio::test]
async fn close_reason_arrives_during_peer_writes() {
    let spawner = JoiningSpawner::default();
    let limits = WebSocketLimits::default();
    for round in 0..20 {
        let ((client, mut from_server), (server, from_client)) =
            websocket_pair(limits, limits, &spawner).await;
        let flood = async {
            let message = Bytes::from("x".repeat(20_000));
            while client.send(message.clone()).await.is_ok() {}
        };
        let closing = async {
            server.send("last".into()).await.unwrap();
            server.close(4001, "fenced");
            drop((server, from_client));
            let last = from_server.next().await;
            (last, wait_end(&mut from_server).await)
        };
        let ((), (last, ended)) = tokio::join!(flood, closing);
        let want = DisconnectReason::Closed {
            code: 4001,
            reason: "fenced".into(),
        };
        assert_eq!(last.unwrap(), "last", "round {round}");
        assert_eq!(ended, want, "round {round}");
        assert_eq!(client.disconnect_reason(), Some(want));
    }
    spawner.wait_idle().await;
}

#[tokio::test]
async fn queued_messages_are_written_before_close() {
    let spawner = JoiningSpawner::default();
    let (outgoing, incoming, mut stream) =
        connect_raw_server(WebSocketLimits::default(), &spawner).await;
    for said in ["one", "two"] {
        outgoing.send(said.into()).await.unwrap();
    }
    outgoing.close(4002, "the credential is over");
    outgoing.close(1000, "the first close counts");
    assert_eq!(
        outgoing.send("late".into()).await,
        Err(DisconnectReason::Local)
    );
    assert_eq!(outgoing.try_send("late".into()), Err("late".into()));
    assert_eq!(read_non_ping(&mut stream).await, (TEXT, b"one".to_vec()));
    assert_eq!(read_non_ping(&mut stream).await, (TEXT, b"two".to_vec()));
    let (first, said) = read_non_ping(&mut stream).await;
    assert_eq!(first, CLOSE);
    assert_eq!(said, b"\x0f\xa2the credential is over");
    assert_eq!(outgoing.wait_closed().await, DisconnectReason::Local);
    drop((outgoing, incoming, stream));
    spawner.wait_idle().await;
}

#[tokio::test]
async fn peer_close_is_answered() {
    let spawner = JoiningSpawner::default();
    let (_outgoing, mut incoming, mut stream) =
        connect_raw_server(WebSocketLimits::default(), &spawner).await;
    stream
        .write_all(&encode_frame(CLOSE, None, b"\x03\xe9down"))
        .await
        .unwrap();
    let want = DisconnectReason::Closed {
        code: 1001,
        reason: "down".into(),
    };
    assert_eq!(wait_end(&mut incoming).await, want);
    assert_eq!(read_non_ping(&mut stream).await, (CLOSE, vec![3, 0xe9]));
    let (_outgoing, mut incoming, mut stream) =
        connect_raw_server(WebSocketLimits::default(), &spawner).await;
    stream
        .write_all(&encode_frame(CLOSE, None, b""))
        .await
        .unwrap();
    let want = DisconnectReason::Closed {
        code: 1005,
        reason: "".into(),
    };
    assert_eq!(wait_end(&mut incoming).await, want);
    assert_eq!(read_non_ping(&mut stream).await, (CLOSE, Vec::new()));
}

#[tokio::test]
async fn dropping_both_halves_flushes_and_closes() {
    let spawner = JoiningSpawner::default();
    let (outgoing, incoming, mut stream) =
        connect_raw_server(WebSocketLimits::default(), &spawner).await;
    let other = outgoing.clone();
    drop((outgoing, incoming));
    other.send("still here".into()).await.unwrap();
    drop(other);
    assert_eq!(
        read_non_ping(&mut stream).await,
        (TEXT, b"still here".to_vec())
    );
    assert_eq!(read_non_ping(&mut stream).await, (CLOSE, vec![3, 0xe8]));
    drop(stream);
    spawner.wait_idle().await;
}

#[tokio::test]
async fn long_close_reason_is_cut_at_character() {
    let spawner = JoiningSpawner::default();
    let limits = WebSocketLimits::default();
    let ((_client, mut from_server), (server, _from_client)) =
        websocket_pair(limits, limits, &spawner).await;
    server.close(4004, &"ä".repeat(100));
    let want = DisconnectReason::Closed {
        code: 4004,
        reason: "ä".repeat(61).into(),
    };
    assert_eq!(wait_end(&mut from_server).await, want);
}

#[tokio::test]
async fn close_reason_is_found_after_write_error() {
    let spawner = JoiningSpawner::default();
    let (outgoing, mut incoming, mut stream) = connect_raw_server(short_timeouts(), &spawner).await;
    let mut said = encode_frame(TEXT, None, b"last");
    said.extend(encode_frame(CLOSE, None, b"\x0f\xa1fenced"));
    stream.write_all(&said).await.unwrap();
    // Unread input makes the kernel reset the connection.
    let _ = read_frame(&mut stream).await;
    outgoing.send("unread".into()).await.unwrap();
    stream.readable().await.unwrap();
    drop(stream);
    // A full queue blocks the sender, so the loop leaves the writer its turns.
    let failing = async { while outgoing.send("x".into()).await.is_ok() {} };
    wait_bounded(failing).await;
    assert_eq!(incoming.next().await.unwrap(), "last");
    let want = DisconnectReason::Closed {
        code: 4001,
        reason: "fenced".into(),
    };
    assert_eq!(wait_end(&mut incoming).await, want);
    assert_eq!(outgoing.disconnect_reason(), Some(want));
}

#[tokio::test]
async fn close_frame_survives_unread_input() {
    let spawner = JoiningSpawner::default();
    let (outgoing, incoming, mut stream) =
        connect_raw_server(WebSocketLimits::default(), &spawner).await;
    let unread = encode_frame(TEXT, None, &[b'x'; 100_000]);
    stream.write_all(&unread).await.unwrap();
    outgoing.close(4002, "over");
    drop((outgoing, incoming));
    assert_eq!(
        read_non_ping(&mut stream).await,
        (CLOSE, b"\x0f\xa2over".to_vec())
    );
    let mut rest = [0; 1];
    assert_eq!(stream.read(&mut rest).await.unwrap(), 0);
    // Input in transit is read instead of reset.
    for _ in 0..2 {
        stream.write_all(&unread).await.unwrap();
        tokio::task::yield_now().await;
    }
    drop(stream);
    spawner.wait_idle().await;
}
