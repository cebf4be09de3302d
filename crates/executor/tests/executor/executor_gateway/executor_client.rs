//! The client of one executor, against a real executor.

use std::time::Duration;

use bowline_core::egress::EgressRule;
use bowline_core::error::ExecutionStatus;
use bowline_executor::connection::exec_server_limits;
use bowline_executor::{
    CredentialSource, ExecutorClient, ExecutorClientOptions, ExecutorConnectError,
    ExecutorHttpRequest, ExecutorOffer, ExecutorProtocol, ExecutorRequestError, ListenAuth, listen,
};
use bowline_link::http::http_client::HttpError;
use bowline_link::websocket::accept_upgrade;
use bowline_runtime::TaskTracker;
use bowline_testkit::registry_gateway::quick;
use bowline_testkit::{poll_for, poll_until, spawn_task, test_deadline, wait_bounded};
use http::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// An upstream server, and an executor allowed to reach the server.
struct InnerNetwork {
    server: TcpListener,
    executor: String,
    stop: watch::Sender<bool>,
}

impl InnerNetwork {
    async fn new() -> Self {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let executor = format!("http://{}", listener.local_addr().unwrap());
        let stop = Self::listen(listener, &server);
        Self {
            server,
            executor,
            stop,
        }
    }

    fn listen(listener: TcpListener, server: &TcpListener) -> watch::Sender<bool> {
        let mut offer = ExecutorOffer::new("office");
        let allowed = server.local_addr().unwrap().to_string();
        offer.egress.all = vec![EgressRule::parse(&allowed).unwrap()];
        let door = ListenAuth::Token(CredentialSource::from_token("secret"));
        let (stop, mut stopped) = watch::channel(false);
        spawn_task(async move {
            let shutdown = async move {
                let _ = stopped.wait_for(|stop| *stop).await;
            };
            listen(listener, door, offer, shutdown).await.unwrap();
        });
        stop
    }

    async fn client(&self) -> ExecutorClient {
        let options = ExecutorClientOptions {
            registry: quick(),
            ..ExecutorClientOptions::default()
        };
        let credential = Some(CredentialSource::from_token("secret"));
        let connecting = ExecutorClient::connect(&self.executor, credential, options);
        wait_bounded(connecting).await.unwrap()
    }

    fn request(&self) -> ExecutorHttpRequest {
        let url = format!("http://{}/x", self.server.local_addr().unwrap());
        ExecutorHttpRequest::new(Method::GET, &url)
    }

    /// Accepts a request, and responds with this head.
    async fn accept_request(&self, head: &str) -> TcpStream {
        let (mut stream, _) = wait_bounded(self.server.accept()).await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(wait_bounded(stream.read_u8()).await.unwrap());
        }
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    }
}

const LENGTH: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n";

const CLOSE: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn response_is_read_whole_or_streamed() {
    let inside = InnerNetwork::new().await;
    let client = inside.client().await;
    let asked = spawn_task({
        let (client, request) = (client.clone(), inside.request());
        async move { client.request(request).await }
    });
    let mut stream = inside.accept_request(LENGTH).await;
    stream.write_all(b"whole").await.unwrap();
    let reply = wait_bounded(asked).await.unwrap().unwrap();
    assert_eq!((reply.status.as_u16(), &*reply.body), (200, &b"whole"[..]));
    drop(stream);
    let asked = spawn_task({
        let (client, request) = (client.clone(), inside.request());
        async move { client.request_stream(request).await }
    });
    let mut stream = inside.accept_request(CLOSE).await;
    let (head, mut body) = wait_bounded(asked).await.unwrap().unwrap();
    assert_eq!(head.status, 200);
    for piece in ["one", "two"] {
        stream.write_all(piece.as_bytes()).await.unwrap();
        let came = wait_bounded(body.recv()).await.unwrap().unwrap();
        assert_eq!(came, piece);
    }
    drop(stream);
    assert!(wait_bounded(body.recv()).await.is_none());
}

#[tokio::test]
async fn body_outlives_client_and_drop_cancels() {
    let inside = InnerNetwork::new().await;
    let client = inside.client().await;
    let request = inside.request();
    let asked = spawn_task(async move { client.request_stream(request).await });
    let mut stream = inside.accept_request(CLOSE).await;
    // The client is already dropped.
    let (_, mut body) = wait_bounded(asked).await.unwrap().unwrap();
    stream.write_all(b"on").await.unwrap();
    assert_eq!(wait_bounded(body.recv()).await.unwrap().unwrap(), "on");
    drop(body);
    let mut rest = Vec::new();
    // The server sees the end.
    let _ = wait_bounded(stream.read_to_end(&mut rest)).await;
}

