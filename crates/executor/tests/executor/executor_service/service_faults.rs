//! Faults carry a code, and end only their own stream.

use bowline_core::error::ExecutionStatus;
use bowline_executor::frames::{
    ExecutorFrame, ExecutorHello, OpenSession, RequestHead, StreamFault, StreamFaultCode, VERSION,
};
use bowline_link::websocket::DisconnectReason;
use bowline_testkit::{RawUpstream, wait_closed, write_bytes};
use bytes::Bytes;
use std::time::Duration;

use super::service_rig::*;

fn code_and_execution(fault: &StreamFault) -> (StreamFaultCode, ExecutionStatus) {
    (fault.code, fault.execution)
}

/// Sends a failing request and returns the fault.
async fn request_fault(
    gateway: &mut ScriptedGateway,
    number: u64,
    asked: RequestHead,
) -> StreamFault {
    gateway.send_request(number, asked).await;
    gateway.next_fault(number).await
}

#[tokio::test]
async fn invalid_request_is_refused_before_sending() {
    let upstream = RawUpstream::start().await;
    let mut gateway = ScriptedGateway::new(offer_for(&upstream)).await;
    let good = || get(&upstream.url);
    let lines = |lines: &'static [u8]| RequestHead {
        header_lines: Bytes::from_static(lines),
        ..good()
    };
    let url = |url: &str| RequestHead {
        url: url.into(),
        ..good()
    };
    let all = [
        url("ftp://127.0.0.1/"),
        url("/relative"),
        url("http://user:pass@127.0.0.1/"),
        url("http://127.0.0.1/a b"),
        RequestHead {
            method: "GE T".into(),
            ..good()
        },
        RequestHead {
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
        let fault = request_fault(&mut gateway, number, asked).await;
        let want = (StreamFaultCode::Invalid, ExecutionStatus::NotStarted);
        assert_eq!(code_and_execution(&fault), want, "{shown}: {fault:?}");
    }
    upstream.assert_unused().await;
}

#[tokio::test]
async fn upstream_failure_keeps_its_code() {
    let upstream = RawUpstream::start().await;
    let mut gateway = ScriptedGateway::new(offer_for(&upstream)).await;

    let asked = RequestHead {
        first_byte_ms: Some(1),
        ..get(&upstream.url)
    };
    gateway.send_request(1, asked).await;
    let (mut stream, _) = upstream.accept_request().await;
    let fault = gateway.next_fault(1).await;
    let want = (StreamFaultCode::FirstByteTimeout, ExecutionStatus::Unknown);
    assert_eq!(code_and_execution(&fault), want);
    wait_closed(&mut stream).await;

    for (number, answer, code) in [
        (2, "SSH-2.0\r\n", StreamFaultCode::Head),
        (
            3,
            "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            StreamFaultCode::Head,
        ),
        (4, "", StreamFaultCode::Lost),
        (5, "HTTP/1.1 200 OK\r\ncontent-le", StreamFaultCode::Lost),
    ] {
        gateway.send_request(number, get(&upstream.url)).await;
        let (mut stream, _) = upstream.accept_request().await;
        write_bytes(&mut stream, answer).await;
        drop(stream);
        let fault = gateway.next_fault(number).await;
        assert_eq!(
            code_and_execution(&fault),
            (code, ExecutionStatus::Unknown),
            "{answer:?}"
        );
    }

    drop(upstream.listener);
    let fault = request_fault(&mut gateway, 6, get(&upstream.url)).await;
    let want = (StreamFaultCode::Unreachable, ExecutionStatus::NotStarted);
    assert_eq!(code_and_execution(&fault), want);
}

#[tokio::test]
async fn truncated_response_ends_with_fault() {
    let upstream = RawUpstream::start().await;
    let mut gateway = ScriptedGateway::new(offer_for(&upstream)).await;
    for (number, head) in [
        (1, "content-length: 10\r\n\r\nhalf"),
        (2, "transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n"),
    ] {
        gateway.send_request(number, get(&upstream.url)).await;
        let (mut stream, _) = upstream.accept_request().await;
        write_bytes(&mut stream, format!("HTTP/1.1 200 OK\r\n{head}")).await;
        drop(stream);
        assert_eq!(gateway.status(number).await, 200);
        assert_eq!(gateway.next_data(number).await, (0, "half".into()));
        let fault = gateway.next_fault(number).await;
        assert_eq!(
            code_and_execution(&fault),
            (StreamFaultCode::Lost, ExecutionStatus::Unknown)
        );
    }
}

