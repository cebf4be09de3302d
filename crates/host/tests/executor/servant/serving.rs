//! Requests and answers, whole and piece by piece.

use bowline_wire::executor::{Asked, Frame};

use super::rig::*;

#[tokio::test]
async fn a_request_is_performed_and_its_answer_comes_within_the_credit() {
    let upstream = Upstream::new().await;
    let offer = upstream.offer();
    let servant = servant(offer.clone());
    let (mut gateway, hello, opened) = Gateway::open(&servant, &offer, "one").await;
    assert_eq!((&*hello.name, hello.streams_max), ("office", 1_024));
    assert!(!opened.resumed);
    let asked = Asked {
        credit: 10,
        length: Some(4),
        method: "POST".into(),
        lines: "x-a: 1\r\nx-a: \u{e9}\r\n".into(),
        ..get(&upstream.url)
    };
    gateway.say(Frame::Request { stream: 1, asked }).await;
    gateway
        .say(Frame::Data {
            stream: 1,
            offset: 0,
            bytes: "ping".into(),
        })
        .await;
    gateway
        .say(Frame::End {
            stream: 1,
            offset: 4,
            trailers: "".into(),
        })
        .await;
    let (mut stream, head) = upstream.taken().await;
    assert!(head.starts_with("POST / HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("x-a: 1\r\nx-a: \u{e9}\r\n"), "{head}");
    assert!(head.contains("content-length: 4\r\n"), "{head}");
    assert_eq!(read(&mut stream, 4).await, b"ping");
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 25\r\n\r\nabcdefghijklmnopqrstuvwxy";
    write(&mut stream, answer).await;
    assert_eq!(gateway.status(1).await, 200);
    let Frame::Data { offset, bytes, .. } = gateway.next().await else {
        panic!("no data");
    };
    assert_eq!((offset, &*bytes), (0, &b"abcdefghij"[..]));
    // Nothing more comes before more is taken: the next frame is what the next credit allows.
    let more = Frame::Credit {
        stream: 1,
        bytes: 1,
    };
    gateway.say(more).await;
    let Frame::Data { offset, bytes, .. } = gateway.next().await else {
        panic!("no data");
    };
    assert_eq!((offset, &*bytes), (10, &b"k"[..]));
    let more = Frame::Credit {
        stream: 1,
        bytes: 14,
    };
    gateway.say(more).await;
    let Frame::Data { bytes, .. } = gateway.next().await else {
        panic!("no data");
    };
    assert_eq!(&*bytes, b"lmnopqrstuvwxy");
    let end = gateway.next().await;
    assert!(matches!(end, Frame::End { offset: 25, .. }), "{end:?}");
}
