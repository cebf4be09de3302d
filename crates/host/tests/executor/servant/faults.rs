//! What goes wrong is told by its code, and ends its own stream only.

use bowline_core::error::Execution;
use bowline_link::websocket::Ended;
use bowline_wire::executor::{Asked, Fault, FaultCode, Frame, Hello, Open, VERSION};
use bytes::Bytes;
use std::time::Duration;

use super::rig::*;

fn known(fault: &Fault) -> (FaultCode, Execution) {
    (fault.code, fault.execution)
}

/// Asks for something that fails, while another request goes on unharmed.
async fn fails(gateway: &mut Gateway, number: u64, asked: Asked) -> Fault {
    gateway.ask(number, asked).await;
    gateway.fault(number).await
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_before_anything_leaves() {
    let upstream = Upstream::new().await;
    let mut gateway = Gateway::new(upstream.offer()).await;
    let good = || get(&upstream.url);
    let lines = |lines: &'static [u8]| Asked {
        lines: Bytes::from_static(lines),
        ..good()
    };
    let url = |url: &str| Asked {
        url: url.into(),
        ..good()
    };
    let all = [
        url("ftp://127.0.0.1/"),
        url("/relative"),
        url("http://user:pass@127.0.0.1/"),
        url("http://127.0.0.1/a b"),
        Asked {
            method: "GE T".into(),
            ..good()
        },
        Asked {
            server: "x".repeat(257).into(),
            ..good()
        },
        lines(b"host: elsewhere\r\n"),
        lines(b"Content-Length: 5\r\n"),
        lines(b"transfer-encoding: chunked\r\n"),
        lines(b"connection: upgrade\r\n"),
        lines(b"a: b\nc: d\r\n"),
        lines(b"a: b\r\n\r\nGET / HTTP/1.1\r\n\r\n"),
        lines(b"a : b\r\n"),
        lines(b"no colon\r\n"),
        lines(b"a: \x00\r\n"),
        lines(b"a: no end"),
    ];
    for (number, asked) in (1..).zip(all) {
        let shown = format!("{asked:?}");
        let fault = fails(&mut gateway, number, asked).await;
        let want = (FaultCode::Invalid, Execution::NotStarted);
        assert_eq!(known(&fault), want, "{shown}: {fault:?}");
    }
    upstream.was_left_alone().await;
}

#[tokio::test]
async fn what_a_server_does_is_told_by_its_code() {
    let upstream = Upstream::new().await;
    let mut gateway = Gateway::new(upstream.offer()).await;

    let asked = Asked {
        first_byte_ms: Some(1),
        ..get(&upstream.url)
    };
    gateway.ask(1, asked).await;
    let (mut stream, _) = upstream.taken().await;
    let fault = gateway.fault(1).await;
    let want = (FaultCode::FirstByteTimeout, Execution::Unknown);
    assert_eq!(known(&fault), want);
    closed(&mut stream).await;

    for (number, answer, code) in [
        (2, "SSH-2.0\r\n", FaultCode::Head),
        (
            3,
            "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            FaultCode::Head,
        ),
        (4, "", FaultCode::Lost),
        (5, "HTTP/1.1 200 OK\r\ncontent-le", FaultCode::Lost),
    ] {
        gateway.ask(number, get(&upstream.url)).await;
        let (mut stream, _) = upstream.taken().await;
        write(&mut stream, answer).await;
        drop(stream);
        let fault = gateway.fault(number).await;
        assert_eq!(known(&fault), (code, Execution::Unknown), "{answer:?}");
    }

    drop(upstream.listener);
    let fault = fails(&mut gateway, 6, get(&upstream.url)).await;
    let want = (FaultCode::Unreachable, Execution::NotStarted);
    assert_eq!(known(&fault), want);
}

#[tokio::test]
async fn an_answer_that_is_cut_short_ends_with_an_error_behind_what_came() {
    let upstream = Upstream::new().await;
    let mut gateway = Gateway::new(upstream.offer()).await;
    for (number, head) in [
        (1, "content-length: 10\r\n\r\nhalf"),
        (2, "transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n"),
    ] {
        gateway.ask(number, get(&upstream.url)).await;
        let (mut stream, _) = upstream.taken().await;
        write(&mut stream, format!("HTTP/1.1 200 OK\r\n{head}")).await;
        drop(stream);
        assert_eq!(gateway.status(number).await, 200);
        assert_eq!(gateway.piece(number).await, (0, "half".into()));
        let fault = gateway.fault(number).await;
        assert_eq!(known(&fault), (FaultCode::Lost, Execution::Unknown));
    }
}