#[tokio::test]
async fn misplaced_chunk_ends_only_its_stream() {
    let upstream = RawUpstream::start().await;
    let mut gateway = ScriptedGateway::new(offer_for(&upstream)).await;
    gateway.send_request(1, get(&upstream.url)).await;
    let (mut other, _) = upstream.accept_request().await;
    let post = || RequestHead {
        method: "POST".into(),
        body_len: None,
        ..get(&upstream.url)
    };
    let size = 1 << 20;
    for (number, offset, bytes, code) in [
        (2, 0, "one", StreamFaultCode::Order),
        (3, 4, "", StreamFaultCode::Order),
        (4, 7, "late", StreamFaultCode::Order),
    ] {
        gateway.send_request(number, post()).await;
        let (mut stream, _) = upstream.accept_request().await;
        gateway.send(number, 0, "one").await;
        match bytes {
            "" => gateway.end(number, offset, "").await,
            bytes => gateway.send(number, offset, bytes).await,
        }
        let fault = gateway.next_fault(number).await;
        assert_eq!(code_and_execution(&fault), (code, ExecutionStatus::Unknown));
        wait_closed(&mut stream).await;
    }
    // No reader, and more data than the credit.
    gateway.send_request(5, post()).await;
    let (mut stream, _) = upstream.accept_request().await;
    let mut offset = 0;
    let fault = loop {
        gateway.send(5, offset, vec![b'x'; size - 100]).await;
        offset += size as u64 - 100;
        if let ExecutorFrame::Fault { stream: 5, fault } = gateway.next().await {
            break fault;
        }
    };
    assert_eq!(
        code_and_execution(&fault),
        (StreamFaultCode::Overflow, ExecutionStatus::Unknown)
    );
    wait_closed(&mut stream).await;
    write_bytes(&mut other, "HTTP/1.1 204 No\r\n\r\n").await;
    assert_eq!(gateway.status(1).await, 204);
}

/// Returns the close code of a connection.
async fn close_code(gateway: &mut ScriptedGateway) -> u16 {
    match gateway.wait_ended().await {
        DisconnectReason::Closed { code, .. } => code,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn protocol_error_closes_with_4004() {
    let upstream = RawUpstream::start().await;
    let offer = offer_for(&upstream);
    let open = |v| {
        ExecutorFrame::OpenSession(OpenSession {
            protocol_version: v,
            session: "one".into(),
            marks: Vec::new(),
        })
    };
    let asks = || ExecutorFrame::Request {
        stream: 1,
        head: get(&upstream.url),
    };
    let hello = ExecutorFrame::Hello(ExecutorHello {
        protocol_version: VERSION,
        ..ExecutorHello::default()
    });
    let failed = ExecutorFrame::Fault {
        stream: 1,
        fault: StreamFault {
            code: StreamFaultCode::Lost,
            execution: ExecutionStatus::Unknown,
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
        let (servant, tasks) = new_service(offer.clone());
        let mut gateway = ScriptedGateway::connect(&servant, &tasks, &offer).await;
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
        let mut gateway = ScriptedGateway::new(offer.clone()).await;
        gateway.outgoing.send(message.clone()).await.unwrap();
        assert_eq!(close_code(&mut gateway).await, 4004, "{message:?}");
    }
    // A stream is opened twice.
    let mut gateway = ScriptedGateway::new(offer.clone()).await;
    gateway.send_frame(asks()).await;
    let (mut stream, _) = upstream.accept_request().await;
    gateway.send_frame(asks()).await;
    assert_eq!(close_code(&mut gateway).await, 4004);
    wait_closed(&mut stream).await;
}

#[tokio::test]
async fn gateway_without_open_times_out() {
    let upstream = RawUpstream::start().await;
    let mut offer = offer_for(&upstream);
    offer.limits.handshake_step = Duration::from_millis(20);
    let (servant, tasks) = new_service(offer.clone());
    let mut gateway = ScriptedGateway::connect(&servant, &tasks, &offer).await;
    assert_eq!(close_code(&mut gateway).await, 4004);
}
