//! A tunnel with a scripted executor.

use std::sync::Arc;

use bowline_core::error::ExecutionStatus;
use bowline_executor::connection::{
    ExecutorConnection as _, ExecutorRequest, ExecutorSession, ExecutorTunnel, receive_hello,
};
use bowline_executor::flow::FlowLimits;
use bowline_executor::frames::{
    ExecutorFrame, ExecutorHello, OpenSession, OpenSessionReply, RequestHead, ResponseHead,
    StreamFault, StreamFaultCode, VERSION,
};
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::http_client::{
    HttpError, HttpRequest as Request, HttpResponse, RequestBody, SendOptions,
};
use bowline_link::websocket::{
    DisconnectReason, MessageFormat, WebSocketConnection, WebSocketLimits, accept_upgrade, dial,
};
use bowline_testkit::{DetachedSpawner, spawn_task, test_deadline, wait_bounded};
use bytes::Bytes;
use http::Method;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Initial credit of a request body.
pub(crate) const CREDIT: u64 = 64 * 1024;

pub(crate) fn test_limits() -> WebSocketLimits {
    WebSocketLimits {
        format: MessageFormat::Binary,
        ..WebSocketLimits::default()
    }
}

/// The scripted executor.
#[derive(Debug)]
pub(crate) struct ScriptedExecutor {
    pub(crate) socket: WebSocketConnection,
}

/// Returns both ends of a connection dialled by the executor.
pub(crate) async fn socket_pair(ours: WebSocketLimits) -> (WebSocketConnection, ScriptedExecutor) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/executor", listener.local_addr().unwrap());
    let endpoint = HttpEndpoint::parse(&url).unwrap();
    let accepting = async {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let caller = accept_upgrade(stream, test_deadline()).await.unwrap();
        assert_eq!(caller.parts.uri.path(), "/executor");
        caller.upgrade(ours, &DetachedSpawner).await.unwrap()
    };
    let dialling = dial(
        &endpoint,
        Some("token"),
        test_deadline(),
        test_limits(),
        &DetachedSpawner,
    );
    let (gateway, executor) = tokio::join!(accepting, dialling);
    let socket = executor.unwrap();
    (gateway, ScriptedExecutor { socket })
}

/// Returns a tunnel dialled by the gateway.
pub(crate) async fn dialed_tunnel_pair() -> (Arc<ExecutorTunnel>, ScriptedExecutor) {
    let (socket, gateway) = socket_pair(test_limits()).await;
    let mut script = ScriptedExecutor { socket };
    let (hello, session) = (test_hello(), new_session(FlowLimits::default()));
    let gateway = open_tunnel(gateway.socket, session);
    let (tunnel, _) = tokio::join!(gateway, script.complete_handshake(&hello));
    (tunnel.unwrap(), script)
}

pub(crate) fn test_hello() -> ExecutorHello {
    ExecutorHello {
        protocol_version: VERSION,
        name: "office".into(),
        instance: "first".into(),
        software: "script/1".into(),
        servers: vec!["files".into()],
        secrets: vec!["tracker".into()],
        streams_max: 1_024,
        credit: CREDIT,
    }
}

pub(crate) fn new_session(flow: FlowLimits) -> Arc<ExecutorSession> {
    ExecutorSession::new("session".into(), "first".into(), flow)
}

/// Returns an open tunnel.
pub(crate) async fn tunnel_pair() -> (Arc<ExecutorTunnel>, ScriptedExecutor) {
    tunnel_pair_with(test_hello(), FlowLimits::default(), test_limits()).await
}

pub(crate) async fn tunnel_pair_with(
    hello: ExecutorHello,
    flow: FlowLimits,
    ours: WebSocketLimits,
) -> (Arc<ExecutorTunnel>, ScriptedExecutor) {
    let (gateway, mut script) = socket_pair(ours).await;
    let opened = script.complete_handshake(&hello);
    let (tunnel, _) = tokio::join!(open_tunnel(gateway, new_session(flow)), opened);
    (tunnel.unwrap(), script)
}

/// Performs the gateway side of the handshake.
pub(crate) async fn open_tunnel(
    mut socket: WebSocketConnection,
    session: Arc<ExecutorSession>,
) -> Result<Arc<ExecutorTunnel>, bowline_executor::connection::ExecutorHandshakeError> {
    let outgoing = socket.sender.clone();
    let greeted = receive_hello(&mut socket.receiver).await;
    let opened = match greeted {
        Ok(hello) => ExecutorTunnel::open(&hello, session.attach(), socket, &DetachedSpawner).await,
        Err(error) => Err(error),
    };
    if let Err(error) = &opened {
        error.close_connection(&outgoing);
    }
    opened.map(Arc::new)
}

impl ScriptedExecutor {
    pub(crate) async fn send_frame(&self, frame: ExecutorFrame) {
        self.socket.sender.send(frame.to_bytes()).await.unwrap();
    }

