//! Requests and responses, whole and streamed.

use bowline_executor::frames::{ExecutorFrame, RequestHead, ResponseHead};
use bowline_testkit::{RawUpstream, read_bytes, spawn_task, write_bytes};

use super::service_rig::*;

fn post(url: &str, length: Option<u64>) -> RequestHead {
    RequestHead {
        method: "POST".into(),
        body_len: length,
        ..get(url)
    }
}

#[tokio::test]
async fn response_is_sent_within_credit() {
    let upstream = RawUpstream::start().await;
    let offer = offer_for(&upstream);
    let (servant, tasks) = new_service(offer.clone());
    let (mut gateway, hello, opened) = ScriptedGateway::open(&servant, &tasks, &offer, "one").await;
    assert_eq!((&*hello.name, hello.streams_max), ("office", 1_024));
    assert!(!opened.is_resumed);
    let asked = RequestHead {
        credit: 10,
        header_lines: "x-a: 1\r\nx-a: \u{e9}\r\n".into(),
        ..post(&upstream.url, Some(4))
    };
    gateway.send_request(1, asked).await;
    gateway.send(1, 0, "ping").await;
    gateway.end(1, 4, "").await;
    let (mut stream, head) = upstream.accept_request().await;
    assert!(head.starts_with("POST / HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("x-a: 1\r\nx-a: \u{e9}\r\n"), "{head}");
    assert!(head.contains("content-length: 4\r\n"), "{head}");
    assert_eq!(read_bytes(&mut stream, 4).await, b"ping");
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 25\r\n\r\nabcdefghijklmnopqrstuvwxy";
    write_bytes(&mut stream, answer).await;
    assert_eq!(gateway.status(1).await, 200);
    assert_eq!(gateway.next_data(1).await, (0, "abcdefghij".into()));
    // No frame beyond the credit: the next frame follows the next grant.
    gateway.credit(1, 1).await;
    assert_eq!(gateway.next_data(1).await, (10, "k".into()));
    gateway.credit(1, 14).await;
    assert_eq!(gateway.next_data(1).await, (11, "lmnopqrstuvwxy".into()));
    // The end needs no credit.
    let end = gateway.next().await;
    assert!(
        matches!(end, ExecutorFrame::End { offset: 25, .. }),
        "{end:?}"
    );
}

#[tokio::test]
async fn headers_and_trailers_keep_their_bytes() {
    let upstream = RawUpstream::start().await;
    let mut gateway = ScriptedGateway::new(offer_for(&upstream)).await;
    gateway.send_request(1, get(&upstream.url)).await;
    let (mut stream, _) = upstream.accept_request().await;
    let head: &[u8] = b"HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nset-cookie: \xff\xfe\r\n\
                        transfer-encoding: chunked\r\n\r\n3\r\none\r\n0\r\nX-Sum: \xfd\r\n\r\n";
    write_bytes(&mut stream, head).await;
    let ExecutorFrame::Response { head, .. } = gateway.next().await else {
        panic!("no answer");
    };
    let lines: &[u8] = b"Set-Cookie: a\r\nset-cookie: \xff\xfe\r\ntransfer-encoding: chunked\r\n";
    let want = ResponseHead {
        status: 200,
        header_lines: lines.into(),
    };
    assert_eq!(head, want);
    let (body, trailers) = gateway.read_body(1).await;
    assert_eq!(body, b"one");
    assert_eq!(trailers, &b"X-Sum: \xfd\r\n"[..]);
}

#[tokio::test]
async fn slow_request_blocks_no_other() {
    let upstream = RawUpstream::start().await;
    let mut gateway = ScriptedGateway::new(offer_for(&upstream)).await;
    gateway.send_request(1, get(&upstream.url)).await;
    let (mut slow, _) = upstream.accept_request().await;
    for number in 2..=50 {
        gateway.send_request(number, get(&upstream.url)).await;
        let (mut stream, _) = upstream.accept_request().await;
        write_bytes(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n").await;
        write_bytes(&mut stream, "connection: close\r\n\r\nok").await;
        assert_eq!(gateway.status(number).await, 200);
        assert_eq!(gateway.read_body(number).await.0, b"ok");
    }
    write_bytes(&mut slow, "HTTP/1.1 204 No\r\n\r\n").await;
    assert_eq!(gateway.status(1).await, 204);
}

#[tokio::test]
async fn chunked_upload_streams_with_trailers() {
    let upstream = RawUpstream::start().await;
    let mut gateway = ScriptedGateway::new(offer_for(&upstream)).await;
    gateway.send_request(1, post(&upstream.url, None)).await;
    let (mut stream, head) = upstream.accept_request().await;
    assert!(head.contains("transfer-encoding: chunked\r\n"), "{head}");
    gateway.send(1, 0, "one").await;
    assert_eq!(read_bytes(&mut stream, 8).await, b"3\r\none\r\n");
    gateway.send(1, 3, "more").await;
    assert_eq!(read_bytes(&mut stream, 9).await, b"4\r\nmore\r\n");
    gateway.end(1, 7, "x-sum: 7\r\n").await;
    assert_eq!(read_bytes(&mut stream, 15).await, b"0\r\nx-sum: 7\r\n\r\n");
    write_bytes(&mut stream, "HTTP/1.1 204 No\r\n\r\n").await;
    assert_eq!(gateway.status(1).await, 204);
}

#[tokio::test]
async fn long_upload_stays_within_credit() {
    const LENGTH: usize = 8 << 20;
    let upstream = RawUpstream::start().await;
    let offer = offer_for(&upstream);
    let (servant, tasks) = new_service(offer.clone());
    let (mut gateway, hello, _) = ScriptedGateway::open(&servant, &tasks, &offer, "one").await;
    let asked = post(&upstream.url, Some(LENGTH as u64));
    gateway.send_request(1, asked).await;
    let reading = spawn_task(async move {
        let (mut stream, _) = upstream.accept_request().await;
        let body = read_bytes(&mut stream, LENGTH).await;
        write_bytes(&mut stream, "HTTP/1.1 204 No\r\n\r\n").await;
        body
    });
    let body: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8).collect();
    let mut credit = usize::try_from(hello.credit).unwrap();
    let mut sent = 0;
    while sent < LENGTH {
        while credit == 0 {
            match gateway.next().await {
                ExecutorFrame::Credit { stream: 1, bytes } => {
                    credit += usize::try_from(bytes).unwrap()
                }
                other => panic!("{other:?}"),
            }
        }
        let count = credit.min(60_000).min(LENGTH - sent);
        let piece = &body[sent..sent + count];
        gateway.send(1, sent as u64, piece.to_vec()).await;
        sent += count;
        credit -= count;
    }
    gateway.end(1, LENGTH as u64, "").await;
    assert_eq!(gateway.status(1).await, 204);
    assert!(reading.await.unwrap() == body);
}

#[tokio::test]
async fn upload_continues_while_response_is_unread() {
    let upstream = RawUpstream::start().await;
    let mut gateway = ScriptedGateway::new(offer_for(&upstream)).await;
    let asked = RequestHead {
        credit: 0,
        ..post(&upstream.url, None)
    };
    gateway.send_request(1, asked).await;
    let (mut stream, _) = upstream.accept_request().await;
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nearly\r\n";
    write_bytes(&mut stream, head).await;
    assert_eq!(gateway.status(1).await, 200);
    // Without credit for the response, the rest of the upload still goes out.
    gateway.send(1, 0, "late").await;
    assert_eq!(read_bytes(&mut stream, 9).await, b"4\r\nlate\r\n");
    gateway.end(1, 4, "").await;
    assert_eq!(read_bytes(&mut stream, 5).await, b"0\r\n\r\n");
    write_bytes(&mut stream, "4\r\nlast\r\n0\r\n\r\n").await;
    gateway.credit(1, 100).await;
    assert_eq!(gateway.read_body(1).await.0, b"earlylast");
}