#[tokio::test]
async fn a_piece_that_has_no_place_ends_its_stream_and_nothing_else() {
    let upstream = Upstream::new().await;
    let mut gateway = Gateway::new(upstream.offer()).await;
    gateway.ask(1, get(&upstream.url)).await;
    let (mut other, _) = upstream.taken().await;
    let post = || Asked {
        method: "POST".into(),
        length: None,
        ..get(&upstream.url)
    };
    let size = 1 << 20;
    for (number, offset, bytes, code) in [
        (2, 0, "one", FaultCode::Order),
        (3, 4, "", FaultCode::Order),
        (4, 7, "late", FaultCode::Order),
    ] {
        gateway.ask(number, post()).await;
        let (mut stream, _) = upstream.taken().await;
        gateway.send(number, 0, "one").await;
        match bytes {
            "" => gateway.end(number, offset, "").await,
            bytes => gateway.send(number, offset, bytes).await,
        }
        let fault = gateway.fault(number).await;
        assert_eq!(known(&fault), (code, Execution::Unknown));
        closed(&mut stream).await;
    }
    // Nobody reads, and more comes than was allowed.
    gateway.ask(5, post()).await;
    let (mut stream, _) = upstream.taken().await;
    let mut offset = 0;
    let fault = loop {
        gateway.send(5, offset, vec![b'x'; size - 100]).await;
        offset += size as u64 - 100;
        if let Frame::Failed { stream: 5, fault } = gateway.next().await {
            break fault;
        }
    };
    assert_eq!(known(&fault), (FaultCode::Overflow, Execution::Unknown));
    closed(&mut stream).await;
    write(&mut other, "HTTP/1.1 204 No\r\n\r\n").await;
    assert_eq!(gateway.status(1).await, 204);
}

/// Returns the code that a connection was closed with.
async fn close_code(gateway: &mut Gateway) -> u16 {
    match gateway.ended().await {
        Ended::Closed { code, .. } => code,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn who_does_not_keep_to_the_protocol_is_told_4004() {
    let upstream = Upstream::new().await;
    let offer = upstream.offer();
    let open = |v| {
        Frame::Open(Open {
            v,
            session: "one".into(),
            marks: Vec::new(),
        })
    };
    let asks = || Frame::Request {
        stream: 1,
        asked: get(&upstream.url),
    };
    let hello = Frame::Hello(Hello {
        v: VERSION,
        ..Hello::default()
    });
    let failed = Frame::Failed {
        stream: 1,
        fault: Fault {
            code: FaultCode::Lost,
            execution: Execution::Unknown,
            reason: "".into(),
        },
    };
    let garbage = Bytes::from_static(b"\xffgarbage..");
    let first = [
        open(VERSION + 1).to_bytes(),
        asks().to_bytes(),
        hello.to_bytes(),
        garbage.clone(),
        Bytes::new(),
    ];
    for message in first {
        let (servant, tasks) = servant(offer.clone());
        let mut gateway = Gateway::connect(&servant, &tasks, &offer).await;
        gateway.next().await;
        gateway.outgoing.send(message.clone()).await.unwrap();
        assert_eq!(close_code(&mut gateway).await, 4004, "{message:?}");
    }
    for message in [
        open(VERSION).to_bytes(),
        hello.to_bytes(),
        failed.to_bytes(),
        garbage,
    ] {
        let mut gateway = Gateway::new(offer.clone()).await;
        gateway.outgoing.send(message.clone()).await.unwrap();
        assert_eq!(close_code(&mut gateway).await, 4004, "{message:?}");
    }
    // A stream is asked for twice.
    let mut gateway = Gateway::new(offer.clone()).await;
    gateway.say(asks()).await;
    let (mut stream, _) = upstream.taken().await;
    gateway.say(asks()).await;
    assert_eq!(close_code(&mut gateway).await, 4004);
    closed(&mut stream).await;
}

#[tokio::test]
async fn a_gateway_that_opens_nothing_is_not_waited_for() {
    let upstream = Upstream::new().await;
    let mut offer = upstream.offer();
    offer.limits.step = Duration::from_millis(20);
    let (servant, tasks) = servant(offer.clone());
    let mut gateway = Gateway::connect(&servant, &tasks, &offer).await;
    assert_eq!(close_code(&mut gateway).await, 4004);
}
