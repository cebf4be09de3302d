//! Every way in which a connection ends, and that both halves are told the same.

use super::*;

/// Limits under which a dead peer is found at once.
fn hasty() -> SocketLimits {
    SocketLimits {
        ping_every: Duration::from_millis(20),
        silence_max: Duration::from_millis(800),
        write_timeout: Duration::from_millis(800),
        ..SocketLimits::default()
    }
}

#[tokio::test]
async fn a_half_open_peer_is_found_by_its_silence() {
    let spawner = Tokio::default();
    let (outgoing, mut incoming, stream) = raw_server(hasty(), &spawner).await;
    let silent = Ended::Silent(hasty().silence_max);
    assert_eq!(end(&mut incoming).await, silent);
    assert_eq!(outgoing.over().await, silent);
    assert_eq!(outgoing.ended(), Some(silent.clone()));
    assert_eq!(outgoing.send(Bytes::new()).await, Err(silent));
    drop((outgoing, incoming));
    spawner.idle().await;
    drop(stream);
}

#[tokio::test]
async fn a_peer_that_answers_pings_and_says_nothing_else_is_alive() {
    let spawner = Tokio::default();
    let (_outgoing, mut incoming, mut stream) = raw_server(hasty(), &spawner).await;
    let answering = async {
        // Far longer than a silent one would be let live.
        for _ in 0..60 {
            let (first, said) = read_frame(&mut stream).await.unwrap();
            assert_eq!(first, PING);
            stream.write_all(&frame(PONG, None, &said)).await.unwrap();
        }
        stream.write_all(&frame(TEXT, None, b"done")).await.unwrap();
    };
    let (next, ()) = tokio::join!(incoming.next(), answering);
    assert_eq!(next.unwrap(), "done");
}

#[tokio::test]
async fn a_peer_that_we_are_too_slow_to_read_is_not_taken_for_dead() {
    let spawner = Tokio::default();
    let (_outgoing, mut incoming, mut stream) = raw_server(hasty(), &spawner).await;
    // Nobody reads meanwhile; our pings go on, so that the other side knows that we live.
    for count in 0..60_u8 {
        let (first, _) = read_frame(&mut stream).await.unwrap();
        assert_eq!(first, PING);
        stream
            .write_all(&frame(TEXT, None, &[b'a' + count % 26]))
            .await
            .unwrap();
    }
    for count in 0..60_u8 {
        assert_eq!(incoming.next().await.unwrap(), vec![b'a' + count % 26]);
    }
}