#[tokio::test]
async fn executor_refusal_keeps_its_code() {
    let inside = InnerNetwork::new().await;
    let client = inside.client().await;
    let elsewhere = ExecutorHttpRequest::new(Method::GET, "http://127.0.0.1:9/");
    let error = wait_bounded(client.request(elsewhere)).await.unwrap_err();
    let ExecutorRequestError::Http(HttpError::RemoteFailure(failure)) = error else {
        panic!("{error:?}");
    };
    assert_eq!(&*failure.code, "egress_denied");
    assert_eq!(failure.execution, ExecutionStatus::NotStarted);
    for url in ["ftp://a.example/", "/relative", "file:///etc/passwd"] {
        let error = wait_bounded(client.request(ExecutorHttpRequest::new(Method::GET, url))).await;
        assert!(
            matches!(error, Err(ExecutorRequestError::Endpoint(_))),
            "{url}"
        );
    }
}

#[tokio::test]
async fn request_timeout_limits_silent_server() {
    let inside = InnerNetwork::new().await;
    let client = inside.client().await;
    let request = ExecutorHttpRequest {
        timeout: Some(Duration::from_millis(100)),
        ..inside.request()
    };
    let error = wait_bounded(client.request(request)).await.unwrap_err();
    let timed_out = ExecutorRequestError::Http(HttpError::FirstByteTimeout);
    assert_eq!(error, timed_out);
}

#[tokio::test]
async fn oversized_response_is_abandoned() {
    let inside = InnerNetwork::new().await;
    let options = ExecutorClientOptions {
        body_bytes_max: 10,
        ..ExecutorClientOptions::default()
    };
    let credential = Some(CredentialSource::from_token("secret"));
    let client = ExecutorClient::connect(&inside.executor, credential, options);
    let client = wait_bounded(client).await.unwrap();
    let request = inside.request();
    let asked = spawn_task(async move { client.request(request).await });
    let mut stream = inside.accept_request(CLOSE).await;
    stream.write_all(&[b'x'; 100]).await.unwrap();
    let error = wait_bounded(asked).await.unwrap().unwrap_err();
    let long = HttpError::TooLong { bytes_max: 10 };
    assert_eq!(error, ExecutorRequestError::Http(long));
}

#[tokio::test]
async fn wrong_token_or_address_fails_connect() {
    let inside = InnerNetwork::new().await;
    for (url, token) in [
        (inside.executor.as_str(), "wrong"),
        ("http://127.0.0.1:9", "secret"),
    ] {
        let credential = Some(CredentialSource::from_token(token));
        let options = ExecutorClientOptions::default();
        let error = wait_bounded(ExecutorClient::connect(url, credential, options)).await;
        assert!(
            matches!(error, Err(ExecutorConnectError::Away(_))),
            "{error:?}"
        );
    }
    let none = ExecutorClient::connect("office", None, ExecutorClientOptions::default()).await;
    assert!(matches!(none, Err(ExecutorConnectError::Endpoint(_))));
}

#[tokio::test]
async fn exec_server_receives_client_name() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let options = ExecutorClientOptions {
        protocol: ExecutorProtocol::ExecServer,
        client_name: "notebook".into(),
        registry: quick(),
        ..ExecutorClientOptions::default()
    };
    let connecting = spawn_task(async move { ExecutorClient::connect(&url, None, options).await });
    let (stream, _) = wait_bounded(listener.accept()).await.unwrap();
    let caller = accept_upgrade(stream, test_deadline()).await.unwrap();
    let tasks = TaskTracker::default();
    let socket = caller.upgrade(exec_server_limits(), &tasks).await;
    let mut socket = socket.unwrap();
    let first = wait_bounded(socket.receiver.next()).await.unwrap();
    let first = String::from_utf8(first.to_vec()).unwrap();
    assert!(first.contains(r#""clientName":"notebook""#), "{first}");
    connecting.abort();
}

#[tokio::test]
async fn client_reconnects_to_restarted_executor() {
    let inside = InnerNetwork::new().await;
    let client = inside.client().await;
    inside.stop.send_replace(true);
    let address: std::net::SocketAddr = inside.executor["http://".len()..].parse().unwrap();
    // Connections end with the executor.
    poll_until("the client is disconnected", || !client.status().connected).await;
    let listener = poll_for("the port is free", async || {
        TcpListener::bind(address).await.ok()
    })
    .await;
    let _again = InnerNetwork::listen(listener, &inside.server);
    poll_until("the client is connected again", || {
        client.status().connected
    })
    .await;
    let request = inside.request();
    let asked = spawn_task(async move { client.request(request).await });
    let mut stream = inside.accept_request(LENGTH).await;
    stream.write_all(b"again").await.unwrap();
    assert_eq!(wait_bounded(asked).await.unwrap().unwrap().body, "again");
}
