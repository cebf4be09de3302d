//! The client of one executor, against an executor as it is.

use std::time::Duration;

use bowline_core::egress::Rule;
use bowline_core::error::Execution;
use bowline_host::executor::{
    ClientOptions, ConnectError, Credential, Door, ExecutorClient, Offer, Protocol, Request,
    RequestError, listen,
};
use bowline_host::tasks::Tasks;
use bowline_link::executor::exec_server_limits;
use bowline_link::http::client::HttpError;
use bowline_link::websocket::accept;
use http::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::rig::{quick, soon, start, within};

/// A server inside, and an executor that may reach it.
struct Inside {
    server: TcpListener,
    executor: String,
    stop: watch::Sender<bool>,
}

impl Inside {
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
        let mut offer = Offer::new("office");
        let allowed = server.local_addr().unwrap().to_string();
        offer.egress.all = vec![Rule::parse(&allowed).unwrap()];
        let door = Door::Token(Credential::fixed("secret"));
        let (stop, mut stopped) = watch::channel(false);
        start(async move {
            let shutdown = async move {
                let _ = stopped.wait_for(|stop| *stop).await;
            };
            listen(listener, door, offer, shutdown).await.unwrap();
        });
        stop
    }

    async fn client(&self) -> ExecutorClient {
        let options = ClientOptions {
            executors: quick(),
            ..ClientOptions::default()
        };
        let credential = Some(Credential::fixed("secret"));
        let connecting = ExecutorClient::connect(&self.executor, credential, options);
        within(connecting).await.unwrap()
    }

    fn request(&self) -> Request {
        let url = format!("http://{}/x", self.server.local_addr().unwrap());
        Request::new(Method::GET, &url)
    }

    /// Takes a request, and answers with this head.
    async fn taken(&self, head: &str) -> TcpStream {
        let (mut stream, _) = within(self.server.accept()).await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(within(stream.read_u8()).await.unwrap());
        }
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    }
}

const LENGTH: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n";

const CLOSE: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn an_answer_is_read_whole_or_piece_by_piece() {
    let inside = Inside::new().await;
    let client = inside.client().await;
    let asked = start({
        let (client, request) = (client.clone(), inside.request());
        async move { client.request(request).await }
    });
    let mut stream = inside.taken(LENGTH).await;
    stream.write_all(b"whole").await.unwrap();
    let reply = within(asked).await.unwrap().unwrap();
    assert_eq!((reply.status.as_u16(), &*reply.body), (200, &b"whole"[..]));
    drop(stream);
    let asked = start({
        let (client, request) = (client.clone(), inside.request());
        async move { client.request_stream(request).await }
    });
    let mut stream = inside.taken(CLOSE).await;
    let (head, mut body) = within(asked).await.unwrap().unwrap();
    assert_eq!(head.status, 200);
    for piece in ["one", "two"] {
        stream.write_all(piece.as_bytes()).await.unwrap();
        let came = within(body.recv()).await.unwrap().unwrap();
        assert_eq!(came, piece);
    }
    drop(stream);
    assert!(within(body.recv()).await.is_none());
}

#[tokio::test]
async fn a_body_outlives_the_client_and_a_dropped_one_frees_the_server() {
    let inside = Inside::new().await;
    let client = inside.client().await;
    let request = inside.request();
    let asked = start(async move { client.request_stream(request).await });
    let mut stream = inside.taken(CLOSE).await;
    // The client is gone by now.
    let (_, mut body) = within(asked).await.unwrap().unwrap();
    stream.write_all(b"on").await.unwrap();
    assert_eq!(within(body.recv()).await.unwrap().unwrap(), "on");
    drop(body);
    let mut rest = Vec::new();
    // The server sees the end.
    let _ = within(stream.read_to_end(&mut rest)).await;
}

