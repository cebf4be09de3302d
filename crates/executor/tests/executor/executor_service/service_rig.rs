//! An executor service between a scripted gateway and scripted servers.

use std::sync::Arc;

use bowline_core::egress::EgressRule;
use bowline_executor::flow::FlowLimits;
use bowline_executor::frames::{
    ExecutorFrame, ExecutorHello, OpenSession, OpenSessionReply, RequestHead, StreamFault, VERSION,
};
use bowline_executor::{ExecutorOffer, ExecutorService, ServiceError};
use bowline_link::websocket::{
    DisconnectReason, WebSocketReceiver, WebSocketRole, WebSocketSender, open_websocket,
};
use bowline_runtime::{SystemClock, TaskTracker};
use bowline_testkit::{RawUpstream, spawn_task, tcp_pair, wait_bounded};
use bytes::Bytes;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub(super) fn new_service(offer: ExecutorOffer) -> (ExecutorService, TaskTracker) {
    let tasks = TaskTracker::default();
    let clock = Arc::new(SystemClock::start());
    (ExecutorService::new(offer, tasks.clone(), clock), tasks)
}

#[expect(clippy::disallowed_methods, reason = "tests")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Prints a figure.
#[expect(clippy::print_stdout, reason = "tests")]
pub(super) fn tell(figure: &str) {
    println!("{figure}");
}

pub(super) fn tasks() -> TaskTracker {
    TaskTracker::default()
}

/// A scripted gateway.
pub(super) struct ScriptedGateway {
    pub(super) outgoing: WebSocketSender,
    pub(super) incoming: WebSocketReceiver,
    pub(super) attending: JoinHandle<ServiceError>,
}

impl ScriptedGateway {
    /// Connects, before any frame.
    pub(super) async fn connect(
        servant: &ExecutorService,
        tasks: &TaskTracker,
        offer: &ExecutorOffer,
    ) -> Self {
        let (ours, theirs) = tcp_pair().await;
        let limits = offer.limits.socket;
        let theirs = open_websocket(theirs, WebSocketRole::Client, Bytes::new(), limits, tasks);
        let socket = open_websocket(ours, WebSocketRole::Server, Bytes::new(), limits, tasks);
        let servant = servant.clone();
        let attending = spawn_task(async move { servant.serve_gateway(theirs).await });
        Self {
            outgoing: socket.sender,
            incoming: socket.receiver,
            attending,
        }
    }

    /// Connects and performs the handshake.
    pub(super) async fn open(
        servant: &ExecutorService,
        tasks: &TaskTracker,
        offer: &ExecutorOffer,
        session: &str,
    ) -> (Self, ExecutorHello, OpenSessionReply) {
        let mut gateway = Self::connect(servant, tasks, offer).await;
        let hello = match gateway.next().await {
            ExecutorFrame::Hello(hello) => hello,
            other => panic!("{other:?}"),
        };
        let open = OpenSession {
            protocol_version: VERSION,
            session: session.into(),
            marks: Vec::new(),
        };
        gateway.send_frame(ExecutorFrame::OpenSession(open)).await;
        match gateway.next().await {
            ExecutorFrame::OpenSessionReply(opened) => (gateway, hello, opened),
            other => panic!("{other:?}"),
        }
    }

    /// Connects to a new service.
    pub(super) async fn new(offer: ExecutorOffer) -> Self {
        let (servant, tasks) = new_service(offer.clone());
        Self::open(&servant, &tasks, &offer, "one").await.0
    }

    pub(super) async fn send_frame(&self, frame: ExecutorFrame) {
        wait_bounded(self.outgoing.send(frame.to_bytes()))
            .await
            .unwrap();
    }

    pub(super) async fn send_request(&self, stream: u64, head: RequestHead) {
        self.send_frame(ExecutorFrame::Request { stream, head })
            .await;
    }

    pub(super) async fn send(&self, stream: u64, offset: u64, bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        self.send_frame(ExecutorFrame::Data {
            stream,
            offset,
            bytes,
        })
        .await;
    }

    pub(super) async fn end(&self, stream: u64, offset: u64, trailers: &'static str) {
        let trailers = Bytes::from_static(trailers.as_bytes());
        self.send_frame(ExecutorFrame::End {
            stream,
            offset,
            trailers,
        })
        .await;
    }

    pub(super) async fn credit(&self, stream: u64, bytes: u64) {
        self.send_frame(ExecutorFrame::Credit { stream, bytes })
            .await;
    }

    pub(super) async fn next(&mut self) -> ExecutorFrame {
        let message = wait_bounded(self.incoming.next()).await.unwrap();
        ExecutorFrame::parse(&message).unwrap()
    }

    /// Disconnects silently; returns the task that serves the connection.
    pub(super) fn disconnect(self) -> JoinHandle<ServiceError> {
        self.outgoing.close(1011, "");
        self.attending
    }

    /// Waits for the end of the connection.
    pub(super) async fn wait_ended(&mut self) -> DisconnectReason {
        loop {
            if let Err(ended) = wait_bounded(self.incoming.next()).await {
                return ended;
            }
        }
    }

    /// Waits for a response head; credit may arrive before.
    pub(super) async fn status(&mut self, number: u64) -> u16 {
        loop {
            match self.next().await {
                ExecutorFrame::Response { stream, head } if stream == number => {
                    return head.status;
                }
                ExecutorFrame::Credit { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Waits for the next data frame.
    pub(super) async fn next_data(&mut self, number: u64) -> (u64, Bytes) {
        match self.next().await {
            ExecutorFrame::Data {
                stream,
                offset,
                bytes,
            } if stream == number => (offset, bytes),
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the fault of a stream.
    pub(super) async fn next_fault(&mut self, number: u64) -> StreamFault {
        loop {
            match self.next().await {
                ExecutorFrame::Fault { stream, fault } if stream == number => return fault,
                ExecutorFrame::End { stream, .. } if stream == number => panic!("it did not fail"),
                _ => {}
            }
        }
    }

    /// Reads the response of the only stream to the end, and checks every offset.
    pub(super) async fn read_body(&mut self, number: u64) -> (Vec<u8>, Bytes) {
        let mut body = Vec::new();
        loop {
            match self.next().await {
                ExecutorFrame::Data {
                    stream,
                    offset,
                    bytes,
                } if stream == number => {
                    assert_eq!(offset, body.len() as u64);
                    body.extend_from_slice(&bytes);
                }
                ExecutorFrame::End {
                    stream,
                    offset,
                    trailers,
                } if stream == number => {
                    assert_eq!(offset, body.len() as u64);
                    return (body, trailers);
                }
                ExecutorFrame::Credit { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A request without a body, with credit for a response.
pub(super) fn get(url: &str) -> RequestHead {
    RequestHead {
        server: "tracker".into(),
        credit: FlowLimits::default().first_bytes,
        body_len: Some(0),
        method: "GET".into(),
        url: url.into(),
        ..RequestHead::default()
    }
}

/// Returns an offer that allows this upstream.
pub(super) fn offer_for(upstream: &RawUpstream) -> ExecutorOffer {
    let rule = format!("localhost:{}", upstream.address().port());
    let mut offer = ExecutorOffer::new("office");
    offer.egress.all = vec![EgressRule::parse(&rule).unwrap()];
    offer
}
