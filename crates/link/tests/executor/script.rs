//! A gateway's connection with an executor whose every frame is said by the test.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::error::Execution;
use bowline_core::flow::FlowLimits;
use bowline_link::executor::{Carrier as _, Errand, Session, Tunnel, greet};
use bowline_link::http::client::{HttpError, Outgoing as Request, Response, Upload, Wait};
use bowline_link::http::endpoint::Endpoint;
use bowline_link::websocket::{Ended, Form, Incoming, Outgoing, SocketLimits, accept, dial};
use bowline_link::{BoxFuture, Spawner};
use bowline_wire::executor::{
    Answered, Asked, Fault, FaultCode, Frame, Hello, Open, Opened, VERSION,
};
use bytes::Bytes;
use http::Method;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// No wait of a test takes longer; a test that does has failed.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// What the executor takes of a request at once.
pub(crate) const CREDIT: u64 = 64 * 1024;

/// Runs tasks, and knows when all have ended.
#[derive(Debug, Default)]
pub(crate) struct Tokio(Mutex<Vec<JoinHandle<()>>>);

impl Spawner for Tokio {
    fn spawn(&self, _: &'static str, task: BoxFuture<'static, ()>) {
        self.0.lock().unwrap().push(start(task));
    }
}

#[expect(clippy::disallowed_methods, reason = "the tests' own spawner")]
pub(crate) fn start<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    tokio::spawn(task)
}

pub(crate) async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, what).await.expect("in time")
}

pub(crate) fn soon() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "the tests' own deadline")]
    let now = Instant::now();
    now + LONG
}

pub(crate) fn limits() -> SocketLimits {
    SocketLimits {
        form: Form::Binary,
        ..SocketLimits::default()
    }
}

/// The executor's end.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) out: Outgoing,
    pub(crate) incoming: Incoming,
}

/// Returns both ends of a new connection: the executor has dialled.
pub(crate) async fn sockets(ours: SocketLimits) -> ((Outgoing, Incoming), Script) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/executor", listener.local_addr().unwrap());
    let endpoint = Endpoint::parse(&url).unwrap();
    let tasks = Tokio::default();
    let accepting = async {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let caller = accept(stream, soon()).await.unwrap();
        assert_eq!(caller.parts.uri.path(), "/executor");
        caller.upgrade(ours, &tasks).await.unwrap()
    };
    let dialling = dial(&endpoint, Some("token"), soon(), limits(), &tasks);
    let (gateway, executor) = tokio::join!(accepting, dialling);
    let (out, incoming) = executor.unwrap();
    (gateway, Script { out, incoming })
}

/// Returns an open connection that the gateway has dialled.
pub(crate) async fn dialled_pair() -> (Arc<Tunnel>, Script) {
    let ((out, incoming), gateway) = sockets(limits()).await;
    let mut script = Script { out, incoming };
    let (hello, session) = (hello(), session(FlowLimits::default()));
    let gateway = join((gateway.out, gateway.incoming), session);
    let (tunnel, _) = tokio::join!(gateway, script.open(&hello));
    (tunnel.unwrap(), script)
}

pub(crate) fn hello() -> Hello {
    Hello {
        v: VERSION,
        name: "office".into(),
        instance: "first".into(),
        software: "script/1".into(),
        servers: vec!["files".into()],
        secrets: vec!["tracker".into()],
        streams_max: 1_024,
        credit: CREDIT,
    }
}

pub(crate) fn session(flow: FlowLimits) -> Arc<Session> {
    Session::new("session".into(), "first".into(), flow)
}

/// Returns an open connection.
pub(crate) async fn pair() -> (Arc<Tunnel>, Script) {
    pair_of(hello(), FlowLimits::default(), limits()).await
}

pub(crate) async fn pair_of(
    hello: Hello,
    flow: FlowLimits,
    ours: SocketLimits,
) -> (Arc<Tunnel>, Script) {
    let (gateway, mut script) = sockets(ours).await;
    let opened = script.open(&hello);
    let (tunnel, _) = tokio::join!(join(gateway, session(flow)), opened);
    (tunnel.unwrap(), script)
}

/// Does the gateway's part of the handshake.
pub(crate) async fn join(
    (outgoing, mut incoming): (Outgoing, Incoming),
    session: Arc<Session>,
) -> Result<Arc<Tunnel>, bowline_link::executor::GreetError> {
    let greeted = greet(&mut incoming).await;
    let opened = match greeted {
        Ok(hello) => {
            let io = (outgoing.clone(), incoming);
            Tunnel::open(&hello, session.attach(), io, &Tokio::default()).await
        }
        Err(error) => Err(error),
    };
    if let Err(error) = &opened {
        error.tell(&outgoing);
    }
    opened.map(Arc::new)
}

