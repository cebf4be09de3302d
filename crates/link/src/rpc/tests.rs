//! Tests of an RPC connection, with a scripted server.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bowline_core::client_handle::{
    ClientCapabilities, ClientCapability, ClientHandle, ServerRequest, ServerRequestId, SessionKey,
};
use bowline_testkit::{deadline_after, spawn_task, wait_bounded};
use bytes::Bytes;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;
use crate::demux::LinkEventSender;
use crate::link::{LinkEvent, ParamRename};
use crate::stderr::LogSequencer;

mod responses;
mod rpc_limits;
mod sending;
mod server_questions;
mod server_side;

/// A connection with the test as the server.
#[derive(Debug)]
struct RpcScene {
    rpc: Arc<RpcConnection>,
    /// Output to the server.
    heard: BufReader<DuplexStream>,
    /// Input from the server.
    voice: DuplexStream,
    events: mpsc::Receiver<LinkEvent>,
    reader: JoinHandle<()>,
    writer: JoinHandle<()>,
}

type RpcOutcome = Result<ServerResponse, LinkError>;

impl RpcScene {
    fn new() -> Self {
        Self::with_limits(StdioLimits::default(), 64 * 1024)
    }

    /// Creates a connection with a pipe of this capacity to the server.
    fn with_limits(limits: StdioLimits, pipe_bytes: usize) -> Self {
        Self::with_owner(limits, pipe_bytes, None)
    }

    /// Creates a connection owned by a session.
    fn with_owner(
        limits: StdioLimits,
        pipe_bytes: usize,
        owner: Option<Arc<dyn ClientHandle>>,
    ) -> Self {
        let rpc = RpcConnection::new("s".into(), limits, owner);
        let (to_server, heard) = tokio::io::duplex(pipe_bytes);
        let (voice, from_server) = tokio::io::duplex(64 * 1024);
        let (sender, events) = mpsc::channel(limits.events_max);
        let writer = spawn_task(write_loop(rpc.clone(), to_server));
        let stamps = LogSequencer::new(|| 0);
        let reader = spawn_task(read_loop(
            rpc.clone(),
            Arc::new(LinkEventSender::new(sender)),
            stamps,
            from_server,
        ));
        Self {
            rpc,
            heard: BufReader::new(heard),
            voice,
            events,
            reader,
            writer,
        }
    }

    /// Starts a request and waits until the request is pending or waits for room.
    async fn start_call(&self, request: LinkRequest) -> JoinHandle<RpcOutcome> {
        let peer = self.rpc.clone();
        let before = peer.in_flight();
        let mut call = Box::pin(async move { peer.request(request).await });
        // The first poll registers the request, and queues it if there is room.
        let polled = std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
        assert!(polled.is_pending() && self.rpc.in_flight() > before);
        spawn_task(call)
    }

    /// Starts a request and waits until the request is written or blocked in a full pipe.
    async fn start_sent_call(&self, method: &'static str) -> JoinHandle<RpcOutcome> {
        let call = self.start_call(test_request(method)).await;
        loop {
            // Created before the look, so a later wake-up is not missed.
            let freed = self.rpc.room_freed.notified();
            if self.rpc.lock().queue.is_empty() {
                return call;
            }
            freed.await;
        }
    }

    /// Returns the next line at the server.
    async fn read_line(&mut self) -> String {
        let mut line = String::new();
        let read = self.heard.read_line(&mut line);
        wait_bounded(read).await.unwrap();
        assert_eq!(line.pop(), Some('\n'), "lines are whole");
        line
    }

    async fn write_line(&mut self, line: &str) {
        self.voice.write_all(line.as_bytes()).await.unwrap();
        self.voice.write_all(b"\n").await.unwrap();
    }

    /// Responds to a call with the result `"ok N"`.
    async fn respond(&mut self, id: u64) {
        self.write_line(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":"ok {id}"}}"#
        ))
        .await;
    }

    /// Waits until all earlier lines are processed: a ping is answered in order.
    async fn settle(&mut self) {
        self.write_line(r#"{"jsonrpc":"2.0","id":"settled","method":"ping"}"#)
            .await;
        let line = self.read_line().await;
        assert_eq!(line, r#"{"jsonrpc":"2.0","id":"settled","result":{}}"#);
    }
}

/// Returns a request with the caller id `"a"`.
fn test_request(method: &'static str) -> LinkRequest {
    let mut request = LinkRequest::new_internal(
        method,
        Bytes::new(),
        deadline_after(Duration::from_secs(60)),
    );
    request.message.id = Bytes::from_static(b"\"a\"");
    request
}

fn request_with_params(params: impl Into<Bytes>) -> LinkRequest {
    let mut request = test_request("tools/call");
    request.message.params = params.into();
    request
}

fn response_text(outcome: RpcOutcome) -> String {
    String::from_utf8(outcome.unwrap().bytes.to_vec()).unwrap()
}

/// Returns the caller's text for a response of `RpcScene::respond`.
fn ok_text(id: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":"a","result":"ok {id}"}}"#)
}

/// A client that records notifications and server requests.
#[derive(Debug, Default)]
struct RecordingClient {
    session: u64,
    abilities: ClientCapabilities,
    told: Mutex<Vec<Bytes>>,
    asked: Mutex<Vec<ServerRequest>>,
    withdrawn: Mutex<Vec<ServerRequestId>>,
}

impl RecordingClient {
    /// Returns a client of this session with all capabilities.
    fn with_all_capabilities(session: u64) -> Arc<Self> {
        let all = ClientCapability::ALL.into_iter();
        Arc::new(Self {
            session,
            abilities: all.fold(
                ClientCapabilities::default(),
                ClientCapabilities::with_capability,
            ),
            ..Self::default()
        })
    }
}

impl ClientHandle for RecordingClient {
    fn session(&self) -> SessionKey {
        SessionKey(self.session)
    }

    fn capabilities(&self) -> ClientCapabilities {
        self.abilities
    }

    fn notify(&self, notification: Bytes) {
        self.told.lock().unwrap().push(notification);
    }

    fn request(&self, question: ServerRequest) -> Option<ServerRequestId> {
        let mut asked = self.asked.lock().unwrap();
        asked.push(question);
        Some(ServerRequestId(asked.len() as u64))
    }

    fn cancel_request(&self, question: ServerRequestId) {
        self.withdrawn.lock().unwrap().push(question);
    }

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        Self::with_all_capabilities(self.session)
    }
}
