//! How an executor and its gateway find each other, whoever dials.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_host::executor::{
    Credential, Door, ListenError, Offer, RunError, RunOptions, Standing, listen, run, run_with,
};
use bowline_link::http::endpoint::Endpoint;
use bowline_link::websocket::{DialError, Ended, Incoming, Outgoing, accept, dial};
use bowline_wire::executor::{FaultCode, Frame, Open, Opened, VERSION};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::rig::*;

/// A gateway that executors join.
struct Joined {
    listener: TcpListener,
    url: String,
}

impl Joined {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        Self { listener, url }
    }

    /// Lets the next caller in; returns the token that it showed, too.
    async fn next(&self) -> (String, Outgoing, Incoming) {
        let (stream, _) = soon(self.listener.accept()).await.unwrap();
        let caller = accept(stream, now() + Duration::from_secs(10));
        let caller = caller.await.unwrap();
        assert_eq!(caller.parts.uri.path(), "/executor");
        let token = caller.parts.headers["authorization"].to_str().unwrap();
        let token = token.to_owned();
        let limits = Offer::new("").limits.socket;
        let (outgoing, incoming) = caller.upgrade(limits, &tasks()).await.unwrap();
        (token, outgoing, incoming)
    }

    /// Lets the next caller in and opens a session.
    async fn open(&self) -> (Outgoing, Incoming, Opened) {
        let (_, outgoing, mut incoming) = self.next().await;
        let (_, opened) = shake(&outgoing, &mut incoming).await;
        (outgoing, incoming, opened)
    }
}

async fn frame(incoming: &mut Incoming) -> Frame {
    Frame::read(&soon(incoming.next()).await.unwrap()).unwrap()
}

/// Opens the session `one`; returns the name of the executor, too.
async fn shake(outgoing: &Outgoing, incoming: &mut Incoming) -> (String, Opened) {
    let Frame::Hello(hello) = frame(incoming).await else {
        panic!("no hello");
    };
    let open = Frame::Open(Open {
        v: VERSION,
        session: "one".into(),
        marks: Vec::new(),
    });
    outgoing.send(open.to_bytes()).await.unwrap();
    let Frame::Opened(opened) = frame(incoming).await else {
        panic!("it did not open");
    };
    (hello.name.to_string(), opened)
}

fn quick() -> RunOptions {
    let soon = Backoff {
        base: Duration::from_millis(1),
        cap: Duration::from_millis(2),
    };
    RunOptions {
        backoff: soon,
        recovery: soon,
        ..RunOptions::default()
    }
}

#[tokio::test]
async fn an_executor_comes_back_with_a_fresh_token_and_its_session_until_it_is_told_not_to() {
    let gateway = Joined::new().await;
    let (servant, _) = servant(Offer::new("office"));
    let mut standing = servant.standing();
    let tokens = AtomicU64::new(0);
    let credential = Credential::reading(move || {
        let number = tokens.fetch_add(1, Ordering::Relaxed);
        Ok(format!("token-{number}\n"))
    });
    let url = gateway.url.clone();
    let running = spawn(async move {
        run_with(&url, &credential, &servant, quick(), std::future::pending()).await
    });
    let (token, outgoing, mut incoming) = gateway.next().await;
    assert_eq!(token, "Bearer token-0");
    assert!(!shake(&outgoing, &mut incoming).await.1.resumed);
    let connected = |how: &Standing| *how == Standing::Connected;
    soon(standing.wait_for(connected)).await.unwrap();
    // Cut without a word.
    outgoing.close(1011, "");
    drop((outgoing, incoming));
    soon(standing.wait_for(|how| matches!(how, Standing::Away(_))))
        .await
        .unwrap();
    let (token, outgoing, mut incoming) = gateway.next().await;
    assert_eq!(token, "Bearer token-1");
    assert!(shake(&outgoing, &mut incoming).await.1.resumed);
    outgoing.close(4001, "another has this name");
    assert_eq!(soon(running).await.unwrap(), Err(RunError::Fenced));
}

#[tokio::test]
async fn an_executor_that_goes_down_tells_what_becomes_of_its_requests() {
    let upstream = Upstream::new().await;
    let gateway = Joined::new().await;
    let (stop, stopped) = oneshot::channel::<()>();
    let (url, offer) = (gateway.url.clone(), upstream.offer());
    let running = spawn(async move {
        let stopped = async { drop(stopped.await) };
        run(&url, Credential::fixed("t"), offer, stopped).await
    });
    let (outgoing, mut incoming, _) = gateway.open().await;
    let ask = Frame::Request {
        stream: 1,
        asked: get(&upstream.url),
    };
    outgoing.send(ask.to_bytes()).await.unwrap();
    let (mut stream, _) = upstream.taken().await;
    drop(stop);
    let Frame::Failed { stream: 1, fault } = frame(&mut incoming).await else {
        panic!("it did not fail");
    };
    assert_eq!(fault.code, FaultCode::Closing);
    let ended = soon(incoming.next()).await.unwrap_err();
    assert!(
        matches!(ended, Ended::Closed { code: 1001, .. }),
        "{ended:?}"
    );
    closed(&mut stream).await;
    soon(running).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_address_that_is_none_is_not_tried() {
    let ran = run("ftp://h", Credential::fixed("t"), Offer::new(""), async {}).await;
    assert!(matches!(ran, Err(RunError::Endpoint(_))), "{ran:?}");
}

/// Says something to a listening executor; returns the status and the rest of the answer.
async fn asks(to: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

#[tokio::test]
async fn only_who_has_the_token_and_is_no_browser_is_let_in() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let (stop, stopped) = oneshot::channel::<()>();
    let listening = spawn(async move {
        let stopped = async { drop(stopped.await) };
        let door = Door::Token(Credential::fixed("secret\n"));
        listen(listener, door, Offer::new("office"), stopped).await
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
        let answer = asks(&at, &request).await;
        let want = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&want), "{path} {headers}: {answer}");
    }
    let limits = Offer::new("").limits.socket;
    let deadline = now() + Duration::from_secs(10);
    let to = Endpoint::parse(&format!("http://{at}/executor")).unwrap();
    let refused = dial(&to, Some("wrong"), deadline, limits, &tasks()).await;
    assert_eq!(refused.unwrap_err(), DialError::Refused { status: 401 });
    let (outgoing, mut incoming) = dial(&to, Some("secret"), deadline, limits, &tasks())
        .await
        .unwrap();
    assert_eq!(shake(&outgoing, &mut incoming).await.0, "office");
    drop(stop);
    let ended = soon(incoming.next()).await.unwrap_err();
    assert!(
        matches!(ended, Ended::Closed { code: 1001, .. }),
        "{ended:?}"
    );
    soon(listening).await.unwrap().unwrap();
}

#[tokio::test]
async fn without_a_token_only_this_machine_is_let_in() {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let listening = listen(listener, Door::Open, Offer::new(""), async {}).await;
    assert!(matches!(listening, Err(ListenError::Exposed)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = format!("http://{}", listener.local_addr().unwrap());
    let to = Endpoint::parse(&to).unwrap();
    let _listening = spawn(listen(
        listener,
        Door::Open,
        Offer::new("here"),
        std::future::pending(),
    ));
    let limits = Offer::new("").limits.socket;
    let deadline = now() + Duration::from_secs(10);
    let io = dial(&to, None, deadline, limits, &tasks()).await;
    let (outgoing, mut incoming) = io.unwrap();
    assert_eq!(shake(&outgoing, &mut incoming).await.0, "here");
}
