//! Size limits and timeouts of an HTTP link.

use std::net::TcpListener;

use ::http::Method;
use bowline_core::error::ExecutionStatus;
use bowline_link::http::http_client::HttpRequest;
use bowline_testkit::wait_bounded;

use super::*;

const BYTES_MAX: usize = 8 * 1024 * 1024;

#[tokio::test]
async fn body_over_eight_mebibytes_is_refused() {
    let mut scene = HttpScene::new().await;
    let call = scene.start_call();
    let seen = scene.server.next_post().await;
    let body = scripted_server::result_body(&seen.id(), &format!("\"{}\"", "x".repeat(BYTES_MAX)));
    let writing = spawn_task(async move {
        let mut seen = seen;
        let head = format!(
            "Content-Type: application/json\r\nContent-Length: {}",
            body.len()
        );
        let _ = seen
            .write_open(&format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n"))
            .await;
        seen.try_write(&body).await;
    });
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(
        error,
        LinkError::TooLong {
            bytes_max: BYTES_MAX
        }
    );
    wait_bounded(writing).await.unwrap();
}

#[tokio::test]
async fn body_under_eight_mebibytes_arrives_whole() {
    let mut scene = HttpScene::new().await;
    let call = scene.start_call();
    let seen = scene.server.next_post().await;
    let value = format!("\"{}\"", "x".repeat(BYTES_MAX - 100));
    spawn_task({
        let value = value.clone();
        async move { seen.respond_result(&value).await }
    });
    assert_eq!(response_text(call.await.unwrap()), result_text(&value));
}

#[tokio::test]
async fn large_lists_are_read_in_turn() {
    let mut scene = HttpScene::new().await;
    let value = format!("\"{}\"", "x".repeat(BYTES_MAX + 1024 * 1024));
    let first = scene.start_request(test_request("tools/list"));
    let mut seen = scene.server.next_post().await;
    let body = scripted_server::result_body(&seen.id(), &value);
    let (start, rest) = body.split_at(BYTES_MAX + 1024 * 512);
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    seen.write_open(&head).await;
    // All but the last chunk: the first large list is being read.
    assert!(seen.try_write(start).await);
    let second = scene.start_request(test_request("tools/list"));
    let mut other = scene.server.next_post().await;
    let (part_sender, part_sent) = tokio::sync::oneshot::channel();
    let writing = spawn_task({
        let value = value.clone();
        async move {
            other.start_stream().await;
            let data = scripted_server::result_body(&other.id(), &value);
            let event = format!("data: {data}\n\n");
            let chunk = format!("{:x}\r\n{event}\r\n", event.len());
            let (part, rest) = chunk.split_at(BYTES_MAX);
            let sent = other.try_write(part).await;
            part_sender.send(()).unwrap();
            sent && other.try_write(rest).await
        }
    });
    // The second list is read up to the size that needs a turn.
    wait_bounded(part_sent).await.unwrap();
    assert!(!second.is_finished(), "its rest waits for the first one");
    seen.try_write(rest).await;
    assert_eq!(response_text(first.await.unwrap()), result_text(&value));
    assert_eq!(response_text(second.await.unwrap()), result_text(&value));
    assert!(wait_bounded(writing).await.unwrap());
}

#[tokio::test]
async fn endless_event_line_is_refused() {
    let mut scene = HttpScene::new().await;
    let call = scene.start_call();
    let mut seen = scene.server.next_post().await;
    seen.start_stream().await;
    let writing = spawn_task(async move {
        let piece = "x".repeat(64 * 1024);
        let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
        while seen.try_write(&chunk).await {}
    });
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(
        error,
        LinkError::TooLong {
            bytes_max: BYTES_MAX
        }
    );
    wait_bounded(writing).await.unwrap();
}

#[tokio::test]
async fn endless_headers_are_refused() {
    for header in [
        "X-A: b\r\n".repeat(64),
        format!("X-A: {}", "b".repeat(4096)),
    ] {
        let mut scene = HttpScene::new().await;
        let call = scene.start_call();
        let mut seen = scene.server.next_post().await;
        seen.write_open("HTTP/1.1 200 OK\r\n").await;
        let writing = spawn_task(async move { while seen.try_write(&header).await {} });
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error, LinkError::BadHead(_)), "{error:?}");
        assert_eq!(error.execution(), ExecutionStatus::Unknown);
        wait_bounded(writing).await.unwrap();
    }
}

