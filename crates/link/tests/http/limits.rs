//! What a server may make us keep, and how long it may make us wait.

use std::net::TcpListener;

use ::http::Method;
use bowline_core::error::Execution;
use bowline_link::http::client::Outgoing;

use super::*;

const BYTES_MAX: usize = 8 * 1024 * 1024;

#[tokio::test]
async fn a_body_of_more_than_eight_mebibytes_is_refused() {
    let mut scene = Scene::new().await;
    let call = scene.call();
    let seen = scene.server.post().await;
    let body = server::result(&seen.id(), &format!("\"{}\"", "x".repeat(BYTES_MAX)));
    let writing = spawn(async move {
        let mut seen = seen;
        let head = format!(
            "Content-Type: application/json\r\nContent-Length: {}",
            body.len()
        );
        let _ = seen
            .writes(&format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n"))
            .await;
        seen.pours(&body).await;
    });
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(
        error,
        LinkError::TooLong {
            bytes_max: BYTES_MAX
        }
    );
    soon(writing).await.unwrap();
}

#[tokio::test]
async fn a_body_of_just_under_eight_mebibytes_arrives_whole() {
    let mut scene = Scene::new().await;
    let call = scene.call();
    let seen = scene.server.post().await;
    let value = format!("\"{}\"", "x".repeat(BYTES_MAX - 100));
    spawn({
        let value = value.clone();
        async move { seen.result(&value).await }
    });
    assert_eq!(text(call.await.unwrap()), answered(&value));
}

#[tokio::test]
async fn nine_mebibyte_lists_are_read_in_turn() {
    let mut scene = Scene::new().await;
    let value = format!("\"{}\"", "x".repeat(BYTES_MAX + 1024 * 1024));
    let first = scene.begin(request("tools/list"));
    let mut seen = scene.server.post().await;
    let body = server::result(&seen.id(), &value);
    let (start, rest) = body.split_at(BYTES_MAX + 1024 * 512);
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    seen.writes(&head).await;
    // All but the last piece: the first list is being read, and longer than usual.
    assert!(seen.pours(start).await);
    let second = scene.begin(request("tools/list"));
    let mut other = scene.server.post().await;
    let writing = spawn({
        let value = value.clone();
        async move {
            other.streams().await;
            let data = server::result(&other.id(), &value);
            let event = format!("data: {data}\n\n");
            other
                .pours(&format!("{:x}\r\n{event}\r\n", event.len()))
                .await
        }
    });
    tokio::task::yield_now().await;
    assert!(!second.is_finished(), "its rest waits for the first one");
    seen.pours(rest).await;
    assert_eq!(text(first.await.unwrap()), answered(&value));
    assert_eq!(text(second.await.unwrap()), answered(&value));
    assert!(soon(writing).await.unwrap());
}

#[tokio::test]
async fn an_event_line_without_end_is_refused() {
    let mut scene = Scene::new().await;
    let call = scene.call();
    let mut seen = scene.server.post().await;
    seen.streams().await;
    let writing = spawn(async move {
        let piece = "x".repeat(64 * 1024);
        let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
        while seen.pours(&chunk).await {}
    });
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(
        error,
        LinkError::TooLong {
            bytes_max: BYTES_MAX
        }
    );
    soon(writing).await.unwrap();
}

#[tokio::test]
async fn headers_without_end_are_refused() {
    for header in [
        "X-A: b\r\n".repeat(64),
        format!("X-A: {}", "b".repeat(4096)),
    ] {
        let mut scene = Scene::new().await;
        let call = scene.call();
        let mut seen = scene.server.post().await;
        seen.writes("HTTP/1.1 200 OK\r\n").await;
        let writing = spawn(async move { while seen.pours(&header).await {} });
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error, LinkError::BadHead(_)), "{error:?}");
        assert_eq!(error.execution(), Execution::Unknown);
        soon(writing).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_no_message_is_shown_in_part() {
    let mut scene = Scene::new().await;
    let call = scene.call();
    let page = format!("<h1>{}</h1>", "y".repeat(20_000));
    let seen = scene.server.post().await;
    seen.answer(200, "Content-Type: text/html\r\n", &page).await;
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.execution(), Execution::Unknown);
    let LinkError::ContentType {
        content_type,
        preview,
    } = error
    else {
        panic!("{error:?}");
    };
    assert_eq!(&*content_type, "text/html");
    assert_eq!(*preview, page[..8 * 1024]);
}