    /// Returns the next frame.
    pub(crate) async fn next_frame(&mut self) -> ExecutorFrame {
        let message = wait_bounded(self.socket.receiver.next()).await.unwrap();
        ExecutorFrame::parse(&message).unwrap()
    }

    /// Returns the disconnect reason, expected next.
    pub(crate) async fn wait_disconnect(&mut self) -> DisconnectReason {
        wait_bounded(self.socket.receiver.next()).await.unwrap_err()
    }

    /// Performs the executor side of the handshake.
    pub(crate) async fn complete_handshake(&mut self, hello: &ExecutorHello) -> OpenSession {
        self.send_frame(ExecutorFrame::Hello(hello.clone())).await;
        let ExecutorFrame::OpenSession(open) = self.next_frame().await else {
            panic!("no open");
        };
        self.send_frame(ExecutorFrame::OpenSessionReply(OpenSessionReply::default()))
            .await;
        open
    }

    /// Returns the next request; its body is not read.
    pub(crate) async fn receive_request(&mut self) -> (u64, RequestHead) {
        match self.next_frame().await {
            ExecutorFrame::Request { stream, head } => (stream, head),
            other => panic!("no request: {other:?}"),
        }
    }

    /// Returns the stream of the next request without a body.
    pub(crate) async fn receive_bodyless_request(&mut self) -> u64 {
        let (stream, _) = self.receive_request().await;
        let ExecutorFrame::End { offset: 0, .. } = self.next_frame().await else {
            panic!("a body");
        };
        stream
    }

    pub(crate) async fn send_head(&self, stream: u64) {
        let head = ResponseHead {
            status: 200,
            header_lines: Bytes::from_static(b"content-type: text/plain\r\n"),
        };
        self.send_frame(ExecutorFrame::Response { stream, head })
            .await;
    }

    pub(crate) async fn send_data(&self, stream: u64, offset: u64, bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        self.send_frame(ExecutorFrame::Data {
            stream,
            offset,
            bytes,
        })
        .await;
    }

    pub(crate) async fn send_end(&self, stream: u64, offset: u64) {
        let trailers = Bytes::new();
        self.send_frame(ExecutorFrame::End {
            stream,
            offset,
            trailers,
        })
        .await;
    }

    pub(crate) async fn send_fault(
        &self,
        stream: u64,
        code: StreamFaultCode,
        execution: ExecutionStatus,
    ) {
        let fault = StreamFault {
            code,
            execution,
            reason: "because".into(),
        };
        self.send_frame(ExecutorFrame::Fault { stream, fault })
            .await;
    }

    /// Responds with a single chunk and the end.
    pub(crate) async fn respond_whole(&self, stream: u64, body: &'static str) {
        self.send_head(stream).await;
        self.send_data(stream, 0, body).await;
        self.send_end(stream, u64::try_from(body.len()).unwrap())
            .await;
    }
}

/// Sends a request without a body.
pub(crate) async fn send_get(
    tunnel: &ExecutorTunnel,
    path: &str,
) -> Result<HttpResponse, HttpError> {
    send_request(tunnel, path, RequestBody::default()).await
}

pub(crate) async fn send_request(
    tunnel: &ExecutorTunnel,
    path: &str,
    body: RequestBody<'_>,
) -> Result<HttpResponse, HttpError> {
    let to = HttpEndpoint::parse(&format!("http://inside.example{path}")).unwrap();
    let mut request = Request::new(Method::POST, &to);
    request.body = body;
    let errand = ExecutorRequest {
        server: "tracker",
        request,
        secret_headers: &[],
    };
    let wait = SendOptions {
        connect_by: Some(test_deadline()),
        first_byte_by: Some(test_deadline()),
        on_send: &|| {},
    };
    wait_bounded(tunnel.send_request(errand, wait)).await
}

/// Starts a request in the background.
pub(crate) fn start_get(
    tunnel: &Arc<ExecutorTunnel>,
) -> JoinHandle<Result<HttpResponse, HttpError>> {
    let tunnel = Arc::clone(tunnel);
    spawn_task(async move { send_get(&tunnel, "/a?b=c").await })
}

/// Reads all chunks; returns the chunks and the final error, if any.
pub(crate) async fn read_chunks(response: &mut HttpResponse) -> (Vec<Bytes>, Option<HttpError>) {
    let mut pieces = Vec::new();
    loop {
        match wait_bounded(response.body.next_chunk()).await {
            Some(Ok(piece)) => pieces.push(piece),
            Some(Err(error)) => return (pieces, Some(error)),
            None => return (pieces, None),
        }
    }
}

pub(crate) async fn read_text(response: &mut HttpResponse) -> String {
    let whole = wait_bounded(response.body.read_whole(1024 * 1024))
        .await
        .unwrap();
    String::from_utf8(whole.to_vec()).unwrap()
}