#[tokio::test]
async fn non_message_body_is_previewed() {
    let mut scene = HttpScene::new().await;
    let call = scene.start_call();
    let page = format!("<h1>{}</h1>", "y".repeat(20_000));
    let seen = scene.server.next_post().await;
    seen.respond(200, "Content-Type: text/html\r\n", &page)
        .await;
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.execution(), ExecutionStatus::Unknown);
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
async fn mismatched_json_is_no_response() {
    let mut scene = HttpScene::new().await;
    for body in [
        r#"{"jsonrpc":"2.0","id":999,"result":1}"#,
        "{}",
        "nonsense",
        "",
    ] {
        let call = scene.start_call();
        scene.server.next_post().await.respond_json(body).await;
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error, LinkError::BadResponse(_)), "{error:?}");
    }
}

#[tokio::test]
async fn unanswered_handshake_times_out() {
    let mut server = ScriptedServer::start().await;
    let connecting = spawn_task(connect_within(
        http_spec(&server),
        Duration::from_millis(300),
    ));
    let held = server.next_post().await;
    let error = connecting.await.unwrap().unwrap_err();
    assert!(
        matches!(error, LinkConnectError::HandshakeTimeout { .. }),
        "{error:?}"
    );
    drop(held);
}

#[tokio::test]
async fn connect_timeout_means_not_sent() {
    // A listener that never accepts: connecting hangs once the backlog is full.
    let full = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = full.local_addr().unwrap();
    let mut queued = Vec::new();
    let limit = Duration::from_millis(300);
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, limit) {
        queued.push(stream);
    }
    let limits = HttpClientLimits {
        connect: limit,
        ..HttpClientLimits::default()
    };
    let client = Http1Client::new(limits).unwrap();
    let wait = http::http_client::SendOptions {
        connect_by: None,
        first_byte_by: None,
        on_send: &|| panic!("nothing may leave"),
    };
    let to = HttpEndpoint::parse(&format!("http://{address}/")).unwrap();
    let sent = client.send(HttpRequest::new(Method::GET, &to), wait);
    let error = wait_bounded(sent).await.unwrap_err();
    assert_eq!(error, http::http_client::HttpError::ConnectTimeout);
    assert_eq!(error.execution(), ExecutionStatus::NotStarted);
}

#[tokio::test]
async fn plain_server_is_unreachable_over_https() {
    let plain = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = plain.local_addr().unwrap();
    spawn_task(async move {
        let (mut stream, _) = plain.accept().await.unwrap();
        let refusal = b"HTTP/1.1 400 Bad Request\r\n\r\n";
        tokio::io::AsyncWriteExt::write_all(&mut stream, refusal)
            .await
            .unwrap();
        let mut hello = Vec::new();
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut hello).await;
    });
    let wait = http::http_client::SendOptions {
        connect_by: None,
        first_byte_by: None,
        on_send: &|| panic!("nothing may leave"),
    };
    let to = HttpEndpoint::parse(&format!("https://{address}/")).unwrap();
    let client = http_client();
    let sent = client.send(HttpRequest::new(Method::GET, &to), wait);
    let error = wait_bounded(sent).await.unwrap_err();
    assert!(
        matches!(error, http::http_client::HttpError::Unreachable(_)),
        "{error:?}"
    );
}

#[tokio::test]
async fn late_response_head_means_unknown_execution() {
    let mut server = ScriptedServer::start().await;
    let client = http_client();
    let to = HttpEndpoint::parse(&format!("{}/", server.origin)).unwrap();
    let request = HttpRequest::new(Method::GET, &to);
    let wait = http::http_client::SendOptions {
        connect_by: None,
        first_byte_by: Some(deadline_after(Duration::from_millis(200))),
        on_send: &|| {},
    };
    let sending = client.send(request, wait);
    let (sent, seen) = tokio::join!(sending, server.next_get());
    let error = sent.unwrap_err();
    assert_eq!(error, http::http_client::HttpError::FirstByteTimeout);
    assert_eq!(error.execution(), ExecutionStatus::Unknown);
    drop(seen);
}

#[tokio::test]
async fn in_flight_limit_refuses_unsent() {
    let mut scene = HttpScene::with_spec(|spec| spec.limits.in_flight_max = 1).await;
    let call = scene.start_call();
    let seen = scene.server.next_post().await;
    let refused = scene.link.request(test_request("tools/call")).await;
    assert_eq!(refused.unwrap_err(), LinkError::Busy { in_flight_max: 1 });
    // A session renewal is still possible.
    seen.respond_status(404).await;
    scene.server.answer_initialize("two").await;
    scene.server.next_post().await.respond_accepted().await;
    scene.server.next_post().await.respond_result("1").await;
    assert_eq!(response_text(call.await.unwrap()), result_text("1"));
}
