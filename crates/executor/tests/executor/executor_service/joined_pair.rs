//! Real gateway and real executor: requests through a joined executor.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::error::ExecutionStatus;
use bowline_executor::connection::EGRESS_DENIED;
use bowline_executor::frames::ExecutorHello;
use bowline_executor::{
    CredentialSource, ExecutorAuthenticator, ExecutorOffer, ExecutorRefusal, ExecutorRegistry,
    ExecutorRegistryOptions, run_executor,
};
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::http_client::{
    BodyChunks, HttpClient, HttpError, HttpRequest, RequestBody, SendOptions,
};
use bowline_link::websocket::accept_upgrade;
use bowline_runtime::SystemClock;
use bowline_testkit::{
    RawUpstream, poll_for, read_bytes, spawn_task, wait_bounded, wait_closed, write_bytes,
};
use bytes::Bytes;
use http::Method;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::service_rig::*;

const WAIT: SendOptions<'static> = SendOptions {
    connect_by: None,
    first_byte_by: None,
    on_send: &|| {},
};

/// Admits every executor.
#[derive(Debug)]
struct AdmitAnyExecutor;

impl ExecutorAuthenticator for AdmitAnyExecutor {
    fn authenticate(
        &self,
        _: &ExecutorHello,
    ) -> Result<BoxFuture<'static, ExecutorRefusal>, ExecutorRefusal> {
        Ok(Box::pin(std::future::pending()))
    }
}

/// A gateway, and a joined executor.
struct JoinedPair {
    client: Arc<dyn HttpClient>,
    _tasks: [JoinHandle<()>; 2],
}

impl JoinedPair {
    async fn new(offer: ExecutorOffer) -> Self {
        let clock = Arc::new(SystemClock::start());
        let executors = ExecutorRegistry::new(tasks(), clock, ExecutorRegistryOptions::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let door = executors.clone();
        let attending = spawn_task(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let caller = accept_upgrade(stream, now() + Duration::from_secs(10))
                .await
                .unwrap();
            let socket = caller
                .upgrade(door.socket_limits(), &tasks())
                .await
                .unwrap();
            door.serve_executor(socket, "here", &AdmitAnyExecutor).await;
        });
        let running = spawn_task(async move {
            let credential = CredentialSource::from_token("token");
            let _ = run_executor(&url, credential, offer, std::future::pending()).await;
        });
        let until = now() + Duration::from_secs(10);
        // An executor that never joined is unknown, and no event announces the first one.
        poll_for("the executor joins", async || {
            executors.wait_ready("office", until).await.ok()
        })
        .await;
        Self {
            client: executors.http_client("office", "tracker", Vec::new()),
            _tasks: [attending, running],
        }
    }
}

/// A body of numbered bytes, in chunks of varying size.
#[derive(Debug)]
struct CountingBody {
    sent: usize,
    length: usize,
}

fn byte(place: usize) -> u8 {
    (place % 251) as u8
}

impl BodyChunks for CountingBody {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        let count = (self.length - self.sent).min(1 + self.sent % 100_000);
        let from = self.sent;
        self.sent += count;
        let piece: Vec<u8> = (from..self.sent).map(byte).collect();
        Poll::Ready(Some(Ok(piece.into())).filter(|_| count > 0))
    }
}

#[tokio::test]
async fn long_bodies_flow_both_ways_intact() {
    const LENGTH: usize = 6 << 20;
    let upstream = RawUpstream::start().await;
    let both = JoinedPair::new(offer_for(&upstream)).await;
    let to = HttpEndpoint::parse(&upstream.url).unwrap();
    let echo = spawn_task(async move {
        let (mut stream, head) = upstream.accept_request().await;
        assert!(head.contains(&format!("content-length: {LENGTH}\r\n")));
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LENGTH}\r\n\r\n");
        write_bytes(&mut stream, head).await;
        let mut left = LENGTH;
        while left > 0 {
            let piece = read_bytes(&mut stream, left.min(10_000)).await;
            left -= piece.len();
            write_bytes(&mut stream, &piece).await;
        }
    });
    let mut request = HttpRequest::new(Method::POST, &to);
    request.body = RequestBody::Streaming {
        chunks: Box::new(CountingBody {
            sent: 0,
            length: LENGTH,
        }),
        length: Some(LENGTH as u64),
    };
    let mut response = wait_bounded(both.client.send(request, WAIT)).await.unwrap();
    assert_eq!(response.status, 200);
    let mut came = 0;
    while let Some(piece) = wait_bounded(response.body.next_chunk()).await {
        let piece = piece.unwrap();
        let is_right = |(at, found): (usize, &u8)| *found == byte(came + at);
        assert!(piece.iter().enumerate().all(is_right));
        came += piece.len();
    }
    assert_eq!(came, LENGTH);
    echo.await.unwrap();
}

#[tokio::test]
async fn dropped_response_frees_the_upstream() {
    let upstream = RawUpstream::start().await;
    let both = JoinedPair::new(offer_for(&upstream)).await;
    let to = HttpEndpoint::parse(&upstream.url).unwrap();
    for _ in 0..5 {
        let (client, to) = (Arc::clone(&both.client), to.clone());
        let waiting = spawn_task(async move {
            let request = HttpRequest::new(Method::GET, &to);
            client.send(request, WAIT).await.map(drop)
        });
        let (mut stream, _) = upstream.accept_request().await;
        let began = now();
        waiting.abort();
        wait_closed(&mut stream).await;
        tell(&format!("no answer yet: {:?}", began.elapsed()));
    }
    for _ in 0..5 {
        let request = HttpRequest::new(Method::GET, &to);
        let answering = async {
            let (mut stream, _) = upstream.accept_request().await;
            write_bytes(&mut stream, "HTTP/1.1 200 OK\r\n\r\n: on and on\n\n").await;
            stream
        };
        let sending = both.client.send(request, WAIT);
        let (response, mut stream) = wait_bounded(async { tokio::join!(sending, answering) }).await;
        let mut response = response.unwrap();
        let piece = wait_bounded(response.body.next_chunk()).await;
        assert_eq!(piece.unwrap().unwrap(), ": on and on\n\n");
        let began = now();
        drop(response);
        wait_closed(&mut stream).await;
        tell(&format!("in the answer: {:?}", began.elapsed()));
    }
}

#[tokio::test]
async fn executor_refusal_is_not_started() {
    let upstream = RawUpstream::start().await;
    let both = JoinedPair::new(ExecutorOffer::new("office")).await;
    let to = HttpEndpoint::parse(&upstream.url).unwrap();
    let request = HttpRequest::new(Method::GET, &to);
    let error = wait_bounded(both.client.send(request, WAIT))
        .await
        .unwrap_err();
    let HttpError::RemoteFailure(failure) = error else {
        panic!("{error:?}");
    };
    assert_eq!(&*failure.code, EGRESS_DENIED);
    assert_eq!(failure.execution, ExecutionStatus::NotStarted);
    upstream.assert_unused().await;
}
