//! Dialling: what is asked for, and every way in which there is no connection.

use super::*;

#[tokio::test]
async fn the_upgrade_is_asked_for_with_the_token_and_a_refusal_says_its_status() {
    let (listener, endpoint) = listen().await;
    let spawner = Tokio::default();
    let limits = SocketLimits::default();
    let (dialled, (head, _stream)) = tokio::join!(
        dial(&endpoint, Some("s3cret\n"), soon(), limits, &spawner),
        accept(&listener)
    );
    drop(dialled.unwrap());
    assert!(head.starts_with("GET /broker HTTP/1.1\r\n"), "{head}");
    assert!(
        head.contains("\r\nAuthorization: Bearer s3cret\r\n"),
        "{head}"
    );
    for status in [401, 404, 200, 101] {
        let refuse = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            self::head(&mut stream).await;
            let answer = format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
        };
        let dialling = dial(&endpoint, None, soon(), limits, &spawner);
        let (dialled, ()) = tokio::join!(dialling, refuse);
        assert_eq!(dialled.err(), Some(DialError::Refused { status }));
    }
}

#[tokio::test]
async fn an_answer_to_another_question_is_refused() {
    let (listener, endpoint) = listen().await;
    let spawner = Tokio::default();
    let limits = SocketLimits::default();
    let other = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    let good = answer_to(other);
    assert!(good.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{good}");
    let answer = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        head(&mut stream).await;
        stream.write_all(good.as_bytes()).await.unwrap();
    };
    let dialling = dial(&endpoint, None, soon(), limits, &spawner);
    let (dialled, ()) = tokio::join!(dialling, answer);
    assert_eq!(dialled.err(), Some(DialError::Refused { status: 101 }));
}

#[tokio::test]
async fn a_token_that_no_header_can_hold_is_not_sent() {
    let (_listener, endpoint) = listen().await;
    let spawner = Tokio::default();
    let limits = SocketLimits::default();
    let evil = "a\r\nX-Role: owner";
    let dialled = dial(&endpoint, Some(evil), soon(), limits, &spawner).await;
    assert_eq!(dialled.err(), Some(DialError::Token));
}

#[tokio::test]
async fn what_comes_right_behind_the_answer_is_not_lost() {
    let (listener, endpoint) = listen().await;
    let spawner = Tokio::default();
    let answer = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut answer = answer_to(&head(&mut stream).await).into_bytes();
        answer.extend(frame(TEXT, None, b"first"));
        answer.extend(frame(TEXT, None, b"second"));
        stream.write_all(&answer).await.unwrap();
        stream
    };
    let limits = SocketLimits::default();
    let (dialled, _stream) = tokio::join!(dial(&endpoint, None, soon(), limits, &spawner), answer);
    let (_outgoing, mut incoming) = dialled.unwrap();
    assert_eq!(incoming.next().await.unwrap(), "first");
    assert_eq!(incoming.next().await.unwrap(), "second");
}

#[tokio::test]
async fn an_answer_that_does_not_come_or_does_not_end_is_given_up() {
    let (listener, endpoint) = listen().await;
    let spawner = Tokio::default();
    let limits = SocketLimits::default();
    let brief = soon() - LONG + Duration::from_millis(100);
    let dialled = dial(&endpoint, None, brief, limits, &spawner).await;
    assert_eq!(dialled.err(), Some(DialError::Timeout));
    let (first, _) = listener.accept().await.unwrap();
    drop(first);
    let endless = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.write_all(b"HTTP/1.1 101 Yes\r\n").await;
        while stream.write_all(b"X-More: and more\r\n").await.is_ok() {}
    };
    let (dialled, ()) = tokio::join!(dial(&endpoint, None, soon(), limits, &spawner), endless);
    assert!(matches!(dialled, Err(DialError::Unreachable(_))));
    let vanished = async { drop(listener.accept().await.unwrap()) };
    let (dialled, ()) = tokio::join!(dial(&endpoint, None, soon(), limits, &spawner), vanished);
    assert!(matches!(dialled, Err(DialError::Unreachable(_))));
    drop(listener);
    let dialled = dial(&endpoint, None, soon(), limits, &spawner).await;
    assert!(matches!(dialled, Err(DialError::Unreachable(_))));
}