#[tokio::test]
async fn json_that_does_not_answer_the_request_is_no_answer() {
    let mut scene = Scene::new().await;
    for body in [
        r#"{"jsonrpc":"2.0","id":999,"result":1}"#,
        "{}",
        "nonsense",
        "",
    ] {
        let call = scene.call();
        scene.server.post().await.json(body).await;
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error, LinkError::BadAnswer(_)), "{error:?}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_the_handshake_is_given_up_at_the_deadline() {
    let mut server = Server::start().await;
    let connecting = spawn(connect_within(spec(&server), Duration::from_millis(300)));
    let held = server.post().await;
    let error = connecting.await.unwrap().unwrap_err();
    assert!(
        matches!(error, ConnectError::HandshakeTimeout { .. }),
        "{error:?}"
    );
    drop(held);
}

#[tokio::test]
async fn a_connection_that_does_not_come_about_in_time_was_not_sent() {
    // A listener that takes nobody: once its queue is full, connecting hangs.
    let full = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = full.local_addr().unwrap();
    let mut queued = Vec::new();
    let limit = Duration::from_millis(300);
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, limit) {
        queued.push(stream);
    }
    let limits = ClientLimits {
        connect: limit,
        ..ClientLimits::default()
    };
    let client = HyperClient::new(limits).unwrap();
    let wait = http::client::Wait {
        connect: None,
        first_byte: None,
        leaving: &|| panic!("nothing may leave"),
    };
    let to = Endpoint::parse(&format!("http://{address}/")).unwrap();
    let sent = client.send(Outgoing::new(Method::GET, &to), wait);
    let error = soon(sent).await.unwrap_err();
    assert_eq!(error, http::client::HttpError::ConnectTimeout);
    assert_eq!(error.execution(), Execution::NotStarted);
}

#[tokio::test]
async fn a_server_that_speaks_no_tls_is_not_reached_over_https() {
    let plain = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = plain.local_addr().unwrap();
    spawn(async move {
        let (mut stream, _) = plain.accept().await.unwrap();
        let refusal = b"HTTP/1.1 400 Bad Request\r\n\r\n";
        tokio::io::AsyncWriteExt::write_all(&mut stream, refusal)
            .await
            .unwrap();
        let mut hello = Vec::new();
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut hello).await;
    });
    let wait = http::client::Wait {
        connect: None,
        first_byte: None,
        leaving: &|| panic!("nothing may leave"),
    };
    let to = Endpoint::parse(&format!("https://{address}/")).unwrap();
    let client = client();
    let sent = client.send(Outgoing::new(Method::GET, &to), wait);
    let error = soon(sent).await.unwrap_err();
    assert!(
        matches!(error, http::client::HttpError::Unreachable(_)),
        "{error:?}"
    );
}

#[tokio::test]
async fn an_answer_that_does_not_begin_in_time_may_have_run() {
    let mut server = Server::start().await;
    let client = client();
    let to = Endpoint::parse(&format!("{}/", server.origin)).unwrap();
    let request = Outgoing::new(Method::GET, &to);
    let wait = http::client::Wait {
        connect: None,
        first_byte: Some(after(Duration::from_millis(200))),
        leaving: &|| {},
    };
    let sending = client.send(request, wait);
    let (sent, seen) = tokio::join!(sending, server.get());
    let error = sent.unwrap_err();
    assert_eq!(error, http::client::HttpError::FirstByteTimeout);
    assert_eq!(error.execution(), Execution::Unknown);
    drop(seen);
}

#[tokio::test]
async fn too_many_calls_at_once_are_refused_unsent() {
    let mut scene = Scene::with(|spec| spec.limits.in_flight_max = 1).await;
    let call = scene.call();
    let seen = scene.server.post().await;
    let refused = scene.link.request(request("tools/call")).await;
    assert_eq!(refused.unwrap_err(), LinkError::Busy { in_flight_max: 1 });
    // A new session can be made all the same.
    seen.status(404).await;
    scene.server.initializes("two").await;
    scene.server.post().await.accepted().await;
    scene.server.post().await.result("1").await;
    assert_eq!(text(call.await.unwrap()), answered("1"));
}
