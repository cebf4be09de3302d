//! Messages arrive in order and complete.

use futures_util::FutureExt;

use super::*;

#[tokio::test]
async fn messages_arrive_in_order_both_ways() {
    let spawner = JoiningSpawner::default();
    let limits = WebSocketLimits::default();
    let ((client, mut from_server), (server, mut from_client)) =
        websocket_pair(limits, limits, &spawner).await;
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
    let want = DisconnectReason::Closed {
        code: 4001,
        reason: "fenced".into(),
    };
    assert_eq!(wait_end(&mut from_server).await, want);
    assert_eq!(client.wait_closed().await, want);
    assert_eq!(server.wait_closed().await, DisconnectReason::Local);
    assert_eq!(wait_end(&mut from_client).await, DisconnectReason::Local);
    assert_eq!(client.send(Bytes::new()).await, Err(want));
    drop((from_server, from_client));
    spawner.wait_idle().await;
}

#[tokio::test]
async fn batched_messages_arrive_in_order() {
    let spawner = JoiningSpawner::default();
    let limits = WebSocketLimits {
        queue_max: 4,
        queue_bytes_max: 1_000,
        ..WebSocketLimits::default()
    };
    let ((client, _from_server), (_server, mut from_client)) =
        websocket_pair(limits, limits, &spawner).await;
    let sending = async {
        for round in 0..100_u32 {
            // Some sets fit, some have too many messages, some are too large.
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
    client.wait_closed().await;
    let late = client.send_all(vec![Bytes::new(), Bytes::new()]).await;
    assert_eq!(late, Err(DisconnectReason::Local));
}

#[tokio::test]
async fn fragmented_message_with_pings_arrives_whole() {
    let spawner = JoiningSpawner::default();
    let (_outgoing, mut incoming, mut stream) =
        connect_raw_server(WebSocketLimits::default(), &spawner).await;
    let text = "é".repeat(300);
    // Also split inside a UTF-8 character.
    let (first, rest) = text.as_bytes().split_at(101);
    let mut bytes = encode_frame(0x01, None, first);
    bytes.extend(encode_frame(PING, None, b"there?"));
    bytes.extend(encode_frame(0x00, None, b""));
    bytes.extend(encode_frame(PONG, None, b"nobody asked"));
    bytes.extend(encode_frame(0x80, None, rest));
    let write = async {
        for byte in bytes {
            stream.write_u8(byte).await.unwrap();
            stream.flush().await.unwrap();
        }
    };
    let (next, ()) = tokio::join!(incoming.next(), write);
    assert_eq!(next.unwrap(), text);
    assert_eq!(read_non_ping(&mut stream).await, (PONG, b"there?".to_vec()));
}

#[tokio::test]
async fn text_format_skips_binary_messages() {
    let spawner = JoiningSpawner::default();
    let (_outgoing, mut incoming, mut stream) =
        connect_raw_server(WebSocketLimits::default(), &spawner).await;
    let mut bytes = encode_frame(BINARY, None, b"\xff");
    bytes.extend(encode_frame(TEXT, None, b"text"));
    stream.write_all(&bytes).await.unwrap();
    assert_eq!(incoming.next().await.unwrap(), "text");
}

#[tokio::test]
async fn formats_control_sent_and_accepted_opcodes() {
    let spawner = JoiningSpawner::default();
    for (form, kind) in [
        (MessageFormat::TextOrBytes, TEXT),
        (MessageFormat::Binary, BINARY),
    ] {
        let limits = WebSocketLimits {
            format: form,
            ..WebSocketLimits::default()
        };
        let (outgoing, mut incoming, mut stream) = connect_raw_server(limits, &spawner).await;
        let mut bytes = encode_frame(BINARY, None, b"bytes");
        bytes.extend(encode_frame(0x02, None, b"in "));
        bytes.extend(encode_frame(0x80, None, b"pieces"));
        bytes.extend(encode_frame(TEXT, None, b"text"));
        stream.write_all(&bytes).await.unwrap();
        for said in ["bytes", "in pieces", "text"] {
            assert_eq!(incoming.next().await.unwrap(), said);
        }
        for message in ["small".to_owned(), "x".repeat(100_000)] {
            outgoing.send(message.clone().into()).await.unwrap();
            assert_eq!(
                read_non_ping(&mut stream).await,
                (kind, message.into_bytes())
            );
        }
        // Invalid UTF-8 is accepted only in the binary format.
        stream
            .write_all(&encode_frame(BINARY, None, b"\xff"))
            .await
            .unwrap();
        let next = incoming.next().await;
        match form {
            MessageFormat::Binary => assert_eq!(next.unwrap(), &b"\xff"[..]),
            _ => assert!(
                matches!(next, Err(DisconnectReason::Invalid(_))),
                "{next:?}"
            ),
        }
    }
}

#[tokio::test]
async fn messages_of_all_sizes_arrive_whole() {
    let spawner = JoiningSpawner::default();
    let limits = WebSocketLimits {
        format: MessageFormat::Binary,
        ..WebSocketLimits::default()
    };
    let ((client, mut from_server), (server, mut from_client)) =
        websocket_pair(limits, limits, &spawner).await;
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
async fn dropping_next_loses_no_message() {
    let spawner = JoiningSpawner::default();
    let (_outgoing, mut incoming, mut stream) =
        connect_raw_server(WebSocketLimits::default(), &spawner).await;
    let said: Vec<String> = (0..50).map(|number| "m".repeat(number * 20)).collect();
    let write = async {
        for text in &said {
            for chunk in encode_frame(TEXT, None, text.as_bytes()).chunks(7) {
                stream.write_all(chunk).await.unwrap();
                tokio::task::yield_now().await;
            }
        }
    };
    let read = async {
        let mut heard = Vec::new();
        while heard.len() < said.len() {
            // Each future is polled once and dropped.
            match incoming.next().now_or_never() {
                Some(next) => heard.push(String::from_utf8(next.unwrap().to_vec()).unwrap()),
                None => tokio::task::yield_now().await,
            }
        }
        heard
    };
    let both = async { tokio::join!(write, read) };
    let ((), heard) = wait_bounded(both).await;
    assert_eq!(heard, said);
}

#[tokio::test]
async fn dropped_send_is_all_or_nothing() {
    let spawner = JoiningSpawner::default();
    let limits = WebSocketLimits {
        queue_max: 2,
        ..WebSocketLimits::default()
    };
    let ((client, _from_server), (server, mut from_client)) =
        websocket_pair(limits, limits, &spawner).await;
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
    let sending = wait_bounded(client.send("end".into()));
    sending.await.unwrap();
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
async fn small_message_does_not_pin_buffer() {
    let spawner = JoiningSpawner::default();
    let (_outgoing, mut incoming, mut stream) =
        connect_raw_server(WebSocketLimits::default(), &spawner).await;
    let mut bytes = Vec::new();
    for _ in 0..50 {
        bytes.extend(encode_frame(TEXT, None, &[b'x'; 60_000]));
        bytes.extend(encode_frame(TEXT, None, b"small"));
        bytes.extend(encode_frame(0x01, None, b"in "));
        bytes.extend(encode_frame(0x80, None, b"pieces"));
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
