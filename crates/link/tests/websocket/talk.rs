//! What is said arrives, in order and whole.

use futures_util::FutureExt;

use super::*;

#[tokio::test]
async fn messages_arrive_in_order_and_whole_both_ways() {
    let spawner = Tokio::default();
    let limits = SocketLimits::default();
    let ((client, mut from_server), (server, mut from_client)) =
        pair(limits, limits, &spawner).await;
    let sizes = [0, 1, 125, 126, 4_000, 65_535, 65_536, 300_000, 3];
    let messages: Vec<Bytes> = sizes
        .iter()
        .map(|size| Bytes::from("x".repeat(*size)))
        .collect();
    for message in &messages {
        client.send(message.clone()).await.unwrap();
        server.send(message.clone()).await.unwrap();
    }
    for message in &messages {
        assert_eq!(from_client.next().await.as_ref(), Ok(message));
        assert_eq!(from_server.next().await.as_ref(), Ok(message));
    }
    server.close(4001, "fenced");
    let want = Ended::Closed {
        code: 4001,
        reason: "fenced".into(),
    };
    assert_eq!(end(&mut from_server).await, want);
    assert_eq!(client.over().await, want);
    assert_eq!(server.over().await, Ended::Local);
    assert_eq!(end(&mut from_client).await, Ended::Local);
    assert_eq!(client.send(Bytes::new()).await, Err(want));
    drop((from_server, from_client));
    spawner.idle().await;
}

#[tokio::test]
async fn messages_that_are_sent_together_arrive_in_order_whether_or_not_they_fit_at_once() {
    let spawner = Tokio::default();
    let limits = SocketLimits {
        queue_max: 4,
        queue_bytes_max: 1_000,
        ..SocketLimits::default()
    };
    let ((client, _from_server), (_server, mut from_client)) = pair(limits, limits, &spawner).await;
    let sending = async {
        for round in 0..100_u32 {
            // Some fit, some are too many and some too large.
            let count = 1 + round % 6;
            let all = (0..count).map(|at| Bytes::from(format!("{round}.{at}{:1$}", "", 150)));
            client.send_all(all.collect()).await.unwrap();
        }
    };
    let reading = async {
        for round in 0..100_u32 {
            for at in 0..=round % 6 {
                let message = from_client.next().await.unwrap();
                let text = String::from_utf8(message.to_vec()).unwrap();
                assert_eq!(text.trim_end(), format!("{round}.{at}"));
            }
        }
    };
    tokio::join!(sending, reading);
    client.close(1000, "");
    client.over().await;
    let late = client.send_all(vec![Bytes::new(), Bytes::new()]).await;
    assert_eq!(late, Err(Ended::Local));
}

#[tokio::test]
async fn a_message_in_pieces_arrives_whole_with_pings_in_between() {
    let spawner = Tokio::default();
    let (_outgoing, mut incoming, mut stream) = raw_server(SocketLimits::default(), &spawner).await;
    let text = "é".repeat(300);
    // Between the two bytes of a letter, too.
    let (first, rest) = text.as_bytes().split_at(101);
    let mut bytes = frame(0x01, None, first);
    bytes.extend(frame(PING, None, b"there?"));
    bytes.extend(frame(0x00, None, b""));
    bytes.extend(frame(PONG, None, b"nobody asked"));
    bytes.extend(frame(0x80, None, rest));
    let write = async {
        for byte in bytes {
            stream.write_u8(byte).await.unwrap();
            stream.flush().await.unwrap();
        }
    };
    let (next, ()) = tokio::join!(incoming.next(), write);
    assert_eq!(next.unwrap(), text);
    assert_eq!(read_said(&mut stream).await, (PONG, b"there?".to_vec()));
}

#[tokio::test]
async fn where_only_text_is_spoken_bytes_are_skipped() {
    let spawner = Tokio::default();
    let (_outgoing, mut incoming, mut stream) = raw_server(SocketLimits::default(), &spawner).await;
    let mut bytes = frame(BINARY, None, b"\xff");
    bytes.extend(frame(TEXT, None, b"text"));
    stream.write_all(&bytes).await.unwrap();
    assert_eq!(incoming.next().await.unwrap(), "text");
}

#[tokio::test]
async fn messages_of_both_kinds_are_read_and_ours_are_called_what_was_asked() {
    let spawner = Tokio::default();
    for (form, kind) in [(Form::TextOrBytes, TEXT), (Form::Binary, BINARY)] {
        let limits = SocketLimits {
            form,
            ..SocketLimits::default()
        };
        let (outgoing, mut incoming, mut stream) = raw_server(limits, &spawner).await;
        let mut bytes = frame(BINARY, None, b"bytes");
        bytes.extend(frame(0x02, None, b"in "));
        bytes.extend(frame(0x80, None, b"pieces"));
        bytes.extend(frame(TEXT, None, b"text"));
        stream.write_all(&bytes).await.unwrap();
        for said in ["bytes", "in pieces", "text"] {
            assert_eq!(incoming.next().await.unwrap(), said);
        }
        for message in ["small".to_owned(), "x".repeat(100_000)] {
            outgoing.send(message.clone().into()).await.unwrap();
            assert_eq!(read_said(&mut stream).await, (kind, message.into_bytes()));
        }
        // What is no text is one only where bytes are spoken.
        stream
            .write_all(&frame(BINARY, None, b"\xff"))
            .await
            .unwrap();
        let next = incoming.next().await;
        match form {
            Form::Binary => assert_eq!(next.unwrap(), &b"\xff"[..]),
            _ => assert!(matches!(next, Err(Ended::Invalid(_))), "{next:?}"),
        }
    }
}