impl Script {
    pub(crate) async fn say(&self, frame: Frame) {
        self.out.send(frame.to_bytes()).await.unwrap();
    }

    /// Returns the next frame.
    pub(crate) async fn next(&mut self) -> Frame {
        let message = within(self.incoming.next()).await.unwrap();
        Frame::read(&message).unwrap()
    }

    /// Returns how the connection ended, which is next.
    pub(crate) async fn end(&mut self) -> Ended {
        within(self.incoming.next()).await.unwrap_err()
    }

    /// Does the executor's part of the handshake.
    pub(crate) async fn open(&mut self, hello: &Hello) -> Open {
        self.say(Frame::Hello(hello.clone())).await;
        let Frame::Open(open) = self.next().await else {
            panic!("no open");
        };
        self.say(Frame::Opened(Opened::default())).await;
        open
    }

    /// Returns the next request, of which the body is not read.
    pub(crate) async fn request(&mut self) -> (u64, Asked) {
        match self.next().await {
            Frame::Request { stream, asked } => (stream, asked),
            other => panic!("no request: {other:?}"),
        }
    }

    /// Returns the stream of the next request, which has no body.
    pub(crate) async fn bare(&mut self) -> u64 {
        let (stream, _) = self.request().await;
        let Frame::End { offset: 0, .. } = self.next().await else {
            panic!("a body");
        };
        stream
    }

    pub(crate) async fn answer(&self, stream: u64) {
        let answered = Answered {
            status: 200,
            lines: Bytes::from_static(b"content-type: text/plain\r\n"),
        };
        self.say(Frame::Answer { stream, answered }).await;
    }

    pub(crate) async fn data(&self, stream: u64, offset: u64, bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        self.say(Frame::Data {
            stream,
            offset,
            bytes,
        })
        .await;
    }

    pub(crate) async fn finish(&self, stream: u64, offset: u64) {
        let trailers = Bytes::new();
        self.say(Frame::End {
            stream,
            offset,
            trailers,
        })
        .await;
    }

    pub(crate) async fn fail(&self, stream: u64, code: FaultCode, execution: Execution) {
        let fault = Fault {
            code,
            execution,
            reason: "because".into(),
        };
        self.say(Frame::Failed { stream, fault }).await;
    }

    /// Answers with one piece and ends.
    pub(crate) async fn whole(&self, stream: u64, body: &'static str) {
        self.answer(stream).await;
        self.data(stream, 0, body).await;
        self.finish(stream, u64::try_from(body.len()).unwrap())
            .await;
    }
}

/// Sends a request without a body through a connection.
pub(crate) async fn get(tunnel: &Tunnel, path: &str) -> Result<Response, HttpError> {
    send(tunnel, path, Upload::default()).await
}

pub(crate) async fn send(
    tunnel: &Tunnel,
    path: &str,
    body: Upload<'_>,
) -> Result<Response, HttpError> {
    let to = Endpoint::parse(&format!("http://inside.example{path}")).unwrap();
    let mut request = Request::new(Method::POST, &to);
    request.body = body;
    let errand = Errand {
        server: "tracker",
        request,
        fills: &[],
    };
    let wait = Wait {
        connect: Some(soon()),
        first_byte: Some(soon()),
        leaving: &|| {},
    };
    within(tunnel.carry(errand, wait)).await
}

/// Starts a request in the background.
pub(crate) fn asking(tunnel: &Arc<Tunnel>) -> JoinHandle<Result<Response, HttpError>> {
    let tunnel = Arc::clone(tunnel);
    start(async move { get(&tunnel, "/a?b=c").await })
}

/// Reads pieces to the end; returns them, and why there are no more where that is not the end.
pub(crate) async fn pieces(response: &mut Response) -> (Vec<Bytes>, Option<HttpError>) {
    let mut pieces = Vec::new();
    loop {
        match within(response.body.chunk()).await {
            Some(Ok(piece)) => pieces.push(piece),
            Some(Err(error)) => return (pieces, Some(error)),
            None => return (pieces, None),
        }
    }
}

pub(crate) async fn text(response: &mut Response) -> String {
    let whole = within(response.body.whole(1024 * 1024)).await.unwrap();
    String::from_utf8(whole.to_vec()).unwrap()
}
