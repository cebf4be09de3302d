//! Protocol violations end the connection with a close code.

use super::*;

/// Sends these bytes to a client; returns the disconnect reason and the close code.
async fn send_invalid_bytes(bytes: &[u8], limits: WebSocketLimits) -> (DisconnectReason, u16) {
    let spawner = JoiningSpawner::default();
    let (outgoing, mut incoming, mut stream) = connect_raw_server(limits, &spawner).await;
    stream.write_all(bytes).await.unwrap();
    let ended = wait_end(&mut incoming).await;
    assert_eq!(outgoing.wait_closed().await, ended);
    let (first, said) = read_non_ping(&mut stream).await;
    assert_eq!(first, CLOSE);
    (ended, u16::from_be_bytes([said[0], said[1]]))
}

#[tokio::test]
async fn invalid_frames_end_connection() {
    let limits = WebSocketLimits::default();
    let mut unfinished = encode_frame(0x01, None, b"a");
    unfinished.extend(encode_frame(TEXT, None, b"b"));
    for (bytes, code) in [
        (encode_frame(TEXT, Some([1, 2, 3, 4]), b"masked"), 1002),
        (encode_frame(0xc1, None, b"reserved bit"), 1002),
        (encode_frame(0x83, None, b"reserved kind"), 1002),
        (encode_frame(0x8b, None, b"reserved control"), 1002),
        (encode_frame(0x80, None, b"continues nothing"), 1002),
        (unfinished, 1002),
        (encode_frame(0x09, None, b"ping in pieces"), 1002),
        (encode_frame(PING, None, &[b'x'; 126]), 1002),
        (encode_frame(CLOSE, None, b"\x03"), 1002),
        (encode_frame(TEXT, None, b"\xff"), 1007),
        (encode_frame(TEXT, None, b"\xed\xa0\x80"), 1007),
        (encode_frame(CLOSE, None, b"\x03\xe8\xff"), 1007),
    ] {
        let (ended, said) = send_invalid_bytes(&bytes, limits).await;
        assert!(
            matches!(ended, DisconnectReason::Invalid(_)),
            "{bytes:?} {ended:?}"
        );
        assert_eq!(said, code, "{bytes:?}");
    }
}

#[tokio::test]
async fn unmasked_client_is_refused() {
    let spawner = JoiningSpawner::default();
    let (listener, _) = listen_on_free_port().await;
    let address = listener.local_addr().unwrap();
    let (dialled, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (mut stream, (accepted, _)) = (dialled.unwrap(), accepted.unwrap());
    let limits = WebSocketLimits::default();
    let mut socket = open_websocket(
        accepted,
        WebSocketRole::Server,
        Bytes::new(),
        limits,
        &spawner,
    );
    let good = encode_frame(TEXT, Some([1, 2, 3, 4]), b"masked");
    stream.write_all(&good).await.unwrap();
    assert_eq!(socket.receiver.next().await.unwrap(), "masked");
    stream
        .write_all(&encode_frame(TEXT, None, b"plain"))
        .await
        .unwrap();
    assert!(matches!(
        wait_end(&mut socket.receiver).await,
        DisconnectReason::Invalid(_)
    ));
}

#[tokio::test]
async fn oversized_message_ends_connection_early() {
    let limits = WebSocketLimits {
        message_bytes_max: 1_000,
        ..WebSocketLimits::default()
    };
    // Only the headers: of a single frame, and of a second frame beyond the limit.
    let one = encode_frame(TEXT, None, &[b'x'; 1_001]);
    let mut two = encode_frame(0x01, None, &[b'x'; 900]);
    two.extend_from_slice(&encode_frame(0x80, None, &[b'x'; 101])[..2]);
    let mut huge = vec![TEXT, 127];
    huge.extend_from_slice(&u64::MAX.to_be_bytes());
    for bytes in [&one[..4], &two, &huge] {
        let (ended, code) = send_invalid_bytes(bytes, limits).await;
        let DisconnectReason::Invalid(reason) = ended else {
            panic!("{ended:?}");
        };
        assert!(reason.contains("1000 bytes"), "{reason}");
        assert_eq!(code, 1009);
    }
    let spawner = JoiningSpawner::default();
    let (_outgoing, mut incoming, mut stream) = connect_raw_server(limits, &spawner).await;
    let largest = encode_frame(TEXT, None, &[b'x'; 1_000]);
    stream.write_all(&largest).await.unwrap();
    assert_eq!(incoming.next().await.unwrap().len(), 1_000);
}

#[tokio::test]
async fn random_bytes_end_or_deliver_messages() {
    let limits = WebSocketLimits {
        message_bytes_max: 10_000,
        ..WebSocketLimits::default()
    };
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes = Vec::new();
        for _ in 0..random.usize(1..6) {
            let payload: Vec<u8> = (0..random.usize(..200)).map(|_| random.u8(..)).collect();
            bytes.extend(encode_frame(TEXT, None, b"good"));
            match random.u8(..3) {
                0 => bytes.extend(encode_frame(random.u8(..), None, &payload)),
                1 => bytes.extend(payload),
                _ => bytes.extend(encode_frame(TEXT, None, &payload)),
            }
        }
        let spawner = JoiningSpawner::default();
        let (near, far) = tokio::io::duplex(random.usize(1..5_000));
        let mut socket =
            open_websocket(near, WebSocketRole::Client, Bytes::new(), limits, &spawner);
        let (mut reading, mut writing) = tokio::io::split(far);
        let feed = async {
            for chunk in bytes.chunks(random.usize(1..50)) {
                if writing.write_all(chunk).await.is_err() {
                    break;
                }
            }
            let _ = writing.shutdown().await;
        };
        let drain = async {
            let mut sink = [0; 100];
            while let Ok(1..) = reading.read(&mut sink).await {}
        };
        let heard = async {
            let mut first = None;
            let ended = loop {
                match socket.receiver.next().await {
                    Ok(message) => {
                        assert!(std::str::from_utf8(&message).is_ok());
                        first.get_or_insert(message);
                    }
                    Err(ended) => break ended,
                }
            };
            drop(socket);
            (first, ended)
        };
        let ((), (first, ended), ()) = tokio::join!(feed, heard, drain);
        assert_eq!(first.unwrap(), "good", "seed {seed}");
        assert_ne!(ended, DisconnectReason::Local, "seed {seed}");
        spawner.wait_idle().await;
    }
}
