//! Connection setup between executor and gateway, in both directions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_executor::frames::{
    ExecutorFrame, OpenSession, OpenSessionReply, StreamFaultCode, VERSION,
};
use bowline_executor::{
    CredentialSource, ExecutorOffer, ExecutorRunError, ExecutorRunOptions, ListenAuth, ListenError,
    ServiceStatus, listen, run_executor, run_executor_with,
};
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::websocket::{
    DialError, DisconnectReason, WebSocketReceiver, WebSocketSender, accept_upgrade, dial,
};
use bowline_testkit::{RawUpstream, spawn_task, wait_bounded, wait_closed};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::service_rig::*;

/// A gateway that executors join.
struct JoinListener {
    listener: TcpListener,
    url: String,
}

impl JoinListener {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        Self { listener, url }
    }

    /// Accepts the next executor; also returns the token.
    async fn next(&self) -> (String, WebSocketSender, WebSocketReceiver) {
        let (stream, _) = wait_bounded(self.listener.accept()).await.unwrap();
        let caller = accept_upgrade(stream, now() + Duration::from_secs(10));
        let caller = caller.await.unwrap();
        assert_eq!(caller.parts.uri.path(), "/executor");
        let token = caller.parts.headers["authorization"].to_str().unwrap();
        let token = token.to_owned();
        let limits = ExecutorOffer::new("").limits.socket;
        let socket = caller.upgrade(limits, &tasks()).await.unwrap();
        (token, socket.sender, socket.receiver)
    }

    /// Accepts the next executor and opens a session.
    async fn open(&self) -> (WebSocketSender, WebSocketReceiver, OpenSessionReply) {
        let (_, outgoing, mut incoming) = self.next().await;
        let (_, opened) = shake(&outgoing, &mut incoming).await;
        (outgoing, incoming, opened)
    }
}

async fn frame(incoming: &mut WebSocketReceiver) -> ExecutorFrame {
    ExecutorFrame::parse(&wait_bounded(incoming.next()).await.unwrap()).unwrap()
}

/// Opens the session `one`; also returns the name of the executor.
async fn shake(
    outgoing: &WebSocketSender,
    incoming: &mut WebSocketReceiver,
) -> (String, OpenSessionReply) {
    let ExecutorFrame::Hello(hello) = frame(incoming).await else {
        panic!("no hello");
    };
    let open = ExecutorFrame::OpenSession(OpenSession {
        protocol_version: VERSION,
        session: "one".into(),
        marks: Vec::new(),
    });
    outgoing.send(open.to_bytes()).await.unwrap();
    let ExecutorFrame::OpenSessionReply(opened) = frame(incoming).await else {
        panic!("it did not open");
    };
    (hello.name.to_string(), opened)
}

fn quick() -> ExecutorRunOptions {
    let soon = Backoff {
        base: Duration::from_millis(1),
        cap: Duration::from_millis(2),
    };
    ExecutorRunOptions {
        backoff: soon,
        recovery_backoff: soon,
        ..ExecutorRunOptions::default()
    }
}

#[tokio::test]
async fn executor_reconnects_until_fenced() {
    let gateway = JoinListener::new().await;
    let (servant, _) = new_service(ExecutorOffer::new("office"));
    let mut standing = servant.status();
    let tokens = AtomicU64::new(0);
    let credential = CredentialSource::from_fn(move || {
        let number = tokens.fetch_add(1, Ordering::Relaxed);
        Ok(format!("token-{number}\n"))
    });
    let url = gateway.url.clone();
    let running = spawn_task(async move {
        run_executor_with(&url, &credential, &servant, quick(), std::future::pending()).await
    });
    let (token, outgoing, mut incoming) = gateway.next().await;
    assert_eq!(token, "Bearer token-0");
    assert!(!shake(&outgoing, &mut incoming).await.1.is_resumed);
    let connected = |how: &ServiceStatus| *how == ServiceStatus::Connected;
    wait_bounded(standing.wait_for(connected)).await.unwrap();
    // Cut silently.
    outgoing.close(1011, "");
    drop((outgoing, incoming));
    wait_bounded(standing.wait_for(|how| matches!(how, ServiceStatus::Away(_))))
        .await
        .unwrap();
    let (token, outgoing, mut incoming) = gateway.next().await;
    assert_eq!(token, "Bearer token-1");
    assert!(shake(&outgoing, &mut incoming).await.1.is_resumed);
    outgoing.close(4001, "another has this name");
    assert_eq!(
        wait_bounded(running).await.unwrap(),
        Err(ExecutorRunError::Fenced)
    );
}