#[tokio::test]
async fn two_that_say_nothing_stay_connected() {
    let spawner = Tokio::default();
    let ((client, mut from_server), (server, mut from_client)) =
        pair(hasty(), hasty(), &spawner).await;
    let quiet = async {
        tokio::select! {
            said = from_server.next() => panic!("{said:?}"),
            said = from_client.next() => panic!("{said:?}"),
        }
    };
    let long = hasty().silence_max * 2;
    assert!(tokio::time::timeout(long, quiet).await.is_err());
    assert_eq!((client.ended(), server.ended()), (None, None));
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_given_up() {
    let spawner = Tokio::default();
    let limits = SocketLimits {
        silence_max: LONG,
        ..hasty()
    };
    let (outgoing, mut incoming, stream) = raw_server(limits, &spawner).await;
    let large = Bytes::from("x".repeat(1024 * 1024));
    let stuck = Ended::Stuck(limits.write_timeout);
    let sending = async {
        loop {
            if let Err(ended) = outgoing.send(large.clone()).await {
                return ended;
            }
        }
    };
    let (sent, read) = tokio::join!(sending, end(&mut incoming));
    assert_eq!((sent, read), (stuck.clone(), stuck));
    drop((outgoing, incoming));
    spawner.idle().await;
    drop(stream);
}

#[tokio::test]
async fn a_peer_that_vanishes_is_broken_and_not_closed() {
    let spawner = Tokio::default();
    let (outgoing, mut incoming, stream) = raw_server(SocketLimits::default(), &spawner).await;
    drop(stream);
    assert!(matches!(end(&mut incoming).await, Ended::Broken(_)));
    assert!(matches!(outgoing.over().await, Ended::Broken(_)));
    drop((outgoing, incoming));
    spawner.idle().await;
}

#[tokio::test]
async fn a_break_is_found_by_a_writer_whose_reader_is_gone() {
    let spawner = Tokio::default();
    let (outgoing, incoming, stream) = raw_server(hasty(), &spawner).await;
    drop((incoming, stream));
    let broken = tokio::time::timeout(LONG, outgoing.over()).await.unwrap();
    assert!(matches!(broken, Ended::Broken(_)), "{broken:?}");
}

#[tokio::test]
async fn the_reason_of_a_close_arrives_even_while_the_other_side_is_writing() {
    let spawner = Tokio::default();
    let limits = SocketLimits::default();
    for round in 0..20 {
        let ((client, mut from_server), (server, from_client)) =
            pair(limits, limits, &spawner).await;
        let flood = async {
            let message = Bytes::from("x".repeat(20_000));
            while client.send(message.clone()).await.is_ok() {}
        };
        let closing = async {
            server.send("last".into()).await.unwrap();
            server.close(4001, "fenced");
            drop((server, from_client));
            let last = from_server.next().await;
            (last, end(&mut from_server).await)
        };
        let ((), (last, ended)) = tokio::join!(flood, closing);
        let want = Ended::Closed {
            code: 4001,
            reason: "fenced".into(),
        };
        assert_eq!(last.unwrap(), "last", "round {round}");
        assert_eq!(ended, want, "round {round}");
        assert_eq!(client.ended(), Some(want));
    }
    spawner.idle().await;
}

#[tokio::test]
async fn what_was_queued_is_written_before_it_closes_and_nothing_after() {
    let spawner = Tokio::default();
    let (outgoing, incoming, mut stream) = raw_server(SocketLimits::default(), &spawner).await;
    for said in ["one", "two"] {
        outgoing.send(said.into()).await.unwrap();
    }
    outgoing.close(4002, "the credential is over");
    outgoing.close(1000, "the first close counts");
    assert_eq!(outgoing.send("late".into()).await, Err(Ended::Local));
    assert_eq!(outgoing.try_send("late".into()), Err("late".into()));
    assert_eq!(read_said(&mut stream).await, (TEXT, b"one".to_vec()));
    assert_eq!(read_said(&mut stream).await, (TEXT, b"two".to_vec()));
    let (first, said) = read_said(&mut stream).await;
    assert_eq!(first, CLOSE);
    assert_eq!(said, b"\x0f\xa2the credential is over");
    assert_eq!(outgoing.over().await, Ended::Local);
    drop((outgoing, incoming, stream));
    spawner.idle().await;
}

#[tokio::test]
async fn a_close_of_the_other_side_is_answered() {
    let spawner = Tokio::default();
    let (_outgoing, mut incoming, mut stream) = raw_server(SocketLimits::default(), &spawner).await;
    stream
        .write_all(&frame(CLOSE, None, b"\x03\xe9down"))
        .await
        .unwrap();
    let want = Ended::Closed {
        code: 1001,
        reason: "down".into(),
    };
    assert_eq!(end(&mut incoming).await, want);
    assert_eq!(read_said(&mut stream).await, (CLOSE, vec![3, 0xe9]));
    let (_outgoing, mut incoming, mut stream) = raw_server(SocketLimits::default(), &spawner).await;
    stream.write_all(&frame(CLOSE, None, b"")).await.unwrap();
    let want = Ended::Closed {
        code: 1005,
        reason: "".into(),
    };
    assert_eq!(end(&mut incoming).await, want);
    assert_eq!(read_said(&mut stream).await, (CLOSE, Vec::new()));
}

#[tokio::test]
async fn it_ends_when_both_halves_are_dropped_once_what_was_queued_is_written() {
    let spawner = Tokio::default();
    let (outgoing, incoming, mut stream) = raw_server(SocketLimits::default(), &spawner).await;
    let other = outgoing.clone();
    drop((outgoing, incoming));
    other.send("still here".into()).await.unwrap();
    drop(other);
    assert_eq!(read_said(&mut stream).await, (TEXT, b"still here".to_vec()));
    assert_eq!(read_said(&mut stream).await, (CLOSE, vec![3, 0xe8]));
    drop(stream);
    spawner.idle().await;
}

#[tokio::test]
async fn a_long_reason_is_cut_between_two_letters() {
    let spawner = Tokio::default();
    let limits = SocketLimits::default();
    let ((_client, mut from_server), (server, _from_client)) = pair(limits, limits, &spawner).await;
    server.close(4004, &"ä".repeat(100));
    let want = Ended::Closed {
        code: 4004,
        reason: "ä".repeat(61).into(),
    };
    assert_eq!(end(&mut from_server).await, want);
}

#[tokio::test]
async fn the_reason_of_a_close_is_found_after_a_write_has_failed() {
    let spawner = Tokio::default();
    let (outgoing, mut incoming, mut stream) = raw_server(hasty(), &spawner).await;
    let mut said = frame(TEXT, None, b"last");
    said.extend(frame(CLOSE, None, b"\x0f\xa1fenced"));
    stream.write_all(&said).await.unwrap();
    // What it has not read makes the kernel reset the connection.
    let _ = read_frame(&mut stream).await;
    outgoing.send("unread".into()).await.unwrap();
    stream.readable().await.unwrap();
    drop(stream);
    while outgoing.send("x".into()).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert_eq!(incoming.next().await.unwrap(), "last");
    let want = Ended::Closed {
        code: 4001,
        reason: "fenced".into(),
    };
    assert_eq!(end(&mut incoming).await, want);
    assert_eq!(outgoing.ended(), Some(want));
}

#[tokio::test]
async fn a_farewell_is_not_cut_off_by_what_was_not_read() {
    let spawner = Tokio::default();
    let (outgoing, incoming, mut stream) = raw_server(SocketLimits::default(), &spawner).await;
    let unread = frame(TEXT, None, &[b'x'; 100_000]);
    stream.write_all(&unread).await.unwrap();
    outgoing.close(4002, "over");
    drop((outgoing, incoming));
    assert_eq!(
        read_said(&mut stream).await,
        (CLOSE, b"\x0f\xa2over".to_vec())
    );
    let mut rest = [0; 1];
    assert_eq!(stream.read(&mut rest).await.unwrap(), 0);
    // What is still on its way there is read, and not answered with a reset.
    for _ in 0..2 {
        stream.write_all(&unread).await.unwrap();
        tokio::task::yield_now().await;
    }
    drop(stream);
    spawner.idle().await;
}