#[tokio::test]
async fn what_the_executor_refuses_is_told_by_its_code() {
    let inside = Inside::new().await;
    let client = inside.client().await;
    let elsewhere = Request::new(Method::GET, "http://127.0.0.1:9/");
    let error = within(client.request(elsewhere)).await.unwrap_err();
    let RequestError::Http(HttpError::Elsewhere(failure)) = error else {
        panic!("{error:?}");
    };
    assert_eq!(&*failure.code, "egress_denied");
    assert_eq!(failure.execution, Execution::NotStarted);
    for url in ["ftp://a.example/", "/relative", "file:///etc/passwd"] {
        let error = within(client.request(Request::new(Method::GET, url))).await;
        assert!(matches!(error, Err(RequestError::Endpoint(_))), "{url}");
    }
}

#[tokio::test]
async fn a_server_that_is_silent_is_waited_for_as_long_as_the_request_says() {
    let inside = Inside::new().await;
    let client = inside.client().await;
    let request = Request {
        timeout: Some(Duration::from_millis(100)),
        ..inside.request()
    };
    let error = within(client.request(request)).await.unwrap_err();
    let timed_out = RequestError::Http(HttpError::FirstByteTimeout);
    assert_eq!(error, timed_out);
}

#[tokio::test]
async fn an_answer_that_is_too_long_is_not_read_to_its_end() {
    let inside = Inside::new().await;
    let options = ClientOptions {
        body_bytes_max: 10,
        ..ClientOptions::default()
    };
    let credential = Some(Credential::fixed("secret"));
    let client = ExecutorClient::connect(&inside.executor, credential, options);
    let client = within(client).await.unwrap();
    let request = inside.request();
    let asked = start(async move { client.request(request).await });
    let mut stream = inside.taken(CLOSE).await;
    stream.write_all(&[b'x'; 100]).await.unwrap();
    let error = within(asked).await.unwrap().unwrap_err();
    let long = HttpError::TooLong { bytes_max: 10 };
    assert_eq!(error, RequestError::Http(long));
}

#[tokio::test]
async fn a_wrong_token_or_nobody_there_is_no_connection() {
    let inside = Inside::new().await;
    for (url, token) in [
        (inside.executor.as_str(), "wrong"),
        ("http://127.0.0.1:9", "secret"),
    ] {
        let credential = Some(Credential::fixed(token));
        let options = ClientOptions::default();
        let error = within(ExecutorClient::connect(url, credential, options)).await;
        assert!(matches!(error, Err(ConnectError::Away(_))), "{error:?}");
    }
    let none = ExecutorClient::connect("office", None, ClientOptions::default()).await;
    assert!(matches!(none, Err(ConnectError::Endpoint(_))));
}

#[tokio::test]
async fn exec_server_hears_name_of_client() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let options = ClientOptions {
        protocol: Protocol::ExecServer,
        client_name: "notebook".into(),
        executors: quick(),
        ..ClientOptions::default()
    };
    let connecting = start(async move { ExecutorClient::connect(&url, None, options).await });
    let (stream, _) = within(listener.accept()).await.unwrap();
    let caller = accept(stream, soon()).await.unwrap();
    let tasks = Tasks::default();
    let io = caller.upgrade(exec_server_limits(), &tasks).await;
    let (_out, mut incoming) = io.unwrap();
    let first = within(incoming.next()).await.unwrap();
    let first = String::from_utf8(first.to_vec()).unwrap();
    assert!(first.contains(r#""clientName":"notebook""#), "{first}");
    connecting.abort();
}

#[tokio::test]
async fn a_client_comes_back_when_its_executor_does() {
    let inside = Inside::new().await;
    let client = inside.client().await;
    inside.stop.send_replace(true);
    let address: std::net::SocketAddr = inside.executor["http://".len()..].parse().unwrap();
    // Its connections go with the executor.
    within(async {
        while client.status().connected {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let listener = within(async {
        loop {
            match TcpListener::bind(address).await {
                Ok(listener) => return listener,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    let _again = Inside::listen(listener, &inside.server);
    within(async {
        while !client.status().connected {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let request = inside.request();
    let asked = start(async move { client.request(request).await });
    let mut stream = inside.taken(LENGTH).await;
    stream.write_all(b"again").await.unwrap();
    assert_eq!(within(asked).await.unwrap().unwrap().body, "again");
}
