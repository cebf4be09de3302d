//! Who does not want an answer any more stops what makes it.

use std::time::Duration;

use bowline_wire::executor::{Asked, Frame};
use tokio::net::TcpStream;

use super::rig::*;

/// Far more than it takes: this is about whether it happens, not about this machine.
const AT_ONCE: Duration = Duration::from_secs(2);

/// How far a request is when it is cancelled.
#[derive(Clone, Copy, Debug)]
enum At {
    /// The server has not answered.
    Asked,
    /// The request is still arriving.
    Sending,
    /// The server answers on and on.
    Answering,
    /// The server answers, and the gateway takes nothing of it.
    Unread,
}

async fn bring(gateway: &mut Gateway, upstream: &Upstream, number: u64, at: At) -> TcpStream {
    let mut asked = get(&upstream.url);
    match at {
        At::Sending => {
            asked.length = None;
            asked.method = "POST".into();
        }
        At::Unread => asked.credit = 0,
        At::Asked | At::Answering => {}
    }
    gateway.ask(number, asked).await;
    let (mut stream, _) = upstream.taken().await;
    if let At::Answering | At::Unread = at {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: hello\n\n";
        write(&mut stream, head).await;
        assert_eq!(gateway.status(number).await, 200);
    }
    if let At::Answering = at {
        assert_eq!(gateway.piece(number).await.1, ": hello\n\n");
    }
    stream
}

#[tokio::test]
async fn a_stream_that_is_dropped_stops_the_executor_and_frees_the_server_at_once() {
    let upstream = Upstream::new().await;
    let mut gateway = Gateway::new(upstream.offer()).await;
    let mut number = 0;
    for at in [At::Asked, At::Sending, At::Answering, At::Unread] {
        for _ in 0..5 {
            number += 1;
            let mut stream = bring(&mut gateway, &upstream, number, at).await;
            let began = now();
            gateway.say(Frame::Cancel { stream: number }).await;
            closed(&mut stream).await;
            let took = began.elapsed();
            assert!(took < AT_ONCE, "{at:?}: {took:?}");
            tell(&format!("{at:?}: the server saw it after {took:?}"));
        }
    }
    // What comes late finds nobody, and nothing more is said of any of them.
    for number in 1..=number {
        gateway.send(number, 0, "late").await;
        gateway.credit(number, 10).await;
        gateway.say(Frame::Cancel { stream: number }).await;
    }
    number += 1;
    gateway.ask(number, get(&upstream.url)).await;
    let (mut stream, _) = upstream.taken().await;
    write(&mut stream, "HTTP/1.1 204 No\r\n\r\n").await;
    assert_eq!(gateway.status(number).await, 204);
    assert_eq!(gateway.body(number).await.0, b"");
}

#[tokio::test]
async fn a_gateway_that_is_lost_takes_its_requests_along() {
    let upstream = Upstream::new().await;
    let mut gateway = Gateway::new(upstream.offer()).await;
    let mut streams = Vec::new();
    for (number, at) in [At::Asked, At::Sending, At::Answering, At::Unread]
        .into_iter()
        .enumerate()
    {
        streams.push(bring(&mut gateway, &upstream, number as u64 + 1, at).await);
    }
    let attending = gateway.leave();
    for stream in &mut streams {
        closed(stream).await;
    }
    soon(attending).await.unwrap();
}

#[tokio::test]
async fn an_answer_that_is_over_before_its_request_frees_both() {
    let upstream = Upstream::new().await;
    let mut gateway = Gateway::new(upstream.offer()).await;
    let asked = Asked {
        method: "POST".into(),
        length: Some(1 << 30),
        ..get(&upstream.url)
    };
    gateway.ask(1, asked).await;
    gateway.send(1, 0, vec![b'x'; 1_000]).await;
    let (mut stream, _) = upstream.taken().await;
    let answer = "HTTP/1.1 413 No\r\ncontent-length: 3\r\n\r\nbig";
    write(&mut stream, answer).await;
    assert_eq!(gateway.status(1).await, 413);
    assert_eq!(gateway.body(1).await.0, b"big");
    // What was asked in part cannot be followed by anything.
    closed(&mut stream).await;
    // The rest of it finds nobody.
    gateway.send(1, 1_000, "more").await;
    gateway.end(1, 1_004, "").await;
    gateway.ask(2, get(&upstream.url)).await;
    let (mut stream, _) = upstream.taken().await;
    write(&mut stream, "HTTP/1.1 204 No\r\n\r\n").await;
    assert_eq!(gateway.status(2).await, 204);
}