#[tokio::test]
async fn bytes_of_all_sizes_arrive_whole_also_where_their_sender_still_holds_them() {
    let spawner = Tokio::default();
    let limits = SocketLimits {
        form: Form::Binary,
        ..SocketLimits::default()
    };
    let ((client, mut from_server), (server, mut from_client)) =
        pair(limits, limits, &spawner).await;
    let mut random = fastrand::Rng::with_seed(7);
    let mut any = || {
        let size = 1usize << random.u32(..18);
        let bytes = std::iter::repeat_with(|| random.u8(..));
        bytes.take(size).collect::<Bytes>()
    };
    let held: Vec<Bytes> = std::iter::repeat_with(&mut any).take(200).collect();
    let send = async {
        for message in &held {
            let alone = || Bytes::from(message.to_vec());
            client.send(message.clone()).await.unwrap();
            client.send(alone()).await.unwrap();
            server.send(message.clone()).await.unwrap();
            server.send(alone()).await.unwrap();
        }
    };
    let read = async {
        for message in &held {
            for _ in 0..2 {
                assert_eq!(from_client.next().await.as_ref(), Ok(message));
                assert_eq!(from_server.next().await.as_ref(), Ok(message));
            }
        }
    };
    tokio::join!(send, read);
}

#[tokio::test]
async fn a_dropped_wait_for_the_next_message_loses_nothing() {
    let spawner = Tokio::default();
    let (_outgoing, mut incoming, mut stream) = raw_server(SocketLimits::default(), &spawner).await;
    let said: Vec<String> = (0..50).map(|number| "m".repeat(number * 20)).collect();
    let write = async {
        for text in &said {
            for chunk in frame(TEXT, None, text.as_bytes()).chunks(7) {
                stream.write_all(chunk).await.unwrap();
                tokio::task::yield_now().await;
            }
        }
    };
    let read = async {
        let mut heard = Vec::new();
        while heard.len() < said.len() {
            // Each wait is asked once and thrown away.
            match incoming.next().now_or_never() {
                Some(next) => heard.push(String::from_utf8(next.unwrap().to_vec()).unwrap()),
                None => tokio::task::yield_now().await,
            }
        }
        heard
    };
    let ((), heard) = tokio::join!(write, read);
    assert_eq!(heard, said);
}

#[tokio::test]
async fn a_dropped_send_leaves_nothing_or_the_whole_message() {
    let spawner = Tokio::default();
    let limits = SocketLimits {
        queue_max: 2,
        ..SocketLimits::default()
    };
    let ((client, _from_server), (server, mut from_client)) = pair(limits, limits, &spawner).await;
    let mut sent = Vec::new();
    for number in 0..200 {
        let text = format!("{number}");
        if client.send(text.clone().into()).now_or_never().is_some() {
            sent.push(text);
        }
        if number % 5 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let sending = tokio::time::timeout(LONG, client.send("end".into()));
    sending.await.unwrap().unwrap();
    let mut heard = Vec::new();
    loop {
        match from_client.next().await.unwrap() {
            text if text == "end" => break,
            text => heard.push(String::from_utf8(text.to_vec()).unwrap()),
        }
    }
    assert_eq!(heard, sent);
    assert!(sent.len() < 200, "the queue never was full");
    drop(server);
}

#[tokio::test]
async fn a_small_message_that_waits_holds_no_buffer_that_others_came_in() {
    let spawner = Tokio::default();
    let (_outgoing, mut incoming, mut stream) = raw_server(SocketLimits::default(), &spawner).await;
    let mut bytes = Vec::new();
    for _ in 0..50 {
        bytes.extend(frame(TEXT, None, &[b'x'; 60_000]));
        bytes.extend(frame(TEXT, None, b"small"));
        bytes.extend(frame(0x01, None, b"in "));
        bytes.extend(frame(0x80, None, b"pieces"));
    }
    let write = async { stream.write_all(&bytes).await.unwrap() };
    let read = async {
        for _ in 0..50 {
            assert_eq!(incoming.next().await.unwrap().len(), 60_000);
            for said in ["small", "in pieces"] {
                let small = incoming.next().await.unwrap();
                assert_eq!(small, said);
                assert!(small.is_unique(), "it shares its memory");
            }
        }
    };
    tokio::join!(write, read);
}
