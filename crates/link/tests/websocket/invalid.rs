//! What breaks the protocol ends the connection, and is told.

use super::*;

/// Sends these bytes to a client; returns how it ended and the code that it said.
async fn told(bytes: &[u8], limits: SocketLimits) -> (Ended, u16) {
    let spawner = Tokio::default();
    let (outgoing, mut incoming, mut stream) = raw_server(limits, &spawner).await;
    stream.write_all(bytes).await.unwrap();
    let ended = end(&mut incoming).await;
    assert_eq!(outgoing.over().await, ended);
    let (first, said) = read_said(&mut stream).await;
    assert_eq!(first, CLOSE);
    (ended, u16::from_be_bytes([said[0], said[1]]))
}

#[tokio::test]
async fn frames_that_break_the_protocol_end_it() {
    let limits = SocketLimits::default();
    let mut unfinished = frame(0x01, None, b"a");
    unfinished.extend(frame(TEXT, None, b"b"));
    for (bytes, code) in [
        (frame(TEXT, Some([1, 2, 3, 4]), b"masked"), 1002),
        (frame(0xc1, None, b"reserved bit"), 1002),
        (frame(0x83, None, b"reserved kind"), 1002),
        (frame(0x8b, None, b"reserved control"), 1002),
        (frame(0x80, None, b"continues nothing"), 1002),
        (unfinished, 1002),
        (frame(0x09, None, b"ping in pieces"), 1002),
        (frame(PING, None, &[b'x'; 126]), 1002),
        (frame(CLOSE, None, b"\x03"), 1002),
        (frame(TEXT, None, b"\xff"), 1007),
        (frame(TEXT, None, b"\xed\xa0\x80"), 1007),
        (frame(CLOSE, None, b"\x03\xe8\xff"), 1007),
    ] {
        let (ended, said) = told(&bytes, limits).await;
        assert!(matches!(ended, Ended::Invalid(_)), "{bytes:?} {ended:?}");
        assert_eq!(said, code, "{bytes:?}");
    }
}

#[tokio::test]
async fn a_client_that_does_not_mask_is_refused() {
    let spawner = Tokio::default();
    let (listener, _) = listen().await;
    let address = listener.local_addr().unwrap();
    let (dialled, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (mut stream, (accepted, _)) = (dialled.unwrap(), accepted.unwrap());
    let limits = SocketLimits::default();
    let (_outgoing, mut incoming) = join(accepted, Side::Server, Bytes::new(), limits, &spawner);
    let good = frame(TEXT, Some([1, 2, 3, 4]), b"masked");
    stream.write_all(&good).await.unwrap();
    assert_eq!(incoming.next().await.unwrap(), "masked");
    stream
        .write_all(&frame(TEXT, None, b"plain"))
        .await
        .unwrap();
    assert!(matches!(end(&mut incoming).await, Ended::Invalid(_)));
}

#[tokio::test]
async fn a_message_that_is_too_large_ends_it_before_it_has_come() {
    let limits = SocketLimits {
        message_bytes_max: 1_000,
        ..SocketLimits::default()
    };
    // The heads alone: of one frame, and of a second that would make the message too large.
    let one = frame(TEXT, None, &[b'x'; 1_001]);
    let mut two = frame(0x01, None, &[b'x'; 900]);
    two.extend_from_slice(&frame(0x80, None, &[b'x'; 101])[..2]);
    let mut huge = vec![TEXT, 127];
    huge.extend_from_slice(&u64::MAX.to_be_bytes());
    for bytes in [&one[..4], &two, &huge] {
        let (ended, code) = told(bytes, limits).await;
        let Ended::Invalid(reason) = ended else {
            panic!("{ended:?}");
        };
        assert!(reason.contains("1000 bytes"), "{reason}");
        assert_eq!(code, 1009);
    }
    let spawner = Tokio::default();
    let (_outgoing, mut incoming, mut stream) = raw_server(limits, &spawner).await;
    let largest = frame(TEXT, None, &[b'x'; 1_000]);
    stream.write_all(&largest).await.unwrap();
    assert_eq!(incoming.next().await.unwrap().len(), 1_000);
}

#[tokio::test]
async fn any_bytes_after_the_handshake_end_it_or_are_messages_and_never_more() {
    let limits = SocketLimits {
        message_bytes_max: 10_000,
        ..SocketLimits::default()
    };
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes = Vec::new();
        for _ in 0..random.usize(1..6) {
            let payload: Vec<u8> = (0..random.usize(..200)).map(|_| random.u8(..)).collect();
            bytes.extend(frame(TEXT, None, b"good"));
            match random.u8(..3) {
                0 => bytes.extend(frame(random.u8(..), None, &payload)),
                1 => bytes.extend(payload),
                _ => bytes.extend(frame(TEXT, None, &payload)),
            }
        }
        let spawner = Tokio::default();
        let (near, far) = tokio::io::duplex(random.usize(1..5_000));
        let (outgoing, mut incoming) = join(near, Side::Client, Bytes::new(), limits, &spawner);
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
                match incoming.next().await {
                    Ok(message) => {
                        assert!(std::str::from_utf8(&message).is_ok());
                        first.get_or_insert(message);
                    }
                    Err(ended) => break ended,
                }
            };
            drop((outgoing, incoming));
            (first, ended)
        };
        let ((), (first, ended), ()) = tokio::join!(feed, heard, drain);
        assert_eq!(first.unwrap(), "good", "seed {seed}");
        assert_ne!(ended, Ended::Local, "seed {seed}");
        spawner.idle().await;
    }
}