#[tokio::test]
async fn closing_executor_fails_its_requests() {
    let upstream = RawUpstream::start().await;
    let gateway = JoinListener::new().await;
    let (stop, stopped) = oneshot::channel::<()>();
    let (url, offer) = (gateway.url.clone(), offer_for(&upstream));
    let running = spawn_task(async move {
        let stopped = async { drop(stopped.await) };
        run_executor(&url, CredentialSource::from_token("t"), offer, stopped).await
    });
    let (outgoing, mut incoming, _) = gateway.open().await;
    let ask = ExecutorFrame::Request {
        stream: 1,
        head: get(&upstream.url),
    };
    outgoing.send(ask.to_bytes()).await.unwrap();
    let (mut stream, _) = upstream.accept_request().await;
    drop(stop);
    let ExecutorFrame::Fault { stream: 1, fault } = frame(&mut incoming).await else {
        panic!("it did not fail");
    };
    assert_eq!(fault.code, StreamFaultCode::Closing);
    let ended = wait_bounded(incoming.next()).await.unwrap_err();
    assert!(
        matches!(ended, DisconnectReason::Closed { code: 1001, .. }),
        "{ended:?}"
    );
    wait_closed(&mut stream).await;
    wait_bounded(running).await.unwrap().unwrap();
}

#[tokio::test]
async fn invalid_address_is_not_dialled() {
    let ran = run_executor(
        "ftp://h",
        CredentialSource::from_token("t"),
        ExecutorOffer::new(""),
        async {},
    )
    .await;
    assert!(matches!(ran, Err(ExecutorRunError::Endpoint(_))), "{ran:?}");
}

/// Sends a raw request to a listening executor; returns the whole response.
async fn send_raw(to: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    wait_bounded(stream.read_to_string(&mut answer))
        .await
        .unwrap();
    answer
}

#[tokio::test]
async fn listener_requires_token_and_no_browser() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let (stop, stopped) = oneshot::channel::<()>();
    let listening = spawn_task(async move {
        let stopped = async { drop(stopped.await) };
        let door = ListenAuth::Token(CredentialSource::from_token("secret\n"));
        listen(listener, door, ExecutorOffer::new("office"), stopped).await
    });
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                   sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for (path, headers, status) in [
        ("/executor", "", "401"),
        ("/executor", "authorization: Bearer wrong\r\n", "401"),
        ("/executor", "authorization: Bearer \r\n", "401"),
        ("/executor", "authorization: Basic secret\r\n", "401"),
        (
            "/executor",
            "authorization: Bearer secret\r\nauthorization: Bearer secret\r\n",
            "401",
        ),
        (
            "/executor",
            "authorization: Bearer secret\r\norigin: http://evil.example\r\n",
            "403",
        ),
        ("/readyz", "origin: http://evil.example\r\n", "403"),
        ("/readyz", "", "200"),
        ("/elsewhere", "authorization: Bearer secret\r\n", "404"),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\n{upgrade}{headers}\r\n");
        let answer = send_raw(&at, &request).await;
        let want = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&want), "{path} {headers}: {answer}");
    }
    let limits = ExecutorOffer::new("").limits.socket;
    let deadline = now() + Duration::from_secs(10);
    let to = HttpEndpoint::parse(&format!("http://{at}/executor")).unwrap();
    let refused = dial(&to, Some("wrong"), deadline, limits, &tasks()).await;
    assert_eq!(refused.unwrap_err(), DialError::Refused { status: 401 });
    let mut socket = dial(&to, Some("secret"), deadline, limits, &tasks())
        .await
        .unwrap();
    assert_eq!(
        shake(&socket.sender, &mut socket.receiver).await.0,
        "office"
    );
    drop(stop);
    let ended = wait_bounded(socket.receiver.next()).await.unwrap_err();
    assert!(
        matches!(ended, DisconnectReason::Closed { code: 1001, .. }),
        "{ended:?}"
    );
    wait_bounded(listening).await.unwrap().unwrap();
}

#[tokio::test]
async fn tokenless_listener_requires_loopback() {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let listening = listen(
        listener,
        ListenAuth::Loopback,
        ExecutorOffer::new(""),
        async {},
    )
    .await;
    assert!(matches!(listening, Err(ListenError::Exposed)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = format!("http://{}", listener.local_addr().unwrap());
    let to = HttpEndpoint::parse(&to).unwrap();
    let _listening = spawn_task(listen(
        listener,
        ListenAuth::Loopback,
        ExecutorOffer::new("here"),
        std::future::pending(),
    ));
    let limits = ExecutorOffer::new("").limits.socket;
    let deadline = now() + Duration::from_secs(10);
    let socket = dial(&to, None, deadline, limits, &tasks()).await;
    let mut socket = socket.unwrap();
    assert_eq!(shake(&socket.sender, &mut socket.receiver).await.0, "here");
}
